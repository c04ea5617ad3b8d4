"""What the levels make of a scenario beyond playing it."""

from __future__ import annotations

from importlib.resources import files

import pytest

from hinet_simnet.levels import play
from hinet_simnet.scenario.parse import parse
from hinet_simnet.trace import Trace

SHORT = """
schema = "hinet.scenario/1"
name = "short"
about = "Two devices for a minute."
duration = "1 min"
levels = ["world", "stack"]
household = [{ devices = ["cloud", { name = "laptop", joins = "5 s" }] }]
"""


@pytest.mark.parametrize("level", ["world", "stack"])
def test_a_scenario_that_asks_for_numpy_really_learns_and_shows_its_curves(level: str) -> None:
    text = (files("hinet_simnet") / "library" / "household-of-3.toml").read_text("utf-8")
    scenario = parse(text.replace('duration = "30 min"', 'duration = "30 min"\nlearning = "numpy"'), file="numpy.toml")
    outcome = play(scenario, level=level, seed=2)
    assert outcome.ok, outcome.findings
    (at_s, loss), *_ = outcome.facts["loss cloud"]
    assert at_s >= 360
    assert 0 <= loss < 0.5
    assert outcome.facts["agreement laptop"]


@pytest.mark.parametrize("level", ["world", "stack"])
def test_an_outcome_counts_what_agents_still_say_when_the_world_ends(level: str) -> None:
    trace = Trace()
    outcome = play(parse(SHORT), level=level, seed=1, trace=trace)
    assert (outcome.digest, outcome.events, outcome.messages) == (trace.digest(), trace.events, trace.messages)
