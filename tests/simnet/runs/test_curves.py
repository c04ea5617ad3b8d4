"""Convergence as curves: what a partition does to the chains shows."""

from __future__ import annotations

from hinet_simnet import levels
from hinet_simnet.runs.curves import BEHIND, VERSIONS
from hinet_simnet.runs.scenarios import from_text
from hinet_simnet.scenario.model import Scenario


def test_a_revocation_that_a_device_can_not_hear_shows_as_a_second_version(fine: Scenario) -> None:
    text = fine.text.replace('["cloud", "laptop"]', '["cloud", "laptop", "pocket"]') + """
[[step]]
at = "30 s"
do = "partition"
groups = [["cloud", "pocket"], ["laptop"]]
[[step]]
at = "40 s"
do = "revoke"
device = "pocket"
[[step]]
at = "70 s"
do = "heal"
"""
    outcome = levels.play(from_text(text, file="x"), level="world", seed=1)
    apart = [value for at_s, value in outcome.facts[VERSIONS] if 40 <= at_s <= 70]
    assert max(apart) >= 1
    assert max(value for at_s, value in outcome.facts[BEHIND] if 40 <= at_s <= 70) >= 1
    before = [value for at_s, value in outcome.facts[BEHIND] if at_s < 40]
    assert before[-1] == 0
