"""Virtual time: a Clock over trio's own time, and the one private switch of trio that replay needs.

Leaves the wall clock to `hinet_node.real.system`. Under `virtual_run` trio jumps to the next deadline whenever every
task waits, and picks its tasks in an order that depends on the seed alone.

trio runs the tasks of one batch in a random order on purpose. `_ALLOW_DETERMINISTIC_SCHEDULING` is what trio's own
`hypothesis` support switches on; it is private, so it is used in this file only, and `tests/simnet/test_clock.py` fails
when trio changes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import trio.testing

T = TypeVar("T")

START_UNIX_S = 1_800_000_000.0
"""The wall clock at the start of every simulation."""


class VirtualClock:
    """The wall clock of one node: trio's time plus the node's own offset, which a scenario may change (jumps), and what
    it gains or loses for each second that passes (drift). Waiting and `monotonic_s` follow true time."""

    def __init__(self, *, offset_s: float = 0.0, drift: float = 0.0, start_unix_s: float = START_UNIX_S) -> None:
        self.offset_s = offset_s
        self.drift = drift
        self._start_unix_s = start_unix_s

    def now_unix_s(self) -> float:
        now_s = trio.current_time()
        return self._start_unix_s + now_s * (1.0 + self.drift) + self.offset_s

    def monotonic_s(self) -> float:
        return trio.current_time()


@contextmanager
def _deterministic_scheduling(seed: int) -> Iterator[None]:
    core: Any = trio._core._run  # type: ignore[attr-defined]
    before, state = core._ALLOW_DETERMINISTIC_SCHEDULING, core._r.getstate()
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(seed)
    try:
        yield
    finally:
        core._ALLOW_DETERMINISTIC_SCHEDULING = before
        core._r.setstate(state)


def virtual_run(main: Callable[..., Awaitable[T]], *args: Any, seed: int = 0) -> T:
    """`trio.run` in virtual time: an hour of sleeping takes no time, and one seed replays the order of all tasks."""
    with _deterministic_scheduling(seed):
        return trio.run(main, *args, clock=_still_clock())


def _still_clock() -> trio.testing.MockClock:
    """A MockClock that only jumps. Its own `current_time` asks the processor's clock each time, to no purpose at rate
    0; trio asks it several times for each wake-up."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    now_s = clock.current_time()

    def jump(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    clock.jump = jump  # type: ignore[method-assign]
    clock.current_time = lambda: now_s  # type: ignore[method-assign]
    clock.deadline_to_sleep_time = lambda deadline: 0.0 if deadline <= now_s else 1e9  # type: ignore[method-assign]
    return clock
