"""Virtual time: a Clock over trio's own time, an agenda of what happens when, and what replay needs of trio's inside.

Leaves the wall clock to `hinet_node.real.system`. Under `virtual_run` trio jumps to the next deadline or entry of the
agenda whenever every task waits, and picks its tasks in an order that depends on the seed alone.

trio runs the tasks of one batch in a random order on purpose. `_ALLOW_DETERMINISTIC_SCHEDULING` is what trio's own
`hypothesis` support switches on. And trio's run loop calls `_autojump` of a `MockClock` when nothing can run; ours does
the agenda there, so that a message on its way costs neither a task nor a timer. Both are private, so they are used in
this file only, and `tests/simnet/test_clock.py` fails when trio changes them.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf
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


@contextmanager
def _calm_collector() -> Iterator[None]:
    """Look for cyclic garbage seldom: a world of a thousand nodes is millions of objects that stay, and walking through
    them at Python's usual pace took a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 50_000), 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def hold_task_order() -> Callable[[], None]:
    """For a run that pauses while other runs of trio in this process may go on: the function that it calls when it goes
    on itself, so that its tasks are picked as if it had been alone."""
    core: Any = trio._core._run  # type: ignore[attr-defined]
    state = core._r.getstate()

    def take_up() -> None:
        core._ALLOW_DETERMINISTIC_SCHEDULING = True
        core._r.setstate(state)

    return take_up


def virtual_run(main: Callable[..., Awaitable[T]], *args: Any, seed: int = 0) -> T:
    """`trio.run` in virtual time: an hour of sleeping takes no time, and one seed replays the order of all tasks."""
    with _deterministic_scheduling(seed), _calm_collector():
        return trio.run(main, *args, clock=_Jumps().clock)


def call_at(due_s: float, act: Callable[..., None], *args: Any) -> None:
    """Call `act(*args)` at that time, by trio's clock; those of one time in the order in which they were asked for.

    For the physics only: `act` is quick, does not wait and does not raise. To be used inside `virtual_run`.
    """
    jumps: _Jumps | None = getattr(trio.lowlevel.current_clock(), "jumps", None)
    assert jumps is not None, "the in-memory ports work inside `virtual_run` only"
    jumps.number += 1
    heapq.heappush(jumps.agenda, (due_s, jumps.number, act, args))


class _Jumps:
    """A MockClock that only jumps, and its agenda.

    The methods that trio asks several times for each wake-up are replaced: MockClock's own `current_time` asks the
    processor's clock, to no purpose at rate 0.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.number = 0
        self.agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        clock: Any = trio.testing.MockClock(autojump_threshold=0)
        clock.jumps = self
        clock._autojump = self._jump
        clock.current_time = lambda: self.now_s
        clock.deadline_to_sleep_time = lambda deadline: 0.0 if deadline <= self.now_s else 1e9
        self.clock: trio.testing.MockClock = clock

    def _jump(self) -> None:
        """Nothing can run now: go to what comes next, and do it."""
        deadlines = trio._core._run.GLOBAL_RUN_CONTEXT.runner.deadlines  # type: ignore[attr-defined]
        agenda, deadline_s = self.agenda, deadlines.next_deadline()
        if agenda and agenda[0][0] <= deadline_s:
            self.now_s = max(self.now_s, agenda[0][0])
            while agenda and agenda[0][0] <= self.now_s:
                _, _, act, args = heapq.heappop(agenda)
                act(*args)
        elif deadline_s < inf:
            self.now_s = max(self.now_s, deadline_s)
        deadlines.expire(self.now_s)
