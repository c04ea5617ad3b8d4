"""The entries as a graph: who follows whom, and indexes for the rules. SPEC.md, 3.3.

A node's past is a bit set in one Python integer (bit = index of the node), so that "is this an ancestor of
that" is one shift, and the past of a merge is one `or`. Only `state` builds graphs; finished ones never change.
What the entries mean together is left to `standing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hinet_protocol.chain.bodies import BASE_ADOPT, CHECKPOINT, CONSENT, EPOCH_NEW, ROOT_ROTATE
from hinet_protocol.chain.entries import Entry


@dataclass(frozen=True, slots=True)
class Members:
    """Who belongs at one point of the chain: the root, the keys of the live admins, how many devices are live.

    `root` is the index of the statement (genesis or rotation) that names the root in force. `exceptions` are the keys
    whose being live is not the lack of a revocation: void ones, and those whose revocation does not stand. `chosen`
    has the index of the introduction that counts, for keys that were introduced more than once, apart.
    """

    root: int = 0
    admins: frozenset[bytes] = frozenset()
    live_count: int = 0
    exceptions: frozenset[bytes] = frozenset()
    chosen: Mapping[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standpoint:
    """What an entry's own past says about it: who belongs after it, whether its signer was the root, and, of a
    certificate, the role and tier that it gives."""

    members: Members
    as_root: bool
    role: str = ""
    tier: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An accepted entry in its place. `past` has the node's own bit too; `members` is the state after it."""

    index: int
    entry: Entry
    height: int
    past: int = field(repr=False)
    members: Members = field(repr=False)
    as_root: bool
    role: str
    tier: str

    @property
    def hash(self) -> bytes:
        """The entry's hash."""
        return self.entry.hash

    @property
    def place(self) -> tuple[int, bytes]:
        """Height and name: an order that is the same on every replica, parents first."""
        return self.height, self.entry.hash

    def follows(self, other: Node) -> bool:
        """`other` is this node or in its past."""
        return bool(self.past >> other.index & 1)

    def apart(self, other: Node) -> bool:
        """Neither is in the other's past."""
        return not (self.past >> other.index | other.past >> self.index) & 1


