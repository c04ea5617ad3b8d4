"""The entries as a graph: who follows whom, and indexes for the rules. SPEC.md, 3.3.

A node's past is a bit set in one Python integer (bit = index of the node), so that "is this an ancestor of
that" is one shift, and the past of a merge is one `or`. Only `state` builds graphs; finished ones never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from hinet_protocol.chain.entries import DEVICE_ADD, DEVICE_REVOKE, Entry


@dataclass(frozen=True)
class Members:
    """Who belongs at one point of the chain: the keys of the live admins, and how many live devices there are.

    `exceptions` are the keys whose being live is not the lack of a revocation: void ones, and those whose revocation
    does not stand.
    """

    admins: frozenset[bytes] = frozenset()
    live_count: int = 0
    exceptions: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Node:
    """An accepted entry in its place. `past` has the node's own bit too; `members` is the state after it."""

    index: int
    entry: Entry
    height: int
    past: int = field(repr=False)
    members: Members = field(repr=False)

    @property
    def hash(self) -> bytes:
        """The entry's hash."""
        return self.entry.hash

    def follows(self, other: Node) -> bool:
        """`other` is this node or in its past."""
        return bool(self.past >> other.index & 1)


class Graph:
    """Accepted entries and their indexes."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node] = {}
        self._tips: set[bytes] = set()
        self._ordered: list[Node] | None = None
        self.genesis: Node
        self.everything = 0
        self.reducing_count = 0
        self._adds: dict[bytes, list[Node]] = {}
        self._adds_by_name: dict[str, list[Node]] = {}
        self._adds_by_box: dict[bytes, list[Node]] = {}
        self._revokes: dict[bytes, list[Node]] = {}
        self._revokes_by_signer: dict[bytes, list[Node]] = {}
        self._admin_keys: set[bytes] = set()

    @classmethod
    def start(cls, genesis: Entry) -> Graph:
        """A graph of a genesis entry that was checked already."""
        graph = cls()
        graph.genesis = graph._enter(Node(0, genesis, 0, 1, Members()))
        return graph

    def copy(self) -> Graph:
        """An independent copy; nodes are shared, they never change."""
        twin = Graph()
        twin._nodes = dict(self._nodes)
        twin._tips = set(self._tips)
        twin.genesis = self.genesis
        twin.everything = self.everything
        twin.reducing_count = self.reducing_count
        twin._adds = {key: list(nodes) for key, nodes in self._adds.items()}
        twin._adds_by_name = {key: list(nodes) for key, nodes in self._adds_by_name.items()}
        twin._adds_by_box = {key: list(nodes) for key, nodes in self._adds_by_box.items()}
        twin._revokes = {key: list(nodes) for key, nodes in self._revokes.items()}
        twin._revokes_by_signer = {key: list(nodes) for key, nodes in self._revokes_by_signer.items()}
        twin._admin_keys = set(self._admin_keys)
        return twin

    def add(self, entry: Entry, members: Members) -> Node:
        """Puts in an entry that was checked and whose parents are all there."""
        parents = [self._nodes[name] for name in entry.parents]
        index = len(self._nodes)
        past = 1 << index
        for parent in parents:
            past |= parent.past
            self._tips.discard(parent.hash)
        return self._enter(Node(index, entry, 1 + max(parent.height for parent in parents), past, members))

    def _enter(self, node: Node) -> Node:
        entry = node.entry
        self._nodes[entry.hash] = node
        self._tips.add(entry.hash)
        self._ordered = None
        self.everything |= 1 << node.index
        if entry.kind == DEVICE_ADD:
            self._adds.setdefault(entry.body["sign"], []).append(node)
            self._adds_by_name.setdefault(entry.body["name"].casefold(), []).append(node)
            self._adds_by_box.setdefault(entry.body["box"], []).append(node)
            if entry.body["role"] == "admin":
                self._admin_keys.add(entry.body["sign"])
        elif entry.kind == DEVICE_REVOKE:
            self._revokes.setdefault(entry.body["device"], []).append(node)
            self._revokes_by_signer.setdefault(entry.signer, []).append(node)
            self.reducing_count += 1
        return node

    # --- questions ---------------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def root(self) -> bytes:
        """The root's public key."""
        root: bytes = self.genesis.entry.body["root"]
        return root

    def get(self, name: bytes) -> Node | None:
        """The node of an entry hash."""
        return self._nodes.get(name)

    def heads(self) -> list[Node]:
        """Nodes without children."""
        return [self._nodes[name] for name in self._tips]

    def ordered(self) -> list[Node]:
        """All nodes by (height, hash): the same on every replica, parents first."""
        if self._ordered is None:
            self._ordered = sorted(self._nodes.values(), key=lambda node: (node.height, node.hash))
        return self._ordered

    def past_of(self, parents: Iterable[bytes]) -> int:
        """The joint past of known entries, as a bit set."""
        past = 0
        for name in parents:
            past |= self._nodes[name].past
        return past

    def device_keys(self) -> Iterable[bytes]:
        """The keys of all devices that were ever added."""
        return self._adds.keys()

    def admin_keys(self) -> Set[bytes]:
        """The keys that any entry made admin."""
        return self._admin_keys

    def adds_of(self, public: bytes, mask: int | None = None) -> list[Node]:
        """The device.add entries of a key inside a past."""
        return _inside(self._adds.get(public, []), mask)

    def adds_named(self, name: str, mask: int) -> list[Node]:
        """The device.add entries of a name inside a past, letter case aside."""
        return _inside(self._adds_by_name.get(name.casefold(), []), mask)

    def adds_with_box(self, box: bytes, mask: int) -> list[Node]:
        """The device.add entries of an X25519 key inside a past."""
        return _inside(self._adds_by_box.get(box, []), mask)

    def revokes_of(self, public: bytes, mask: int) -> list[Node]:
        """The revocations of a key inside a past, whether they stand or not."""
        return _inside(self._revokes.get(public, []), mask)

    def revokes_by(self, signer: bytes, mask: int) -> list[Node]:
        """The revocations that a key signed inside a past."""
        return _inside(self._revokes_by_signer.get(signer, []), mask)

    def seniority(self, public: bytes, mask: int | None = None) -> tuple[int, bytes]:
        """The rank of a device inside a past; the smaller, the senior."""
        return min((node.height, node.hash) for node in self.adds_of(public, mask))


def _inside(nodes: list[Node], mask: int | None) -> list[Node]:
    return nodes if mask is None else [node for node in nodes if mask >> node.index & 1]


__all__ = ["Graph", "Members", "Node"]
