"""Every merge method has a page that says what the method does, with the defaults that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hinet_tiers.merging import registry

PAGES = Path(__file__).parents[3] / "docs" / "merging"
SAYS = ("Source", "Zeros", "Ties", "One input", "Disjoint supports", "Negative weights")
ROW = re.compile(r"^\| ([a-z][a-z_0-9-]*) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_page_states_formula_source_defaults_and_the_odd_cases(name: str) -> None:
    text, method = (PAGES / f"{name}.md").read_text(), registry.find(name)
    assert method.name == name
    assert "\n    " in text, "a formula"
    for what in SAYS:
        assert re.search(rf"\*\*{what}\.\*\* \S", text), f"{name}: says nothing of {what.lower()}"
    stated = [row for row in ROW.findall(text) if row[0] != "setting"]
    want = [(one.name, f"{one.default:g}", f"{one.low:g}", f"{one.high:g}") for one in method.settings]
    assert [tuple(cell.strip() for cell in row) for row in stated] == want, name


def test_no_page_is_left_over() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(registry.METHODS)


@pytest.mark.parametrize("name", registry.METHODS)
def test_defaults_are_within_their_own_limits(name: str) -> None:
    method = registry.find(name)
    assert method.settle({}) == {one.name: one.default for one in method.settings}
    assert method.settle({one.name: one.default for one in method.settings})
    assert method.title
    assert re.search(r"arXiv \d{4}\.\d{4,5}", method.source), f"{name} names no source"
