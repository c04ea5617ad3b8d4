from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import limits
from hinet_protocol.canonical import decode, encode
from hinet_protocol.errors import EncodingError, LimitError, ProtocolError

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=300)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20)
)


@given(values)
def test_every_value_comes_back_and_has_one_form(value: object) -> None:
    try:
        raw = encode(value)
    except ProtocolError:
        return  # a lone surrogate in a key
    assert decode(raw) == value
    assert encode(decode(raw)) == raw


@given(values)
def test_the_bytes_are_plain_msgpack(value: object) -> None:
    try:
        raw = encode(value)
    except ProtocolError:
        return
    assert msgpack.unpackb(raw, strict_map_key=False) == value


@given(st.binary(max_size=400))
def test_random_bytes_give_a_value_or_a_protocol_error(raw: bytes) -> None:
    try:
        value = decode(raw)
    except ProtocolError:
        return
    assert encode(value) == raw


@given(values, st.data())
def test_damaged_bytes_never_give_a_second_form_of_a_value(value: object, data: st.DataObject) -> None:
    try:
        raw = bytearray(encode(value))
    except ProtocolError:
        return
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(raw))
    except ProtocolError:
        return
    assert encode(found) == bytes(raw)


def test_map_order_of_the_caller_does_not_matter() -> None:
    assert encode({"b": 1, "a": 2, "ä": 3, "": 4}) == encode({"": 4, "ä": 3, "a": 2, "b": 1})


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "end"),
        (b"\xcb" + bytes(8), "0xcb"),  # float
        (b"\xca" + bytes(4), "0xca"),
        (b"\xc7\x01\x01\x00", "0xc7"),  # extension
        (b"\xc1", "0xc1"),
        (b"\xd4\x01\x00", "0xd4"),
        (b"\xcc\x01", "shortest"),
        (b"\xcd\x00\xff", "shortest"),
        (b"\xcf\x00\x00\x00\x00\xff\xff\xff\xff", "shortest"),
        (b"\xd0\x05", "shortest"),
        (b"\xd0\xff", "shortest"),
        (b"\xd3\xff\xff\xff\xff\x80\x00\x00\x00", "shortest"),
        (b"\xd9\x01a", "shortest"),
        (b"\xc5\x00\x01a", "shortest"),
        (b"\xdc\x00\x01\x00", "shortest"),
        (b"\xde\x00\x01\xa1a\x00", "shortest"),
        (b"\xa2a", "too early"),
        (b"\xc6\xff\xff\xff\xff", "too early"),
        (b"\x00\x00", "follow"),
        (b"\xa1\xff", "UTF-8"),
        (b"\xa3\xed\xa0\x80", "UTF-8"),  # surrogate
        (b"\x81\x01\x02", "not a text"),
        (b"\x82\xa1b\x00\xa1a\x00", "sorted"),
        (b"\x82\xa1a\x00\xa1a\x00", "twice"),
    ],
)
def test_what_is_not_canonical_is_refused_with_its_reason(raw: bytes, why: str) -> None:
    with pytest.raises(EncodingError, match=why):
        decode(raw)


def test_nesting_is_refused_from_the_seventeenth_level_on() -> None:
    assert decode(b"\x91" * 15 + b"\x90") is not None
    with pytest.raises(LimitError, match="deeper"):
        decode(b"\x91" * 16 + b"\x90")
    with pytest.raises(LimitError, match="deeper"):
        decode(b"\x91" * 100_000)
    value: list[object] = []
    for _ in range(16):
        value = [value]
    with pytest.raises(LimitError, match="deeper"):
        encode(value)


def test_announced_sizes_are_checked_before_memory_is_taken() -> None:
    with pytest.raises(LimitError, match="most allowed"):
        decode(b"\xdd\xff\xff\xff\xff")
    with pytest.raises(LimitError, match="most allowed"):
        decode(b"\xdf\xff\xff\xff\xff")
    with pytest.raises(EncodingError, match="more items than bytes"):
        decode(b"\xdc\xff\xff")
    with pytest.raises(EncodingError, match="more pairs than bytes"):
        decode(b"\xde\x01\x00")
    with pytest.raises(LimitError, match="at most"):
        decode(bytes(limits.frame_bytes_max + 1))


def test_small_values_do_not_add_up_to_much_memory() -> None:
    crowded = b"\xdc\xff\xff" + b"\x90" * 65_535
    full = b"\x9f" + crowded * 15
    assert decode(full) is not None
    with pytest.raises(LimitError, match="More than 1,048,576 values"):
        decode(b"\xdc\x00\x11" + crowded * 17, 1 << 24)
    tracemalloc.start()
    with pytest.raises(LimitError):
        decode(b"\xdc\x01\x00" + crowded * 256, 1 << 24)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120 << 20


@pytest.mark.parametrize("value", [1.5, {1: 2}, object(), 2**64, -(2**63) - 1, "\ud800", {"\ud800": 1}, {b"a": 1}])
def test_values_outside_the_format_are_not_written(value: object) -> None:
    with pytest.raises(EncodingError):
        encode(value)


def test_a_boolean_is_not_an_integer() -> None:
    assert encode(True) == b"\xc3"
    assert encode(1) == b"\x01"
    assert decode(b"\xc3") is True
