"""Attributes of a version: what is known of a file beside its content. SPEC.md, 6.3.

A canonical map with optional keys: `mode` and `mtime` to put a file back as it was, `past` to find what the version
replaced. Keys that this software does not know are kept. Whatever stands there decides nothing about merging, so bytes
that make no sense count as none. Leaves the row that they stand in to `trees`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from hinet_protocol import canonical
from hinet_protocol.errors import EncodingError, LimitError

attributes_bytes_max = 4_096
no_attributes = b"\x80"
mode_plain, mode_executable = 0o644, 0o755
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1
_PAST_BYTES = 32
_PAST_KEY = b"\xa4past"


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a version's attributes say; None for what they do not say, or say in a form that is none."""

    mode: int | None = None
    """0o644, or 0o755 for a file that may be run."""
    mtime_ns: int | None = None
    """When the content last changed, by the clock of the device that held it: for display and restoring only."""
    past: bytes | None = None
    """The chunk (type 5) that holds the versions which this one replaced."""


def make_attributes(mode: int | None = None, mtime_ns: int | None = None, past: bytes | None = None,
                    others: bytes = no_attributes) -> bytes:
    """The canonical bytes. Only the owner's right to run a file is kept of `mode`; a time that does not fit into 64
    bits is left out. Unknown keys of `others` (attributes of another version) are kept while they fit."""
    known: dict[str, Any] = {}
    if mode is not None:
        known["mode"] = mode_executable if mode & 0o100 else mode_plain
    if mtime_ns is not None and _TIME_MIN <= mtime_ns <= _TIME_MAX:
        known["mtime"] = mtime_ns
    if past is not None:
        if len(past) != _PAST_BYTES:
            raise ValueError("A chunk id has 32 bytes.")
        known["past"] = past
    if others != no_attributes:
        unknown = {key: value for key, value in _decoded(others).items() if key not in ("mode", "mtime", "past")}
        if unknown:
            raw = canonical.encode({**unknown, **known})
            if len(raw) <= attributes_bytes_max:
                return raw
    raw = msgpack.packb(known, use_bin_type=True)  # the keys were entered in their order
    assert isinstance(raw, bytes)
    return raw


def read_attributes(raw: bytes) -> Attributes:
    """What the bytes say. Never raises: they may have been written by a faulty device, and a newer one may say more."""
    if raw == no_attributes:
        return Attributes()
    found = _decoded(raw)
    mode, mtime_ns, past = found.get("mode"), found.get("mtime"), found.get("past")
    return Attributes(
        mode if type(mode) is int and mode in (mode_plain, mode_executable) else None,
        mtime_ns if type(mtime_ns) is int and _TIME_MIN <= mtime_ns <= _TIME_MAX else None,
        past if isinstance(past, bytes) and len(past) == _PAST_BYTES else None)


def with_past(raw: bytes, past: bytes | None) -> bytes:
    """The same attributes with another `past`; all other keys stay."""
    if past is None and _PAST_KEY not in raw:
        return raw
    known = read_attributes(raw)
    return make_attributes(known.mode, known.mtime_ns, past, raw)


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        # What this software writes is a flat map: the C coder reads it at ten times the speed, and for such values what
        # gives the same bytes again, with its keys in order, is canonical.
        flat = msgpack.unpackb(raw, max_map_len=3, max_array_len=0, max_ext_len=0)
        if (type(flat) is dict and list(flat) == sorted(flat) and msgpack.packb(flat) == raw
                and all(type(key) is str and type(value) in (int, bytes) for key, value in flat.items())):
            return flat
    except (ValueError, TypeError, RecursionError):
        pass  # more than that, or nothing: looked at properly
    try:
        value = canonical.decode(raw, attributes_bytes_max)
    except (EncodingError, LimitError):
        return {}
    return value if isinstance(value, dict) else {}
