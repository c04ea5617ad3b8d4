"""Virtual time, and the private switch of trio that replay stands on: if trio changes it, these fail."""

from __future__ import annotations

import gc
import inspect
import time

import pytest
import trio
import trio.testing

from hinet_simnet.clock import START_UNIX_S, VirtualClock, call_at, virtual_run


async def order() -> list[int]:
    """The order in which twenty tasks that are ready together run."""
    found: list[int] = []

    async def task(number: int) -> None:
        for _ in range(3):
            found.append(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(task, number)
    return found


def test_one_seed_gives_one_order_of_tasks_and_seeds_differ() -> None:
    assert virtual_run(order, seed=1) == virtual_run(order, seed=1)
    assert len({tuple(virtual_run(order, seed=seed)) for seed in range(5)}) == 5


def test_trio_still_has_the_switch_and_reads_it() -> None:
    core = trio._core._run
    assert isinstance(core._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert "_ALLOW_DETERMINISTIC_SCHEDULING" in inspect.getsource(core.unrolled_run)
    assert "_r.shuffle(batch)" in inspect.getsource(core.unrolled_run)


def test_trio_still_asks_the_mock_clock_to_jump_and_deadlines_can_be_asked() -> None:
    core = trio._core._run
    assert "runner.clock._autojump()" in inspect.getsource(core.unrolled_run)
    assert callable(core.Deadlines.next_deadline)
    assert callable(core.Deadlines.expire)
    assert callable(trio.testing.MockClock._autojump)


def test_the_agenda_is_done_in_order_of_time_and_between_the_tasks_timers() -> None:
    done: list[tuple[float, str]] = []

    def act(what: str) -> None:
        done.append((trio.current_time(), what))
        if what == "first":
            call_at(trio.current_time(), act, "at once")

    async def main() -> None:
        for due_s, what in ((2.0, "second"), (1.0, "first"), (2.0, "third"), (7.0, "too late")):
            call_at(due_s, act, what)
        await trio.sleep(1.5)
        done.append((trio.current_time(), "task"))
        await trio.sleep(3)
        assert trio.current_time() == 4.5

    virtual_run(main)
    assert done == [(1.0, "first"), (1.0, "at once"), (1.5, "task"), (2.0, "second"), (2.0, "third")]
    virtual_run(main)
    assert len(done) == 10, "a run begins with an empty agenda"


def test_a_task_that_only_the_agenda_wakes_is_woken_without_any_timer() -> None:
    async def main() -> float:
        event = trio.Event()
        call_at(3600.0, event.set)
        await event.wait()
        return trio.current_time()

    assert virtual_run(main) == 3600


def test_the_collectors_pace_is_as_before_after_a_run() -> None:
    before = gc.get_threshold()

    async def main() -> tuple[int, int, int]:
        return gc.get_threshold()

    assert virtual_run(main)[0] >= 50_000
    assert gc.get_threshold() == before


@pytest.mark.parametrize("before", [False, True])
def test_trio_is_as_before_after_a_run_and_after_a_failed_one(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    core = trio._core._run
    monkeypatch.setattr(core, "_ALLOW_DETERMINISTIC_SCHEDULING", before)  # hypothesis leaves it on
    state = core._r.getstate()

    async def fail() -> None:
        raise ValueError("x")

    virtual_run(order, seed=1)
    with pytest.raises(ValueError, match="x"):
        virtual_run(fail)
    assert core._ALLOW_DETERMINISTIC_SCHEDULING is before
    assert core._r.getstate() == state


def test_an_hour_of_sleep_takes_no_time_and_clocks_follow() -> None:
    async def main() -> None:
        clock, skewed = VirtualClock(), VirtualClock(offset_s=-86_400)
        assert clock.now_unix_s() == START_UNIX_S
        await trio.sleep(3600)
        assert clock.monotonic_s() == 3600
        assert clock.now_unix_s() == START_UNIX_S + 3600
        assert clock.now_unix_s() - skewed.now_unix_s() == 86_400
        skewed.offset_s = 0
        assert skewed.now_unix_s() == clock.now_unix_s()

    begun_s = time.monotonic()
    virtual_run(main)
    assert time.monotonic() - begun_s < 5
