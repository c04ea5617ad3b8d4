"""Lanes: the thread and its at-once twin keep to the same rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hinet_node.ports import Disk, Lane
from hinet_node.real.disk import RealDisk
from hinet_simnet.disk import MemoryDisk


@pytest.fixture(params=["real", "memory"])
def lane(request: pytest.FixtureRequest, tmp_path: Path) -> Lane:
    disk: Disk = RealDisk(tmp_path / "home") if request.param == "real" else MemoryDisk()
    return disk.lane()


def noting(said: list[int], number: int) -> Callable[[], int]:
    def work() -> int:
        said.append(number)
        return number * 2
    return work


def test_calls_run_in_their_order_and_give_what_they_return(lane: Lane) -> None:
    said: list[int] = []
    calls = [lane.do(noting(said, number)) for number in range(100)]
    assert [call.result() for call in calls] == list(range(0, 200, 2))
    assert said == list(range(100))
    lane.close()


def test_nothing_runs_after_a_call_that_failed_and_every_later_one_says_why(lane: Lane) -> None:
    said: list[int] = []

    def fail() -> None:
        raise OSError("the disk is gone")

    calls = [lane.do(noting(said, 1)), lane.do(fail), lane.do(noting(said, 2))]
    assert calls[0].result() == 2
    for call in calls[1:]:
        with pytest.raises(OSError, match="the disk is gone"):
            call.result()
    with pytest.raises(OSError, match="the disk is gone"):
        lane.do(noting(said, 3)).result()
    assert said == [1]
    lane.close()


def test_closing_waits_for_the_call_that_runs_and_runs_no_other(tmp_path: Path) -> None:
    lane = RealDisk(tmp_path).lane()
    begun, go_on, said = threading.Event(), threading.Event(), list[int]()

    def slow() -> None:
        begun.set()
        go_on.wait(10)
        said.append(1)

    first, second = lane.do(slow), lane.do(noting(said, 2))
    begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    lane.close()
    assert said == [1]
    first.result()
    with pytest.raises(RuntimeError):
        second.result()


def test_a_lane_that_is_never_used_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    lane = RealDisk(tmp_path).lane()
    assert threading.active_count() == before
    lane.close()
