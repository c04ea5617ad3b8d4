"""Damage, from a seeded generator: to bytes, and to the msgpack values inside them, at any depth.

Leaves what the bytes mean, and signing or sealing them anew, to the targets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import msgpack

INTEGERS = (
    0, 1, -1, -32, -33, 31, 32, 127, 128, 255, 256, 65_535, 65_536, 1_048_575, 1_048_576, 1_048_577, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63),
)
TEXTS = (
    "", "a", "x-new", "admin", "member", "keeper", "cloud", "\0", "\x1b[2J", "\u202e", "é", "ß", "K", "😀", "..", "/",
    "a" * 63, "a" * 64, "a" * 65, "a" * 1_024, "a" * 1_025, "a" * 70_000, "\x7f", "\u0085",
)
BINARIES = (b"", b"\0", bytes(16), bytes(31), bytes(32), b"\1" + bytes(31), b"\xff" * 32, bytes(33), bytes(48),
            bytes(64), b"\xec\xff\xff\xff" * 8, bytes(65_536), b"\x91" * 40)
ODD = (None, True, False, 0.0, float("nan"), [], {}, [[]], {"": None}, {"a": {"b": []}})
BYTES = (0, 1, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xC0, 0xC1, 0xC4, 0xC6, 0xC7, 0xCA, 0xCB, 0xCC, 0xCF, 0xD0, 0xD3,
         0xD4, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xE0, 0xFE, 0xFF)
HEADS = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
         b"\xdd\x00\x01\x00\x01", b"\xc9\xff\xff\xff\xff\x01", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd8\xff" + bytes(16))
NEST_BYTES_MAX = 3_000
INPUT_BYTES_MAX = 2 << 20
COUNTS = (1, 2, 9, 65, 97, 1_025, 65_537)


def damaged(raw: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Another input from `raw`: mostly with a changed value in it, else with changed bytes, at times both."""
    if random.random() < 0.6:
        raw = changed_value(raw, random)
        if random.random() < 0.8:
            return raw
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        raw = changed_bytes(raw, others, random)
    return raw[:INPUT_BYTES_MAX]


def noise(random: Random) -> bytes:
    """Bytes without a plan: even ones, or those that begin msgpack values."""
    length = random.choice((0, 1, 4, 16, 64, 300))
    if random.random() < 0.5:
        return random.randbytes(length)
    return bytes(random.choice(BYTES) for _ in range(length))


def changed_bytes(raw: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """One change that knows nothing of the format."""
    at = random.randrange(len(raw) + 1)
    end = min(len(raw), at + random.choice((1, 1, 2, 4, 8, 32, 1_000)))
    kind = random.randrange(9)
    if kind == 0 and at < len(raw):
        return raw[:at] + bytes([raw[at] ^ 1 << random.randrange(8)]) + raw[at + 1:]
    if kind == 1:
        return raw[:at] + bytes([random.choice(BYTES)]) + raw[at + 1:]
    if kind == 2:
        return raw[:at] + noise(random) + raw[at:]
    if kind == 3:
        return raw[:at] + raw[end:]
    if kind == 4:
        return raw[:end] + raw[at:end] * random.choice((1, 2, 50)) + raw[end:]
    if kind == 5:
        return raw[:at]
    if kind == 6:
        form = random.choice((">B", ">H", "<H", ">I", "<I", ">Q", "<Q"))
        number = random.choice(INTEGERS) % 256 ** struct.calcsize(form)
        return raw[:at] + struct.pack(form, number) + raw[at + struct.calcsize(form):]
    if kind == 7:
        return raw[:at] + random.choice(HEADS) + raw[end:]
    other = random.choice(others) if others else b""
    cut = random.randrange(len(other) + 1)
    return raw[:at] + other[cut:]


def changed_value(raw: bytes, random: Random) -> bytes:
    """The msgpack value in `raw` with one change somewhere inside, also in values that are packed as `bin` inside it.
    Bytes that hold no msgpack come back with a changed byte."""
    try:
        value = msgpack.unpackb(raw, raw=False, strict_map_key=False, unicode_errors="surrogateescape")
    except (ValueError, TypeError, OverflowError, RecursionError):
        return changed_bytes(raw, (), random)
    return pack(_changed(value, random), random)


def pack(value: Any, random: Random) -> bytes:
    """msgpack; now and then an integer or a length in a longer form than needed, or a map out of order."""
    if isinstance(value, Deep):
        return value.raw
    if isinstance(value, list):
        head = msgpack.Packer().pack_array_header(len(value))
        if random.random() < 0.003:
            head = b"\xdd" + struct.pack(">I", len(value) + random.choice((0, 0, 1, -1)) & 0xFFFFFFFF)
        return head + b"".join(pack(one, random) for one in value)
    if isinstance(value, dict):
        pairs = list(value.items())
        if random.random() < 0.005:
            random.shuffle(pairs)
        if random.random() < 0.003 and pairs:
            pairs.append(random.choice(pairs))
        head = msgpack.Packer().pack_map_header(len(pairs))
        return head + b"".join(pack(key, random) + pack(one, random) for key, one in pairs)
    if type(value) is int and 0 <= value < 2**64 and random.random() < 0.003:
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, bytes) and random.random() < 0.003:
        return b"\xc6" + struct.pack(">I", len(value)) + value
    return bytes(msgpack.packb(value, unicode_errors="surrogateescape"))


