"""Heads: one device's signed statement of its tree and of the packs that hold it; pack lists. SPEC.md, 6.4.

Each device numbers its heads; a number is on disk before it is used and is never used for two heads. Two different
heads of one device with one number prove a fork: a cloned device or a restored old copy.

A keeper sees of a head: the device's key, its numbers, the names of packs (so their count and sizes, by 64 KiB), which
pack holds the root, the epoch's id, the writer's clock. It sees no names, sizes or number of files, and no content.

Leaves trees to `trees`, what to pull to `reconcile`, keeping heads to the node.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from hinet_protocol import canonical, limits, schema
from hinet_protocol.errors import (
    EncodingError,
    HeadMalformed,
    HeadUnauthorised,
    LimitError,
    MessageError,
    PackMalformed,
)
from hinet_protocol.identity import SIGN_VAULT_HEAD, hash_bytes, verify
from hinet_protocol.trees import Vector

packs_inline_max = 128
pack_lists_max = 64
settles_max = 64
pack_list_magic = b"HINETPL\x01"
pack_list_names_max = 262_144
packs_needed_max = 1_048_576
"""Of all lists that the heads of one device name: 64 lists alone could name sixteen times as many, in a gigabyte."""
_pack_list_header_bytes = len(pack_list_magic) + 4

Sign = Callable[[bytes, bytes], bytes]
"""`sign(domain, message) -> signature`, as `DeviceKeys.sign`."""

_number = schema.integer(1, 2**63 - 1)
_packs = schema.sorted_unique(schema.list_of(schema.bytes32, packs_inline_max))
_lists = schema.sorted_unique(schema.list_of(schema.bytes32, pack_lists_max))
_settles = schema.sorted_unique(schema.list_of(schema.bytes32, settles_max, 1))
_vector = schema.sorted_unique(schema.list_of(schema.row(schema.bytes32, _number), limits.devices_max, 1))
_CHECKS: Mapping[str, schema.Check] = {
    "version": schema.integer(1, 1),
    "identity": schema.bytes32,
    "device": schema.bytes32,
    "seq": _number,
    "prev": schema.binary(0, 32),
    "epoch": schema.bytes32,
    "tree": schema.row(schema.bytes32, schema.bytes32),
    "packs": _packs,
    "lists": _lists,
    "vector": _vector,
    "time": schema.uint63,
}


@dataclass(frozen=True, slots=True)
class Head:
    """A verified head. `raw` is what was signed and sent; `hash` is its name.

    `prev` is the hash of the device's head before (empty for the first; numbers may be left out). `tree_chunk` is the
    root's chunk id and `tree_pack` the pack it is in. Everything the tree needs is in `packs` and in the packs that the
    pack lists `lists` name. `vector` has the newest head of each device that this tree has taken up, its own included.
    `settles` are hashes of heads that the writer has merged, or that the owner gave up: they no longer count as a fork
    or as needed.
    """

    raw: bytes = field(repr=False)
    hash: bytes
    identity: bytes
    device: bytes
    seq: int
    prev: bytes
    epoch: bytes
    tree_chunk: bytes
    tree_pack: bytes
    packs: tuple[bytes, ...]
    lists: tuple[bytes, ...]
    vector: Vector
    time: int
    settles: tuple[bytes, ...] = ()


def make_head(sign: Sign, *, identity: bytes, device: bytes, seq: int, prev: bytes, epoch: bytes, tree_chunk: bytes,
              tree_pack: bytes, packs: Iterable[bytes], lists: Iterable[bytes], vector: Vector, time: int,
              settles: Iterable[bytes] = ()) -> Head:
    """A new signed head. Raises HeadMalformed when a field is outside its form (our own bug)."""
    fields: dict[str, Any] = {
        "version": 1, "identity": identity, "device": device, "seq": seq, "prev": prev, "epoch": epoch,
        "tree": [tree_chunk, tree_pack], "packs": sorted(set(packs)), "lists": sorted(set(lists)),
        "vector": [list(pair) for pair in vector], "time": time,
    }
    settled = sorted(set(settles))
    body = canonical.encode({**fields, "settles": settled} if settled else fields)
    raw = canonical.encode([body, sign(SIGN_VAULT_HEAD, body)])
    return _read(raw)[0]


def read_head(raw: bytes, *, identity: bytes, members: Collection[bytes]) -> Head:
    """A head as received, checked in full.

    Raises HeadMalformed; HeadUnauthorised for another household, for a device that is no member (`members` are the
    public keys of those that may write now, revoked ones left out); SignatureInvalid.
    """
    head, body, signature = _read(raw)
    if head.identity != identity:
        raise HeadUnauthorised("A head belongs to another household. It was refused.")
    if head.device not in members:
        raise HeadUnauthorised(f"Device {head.device.hex()[:16]} may not write to this vault (it is no member, or was "
                               "revoked). Its head was refused.")
    verify(head.device, SIGN_VAULT_HEAD, body, signature)
    return head


def _read(raw: bytes) -> tuple[Head, bytes, bytes]:
    try:
        outer = canonical.decode(raw, limits.head_bytes_max)
        body, signature = schema.row(schema.binary(1, limits.head_bytes_max), schema.bytes64)(outer, "head")
        value = canonical.decode(body, limits.head_bytes_max)
        checks = {**_CHECKS, "settles": _settles} if isinstance(value, dict) and "settles" in value else _CHECKS
        found = schema.fields(value, checks, "head")
    except (EncodingError, LimitError, MessageError) as error:
        raise HeadMalformed(f"These bytes are no head: {error}") from None
    if len(found["prev"]) not in (0, 32):
        raise HeadMalformed("The hash of the head before has a wrong length.")
    if dict(found["vector"]).get(found["device"]) != found["seq"]:
        raise HeadMalformed("The vector of a head does not hold its own number.")
    if len({key for key, _ in found["vector"]}) != len(found["vector"]):
        raise HeadMalformed("A device is in the vector of a head twice.")
    if not found["packs"] and not found["lists"]:
        raise HeadMalformed("A head names no packs.")
    head = Head(bytes(raw), hash_bytes(raw), found["identity"], found["device"], found["seq"], found["prev"],
                found["epoch"], found["tree"][0], found["tree"][1], found["packs"], found["lists"], found["vector"],
                found["time"], found.get("settles", ()))
    return head, body, signature


# --- pack lists ------------------------------------------------------------------------------------------------------


def encode_pack_list(names: Iterable[bytes]) -> bytes:
    """The file of a pack list: magic, count, the names in rising order. In clear, named like a pack, replicated like
    one. Raises ValueError for none or more than 262,144 names."""
    ordered = sorted(set(names))
    if not 1 <= len(ordered) <= pack_list_names_max or any(len(name) != 32 for name in ordered):
        raise ValueError("A pack list holds 1 to 262,144 names of 32 bytes.")
    return pack_list_magic + len(ordered).to_bytes(4, "big") + b"".join(ordered)


def is_pack_list(first: bytes) -> bool:
    """Whether a file that begins so (8 bytes suffice) is a pack list rather than a pack."""
    return first[:7] == pack_list_magic[:7]


def list_names(size_bytes: int) -> int:
    """How many names a pack list of this size has."""
    return max(0, size_bytes - _pack_list_header_bytes) // 32


def decode_pack_list(raw: bytes) -> tuple[bytes, ...]:
    """The names in a pack list. Raises PackMalformed."""
    if raw[:8] != pack_list_magic or len(raw) < _pack_list_header_bytes:
        raise PackMalformed("This is no pack list of a version that this software knows.")
    count = int.from_bytes(raw[8:12], "big")
    if not 1 <= count <= pack_list_names_max or len(raw) != _pack_list_header_bytes + 32 * count:
        raise PackMalformed("A pack list has another length than it says.")
    names = tuple(raw[at:at + 32] for at in range(_pack_list_header_bytes, len(raw), 32))
    if any(left >= right for left, right in itertools.pairwise(names)):
        raise PackMalformed("A pack list is not sorted.")
    return names


# --- a household's heads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """What a head is beside those that are known of its device: `new`, `known`, `older` or `fork`.

    `other` is the hash of the known head that a fork contradicts.
    """

    kind: str
    other: bytes = b""


def judge(head: Head, known: Mapping[int, Collection[bytes]]) -> Standing:
    """Place a head among its device's known ones (number -> hashes). A fork is the same number with another hash, also
    when it is older; the caller keeps both and shows it."""
    same = known.get(head.seq, ())
    if head.hash in same:
        return Standing("known")
    if same:
        return Standing("fork", min(same))
    if known and head.seq < max(known):
        return Standing("older")
    return Standing("new")


def settled_by(heads: Iterable[Head]) -> frozenset[bytes]:
    """Hashes of the heads that these ones settle."""
    return frozenset(settled for head in heads for settled in head.settles)


def contradictions(heads: Iterable[Head]) -> list[tuple[Head, ...]]:
    """Groups of different heads of one device with one number: each proves a fork."""
    groups: dict[tuple[bytes, int], list[Head]] = {}
    for head in heads:
        groups.setdefault((head.device, head.seq), []).append(head)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def skips(newer: Head, between: Head, prev_seq: int | None) -> bool:
    """Whether `newer` was made by a device that could not read its own head `between` and went on from an earlier one,
    so that its tree lacks what `between` brought. `prev_seq` is the number of the head that `newer` names as the one
    before; None if that is not known, and then nothing can be said."""
    if newer.device != between.device or newer.seq <= between.seq or newer.prev == between.hash:
        return False
    return newer.prev == b"" or (prev_seq is not None and prev_seq < between.seq)


def vault_digest(head_hashes: Iterable[bytes], packs: Iterable[bytes]) -> bytes:
    """The digest (32 bytes) of what a device holds: its heads and its packs, each sorted. Two devices with the same
    digest have nothing to tell each other."""
    state = blake3()
    for kind, names in ((b"heads", head_hashes), (b"packs", packs)):
        ordered = sorted(names)
        state.update(kind + len(ordered).to_bytes(8, "big"))
        for name in ordered:
            state.update(name)
    return state.digest()
