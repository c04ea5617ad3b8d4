"""`levels.play` with level "stack": a scenario's devices and steps, an outcome, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hinet_simnet.errors import BadScenario
from hinet_simnet.levels import play
from hinet_simnet.levels.stack import DEVICES_MAX
from hinet_simnet.scenario.model import DeviceSpec, Scenario, Step
from hinet_simnet.trace import Trace

HOME = Scenario(
    "home", "three devices, a split, a lost one", 400.0,
    (DeviceSpec("cloud", "home", "cloud", "admin"), DeviceSpec("laptop", "home", joins_at_s=1.0),
     DeviceSpec("pocket", "home", "pocket", joins_at_s=2.0)),
    steps=(Step(30, "put", {"on": ["laptop"], "file": "dog", "text": "Bello"}),
           Step(40, "partition", {"groups": [["cloud"], ["laptop", "pocket"]]}),
           Step(120, "heal"), Step(150, "restart", {"on": ["laptop"], "after": 5.0}),
           Step(180, "freeze", {"on": ["pocket"]}), Step(190, "thaw", {"on": ["pocket"]}),
           Step(250, "revoke", {"on": ["cloud"], "device": "pocket"}),
           Step(300, "put", {"on": ["pocket", "nobody"], "file": "late", "size": 10})),
    levels=("world", "stack"))


def test_a_scenario_is_played_to_its_end_and_repeats() -> None:
    told: list[Any] = []
    traces = [Trace(), Trace()]
    outcomes = [play(HOME, level="stack", seed=3, trace=trace, progress=told.append) for trace in traces]
    assert outcomes[0].ok
    assert outcomes[0].virtual_s == 400
    assert outcomes[0].digest == outcomes[1].digest != play(HOME, level="stack", seed=4).digest
    assert (outcomes[0].nodes, outcomes[0].events) == (3, traces[0].events)
    assert told[0]["duration_s"] == 400
    kinds = [line.split()[1] for line in traces[0].lines]
    assert [kind for kind in kinds if kind in ("partition", "heal", "kill", "freeze", "thaw")] == [
        "partition", "heal", "kill", "freeze", "thaw"]
    assert kinds.count("joined") == 2
    assert any(kind == "refused" for kind in kinds), "nobody can't put a file"


def test_a_run_that_is_stopped_leaves_an_outcome() -> None:
    seen: list[int] = []

    def stop() -> bool:
        seen.append(1)
        return len(seen) > 50

    outcome = play(HOME, level="stack", seed=3, stop=stop)
    assert outcome.interrupted
    assert not outcome.ok
    assert 50 <= outcome.virtual_s < 60
    assert outcome.digest


def test_what_this_level_can_not_play_is_refused_before_anything_starts() -> None:
    crowd = tuple(DeviceSpec(f"d{number}", "home") for number in range(DEVICES_MAX + 1))
    for scenario, match in ((replace(HOME, levels=("world",)), "not written for level stack"),
                            (replace(HOME, devices=crowd), "too many"),
                            (replace(HOME, file="a.toml", steps=(Step(1, "dance", line=7),)), "a.toml:7.*dance")):
        trace = Trace()
        with pytest.raises(BadScenario, match=match):
            play(scenario, level="stack", seed=1, trace=trace)
        assert trace.events == 0
