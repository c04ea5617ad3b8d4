"""Scenario files: faults point at their line, what is read is written back, and the library plays green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import hinet_simnet
from hinet_simnet import adversary
from hinet_simnet.errors import BadScenario
from hinet_simnet.levels import play
from hinet_simnet.scenario.generate import LIES, SIZES, random_scenario
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.scenario.parse import parse
from hinet_simnet.scenario.steps import STEPS
from hinet_simnet.scenario.write import to_toml

LIBRARY = sorted((Path(hinet_simnet.__path__[0]) / "library").glob("*.toml"))
HEAD = 'schema = "hinet.scenario/1"\nname = "x"\nduration = "10 min"\n[[household]]\ndevices = ["cloud", "laptop"]\n'


def plain(scenario: Scenario) -> Scenario:
    return replace(scenario, file="", text="", steps=tuple(replace(step, line=0) for step in scenario.steps))


def test_the_lies_that_are_drawn_are_all_lies_that_there_are() -> None:
    assert tuple(adversary.LIES) == LIES


@pytest.mark.parametrize(("text", "line", "words"), [
    ("[[step]]\nat = 1\ndo = 'putt'\n", 8, "did you mean 'put'"),
    ("[[step]]\nat = -1\ndo = 'heal'\n", 7, "negative"),
    ("[[step]]\nat = 1\ndo = 'get'\non = 'lapto'\nfile = 'a'\n", 9, "did you mean 'laptop'"),
    ("[[step]]\nat = 1\ndo = 'revoke'\ndevice = 'cloud'\n", 9, "last admin"),
    ("[[step]]\nat = 1\ndo = 'partition'\ngroups = [['cloud'],\n ['nobody']]\n", 9, "no device 'nobody'"),
    ("[link]\nloss = 2.0\n", 7, "from 0 to 1"),
    ("[commune]\n", 6, "communal rounds"),
    ("[[household]]\nname = 'b'\ndevices = [\n 'cloud']\n", 9, "two devices named 'cloud'"),
    ("[[household]]\nname = 'b'\ndevices = [\n {name = 'k', role = 'keeper'}]\n", 9, "can't be a keeper"),
    ("[[household]]\nname = 'b'\ndevices = []\n", 8, "at least one device"),
    ("[link]\nloss = \n", 7, "no TOML"),
    ("[[step]]\nat = 1\ndo = 'lie'\non = 'laptop'\nlie = 'flod'\n", 10, "no lie 'flod'; did you mean 'flood'"),
    ("[[step]]\nat = 1\ndo = 'lie'\non = 'laptop'\nlie = 'fork'\nargs.fors = 3\n", 11, "did you mean 'for_s'"),
    ("[[step]]\nat = 1\ndo = 'lie'\non = 'laptop'\nlie = 'fork'\n[step.args]\ncount = 0\n", 12, "above 0"),
    ("[[step]]\nat = 1\ndo = 'lie'\non = 'laptop'\nlie = 'fork'\nargs.to = 'lapto'\n", 11, "did you mean 'laptop'"),
])
def test_a_fault_is_told_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(BadScenario, match=words) as told:
        parse(HEAD + text, file="f.toml")
    assert f"f.toml:{line}: " in str(told.value)


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(BadScenario) as told:
        parse(HEAD + "[link]\nlos = 1\nrate = 'fast'\n[[step]]\nat = 1\ndo = 'nothing'\n", file="f.toml")
    assert [f"f.toml:{line}: " in str(told.value) for line in (7, 8, 11)] == [True] * 3


@pytest.mark.parametrize("size", SIZES)
def test_random_scenarios_are_valid_and_survive_the_way_to_toml_and_back(size: str) -> None:
    for seed in range(60):
        made = random_scenario(seed, size=size)
        assert made == random_scenario(seed, size=size)
        assert plain(parse(made.text)) == plain(made)


def test_random_scenarios_between_them_draw_everything_that_may_go_wrong() -> None:
    made = [random_scenario(seed) for seed in range(200)]
    assert {step.do for scenario in made for step in scenario.steps} == {*STEPS} - {"join", "expect"}
    assert {len(scenario.households()) for scenario in made} >= {1, 2, 3}
    assert {True, False} == {bool(scenario.links) for scenario in made}
    assert any(device.disk_bytes for scenario in made for device in scenario.devices)
    assert max(sum(device.by == "direct" for device in scenario.devices) for scenario in made) >= 8


@pytest.mark.parametrize("file", LIBRARY, ids=lambda file: file.stem)
def test_each_file_of_the_library_is_read_and_written_back(file: Path) -> None:
    scenario = parse(file.read_text(), file=file.name)
    assert plain(parse(to_toml(scenario))) == plain(scenario)


@pytest.mark.parametrize("name", ["household-of-3", "cloned-card", "disks-that-fill-and-tear"])
def test_quick_ones_of_the_library_play_green_and_repeat(name: str) -> None:
    file = next(file for file in LIBRARY if file.stem == name)
    scenario = parse(file.read_text(), file=file.name)
    first, second = (play(scenario, level="world", seed=3) for _ in range(2))
    assert first.ok, first.findings
    assert first.digest == second.digest


def outcome(steps: str, **more: object):
    return play(parse(HEAD + steps), level="world", seed=1, **more)  # type: ignore[arg-type]


def test_a_refused_step_is_a_finding_only_when_it_must_work() -> None:
    off = "[[step]]\nat = 60\ndo = 'kill'\non = 'laptop'\n[[step]]\nat = 70\ndo = 'put'\non = 'laptop'\nfile = 'a'\n"
    quiet, loud = outcome(off), outcome(off + "must = true\n")
    assert quiet.ok
    assert quiet.facts["steps_refused"] == 1
    assert [finding.checker for finding in loud.findings] == ["expect"]


def test_an_expectation_that_fails_is_a_finding() -> None:
    found = outcome("[[step]]\nat = 60\ndo = 'expect'\non = 'laptop'\nfile = 'nothing'\n").findings
    assert ["scenario.toml:6" in finding.message for finding in found] == [True]


def test_a_run_that_is_stopped_leaves_an_outcome() -> None:
    stopped = outcome("", stop=lambda: True)
    assert stopped.interrupted
    assert stopped.virtual_s < 600
