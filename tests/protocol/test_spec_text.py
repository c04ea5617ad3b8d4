"""SPEC.md keeps step with the code: tags, error codes, limits, and the tests that its tables name."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_the_limits_in_the_text_are_those_of_the_code() -> None:
    for number in (
        limits.frame_bytes_max,
        limits.list_items_max,
        limits.entry_bytes_max,
        limits.chain_entries_max,
        limits.chain_root_entries_max,
        limits.chain_reducing_entries_max,
        limits.devices_max,
        limits.pack_read_bytes_max,
        limits.ticket_chars_max,
        limits.map_pairs_max,
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
