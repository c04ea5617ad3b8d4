"""Shrinking: what is left still fails with the same checker, and nothing more can be left out."""

from __future__ import annotations

import pytest

from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.runs import reductions
from hinet_simnet.runs.job import Done, Job, done_of, work
from hinet_simnet.runs.scenarios import from_text
from hinet_simnet.runs.shrink import NotFailing, shrink
from hinet_simnet.scenario.model import Scenario


def here(job: Job) -> Done:
    """Play a job in this process."""
    return done_of(job, work(vars(job)))


def test_a_real_failure_is_made_as_small_as_it_goes(failing: Scenario) -> None:
    found = shrink(failing, seed=3, level="world", play=here)
    assert found.complete
    assert [step.do for step in found.best.steps] == ["expect"]
    assert [device.name for device in found.best.devices] == ["laptop"]
    assert found.best.link.loss == 0
    assert found.best.duration_s < 70
    again = here(Job(found.best.text, 3)).outcome
    assert [finding.checker for finding in again.findings] == ["expect"]
    assert found.best.seed == 3


def test_shrinking_twice_gives_the_same(failing: Scenario) -> None:
    first, second = (shrink(failing, seed=3, level="world", play=here) for _ in range(2))
    assert (first.best.text, first.tries) == (second.best.text, second.tries)


def fails_when(*wanted: str) -> tuple[list[Scenario], object]:
    """A player for which a scenario fails as long as all these devices are in it."""
    tried: list[Scenario] = []

    def play(job: Job) -> Done:
        scenario = from_text(job.text, file=job.file)
        tried.append(scenario)
        names = {device.name for device in scenario.devices}
        findings = [Finding("chains", "two heads", 5.0)] if names >= set(wanted) else [Finding("other", "no", 1.0)]
        return Done(job, Outcome(scenario.name, "world", job.seed, findings=findings))
    return tried, play


def test_what_fails_otherwise_is_no_smaller_form_of_the_same(failing: Scenario) -> None:
    _, play = fails_when("cloud", "their-laptop")
    found = shrink(failing, seed=1, level="world", play=play)
    assert [device.name for device in found.best.devices] == ["cloud", "their-laptop"]
    assert not found.best.steps


def test_no_text_is_played_twice(failing: Scenario) -> None:
    tried, play = fails_when("cloud", "laptop")
    shrink(failing, seed=1, level="world", play=play)
    texts = [scenario.text for scenario in tried]
    assert len(texts) == len(set(texts)) > 5


def test_ctrl_c_and_the_time_limit_leave_the_best_so_far(failing: Scenario) -> None:
    _, play = fails_when("cloud")
    tries = 0

    def interrupted(job: Job) -> Done:
        nonlocal tries
        tries += 1
        if tries == 6:
            raise KeyboardInterrupt
        return play(job)

    found = shrink(failing, seed=1, level="world", play=interrupted)
    assert found.interrupted
    assert not found.complete
    assert found.best.duration_s < failing.duration_s
    late = shrink(failing, seed=1, level="world", play=play, limit_s=0.0)
    assert not late.complete
    assert late.best == failing


def test_what_does_not_fail_is_refused(fine: Scenario, failing: Scenario) -> None:
    with pytest.raises(NotFailing, match="without a finding"):
        shrink(fine, seed=1, level="world", play=here)
    with pytest.raises(NotFailing, match=r"of 'chains' .but with one of: expect"):
        shrink(failing, seed=1, level="world", play=here, checker="chains")


def test_steps_lose_the_devices_that_are_gone(failing: Scenario) -> None:
    text = failing.text + ('\n[[step]]\nat = "210 s"\ndo = "partition"\n'
                           'groups = [["cloud", "pocket"], ["laptop"], ["their-cloud"]]\n')
    scenario = from_text(text, file="x")
    left = reductions.with_devices(scenario, [one for one in scenario.devices if one.name not in ("pocket", "laptop")])
    assert [(step.do, dict(step.args).get("groups")) for step in left.steps] == [
        ("put", None), ("restart", None), ("partition", [["cloud"], ["their-cloud"]])]
