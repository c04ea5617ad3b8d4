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
from hinet_protocol.chain.bodies import BODIES, CONSENT, DEVICE_ADD, DEVICE_REVOKE, DEVICE_ROTATE, GENESIS
from hinet_protocol.errors import EntryMalformed, EntryUnsupported, LimitError, MessageError
from hinet_protocol.identity import SIGN_CHAIN_ENTRY, Signer, hash_bytes, verify
from hinet_protocol.schema import bytes32, bytes64, list_of, row, sorted_unique, text, uint63

entry_version = 1

_PAYLOAD: dict[str, schema.Check] = {
    "v": schema.integer(1, 65_535),
    "id": bytes32,
    "parents": sorted_unique(list_of(bytes32, limits.entry_parents_max)),
    "signer": bytes32,
    "time": uint63,
    "kind": text(32, 1),
    "body": lambda value, path: value,
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
    body: Mapping[str, Any] = field(compare=False)  # two of the same raw bytes have the same body

    @property
    def certifies(self) -> bytes | None:
        """The device key that this entry is a certificate of."""
        if self.kind in (DEVICE_ADD, DEVICE_ROTATE):
            key: bytes = self.body["sign"]
            return key
        return None

    @property
    def removes(self) -> bytes | None:
        """The device key that this entry takes away: a revoked one, or one that new keys replace."""
        if self.kind == DEVICE_REVOKE or (self.kind == DEVICE_ROTATE and self.body["sign"] != self.body["device"]):
            key: bytes = self.body["device"]
            return key
        return None

    @property
    def continues(self) -> bytes | None:
        """The device key whose certificate this entry renews, or whose place new keys take."""
        if self.kind == DEVICE_ROTATE:
            key: bytes = self.body["device"]
            return key
        return None

    @property
    def reduces(self) -> bool:
        """It only takes away, so that no limit may stand in its way."""
        return self.kind == DEVICE_REVOKE or (self.kind == CONSENT and self.body["decision"] == "out")

    @property
    def introduces(self) -> bool:
        """It brings a key into the household; a renewal only continues one."""
        return self.kind == DEVICE_ADD or (self.kind == DEVICE_ROTATE and self.body["sign"] != self.body["device"])


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
    if kind not in BODIES:
        raise EntryUnsupported(f"A chain entry of kind {kind!r} is not known. Upgrade hinet-node on this device.")
    if (kind == GENESIS) != (not found["parents"]):
        raise EntryMalformed("A genesis entry has no parents, every other entry has one to eight.")
    body = _fields(found["body"], BODIES[kind], kind)
    verify(found["signer"], SIGN_CHAIN_ENTRY, payload, signature)
    entry = Entry(
        raw=bytes(raw),
        hash=hash_bytes(raw),
        identity_id=found["id"],
        parents=found["parents"],
        signer=found["signer"],
        time_s=found["time"],
        kind=kind,
        body=body,
    )
    if entry.reduces and len(raw) > limits.reducing_entry_bytes_max:
        raise LimitError(f"A chain entry that only takes away has {len(raw)} bytes; {limits.reducing_entry_bytes_max} "
                         "are the most.")  # fmt: skip
    return entry


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