class Graph:
    """Accepted entries and their indexes."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node] = {}
        self._by_index: list[Node] = []
        self._tips: set[bytes] = set()
        self._ordered: list[Node] | None = None
        self.everything = 0
        self.reducing_count = 0
        self.additions_bytes = 0
        # Bit sets: entries that introduce a key, and those after which earlier grants may no longer stand.
        self.introducing = 0
        self.unsettling = 0
        self._introductions: dict[bytes, list[Node]] = {}
        self._renewals: dict[bytes, list[Node]] = {}
        self._names: dict[str, dict[bytes, list[Node]]] = {}
        self._boxes: dict[bytes, list[Node]] = {}
        self._removals: dict[bytes, list[Node]] = {}
        self._removals_by: dict[bytes, list[Node]] = {}
        self._of_kind: dict[str, list[Node]] = {}

    @classmethod
    def start(cls, genesis: Entry) -> Graph:
        """A graph of a genesis entry that was checked already."""
        graph = cls()
        graph._enter(Node(0, genesis, 0, 1, Members(), as_root=True, role="", tier=""))
        return graph

    def copy(self) -> Graph:
        """An independent copy; nodes are shared, they never change."""
        twin = Graph()
        twin._nodes = dict(self._nodes)
        twin._by_index = list(self._by_index)
        twin._tips = set(self._tips)
        twin.everything = self.everything
        twin.reducing_count = self.reducing_count
        twin.additions_bytes = self.additions_bytes
        twin.introducing = self.introducing
        twin.unsettling = self.unsettling
        twin._introductions = {key: list(nodes) for key, nodes in self._introductions.items()}
        twin._renewals = {key: list(nodes) for key, nodes in self._renewals.items()}
        twin._names = {name: {key: list(nodes) for key, nodes in keys.items()} for name, keys in self._names.items()}
        twin._boxes = {key: list(nodes) for key, nodes in self._boxes.items()}
        twin._removals = {key: list(nodes) for key, nodes in self._removals.items()}
        twin._removals_by = {key: list(nodes) for key, nodes in self._removals_by.items()}
        twin._of_kind = {kind: list(nodes) for kind, nodes in self._of_kind.items()}
        return twin

    def add(self, entry: Entry, seen: Standpoint) -> Node:
        """Puts in an entry that was checked and whose parents are all there."""
        parents = [self._nodes[name] for name in entry.parents]
        index = len(self._by_index)
        past = 1 << index
        for parent in parents:
            past |= parent.past
            self._tips.discard(parent.hash)
        height = 1 + max(parent.height for parent in parents)
        return self._enter(Node(index, entry, height, past, seen.members, seen.as_root, seen.role, seen.tier))

    def _enter(self, node: Node) -> Node:
        entry, bit = node.entry, 1 << node.index
        self._nodes[entry.hash] = node
        self._by_index.append(node)
        self._tips.add(entry.hash)
        self._ordered = None
        self.everything |= bit
        certified, removed = entry.certifies, entry.removes
        if certified is not None:
            self._names.setdefault(entry.body["name"].casefold(), {}).setdefault(certified, []).append(node)
            known = self._introductions if entry.introduces else self._renewals
            known.setdefault(certified, []).append(node)
            if entry.introduces:
                self.introducing |= bit
                self._boxes.setdefault(entry.body["box"], []).append(node)
        if removed is not None:
            self._removals.setdefault(removed, []).append(node)
            self._removals_by.setdefault(entry.signer, []).append(node)
        if entry.kind in (EPOCH_NEW, ROOT_ROTATE, CHECKPOINT, CONSENT, BASE_ADOPT):
            self._of_kind.setdefault(entry.kind, []).append(node)
        if removed is not None or entry.kind in (ROOT_ROTATE, CHECKPOINT):
            self.unsettling |= bit
        self.reducing_count += entry.reduces
        self.additions_bytes += 0 if entry.reduces else len(entry.raw)
        return node

    # --- questions ---------------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __len__(self) -> int:
        return len(self._by_index)

    @property
    def genesis(self) -> Node:
        """The first entry."""
        return self._by_index[0]

    def get(self, name: bytes) -> Node | None:
        """The node of an entry hash."""
        return self._nodes.get(name)

    def at(self, index: int) -> Node:
        """The node of an index, as bits and `Members` name it."""
        return self._by_index[index]

    def marked(self, mask: int) -> Iterator[Node]:
        """The nodes of a bit set."""
        while mask:
            low = mask & -mask
            mask ^= low
            yield self._by_index[low.bit_length() - 1]

    def heads(self) -> list[Node]:
        """Nodes without children."""
        return [self._nodes[name] for name in self._tips]

    def ordered(self) -> list[Node]:
        """All nodes by (height, hash): the same on every replica, parents first."""
        if self._ordered is None:
            self._ordered = sorted(self._by_index, key=lambda node: node.place)
        return self._ordered

    def past_of(self, parents: Iterable[bytes]) -> int:
        """The joint past of known entries, as a bit set."""
        past = 0
        for name in parents:
            past |= self._nodes[name].past
        return past

    def device_keys(self) -> Iterable[bytes]:
        """The keys of all devices that were ever certified."""
        return self._introductions.keys()

    def introductions_of(self, public: bytes, mask: int) -> list[Node]:
        """The entries that brought a key in, inside a past. More than one only if they were made apart."""
        return _inside(self._introductions.get(public, ()), mask)

    def renewals_of(self, public: bytes, mask: int) -> list[Node]:
        """The renewals of a key's certificate inside a past."""
        return _inside(self._renewals.get(public, ()), mask)

    def certified(self, public: bytes, mask: int) -> bool:
        """A key has a certificate inside a past."""
        return any(mask >> node.index & 1 for node in self._introductions.get(public, ()))

    def holders_of(self, name: str) -> Iterable[tuple[bytes, list[Node]]]:
        """Keys with all their certificates under a name, letter case aside."""
        return self._names.get(name.casefold(), {}).items()

    def box_introduced(self, box: bytes, mask: int) -> bool:
        """An X25519 key came into the household inside a past."""
        return bool(_inside(self._boxes.get(box, ()), mask))

    def removals_of(self, public: bytes, mask: int) -> list[Node]:
        """The entries that take a key away inside a past, whether they stand or not."""
        return _inside(self._removals.get(public, ()), mask)

    def removals_by(self, signer: bytes, mask: int) -> list[Node]:
        """The entries by which a key took another away inside a past."""
        return _inside(self._removals_by.get(signer, ()), mask)

    def of_kind(self, kind: str, mask: int) -> list[Node]:
        """The entries inside a past of one of the kinds that are not about single devices."""
        return _inside(self._of_kind.get(kind, ()), mask)

    def live_in(self, public: bytes, past: int, members: Members) -> bool:
        """A key that is certified in this past is live in it."""
        removed = any(past >> node.index & 1 for node in self._removals.get(public, ()))
        return removed == (public in members.exceptions)

    def introduction_in(self, public: bytes, past: int, members: Members) -> Node:
        """The entry that counts as having brought a key into the household that is live in this past."""
        if public in members.chosen:
            return self._by_index[members.chosen[public]]
        return next(node for node in self._introductions[public] if past >> node.index & 1)


def _inside(nodes: Iterable[Node], mask: int) -> list[Node]:
    return [node for node in nodes if mask >> node.index & 1]


__all__ = ["Graph", "Members", "Node", "Standpoint"]
