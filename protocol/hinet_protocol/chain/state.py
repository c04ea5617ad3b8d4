"""The immutable `Chain`: a set of entries and what follows from it. SPEC.md, 3.3 to 3.6.

Everything a Chain says is a function of the set of its entries: the order in which they arrived does not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from hinet_protocol import canonical, limits
from hinet_protocol.chain import syncing
from hinet_protocol.chain.bodies import GENESIS
from hinet_protocol.chain.devices import Device, devices_of
from hinet_protocol.chain.entries import Entry, parse_entry
from hinet_protocol.chain.epoch_entries import Epoch, current_of, epochs_of, tips_of
from hinet_protocol.chain.graph import Graph
from hinet_protocol.chain.rules import check_genesis
from hinet_protocol.chain.standing import Standing, settle
from hinet_protocol.chain.statements import AdoptedBase, Consent, bases_of, consents_of
from hinet_protocol.chain.taking import Rejected, root_cause, take
from hinet_protocol.errors import ChainError, ChainForeign, EntryMalformed, ProtocolError


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
        added, rejected = take(graph, raws)
        return Merged(Chain(graph) if added else self, added, rejected)

    # --- identity ----------------------------------------------------------------------------------------------------

    @property
    def identity_id(self) -> bytes:
        """The identity that the chain belongs to, 32 bytes."""
        return self._graph.genesis.entry.identity_id

    @property
    def root_public(self) -> bytes:
        """The root key in force, 32 bytes."""
        root: bytes = self._settled.line[-1].entry.body["root"]
        return root

    @property
    def root_box_public(self) -> bytes:
        """The X25519 key of the root in force, 32 bytes: epochs are wrapped to it for recovery."""
        box: bytes = self._settled.line[-1].entry.body["box"]
        return box

    @property
    def root_promise(self) -> bytes | None:
        """The commitment to the root that may replace the one in force, if it made one."""
        promise: bytes | None = self._settled.line[-1].entry.body["next"]
        return promise

    def root_rotations(self) -> tuple[Entry, ...]:
        """The rotations of the root that count, in their order."""
        return tuple(node.entry for node in self._settled.line[1:])

    def checkpoints(self) -> tuple[Entry, ...]:
        """The checkpoints that count, by height."""
        return tuple(node.entry for node in sorted(self._settled.checkpoints, key=lambda node: node.place))

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

    def standing_entries(self) -> tuple[bytes, ...]:
        """The hashes of all entries that count in the chain as a whole, parents first."""
        settled = self._settled
        return tuple(node.hash for node in self._graph.ordered() if settled.counts(node))

    # --- syncing -----------------------------------------------------------------------------------------------------

    def missing(self, their_heads: Iterable[bytes]) -> tuple[bytes, ...]:
        """Those of a peer's heads that are not in this chain: a reason to ask it with ChainGet."""
        return tuple(name for name in their_heads if name not in self._graph)

    def locator(self, received: Iterable[bytes] = ()) -> tuple[bytes, ...]:
        """What to put into ChainGet: the heads, then entries at growing distances back to genesis.

        `received` are the hashes of the batch that came last: its tips lead, so that the next batch begins after it.
        """
        return syncing.locator(self._graph, self.heads, received)

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
        return syncing.entries_for(self._graph, have, bytes_max, given)

    # --- who belongs -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _settled(self) -> Standing:
        return settle(self._graph, self._graph.everything)

    @functools.cached_property
    def _devices(self) -> dict[bytes, Device]:
        return devices_of(self._graph, self._settled)

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
        return epochs_of(self._graph, self._settled)

    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs, earlier first, those that do not stand among them."""
        return tuple(self._epochs.values())

    def epoch(self, epoch_id: bytes) -> Epoch | None:
        """The epoch of this id."""
        return self._epochs.get(epoch_id)

    @functools.cached_property
    def epoch_tips(self) -> tuple[Epoch, ...]:
        """The standing epochs that no later standing epoch has in its past. More than one after a merge."""
        return tips_of(self._graph, self._epochs)

    @functools.cached_property
    def current_epoch(self) -> Epoch | None:
        """The epoch to write with. Of several tips: the one that reaches fewest devices which no longer belong, then
        the root-signed, then that of the senior signer, then the lowest hash."""
        return current_of(self._graph, self._settled, self.epoch_tips)

    def wraps_for(self, public: bytes) -> tuple[tuple[bytes, bytes, bytes], ...]:
        """Rows of epoch id, ephemeral key and wrapped key that were given to a device with its certificates."""
        found = []
        graph = self._graph
        nodes = graph.introductions_of(public, graph.everything) + graph.renewals_of(public, graph.everything)
        for node in sorted(nodes, key=lambda one: one.place):
            body = node.entry.body
            found += [(epoch_id, body["ephemeral"], wrapped) for epoch_id, wrapped in body["epochs"]]
        return tuple(found)

    # --- communes ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _consents(self) -> dict[bytes, Consent]:
        return consents_of(self._graph, self._settled)

    def consents(self) -> tuple[Consent, ...]:
        """Of each commune that the household ever spoke of, whether it takes part."""
        return tuple(self._consents.values())

    def consent(self, commune: bytes) -> Consent | None:
        """Whether the household takes part in this commune; None if it never said so, which means no."""
        return self._consents.get(commune)

    @functools.cached_property
    def _bases(self) -> dict[bytes | None, AdoptedBase]:
        return bases_of(self._graph, self._settled)

    def bases(self) -> tuple[AdoptedBase, ...]:
        """The base in force for each commune, and for the household itself, if one was adopted."""
        return tuple(self._bases.values())

    def base_of(self, commune: bytes | None) -> AdoptedBase | None:
        """The base in force for this commune, or with None for the household itself."""
        return self._bases.get(commune)


__all__ = ["Chain", "Merged"]
