"""One chain entry: its bytes, its fields, its signature. SPEC.md, 3.1 and 3.2.

An entry is the canonical encoding of `[payload, signature]`, where `payload` is itself canonical bytes. The
signature and the hash are over bytes as received, never over a re-encoding. What an entry may do is judged in
`chain.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hinet_protocol import canonical, limits, schema
from hinet_protocol.epochs import box_key
from hinet_protocol.errors import EntryMalformed, EntryUnsupported, MessageError
from hinet_protocol.identity import SIGN_CHAIN_ENTRY, Signer, hash_bytes, verify
from hinet_protocol.schema import bytes32, bytes64, list_of, one_of, optional, row, sorted_unique, text, uint63

GENESIS = "genesis"
DEVICE_ADD = "device.add"
DEVICE_REVOKE = "device.revoke"
EPOCH_NEW = "epoch.new"
RESERVED_KINDS = ("base.adopt", "checkpoint", "consent", "device.rotate", "root.rotate")

ROLES = ("admin", "member", "keeper")
TIERS = ("cloud", "laptop", "pocket")

entry_version = 1

_wrapped = schema.binary(48, 48)
_keys_by_hash = sorted_unique(list_of(row(bytes32, _wrapped), limits.devices_max))
_PAYLOAD: dict[str, schema.Check] = {
    "v": schema.integer(1, 65_535),
    "id": bytes32,
    "parents": sorted_unique(list_of(bytes32, limits.entry_parents_max)),
    "signer": bytes32,
    "time": uint63,
    "kind": text(32, 1),
    "body": lambda value, path: value,
}
_BODIES: dict[str, dict[str, schema.Check]] = {
    GENESIS: {"root": bytes32, "box": box_key, "next": optional(bytes32)},
    DEVICE_ADD: {
        "name": text(limits.name_bytes_max, 1),
        "sign": bytes32,
        "box": box_key,
        "role": one_of(*ROLES),
        "tier": one_of(*TIERS),
        "expires": uint63,
        # Epoch keys for the new device: the ephemeral X25519 key, and rows of epoch id and wrapped key.
        "ephemeral": optional(bytes32),
        "epochs": sorted_unique(list_of(row(bytes32, _wrapped), limits.epoch_previous_max)),
    },
    DEVICE_REVOKE: {"device": bytes32, "reason": text(limits.reason_bytes_max)},
    EPOCH_NEW: {
        "ephemeral": bytes32,
        "check": bytes32,
        # Rows of device or root key and wrapped epoch key, and rows of earlier epoch id and its sealed key.
        "wraps": _keys_by_hash,
        "previous": sorted_unique(list_of(row(bytes32, _wrapped), limits.epoch_previous_max)),
    },
}


@dataclass(frozen=True)
class Entry:
    """A well-formed entry whose signature holds. `body` has exactly the fields of its kind."""

    raw: bytes = field(repr=False)
    hash: bytes
    identity_id: bytes
    parents: tuple[bytes, ...]
    signer: bytes
    time_s: int
    kind: str
    body: Mapping[str, Any]


def parse_entry(raw: bytes) -> Entry:
    """Reads an entry and checks its form and signature, nothing that depends on other entries.

    Raises EncodingError or LimitError (not canonical), EntryMalformed, EntryUnsupported (made by a newer version),
    SignatureInvalid.
    """
    outer = canonical.decode(raw, limits.entry_bytes_max)
    try:
        payload, signature = row(schema.binary(1, limits.entry_bytes_max), bytes64)(outer, "entry")
    except MessageError as error:
        raise EntryMalformed(f"A chain entry has the wrong form: {error}") from None
    found = _fields(canonical.decode(payload, limits.entry_bytes_max), _PAYLOAD, "entry")
    if found["v"] != entry_version:
        raise EntryUnsupported(f"A chain entry has version {found['v']}, this software knows 1. Upgrade hinet-node.")
    kind: str = found["kind"]
    if kind not in _BODIES:
        known = "is reserved for a newer version" if kind in RESERVED_KINDS else "is not known"
        raise EntryUnsupported(f"A chain entry of kind {kind!r} {known}. Upgrade hinet-node on this device.")
    if (kind == GENESIS) != (not found["parents"]):
        raise EntryMalformed("A genesis entry has no parents, every other entry has one to eight.")
    body = _fields(found["body"], _BODIES[kind], kind)
    verify(found["signer"], SIGN_CHAIN_ENTRY, payload, signature)
    return Entry(
        raw=bytes(raw),
        hash=hash_bytes(raw),
        identity_id=found["id"],
        parents=found["parents"],
        signer=found["signer"],
        time_s=found["time"],
        kind=kind,
        body=body,
    )


def _fields(value: Any, checks: Mapping[str, schema.Check], path: str) -> dict[str, Any]:
    """Like `schema.fields`, with the chain's own errors: an unknown field means a newer version."""
    if isinstance(value, dict):
        for name in value:
            if name not in checks and not name.startswith("x-"):
                raise EntryUnsupported(f"A chain entry has the unknown field {name[:40]!r}. Upgrade hinet-node.")
    try:
        return schema.fields(value, checks, path)
    except MessageError as error:
        raise EntryMalformed(f"A chain entry has the wrong form: {error}") from None


def sign_entry(
    signer: Signer, identity_id: bytes, parents: Sequence[bytes], kind: str, body: Mapping[str, Any], time_s: int
) -> bytes:
    """The raw bytes of a new entry. Raises EntryMalformed or LimitError when it would not be read back."""
    payload = canonical.encode(
        {
            "v": entry_version,
            "id": identity_id,
            "parents": sorted(parents),
            "signer": signer.public,
            "time": time_s,
            "kind": kind,
            "body": dict(body),
        }
    )
    raw = canonical.encode([payload, signer.sign(SIGN_CHAIN_ENTRY, payload)])
    parse_entry(raw)
    return raw


def entry_hash(raw: bytes) -> bytes:
    """The hash that names an entry: BLAKE3 of its raw bytes."""
    return hash_bytes(raw)


__all__ = [
    "DEVICE_ADD",
    "DEVICE_REVOKE",
    "EPOCH_NEW",
    "GENESIS",
    "RESERVED_KINDS",
    "ROLES",
    "TIERS",
    "Entry",
    "entry_hash",
    "parse_entry",
    "sign_entry",
]
