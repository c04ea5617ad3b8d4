"""What once alarmed a checker and is as it should be: each story plays without a finding."""

from __future__ import annotations

import pytest

from hinet_simnet.levels import play
from hinet_simnet.scenario.parse import parse

HEAD = """
schema = "hinet.scenario/1"
name = "no-alarm"
duration = "5 min"
settle = "3 min"
[[household]]
by = "direct"
devices = ["cloud", "laptop", "pocket"]
"""
STORIES = {
    "the copied disk of a device that lies is refused like the device itself": """
[[step]]
at = "60 s"
do = "clone"
on = "pocket"
to = "copy"
[[step]]
at = "120 s"
do = "lie"
on = "pocket"
lie = "silent"
""",
    "a liar may send a revoked device what its agent would not": """
[[step]]
at = "30 s"
do = "revoke"
device = "pocket"
[[step]]
at = "120 s"
do = "lie"
on = "laptop"
lie = "huge_frame"
args = { to = "pocket", for_s = 10 }
""",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_no_checker_fires_on(story: str) -> None:
    outcome = play(parse(HEAD + story), level="world", seed=1)
    assert outcome.ok, outcome.findings
    assert not outcome.facts["steps_refused"]
