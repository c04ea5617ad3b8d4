"""As much of protobuf's encoding as the relay's messages need: numbers, byte strings, and unknown fields left alone.

Every announced length is compared with the bytes that are there before anything is taken. Leaves meaning to `wire`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hinet_protocol.errors import RelayMalformed

_FIELDS_MAX = 64
_NUMBER, _FIXED64, _TEXT, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def number_field(field: int, value: int) -> bytes:
    return varint(field << 3 | _NUMBER) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    return varint(field << 3 | _TEXT) + varint(len(value)) + value


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if at + count >= len(raw):
            raise RelayMalformed("A relay message ends inside a number.")
        byte = raw[at + count]
        value |= (byte & 0x7F) << 7 * count
        if not byte & 0x80:
            if value >> 64:
                break
            return value, at + count + 1
    raise RelayMalformed("A relay message holds a number of more than 64 bits.")


def _walk(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = count = 0
    while at < len(raw):
        count += 1
        if count > _FIELDS_MAX:
            raise RelayMalformed("A relay message has too many fields.")
        key, at = read_varint(raw, at)
        field, form = key >> 3, key & 7
        if form == _NUMBER:
            value, at = read_varint(raw, at)
            yield field, value
            continue
        if form == _TEXT:
            size, at = read_varint(raw, at)
        elif form in (_FIXED64, _FIXED32):
            size = 8 if form == _FIXED64 else 4
        else:
            raise RelayMalformed("A relay message holds a field of an unknown form.")
        if not field or size > len(raw) - at:
            raise RelayMalformed("A relay message announces more bytes than it has.")
        if form == _TEXT:
            yield field, raw[at : at + size]
        at += size


def read_fields(raw: bytes) -> tuple[dict[int, int], dict[int, bytes]]:
    """Numbers and byte fields by field number, the last of each; unknown ones are left alone, as protobuf says."""
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    for field, value in _walk(raw):
        if isinstance(value, int):
            numbers[field] = value
        else:
            texts[field] = value
    return numbers, texts
