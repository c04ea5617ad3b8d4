"""The immutable `Chain`: a set of entries and what follows from it. SPEC.md, 3.3 to 3.6.

Everything a Chain says is a function of the set of its entries: the order in which they arrived does not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hinet_protocol import canonical, limits
from hinet_protocol.chain.entries import EPOCH_NEW, GENESIS, Entry, entry_hash, parse_entry
from hinet_protocol.chain.graph import Graph, Node
from hinet_protocol.chain.rules import Settlement, check_entry, check_genesis, settle
from hinet_protocol.errors import ChainError, ChainForeign, EntryMalformed, EntryOrphan, ProtocolError
from hinet_protocol.identity import device_id, fingerprint, peer_id


@dataclass(frozen=True)
class Device:
    """One device as the chain sees it. `expires_s` is in unix seconds, 0 for never.

    `revoked`: a revocation counts. `void`: its certificate does not count, because whoever signed it had been
    revoked without knowing this entry. `live` is neither. `name` is unique in the household: of several live
    devices that took the same name apart from each other, only the senior one keeps it bare.
    """

    name: str
    public: bytes
    box_public: bytes
    role: str
    tier: str
    expires_s: int
    entry: bytes
    height: int
    added_s: int
    added_by: bytes
    revoked: bool
    void: bool
    revoke_reason: str = ""

    @property
    def live(self) -> bool:
        """It belongs to the household."""
        return not self.revoked and not self.void

    @property
    def peer_id(self) -> str:
        """Its libp2p peer id."""
        return peer_id(self.public)

    @property
    def fingerprint(self) -> str:
        """Eight characters for a person to compare."""
        return fingerprint(self.public)

    @property
    def device_id(self) -> str:
        """Its key as a name for files."""
        return device_id(self.public)

    def expired(self, now_s: int) -> bool:
        """Its certificate has run out by this clock."""
        return self.expires_s != 0 and now_s >= self.expires_s

    def role_at(self, now_s: int) -> str:
        """Its role by this clock: an expired certificate gives the rights of a keeper."""
        return "keeper" if self.expired(now_s) else self.role


@dataclass(frozen=True)
class Epoch:
    """One vault key epoch. `wraps` and `previous` are as in the entry; `standing`: its signer had the right."""

    epoch_id: bytes
    height: int
    signer: bytes
    check: bytes
    ephemeral: bytes
    wraps: Mapping[bytes, bytes] = field(repr=False)
    previous: Mapping[bytes, bytes] = field(repr=False)
    standing: bool = True


@dataclass(frozen=True)
class Rejected:
    """An entry that was not taken, and why."""

    hash: bytes
    error: ProtocolError


@dataclass(frozen=True)
class Merged:
    """What `Chain.merge` gives: the new chain, the hashes that are new in it, and what was refused."""

    chain: Chain
    added: tuple[bytes, ...]
    rejected: tuple[Rejected, ...]

    @property
    def cause(self) -> ProtocolError | None:
        """The error to show for what was refused; an orphan only follows from another refusal or a missing entry."""
        return root_cause(self.rejected)


def root_cause(rejected: Sequence[Rejected]) -> ProtocolError | None:
    """The first error that is not merely an orphan's, else the first, else None."""
    errors = [one.error for one in rejected]
    return next((error for error in errors if not isinstance(error, EntryOrphan)), errors[0] if errors else None)