class Deep:
    """Nested containers, as bytes: too deep for a packer."""

    def __init__(self, random: Random) -> None:
        depth = random.choice((13, 14, 15, 16, 17, 18, 100, 600, NEST_BYTES_MAX))
        self.raw = random.choice((b"\x91", b"\x81\xa1a", b"\x92\xc0")) * depth + b"\xc0"


def _changed(value: Any, random: Random) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.85:
        return _changed_map(dict(value), random)
    if isinstance(value, list) and value and random.random() < 0.85:
        return _changed_list(list(value), random)
    if isinstance(value, bytes) and len(value) > 1 and random.random() < 0.6:
        return changed_value(value, random) if random.random() < 0.7 else changed_bytes(value, (), random)
    if isinstance(value, str) and value and random.random() < 0.4:
        at = random.randrange(len(value))
        return value[:at] + random.choice(TEXTS) + value[at + random.randrange(3):]
    if type(value) is int and random.random() < 0.5:
        return max(-(2**63), min(2**64 - 1, value + random.choice((-1, 1, 2, 256, 2**32, 2**63))))
    return anything(random)


def anything(random: Random) -> Any:
    """A value of any kind, mostly at a bound."""
    kind = random.randrange(7)
    if kind == 6:
        return Deep(random)
    if kind == 5:
        return [random.choice((0, None, b"", "a", [], bytes(32), 2**63))] * random.choice(COUNTS)
    return random.choice((INTEGERS, TEXTS, BINARIES, ODD, INTEGERS)[kind])


def _changed_map(pairs: dict[Any, Any], random: Random) -> dict[Any, Any]:
    key = random.choice(list(pairs))
    kind = random.randrange(10)
    if kind == 0:
        del pairs[key]
    elif kind == 1:
        pairs[random.choice(TEXTS)] = anything(random)
    elif kind == 2:
        pairs[random.choice((0, None, b"k", -1))] = pairs.pop(key)
    else:
        pairs[key] = _changed(pairs[key], random)
    if all(isinstance(one, str) for one in pairs):
        return dict(sorted(pairs.items(), key=lambda pair: pair[0].encode("utf-8", "surrogateescape")))
    return pairs


def _changed_list(items: list[Any], random: Random) -> list[Any]:
    at = random.randrange(len(items))
    kind = random.randrange(10)
    if kind == 0:
        del items[at]
    elif kind == 1:
        items.insert(at, items[at])
    elif kind == 2:
        other = random.randrange(len(items))
        items[at], items[other] = items[other], items[at]
    elif kind == 3:
        items.append(anything(random))
    else:
        items[at] = _changed(items[at], random)
    return items
