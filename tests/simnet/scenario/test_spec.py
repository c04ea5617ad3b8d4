"""SPEC part 10 says what the parser reads: same keys, types, defaults, meanings and steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hinet_simnet.scenario import parse, steps
from hinet_simnet.scenario.fields import REQUIRED, Field

SPEC = (Path(__file__).resolve().parents[3] / "SPEC.md").read_text()


def rows(section: str) -> list[list[str]]:
    """The cells of the table below this heading, without its own two heading lines."""
    found = re.search(rf"^### {re.escape(section)}[^\n]*\n(.*?)(?=^##)", SPEC, re.MULTILINE | re.DOTALL)
    assert found, f"SPEC has no part {section}"
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def default_of(field: Field) -> str:
    default: Any = field.default
    return "needed" if default is REQUIRED else "none" if default is None or default == "" else str(default)


@pytest.mark.parametrize(("section", "fields"), [
    ("10.1", parse.HEAD), ("10.2", {**parse.PAIR, **steps.LINK}), ("10.3", parse.HOUSEHOLD), ("10.4", parse.DEVICE),
    ("10.5", steps.TIMING)])
def test_the_keys_of_the_spec_are_those_that_the_parser_reads(section: str, fields: Mapping[str, Field]) -> None:
    assert rows(section) == [[f"`{name}`", field.kind, default_of(field), field.meaning]
                             for name, field in fields.items()]


def test_the_steps_of_the_spec_are_those_that_can_be_played() -> None:
    assert rows("10.6") == [[f"`{name}`", ", ".join(f"`{key}` ({field.kind})" for key, field in kind.args.items()),
                             kind.meaning] for name, kind in steps.STEPS.items()]


def test_the_bounds_of_the_spec_are_the_parsers() -> None:
    from hinet_simnet.scenario import expand

    assert (f"At most {parse.DEVICES_MAX:,} devices, {parse.HOUSEHOLD_DEVICES_MAX} a household, {expand.STEPS_MAX:,} "
            f"steps, {parse.TEXT_BYTES_MAX >> 20} MiB.") in SPEC
