"""Small scenarios that all of these tests play: one that is fine, one that fails, one that never ends."""

from __future__ import annotations

import pytest

from hinet_simnet.runs.scenarios import from_text
from hinet_simnet.scenario.model import Scenario

FINE = """
schema = "hinet.scenario/1"
name = "fine"
duration = "90 s"
settle = "20 s"
[[household]]
name = "home"
devices = ["cloud", "laptop"]
[[step]]
at = "20 s"
do = "put"
on = "laptop"
file = "a"
text = "one"
"""
FAILING = """
schema = "hinet.scenario/1"
name = "failing"
duration = "10 min"
settle = "30 s"
[link]
loss = 0.01
[[household]]
name = "home"
devices = ["cloud", "laptop", "pocket"]
[[household]]
name = "other"
devices = ["their-cloud", "their-laptop"]
[[step]]
at = "20 s"
do = "put"
on = "cloud"
file = "a"
text = "one"
[[step]]
at = "30 s"
do = "restart"
on = "their-laptop"
[[step]]
at = "60 s"
do = "expect"
on = "laptop"
file = "never written"
within = "5 s"
[[step]]
at = "200 s"
do = "kill"
on = "pocket"
"""


@pytest.fixture
def fine() -> Scenario:
    return from_text(FINE, file="fine.toml")


@pytest.fixture
def failing() -> Scenario:
    return from_text(FAILING, file="failing.toml")
