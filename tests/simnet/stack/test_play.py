"""`levels.play` with level "stack": the same scenarios and checkers as in the world, an outcome, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hinet_simnet.errors import BadScenario, NotAtThisLevel
from hinet_simnet.levels import play
from hinet_simnet.levels.stack import DEVICES_MAX
from hinet_simnet.scenario.model import DeviceSpec, Scenario
from hinet_simnet.scenario.parse import parse
from hinet_simnet.trace import Trace

TEXT = """
schema = "hinet.scenario/1"
name = "split-home"
about = "three devices, a split, a power cut, a frozen one, a lost one"
duration = "400 s"
levels = ["world", "stack"]

[[household]]
name = "home"
devices = ["cloud", { name = "laptop", joins = "1 s" }, { name = "pocket", joins = "2 s" }]

[[step]]
at = "40 s"
do = "put"
on = "laptop"
file = "dog"
text = "Bello"
must = true
[[step]]
at = "60 s"
do = "expect"
on = "*"
file = "dog"
within = "60 s"
[[step]]
at = "130 s"
do = "partition"
groups = [["cloud"], ["laptop", "pocket"]]
[[step]]
at = "200 s"
do = "heal"
[[step]]
at = "220 s"
do = "restart"
on = "laptop"
[[step]]
at = "240 s"
do = "freeze"
on = "pocket"
[[step]]
at = "260 s"
do = "thaw"
on = "pocket"
[[step]]
at = "300 s"
do = "revoke"
device = "pocket"
[[step]]
at = "330 s"
do = "expect"
on = "cloud"
disconnected = ["pocket"]
within = "60 s"
[[step]]
at = "330 s"
do = "expect"
on = "cloud"
connected = ["laptop"]
within = "60 s"
"""


def home() -> Scenario:
    return parse(TEXT, file="split-home.toml")


def test_a_scenario_is_played_to_its_end_and_repeats() -> None:
    trace = Trace()
    first = play(home(), level="stack", seed=3, trace=trace)
    assert first.findings == []
    assert first.virtual_s >= 400
    assert first.digest == play(home(), level="stack", seed=3).digest
    assert first.digest != play(home(), level="stack", seed=4).digest
    assert (first.level, first.nodes) == ("stack", 3)
    assert 0 < first.messages < first.events <= trace.events
    kinds = [line.split()[1] for line in trace.lines]
    assert [kind for kind in kinds if kind in ("partition", "kill", "freeze", "thaw")] == [
        "partition", "kill", "freeze", "thaw"]


def test_libp2p_costs_more_messages_and_bytes_than_the_world_and_finds_the_same() -> None:
    world, stack = play(home(), level="world", seed=3), play(home(), level="stack", seed=3)
    assert world.findings == stack.findings == []
    assert stack.messages > world.messages
    assert stack.message_bytes > world.message_bytes


def test_a_run_that_is_stopped_leaves_an_outcome() -> None:
    outcome = play(home(), level="stack", seed=3, stop=lambda: True)
    assert outcome.interrupted
    assert not outcome.ok
    assert outcome.virtual_s < 400
    assert outcome.digest


def test_what_this_level_can_not_play_is_refused_before_anything_starts() -> None:
    crowd = tuple(DeviceSpec(f"d{number}", "home") for number in range(DEVICES_MAX + 1))
    trace = Trace()
    with pytest.raises(NotAtThisLevel, match="stack"):
        play(replace(home(), levels=("world",)), level="stack", seed=1, trace=trace)
    with pytest.raises(BadScenario, match="too many"):
        play(replace(home(), devices=crowd, steps=()), level="stack", seed=1, trace=trace)
    assert trace.events == 0
