"""Deterministic msgpack: one value, one byte string. SPEC.md, 1.

Allowed are None, bool, integers from -2**63 to 2**64-1, bytes, str, list and dict with str keys. There are no
floats and no extension types. The decoder is written here rather than taken from a library: it enforces the
canonical form, checks each announced size against what is left before it allocates, and turns every malformed
input into a ProtocolError. It leaves the meaning of fields to `schema`.
"""

from __future__ import annotations

from typing import Any

import msgpack

from hinet_protocol import limits
from hinet_protocol.errors import EncodingError, LimitError

type_names = "None, bool, int, bytes, str, list, dict"

Value = Any
"""A canonical value. `Any`, because mypy has no comfortable recursive union for what `schema` narrows anyway."""

_INT_MIN = -(2**63)
_INT_MAX = 2**64 - 1


def encode(value: Value) -> bytes:
    """The canonical bytes of a value. Tuples are written as lists.

    Raises EncodingError for a type or integer outside the format, LimitError for too deep or too large values.
    """
    raw = msgpack.packb(_ordered(value, 1), use_bin_type=True)
    assert isinstance(raw, bytes)
    return raw


def _ordered(value: Value, depth: int) -> Value:
    """A copy with sorted keys that holds only allowed types. `depth` counts containers, the outermost is 1."""
    kind = type(value)
    if kind is bytes or value is None or kind is bool:
        return value
    if kind is dict and len(value) <= limits.map_pairs_max and depth <= limits.value_depth_max:
        keys = sorted(value) if all(type(key) is str and key.isascii() for key in value) else None
        if keys is not None:  # every message that we make takes this way, which checks the same
            return {key: item if type(item := value[key]) is bytes else _ordered(item, depth + 1) for key in keys}
    if isinstance(value, bytes):
        return value
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise EncodingError("An integer is outside the 64 bits that the protocol carries.")
        return int(value)
    if isinstance(value, str):
        _utf8(value)
        return str(value)
    if isinstance(value, (list, tuple)):
        _check_container(depth, len(value), limits.list_items_max, "list")
        return [_ordered(item, depth + 1) for item in value]
    if isinstance(value, dict):
        _check_container(depth, len(value), limits.map_pairs_max, "map")
        for key in value:
            if not isinstance(key, str):
                raise EncodingError(f"A map key is {type(key).__name__}, only str is allowed.")
            _utf8(key)
        # Code point order equals the order of the UTF-8 bytes.
        return {str(key): _ordered(value[key], depth + 1) for key in sorted(value)}
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise EncodingError(f"{type(value).__name__} has no canonical form; allowed are {type_names}.")


