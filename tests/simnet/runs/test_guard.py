"""A run always ends: crashes, busy loops and Ctrl-C leave an outcome with what is known."""

from __future__ import annotations

import _thread
import threading
import time
from typing import Any

import pytest

from hinet_simnet import levels
from hinet_simnet.errors import BadScenario
from hinet_simnet.findings import Outcome
from hinet_simnet.runs import guard
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.trace import Trace


def test_a_fine_run_is_left_as_it_is(fine: Scenario) -> None:
    watched = guard.play(fine, level="world", seed=1)
    assert watched.outcome is not None
    assert watched.outcome.ok
    trace = Trace()
    levels.play(fine, level="world", seed=1, trace=trace)
    assert watched.outcome.digest == trace.digest()
    assert watched.asked_to_stop_at is None


def test_a_level_that_crashes_is_a_finding_with_its_traceback(fine: Scenario) -> None:
    def crash(*args: Any, **more: Any) -> Outcome:
        raise RuntimeError("the tape tore")

    found = guard.play(fine, level="world", seed=7, run=crash).outcome
    assert found is not None
    assert [one.checker for one in found.findings] == ["crash"]
    assert "the tape tore" in found.findings[0].message
    assert "in crash" in found.findings[0].traceback
    assert found.seed == 7


def test_a_busy_loop_in_virtual_time_is_a_finding_that_shows_where(fine: Scenario) -> None:
    def loops_for_ever(*args: Any, trace: Any, **more: Any) -> Outcome:
        trace._enter("5.000000000 note a")
        while True:
            pass

    for limits in ({"still_s": 0.5}, {"wall_s": 0.5}):
        found = guard.play(fine, level="world", seed=1, grace_s=0.3, run=loops_for_ever, **limits).outcome
        assert found is not None
        assert [one.checker for one in found.findings] == ["hang"]
        assert "loops_for_ever" in found.findings[0].traceback
        assert found.findings[0].at_s == 5.0
    assert not [thread for thread in threading.enumerate() if thread.name == "simnet fine"]


def test_a_world_whose_time_goes_on_is_not_taken_for_a_hang(fine: Scenario) -> None:
    def slowly(*args: Any, trace: Any, **more: Any) -> Outcome:
        for second in range(8):
            trace._enter(f"{second}.0 note a")
            time.sleep(0.25)
        return Outcome("fine", "world", 1)

    found = guard.play(fine, level="world", seed=1, still_s=1.0, run=slowly).outcome
    assert found is not None
    assert found.ok


def test_ctrl_c_ends_a_run_in_order_and_says_where(fine: Scenario) -> None:
    def until_stopped(*args: Any, trace: Any, stop: Any, **more: Any) -> Outcome:
        trace._enter("1.0 note a")
        threading.Timer(0.3, _thread.interrupt_main).start()
        while not stop():
            time.sleep(0.01)
        trace._enter("2.0 stop a")
        return Outcome("fine", "world", 1, interrupted=True)

    watched = guard.play(fine, level="world", seed=1, run=until_stopped)
    assert watched.outcome is not None
    assert watched.outcome.interrupted
    assert not watched.outcome.findings
    assert watched.error is None
    assert watched.asked_to_stop_at == 1


def test_a_refused_scenario_is_an_error_and_no_finding(fine: Scenario) -> None:
    def refuse(*args: Any, **more: Any) -> Outcome:
        raise BadScenario("no", where="a:1")

    with pytest.raises(BadScenario, match="a:1"):
        guard.play(fine, level="world", seed=1, run=refuse)