class Chain:
    """An immutable set of verified entries that all descend from one genesis."""

    __slots__ = ("__dict__", "_graph")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    # --- making ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_entries(cls, raws: Iterable[bytes], identity_id: bytes | None = None) -> Chain:
        """A chain from all its entries, in any order. Raises what was refused; nothing is left out silently.

        With `identity_id`, a chain of another identity raises ChainForeign.
        """
        raws = list(raws)
        merged = cls._start(raws, identity_id).merge(raws)
        if merged.cause is not None:
            raise merged.cause
        return merged.chain

    @classmethod
    def _start(cls, raws: Sequence[bytes], identity_id: bytes | None) -> Chain:
        genesis: dict[bytes, Entry] = {}
        for raw in raws:
            # Only a genesis has an empty list of parents; parsing all here would double the work.
            if b"\xa7genesis" in raw:
                entry = parse_entry(raw)
                if entry.kind == GENESIS:
                    genesis[entry.hash] = entry
        if len(genesis) != 1:
            raise ChainError(f"A chain begins with one genesis entry, {len(genesis)} were found.")
        entry = next(iter(genesis.values()))
        check_genesis(entry)
        if identity_id is not None and entry.identity_id != identity_id:
            raise ChainForeign("This chain belongs to another identity; it was refused.")
        return cls(Graph.start(entry))

    def with_entries(self, raws: Iterable[bytes]) -> Chain:
        """The chain with the valid ones of these entries, in any order. See `merge` for what was refused."""
        return self.merge(raws).chain

    def merge(self, raws: Iterable[bytes]) -> Merged:
        """Takes in entries in any order. An invalid entry, and all that descend from it, are refused with a reason;
        the others are kept. Entries that are there already are neither added nor rejected."""
        graph = self._graph.copy()
        rejected: dict[bytes, ProtocolError] = {}
        waiting: dict[bytes, Entry] = {}
        for raw in raws:
            name = entry_hash(raw)
            if name in graph or name in waiting or name in rejected:
                continue
            try:
                waiting[name] = parse_entry(raw)
            except ProtocolError as error:
                rejected[name] = error
        added = _take_in(graph, waiting, rejected)
        refused = tuple(Rejected(name, rejected[name]) for name in sorted(rejected))
        return Merged(Chain(graph) if added else self, added, refused)

    # --- identity ----------------------------------------------------------------------------------------------------

    @property
    def identity_id(self) -> bytes:
        """The identity that the chain belongs to, 32 bytes."""
        return self._graph.genesis.entry.identity_id

    @property
    def root_public(self) -> bytes:
        """The root key in force, 32 bytes."""
        root: bytes = self._graph.genesis.entry.body["root"]
        return root

    @property
    def root_box_public(self) -> bytes:
        """The root's X25519 key, 32 bytes: epochs are wrapped to it for recovery."""
        box: bytes = self._graph.genesis.entry.body["box"]
        return box

    @property
    def genesis(self) -> Entry:
        """The first entry."""
        return self._graph.genesis.entry

    # --- shape -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def heads(self) -> tuple[bytes, ...]:
        """The entries that no other entry names as parent, by rising hash."""
        return tuple(sorted(node.hash for node in self._graph.heads()))

    @functools.cached_property
    def height(self) -> int:
        """The longest way from genesis (height 0) to a head."""
        return max(node.height for node in self._graph.heads())

    def __len__(self) -> int:
        return len(self._graph)

    def __contains__(self, name: object) -> bool:
        return name in self._graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.heads == other.heads and self.genesis.hash == other.genesis.hash

    def __hash__(self) -> int:
        return hash(self.heads)

    def entries(self) -> tuple[Entry, ...]:
        """All entries by (height, hash), so parents come first."""
        return tuple(node.entry for node in self._graph.ordered())

    def entry(self, name: bytes) -> Entry | None:
        """The entry of this hash."""
        node = self._graph.get(name)
        return None if node is None else node.entry

    def height_of(self, name: bytes) -> int | None:
        """The height of the entry of this hash."""
        node = self._graph.get(name)
        return None if node is None else node.height

    def in_past(self, name: bytes, parents: Iterable[bytes]) -> bool:
        """The entry of this hash is one of `parents` (hashes of this chain) or in the past of one."""
        node = self._graph.get(name)
        return node is not None and bool(self._graph.past_of(parents) >> node.index & 1)

    def raws(self) -> tuple[bytes, ...]:
        """The raw bytes of all entries, parents first."""
        return tuple(entry.raw for entry in self.entries())

    def to_bytes(self) -> bytes:
        """All entries in one canonical list, parents first: for backups and bundles."""
        return canonical.encode(list(self.raws()))

    @classmethod
    def from_bytes(cls, raw: bytes, identity_id: bytes | None = None) -> Chain:
        """Reads what `to_bytes` gave. Raises a ProtocolError."""
        raws = canonical.decode(raw, limits.chain_bytes_max)
        if not isinstance(raws, list) or not all(isinstance(item, bytes) for item in raws):
            raise EntryMalformed("A chain file is a list of entries; this is something else.")
        return cls.from_entries(raws, identity_id)

    # --- syncing -----------------------------------------------------------------------------------------------------

    def missing(self, their_heads: Iterable[bytes]) -> tuple[bytes, ...]:
        """Those of a peer's heads that are not in this chain: a reason to ask it with ChainGet."""
        return tuple(name for name in their_heads if name not in self._graph)

    def locator(self, received: Iterable[bytes] = ()) -> tuple[bytes, ...]:
        """What to put into ChainGet: the heads, then entries at growing distances back to genesis.

        `received` are the hashes of the batch that came last: its tips lead, so that the next batch begins after it.
        """
        ordered = self._graph.ordered()
        nodes = [node for name in received if (node := self._graph.get(name)) is not None]
        parents = {parent for node in nodes for parent in node.entry.parents}
        found = [node.hash for node in nodes if node.hash not in parents][: limits.locator_hashes_max // 3]
        found += self.heads[: limits.locator_hashes_max // 3]
        step, at = 1, len(ordered) - 1
        while at > 0 and len(found) < limits.locator_hashes_max - 1:
            found.append(ordered[at].hash)
            at -= step
            step *= 2
        found.append(self.genesis.hash)
        return tuple(dict.fromkeys(found))

    def entries_for(
        self,
        have: Iterable[bytes],
        bytes_max: int = limits.chain_batch_bytes_max,
        given: Container[bytes] = (),
    ) -> tuple[tuple[bytes, ...], bool]:
        """The entries to send to a peer that has these and their pasts, parents first, and whether more would follow.

        Those in `given`, sent before, are left out. Hashes that are not in this chain are passed over. At least one
        entry is given if any is missing.
        """
        known = 0
        for name in have:
            node = self._graph.get(name)
            known |= 0 if node is None else node.past
        batch: list[bytes] = []
        size = 0
        for node in self._graph.ordered():
            if known >> node.index & 1 or node.hash in given:
                continue
            size += len(node.entry.raw) + 5
            if batch and (size > bytes_max or len(batch) >= limits.chain_batch_entries_max):
                return tuple(batch), True
            batch.append(node.entry.raw)
        return tuple(batch), False

    # --- who belongs -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _settled(self) -> Settlement:
        return settle(self._graph, self._graph.everything)

    @functools.cached_property
    def _devices(self) -> dict[bytes, Device]:
        return _devices_of(self._graph, self._settled)

    def devices(self) -> tuple[Device, ...]:
        """All devices that were ever added, seniors first, the revoked among them."""
        return tuple(self._devices.values())

    def members(self) -> tuple[Device, ...]:
        """The live devices of all roles, seniors first."""
        return self._members

    @functools.cached_property
    def _members(self) -> tuple[Device, ...]:
        return tuple(device for device in self._devices.values() if device.live)

    def device(self, public: bytes) -> Device | None:
        """The device of this Ed25519 key, revoked or not."""
        return self._devices.get(public)

    def device_named(self, name: str) -> Device | None:
        """The live device of this name, letter case aside."""
        wanted = name.casefold()
        return next((device for device in self.members() if device.name.casefold() == wanted), None)

    def is_member(self, public: bytes) -> bool:
        """The key belongs to a live device, whatever its role."""
        device = self._devices.get(public)
        return device is not None and device.live

    def role_of(self, public: bytes, now_s: int | None = None) -> str | None:
        """The role of a live device, by this clock if one is given; None for everybody else."""
        device = self._devices.get(public)
        if device is None or not device.live:
            return None
        return device.role if now_s is None else device.role_at(now_s)

    def can_sign(self, public: bytes) -> bool:
        """The key may add and revoke devices: the root, or a live admin."""
        return public == self.root_public or self.role_of(public) == "admin"

    # --- epochs ------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _epochs(self) -> dict[bytes, Epoch]:
        found = {}
        for node in self._graph.ordered():
            if node.entry.kind == EPOCH_NEW:
                body = node.entry.body
                found[node.hash] = Epoch(
                    epoch_id=node.hash,
                    height=node.height,
                    signer=node.entry.signer,
                    check=body["check"],
                    ephemeral=body["ephemeral"],
                    wraps=dict(body["wraps"]),
                    previous=dict(body["previous"]),
                    standing=self._settled.grants(self._graph, node),
                )
        return found

    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs, earlier first, those that do not stand among them."""
        return tuple(self._epochs.values())

    def epoch(self, epoch_id: bytes) -> Epoch | None:
        """The epoch of this id."""
        return self._epochs.get(epoch_id)

    @functools.cached_property
    def epoch_tips(self) -> tuple[Epoch, ...]:
        """The standing epochs that no later standing epoch has in its past. More than one after a merge."""
        nodes = [node for node in map(self._graph.get, self._epochs) if node is not None]
        standing = [node for node in nodes if self._epochs[node.hash].standing]
        covered = 0
        for node in standing:
            covered |= node.past & ~(1 << node.index)
        return tuple(self._epochs[node.hash] for node in standing if not covered >> node.index & 1)

    @functools.cached_property
    def current_epoch(self) -> Epoch | None:
        """The epoch to write with. Of several tips: the one that reaches fewest devices which no longer belong, then
        the root-signed, then that of the senior signer, then the lowest hash."""
        ranks = {device.public: rank for rank, device in enumerate(self._devices.values(), start=1)}
        ranks[self.root_public] = 0
        return min(
            self.epoch_tips,
            key=lambda epoch: (self._strays(epoch), ranks.get(epoch.signer, len(ranks)), epoch.epoch_id),
            default=None,
        )

    def _strays(self, epoch: Epoch) -> int:
        return sum(1 for public in epoch.wraps if public != self.root_public and not self.is_member(public))

    def wraps_for(self, public: bytes) -> tuple[tuple[bytes, bytes, bytes], ...]:
        """Rows of epoch id, ephemeral key and wrapped key that were given to a device when it was added."""
        found = []
        for node in sorted(self._graph.adds_of(public), key=_place):
            body = node.entry.body
            found += [(epoch_id, body["ephemeral"], wrapped) for epoch_id, wrapped in body["epochs"]]
        return tuple(found)


def _take_in(graph: Graph, waiting: dict[bytes, Entry], rejected: dict[bytes, ProtocolError]) -> tuple[bytes, ...]:
    """Moves entries whose parents are all there from `waiting` into the graph, until no more can move."""
    added: list[bytes] = []
    children: dict[bytes, list[bytes]] = {}
    lacking: dict[bytes, int] = {}
    ready: list[bytes] = []
    for name, entry in waiting.items():
        lacking[name] = sum(parent not in graph for parent in entry.parents)
        for parent in entry.parents:
            children.setdefault(parent, []).append(name)
        if not lacking[name]:
            ready.append(name)
    while ready:
        name = ready.pop()
        entry = waiting.pop(name)
        try:
            members = check_entry(graph, entry)
        except ProtocolError as error:
            rejected[name] = error
            continue
        graph.add(entry, members)
        added.append(name)
        for child in children.get(name, ()):
            lacking[child] -= 1
            if not lacking[child]:
                ready.append(child)
    for name in waiting:
        rejected[name] = EntryOrphan("A chain entry follows one that is missing here or was refused. Sync again.")
    return tuple(added)


def _place(node: Node) -> tuple[int, bytes]:
    """The same on every replica."""
    return node.height, node.hash


def _devices_of(graph: Graph, settled: Settlement) -> dict[bytes, Device]:
    """All devices by key, seniors first, with the names made unique."""
    found: dict[bytes, Device] = {}
    names: set[str] = set()
    for public in sorted(graph.device_keys(), key=graph.seniority):
        standing = settled.adds.get(public)
        # Of certificates that all fell, the lowest is shown, not the one that came first.
        node: Node = standing[0] if standing else min(graph.adds_of(public), key=_place)
        revokes = sorted(settled.revokes[public], key=_place)
        body = node.entry.body
        name: str = body["name"]
        if settled.live(public):
            if name.casefold() in names:
                name = f"{name}-{fingerprint(public)[:4].lower()}"
            names.add(name.casefold())
        found[public] = Device(
            name=name,
            public=public,
            box_public=body["box"],
            role=body["role"],
            tier=body["tier"],
            expires_s=body["expires"],
            entry=node.hash,
            height=node.height,
            added_s=node.entry.time_s,
            added_by=node.entry.signer,
            revoked=bool(revokes),
            void=not standing,
            revoke_reason=revokes[0].entry.body["reason"] if revokes else "",
        )
    return found


__all__ = ["Chain", "Device", "Epoch", "Merged", "Rejected"]