def _utf8(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise EncodingError("A text holds a lone surrogate and has no UTF-8 form.") from None


def _check_container(depth: int, count: int, count_max: int, what: str) -> None:
    if depth > limits.value_depth_max:
        raise LimitError(f"Values are nested deeper than {limits.value_depth_max} levels.")
    if count > count_max:
        raise LimitError(f"A {what} has {count} items, the most allowed is {count_max}.")


def decode(raw: bytes, bytes_max: int = limits.frame_bytes_max) -> Value:
    """The value that canonical bytes stand for; lists come back as list, maps as dict.

    Raises LimitError when `raw` is longer than `bytes_max` or nested too deep, EncodingError for anything that
    is not the canonical form of exactly one value.
    """
    if len(raw) > bytes_max:
        raise LimitError(f"{len(raw)} bytes where at most {bytes_max} are allowed.")
    reader = _Reader(bytes(raw))
    value = reader.value(1)
    if reader.at != len(reader.raw):
        raise EncodingError(f"{len(reader.raw) - reader.at} bytes follow after the value.")
    return value


# tag byte -> (kind, bytes of length or integer, smallest value that may use this width)
_WIDE: dict[int, tuple[str, int, int]] = {
    0xC4: ("bin", 1, 0),
    0xC5: ("bin", 2, 0x100),
    0xC6: ("bin", 4, 0x10000),
    0xD9: ("str", 1, 0x20),
    0xDA: ("str", 2, 0x100),
    0xDB: ("str", 4, 0x10000),
    0xDC: ("list", 2, 0x10),
    0xDD: ("list", 4, 0x10000),
    0xDE: ("map", 2, 0x10),
    0xDF: ("map", 4, 0x10000),
    0xCC: ("uint", 1, 0x80),
    0xCD: ("uint", 2, 0x100),
    0xCE: ("uint", 4, 0x10000),
    0xCF: ("uint", 8, 0x100000000),
    # For negative integers the bound is the largest value that may use this width.
    0xD0: ("int", 1, -0x21),
    0xD1: ("int", 2, -0x81),
    0xD2: ("int", 4, -0x8001),
    0xD3: ("int", 8, -0x80000001),
}


class _Reader:
    """One pass over the bytes. `at` is the position of the next unread byte."""

    __slots__ = ("at", "raw", "values")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.values = 1

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.raw):
            raise EncodingError(f"The bytes end {end - len(self.raw)} too early.")
        part = self.raw[self.at : end]
        self.at = end
        return part

    def value(self, depth: int) -> Value:
        if self.at >= len(self.raw):
            raise EncodingError("The bytes end where a value should begin.")
        tag = self.raw[self.at]
        self.at += 1
        if tag < 0x80:
            return tag
        if tag == 0xC4 and self.at < len(self.raw):  # short bytes, the commonest: as `wide` reads them
            start = self.at + 1
            self.at = end = start + self.raw[self.at]
            if end > len(self.raw):
                raise EncodingError(f"The bytes end {end - len(self.raw)} too early.")
            return self.raw[start:end]
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self.pairs(tag & 0x0F, depth)
        if tag < 0xA0:
            return self.items(tag & 0x0F, depth)
        if tag < 0xC0:
            start = self.at
            self.at = end = start + (tag & 0x1F)
            part = self.raw[start:end]
            if end <= len(self.raw) and part.isascii():
                return part.decode("ascii")
            self.at = start
            return self.text(tag & 0x1F)
        if tag == 0xC0:
            return None
        if tag in (0xC2, 0xC3):
            return tag == 0xC3
        return self.wide(tag, depth)

    def wide(self, tag: int, depth: int) -> Value:
        form = _WIDE.get(tag)
        if form is None:
            raise EncodingError(f"Byte 0x{tag:02x} starts no allowed value (floats and extensions are refused).")
        kind, width, bound = form
        number = int.from_bytes(self.take(width), "big", signed=kind == "int")
        if number > bound if kind == "int" else number < bound:
            raise EncodingError("A length or integer is not written in its shortest form.")
        if kind in ("uint", "int"):
            return number
        if kind == "bin":
            return self.take(number)
        if kind == "str":
            return self.text(number)
        return self.items(number, depth) if kind == "list" else self.pairs(number, depth)

    def count(self, more: int) -> None:
        """A byte can be an empty list, which takes seventy bytes of memory: bounded apart from the length."""
        self.values += more
        if self.values > limits.values_max:
            raise LimitError(f"More than {limits.values_max:,} values in one.")

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode("utf-8")
        except UnicodeDecodeError:
            raise EncodingError("A text is not valid UTF-8.") from None

    def items(self, count: int, depth: int) -> list[Value]:
        _check_container(depth, count, limits.list_items_max, "list")
        if count > len(self.raw) - self.at:
            raise EncodingError("A list announces more items than bytes are left.")
        self.count(count)
        return [self.value(depth + 1) for _ in range(count)]

    def pairs(self, count: int, depth: int) -> dict[str, Value]:
        _check_container(depth, count, limits.map_pairs_max, "map")
        if 2 * count > len(self.raw) - self.at:
            raise EncodingError("A map announces more pairs than bytes are left.")
        self.count(2 * count)
        found: dict[str, Value] = {}
        last: str | None = None
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise EncodingError("A map key is not a text.")
            if last is not None and key <= last:
                raise EncodingError("Map keys are not sorted, or one is there twice.")
            last = key
            found[key] = self.value(depth + 1)
        return found
