"""SPEC.md keeps step with the code: tags, error codes, limits, and the tests that its tables name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hinet_protocol import errors, limits, messages

ROOT = Path(__file__).parents[2]
SPEC = (ROOT / "SPEC.md").read_text()


def section(begin: str, end: str) -> str:
    return SPEC[SPEC.index(begin) : SPEC.index(end)]


def test_the_table_of_messages_has_every_tag_and_field() -> None:
    rows = re.findall(r"^\| ([0-9, ]+) \| ([\w, ]+) \| (.*) \|$", section("### 5.3", "### 5.4"), re.M)
    found = {}
    for tags, names, fields in rows:
        for tag, name in zip(tags.split(", "), names.split(", "), strict=True):
            found[int(tag)] = (name, fields)
    table = messages.tag_table()
    assert {tag: name for tag, (name, _) in found.items()} == {tag: kind.__name__ for tag, kind in table.items()}
    for tag, kind in table.items():
        for field in messages.checks_of(kind):
            assert f"`{field}`" in found[tag][1], (kind.__name__, field)


def test_the_table_of_errors_has_every_code_once() -> None:
    written = re.findall(r"^\| `(E_\w+)` \|", section("### 5.9", "### 5.10"), re.M)
    codes = [
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ProtocolError) and kind.__module__ == errors.__name__
    ]
    assert sorted(written) == sorted(codes)
    assert len(set(codes)) == len(codes)
    assert errors.__doc__ is not None
    for code in codes:
        assert code in errors.__doc__
        assert len(code) <= 40


def test_the_tests_that_the_table_of_adversaries_names_exist() -> None:
    named = re.findall(r"`(test_\w+)`", SPEC)
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in written] == []


ADVERSARIES = ("stranger on the LAN", "somebody in between", "keeper", "stolen device", "removed device", "copied home",
               "stolen admin key", "stolen root", "relay", "other user of the machine")
ABILITIES = ["adversary", "read", "forge", "roll back", "withhold", "link"]


VAULT_ADVERSARIES = ("keeper", "faulty member", "removed device", "copied disk", "somebody in between, or a stranger",
                     "stolen disk", "failing disk")
VAULT_ABILITIES = ["adversary", "read", "forge", "roll back", "withhold", "wear out"]


@pytest.mark.parametrize(("begin", "end", "abilities", "adversaries"), [
    ("### 5.10", "About relays", ABILITIES, ADVERSARIES),
    ("### 6.9", "### 6.10", VAULT_ABILITIES, VAULT_ADVERSARIES)])
def test_each_adversary_has_its_answer_for_each_ability_and_each_cannot_its_test(
    begin: str, end: str, abilities: list[str], adversaries: tuple[str, ...]
) -> None:
    table = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in section(begin, end).splitlines() if line.startswith("| ")]
    assert table[0] == abilities
    assert [row[0] for row in table[1:]] == list(adversaries)
    for row in table[1:]:
        assert len(row) == len(abilities)
        for ability, cell in zip(abilities[1:], row[1:], strict=True):
            assert re.match(r"[Cc]an\b", cell), (row[0], ability)
            # Between one "can't" and the next word of a possibility stands the name of a test.
            for claim in re.split(r"[Cc]an't", cell)[1:]:
                assert "`test_" in claim, (row[0], ability, claim)


def test_the_limits_in_the_text_are_those_of_the_code() -> None:
    for number in (
        limits.frame_bytes_max,
        limits.list_items_max,
        limits.entry_bytes_max,
        limits.chain_entries_max,
        limits.chain_root_entries_max,
        limits.chain_additions_bytes_max,
        limits.chain_root_bytes_max,
        limits.chain_reducing_entries_max,
        limits.devices_max,
        limits.pack_read_bytes_max,
        limits.ticket_chars_max,
        limits.map_pairs_max,
        limits.relay_message_bytes_max,
        limits.relay_reservation_s,
        limits.relay_circuit_s,
        limits.relay_circuit_bytes,
    ):
        assert f"{number:,}" in SPEC
    for seconds in (
        limits.code_lifetime_s,
        limits.join_attempt_s_max,
        limits.join_approval_s_max,
        limits.heartbeat_idle_ms // 1_000,
        limits.silence_ms_max // 1_000,
        limits.clone_probe_ms // 1_000,
        limits.handshake_ms_max // 1_000,
    ):
        assert re.search(rf"\b{seconds} (s\b|seconds)|approval {seconds}\b", SPEC), seconds
