"""Sweeps: every combination once, the same on each engine; a worker that dies or hangs is a finding of its job."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hinet_node.errors import UsageError
from hinet_simnet.errors import BadScenario
from hinet_simnet.runs import pool
from hinet_simnet.runs.job import Job
from hinet_simnet.runs.parameters import combinations, parameter_of, seeds_of, to_text, with_values
from hinet_simnet.runs.scenarios import from_text
from hinet_simnet.runs.sweep import engine, jobs_of, summary, sweep, write_csv
from hinet_simnet.scenario.model import Scenario

# ---- what is varied --------------------------------------------------------------------------------------------------


def test_seeds_are_ranges_and_lists() -> None:
    assert seeds_of("1:4") == [1, 2, 3, 4]
    assert seeds_of("7, 2,10:11") == [7, 2, 10, 11]
    for wrong in ("", "a", "5:1", "1:", "-1", "1:9999999999"):
        with pytest.raises(UsageError):
            seeds_of(wrong)


def test_values_are_toml_and_bare_words_are_text() -> None:
    found = parameter_of('duration=10 min, "1 h",60,1.5,true,[1, 2]')
    assert found.path == "duration"
    assert found.values == ("10 min", "1 h", 60, 1.5, True, [1, 2])
    for wrong in ("x", "=1", "a.=1", "a=", "a=1,,2"):
        with pytest.raises(UsageError):
            parameter_of(wrong)


def test_every_combination_is_there_once_and_too_many_are_refused() -> None:
    found = list(combinations([parameter_of("a=1,2"), parameter_of("b=x,y")], [5, 6]))
    assert len(found) == 8
    assert found[0] == ({"a": 1, "b": "x"}, 5)
    assert found[-1] == ({"a": 2, "b": "y"}, 6)
    with pytest.raises(UsageError, match="runs"):
        combinations([parameter_of("a=1,2")], range(60_000))
    with pytest.raises(UsageError, match="one --set"):
        combinations([parameter_of("a=1"), parameter_of("a=2")], [1])


def test_a_value_goes_to_its_place_and_the_rest_stays(failing: Scenario) -> None:
    changed = from_text(with_values(failing.text, {"link.loss": 0.25, "step.*.at": "7 s", "household.1.name": "x y\"",
                                                   "settle": 1}), file="x")
    assert changed.link.loss == 0.25
    assert {step.at_s for step in changed.steps} == {7.0}
    assert list(changed.households()) == ["home", 'x y"']
    assert changed.settle_s == 1
    assert from_text(to_text({"schema": "hinet.scenario/1", "name": "a", "duration": 60,
                              "household": [{"name": "h", "devices": [{"name": "d"}, "e"]}]}), file="x").devices
    for path in ("step.9.at", "step.at", "name.x"):
        with pytest.raises(UsageError, match="--set"):
            with_values(failing.text, {path: 1})


def test_an_unknown_place_is_refused_before_anything_starts(fine: Scenario) -> None:
    with pytest.raises(BadScenario, match="los"):
        jobs_of(fine, [parameter_of("link.los=0.1")], [1], level="world", wall_s=60)


# ---- playing ---------------------------------------------------------------------------------------------------------


def test_a_sweep_gives_every_run_in_order_and_sums_them_up(fine: Scenario, tmp_path: Path) -> None:
    jobs, values = jobs_of(fine, [parameter_of("duration=30 s,60 s")], [1, 2], level="world", wall_s=60)
    rows, interrupted = sweep(jobs, values, workers=2)
    assert not interrupted
    assert [(row.values["duration"], row.seed) for row in rows] == [("30 s", 1), ("30 s", 2), ("60 s", 1), ("60 s", 2)]
    assert all(row.outcome.ok for row in rows)
    assert len({row.outcome.digest for row in rows}) == 4
    groups = summary(rows)
    assert [(group["runs"], group["ok"]) for group in groups] == [(2, 2), (2, 2)]
    assert groups[0]["events"] < groups[1]["events"]
    write_csv(tmp_path / "a.csv", rows)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0].startswith("duration,seed,ok,findings")
    assert len(lines) == 5


def test_ray_gives_the_same_as_processes(fine: Scenario, failing: Scenario) -> None:
    for scenario in (fine, failing):
        jobs, values = jobs_of(scenario, [parameter_of("link.loss=0,0.02")], [1, 2], level="world", wall_s=60)
        here, _ = sweep(jobs, values, workers=2)
        there, _ = sweep(jobs, values, workers=2, engine_name="ray")
        assert [row.as_dict() for row in here] == [row.as_dict() for row in there]


def test_without_ray_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="Ray is not installed") as caught:
        next(engine("ray")([], workers=1))
    assert "simnet-ray" in str(caught.value.next_step)
    with pytest.raises(UsageError, match="no engine 'spark'"):
        engine("spark")


def children() -> list[int]:
    """Worker processes of this one."""
    listing = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [int(line.split()[0]) for line in listing.stdout.splitlines() if "hinet_simnet.runs.job" in line]


def test_a_worker_that_dies_is_a_finding_with_its_seed_and_the_next_job_is_played(fine: Scenario) -> None:
    long = with_values(fine.text, {"duration": "29 d"})

    def kill() -> None:
        while not (found := children()):
            time.sleep(0.05)
        time.sleep(1.0)
        os.kill(found[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pool.one_worker() as play:
        lost = play(Job(long, 42))
        after = play(Job(fine.text, 43))
    killer.join()
    assert [finding.checker for finding in lost.outcome.findings] == ["crash"]
    assert "signal 9" in lost.outcome.findings[0].message
    assert lost.outcome.seed == 42
    assert after.outcome.ok


def test_a_worker_that_does_not_answer_is_killed_at_its_limit(fine: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "limit_s", lambda job: 1.0)
    with pool.one_worker() as play:
        lost = play(Job(with_values(fine.text, {"duration": "29 d"}), 42))
    assert [finding.checker for finding in lost.outcome.findings] == ["hang"]
    assert not children()


def test_what_is_played_is_left_at_once_when_the_iterator_is_closed(fine: Scenario) -> None:
    long = with_values(fine.text, {"duration": "29 d"})
    running = pool.play_all([Job(fine.text, 1), Job(long, 2), Job(long, 3)], workers=2)
    assert next(running).job.seed == 1
    running.close()
    assert not children()


def test_a_refused_scenario_is_no_outcome() -> None:
    with pool.one_worker() as play:
        done = play(Job("schema = 1", 1))
    assert "hinet.scenario/1" in done.refused


