"""Attributes: what is kept beside the content of a version, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import canonical
from hinet_protocol.attributes import (
    Attributes,
    attributes_bytes_max,
    make_attributes,
    no_attributes,
    read_attributes,
    with_past,
)

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "6-trees.json").read_text())
PAST = b"p" * 32


@given(mode=st.none() | st.integers(0, 0o7777), mtime_ns=st.none() | st.integers(-(2**70), 2**70),
       past=st.none() | st.binary(min_size=32, max_size=32))
def test_what_was_made_comes_back_and_is_canonical(mode: int | None, mtime_ns: int | None, past: bytes | None) -> None:
    raw = make_attributes(mode, mtime_ns, past)
    assert canonical.encode(canonical.decode(raw)) == raw
    kept_mode = None if mode is None else (0o755 if mode & 0o100 else 0o644)
    fits = mtime_ns is not None and -(2**63) <= mtime_ns < 2**63
    assert read_attributes(raw) == Attributes(kept_mode, mtime_ns if fits else None, past)


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_fail(raw: bytes) -> None:
    assert read_attributes(raw).mode in (None, 0o644, 0o755)


def test_unknown_keys_are_kept_and_known_ones_replaced() -> None:
    newer = canonical.encode({"acl": [1], "mode": 0o755, "mtime": 5, "past": b"o" * 32, "zone": "x"})
    assert canonical.decode(with_past(newer, PAST)) == {"acl": [1], "mode": 0o755, "mtime": 5, "past": PAST,
                                                        "zone": "x"}
    assert canonical.decode(with_past(newer, None)) == {"acl": [1], "mode": 0o755, "mtime": 5, "zone": "x"}
    assert canonical.decode(make_attributes(0o600, 9, None, newer)) == {"acl": [1], "mode": 0o644, "mtime": 9,
                                                                        "zone": "x"}


def test_unknown_keys_that_leave_no_room_give_way() -> None:
    full = canonical.encode({"blob": bytes(attributes_bytes_max - 10)})
    assert len(full) <= attributes_bytes_max
    assert read_attributes(with_past(full, PAST)) == Attributes(past=PAST)
    assert len(with_past(full, PAST)) < 60


def test_a_past_that_is_no_chunk_id_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        make_attributes(past=b"short")


def test_the_vectors_hold() -> None:
    for row in VECTORS["attributes"]:
        past = None if row["past"] is None else bytes.fromhex(row["past"])
        raw = make_attributes(row["mode"], row["mtime"], past, bytes.fromhex(row["others"]))
        assert raw.hex() == row["raw"]
        assert read_attributes(raw) == Attributes(row["mode"], row["mtime"], past)
    for text in VECTORS["attributes_that_say_nothing"]:
        assert read_attributes(bytes.fromhex(text)) == Attributes()
    assert make_attributes() == no_attributes == msgpack.packb({})


@pytest.mark.parametrize("raw", [
    b"\x82\xa5mtime\x01\xa4mode\xcd\x01\xa4",  # not in order
    b"\x81\xa4mode\xce\x00\x00\x01\xa4",  # not in the shortest form
    b"\x82\xa4mode\xcd\x01\xa4\xa4mode\xcd\x01\xed",  # twice
    b"\x81\xa4mode\xcd\x01\xa4\x00",  # with a byte more
    b"\xde\x00\x01\xa4mode\xcd\x01\xa4",  # a longer map head than needed
    b"\x81\xc4\x04mode\xcd\x01\xa4",  # a key that is no text
    b"\x81\xa4mode\xcb\x40\x7a\x40\x00\x00\x00\x00\x00",  # a float
])
def test_bytes_that_are_not_canonical_say_nothing(raw: bytes) -> None:
    assert read_attributes(raw) == Attributes()
    assert with_past(raw, PAST) == make_attributes(past=PAST)


def test_a_past_that_stays_away_costs_no_other_key() -> None:
    odd = canonical.encode({"note": "\x04past", "zone": [b"\xa4past"]})
    assert canonical.decode(with_past(odd, None)) == canonical.decode(odd)
