"""Passports say where a revision comes from, and nobody can say it in another device's name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import canonical
from hinet_protocol.errors import ProtocolError, SignatureInvalid
from hinet_protocol.identity import SIGN_PASSPORT, DeviceKeys
from hinet_protocol.passports import (
    Passport,
    PassportForeign,
    PassportMalformed,
    open_passport,
    passport_bytes_max,
    seal,
)

KEYS = DeviceKeys.from_entropy(bytes(range(64)))
IDENTITY = b"\x11" * 32
PASSPORT = Passport(
    kind="task-vector", base=b"\x22" * 32, identity=IDENTITY, device=KEYS.public, tier="cloud", made=1_800_000_000,
    parents=("0123456789abcdef",), recipe={"name": "demo", "full": {"lr": "0.0001"}}, recipe_digest=b"\x33" * 32,
    data_digest=b"\x44" * 32, metrics={"steps": 59, "loss": "0.125"},
    artifacts={"delta.tau": (1000, b"\x55" * 32), "pairs.jsonl": (200, b"\x66" * 32)})  # fmt: skip
VECTORS = Path(__file__).parents[2] / "protocol" / "vectors" / "8-passports.json"


def test_a_sealed_passport_opens_to_the_same_statements_and_id() -> None:
    opened = open_passport(seal(PASSPORT, KEYS), IDENTITY)
    assert opened == PASSPORT
    assert opened.id == PASSPORT.id
    assert len(opened.id) == 16


def test_floats_become_text_that_gives_them_back() -> None:
    opened = open_passport(seal(replace(PASSPORT, metrics={"loss": 0.1, "all": [1.5, 2]}), KEYS), IDENTITY)
    assert opened.metrics == {"loss": "0.1", "all": ["1.5", 2]}


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_of_a_passport_is_refused(place: int, change: int) -> None:
    raw = bytearray(seal(PASSPORT, KEYS))
    raw[place % len(raw)] ^= change
    with pytest.raises(ProtocolError):
        open_passport(bytes(raw), IDENTITY)


@given(st.binary(max_size=200))
def test_any_other_bytes_are_no_passport(raw: bytes) -> None:
    with pytest.raises(PassportMalformed):
        open_passport(raw, IDENTITY)


def resealed(**changes: Any) -> bytes:
    """A passport whose body was changed and signed again by the same device."""
    body = canonical.decode(PASSPORT.body())
    body.update(changes)
    raw = canonical.encode({name: value for name, value in body.items() if value is not None})
    return canonical.encode({"body": raw, "signature": KEYS.sign(SIGN_PASSPORT, raw)})


@pytest.mark.parametrize("changes", [
    {"v": 2}, {"kind": "rumour"}, {"kind": "adapter"}, {"base": b"short"}, {"tier": "toaster"}, {"made": -1},
    {"parents": ["b", "a"]}, {"parents": [7]}, {"recipe": "demo"}, {"metrics": None}, {"more": 1}, {"x-more": 1},
    {"artifacts": {}}, {"artifacts": {"delta.tau": [1, b"\x55" * 32]}},
    {"artifacts": {"delta.tau": [-1, b"\x55" * 32], "pairs.jsonl": [1, b"\x55" * 32]}},
    {"artifacts": {"delta.tau": 5, "pairs.jsonl": [1, b"\x55" * 32]}}])
def test_a_wrong_field_is_refused_even_when_it_is_signed(changes: dict[str, Any]) -> None:
    with pytest.raises(PassportMalformed):
        open_passport(resealed(**changes), IDENTITY)


def test_a_passport_for_another_household_is_foreign() -> None:
    with pytest.raises(PassportForeign):
        open_passport(seal(PASSPORT, KEYS), b"\x12" * 32)


def test_a_device_can_not_sign_in_anothers_name() -> None:
    other = DeviceKeys.from_entropy(bytes(64))
    body = PASSPORT.body()
    with pytest.raises(SignatureInvalid):
        open_passport(canonical.encode({"body": body, "signature": other.sign(SIGN_PASSPORT, body)}), IDENTITY)
    with pytest.raises(SignatureInvalid):
        open_passport(canonical.encode({"body": body, "signature": KEYS.sign(b"vault-head", body)}), IDENTITY)


def test_an_overlong_passport_is_refused_before_it_is_read() -> None:
    with pytest.raises(PassportMalformed, match=str(passport_bytes_max)):
        open_passport(bytes(passport_bytes_max + 1), IDENTITY)


def test_the_committed_passports_read_the_same_today() -> None:
    for row in json.loads(VECTORS.read_text())["passports"]:
        keys = DeviceKeys.from_entropy(bytes.fromhex(row["device_entropy"]))
        raw = bytes.fromhex(row["raw"])
        opened = open_passport(raw, bytes.fromhex(row["identity"]))
        assert opened.id == row["id"]
        assert seal(opened, keys) == raw
        assert opened.kind == row["kind"]
