"""Which of the valid entries count in a set of them. SPEC.md, 3.4.

Whether an entry *stands* depends on the whole set, never on the order in which it arrived. A removal stands from every
branch, except that of two admins who remove each other the senior one prevails; a grant falls when its signer was
removed by an entry that does not follow it. The root's rotations and checkpoints set aside what was made apart from
them. Which entries are valid at all is left to `rules`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hinet_protocol.chain.bodies import CHECKPOINT, CONSENT, DEVICE_REVOKE, GENESIS, ROOT_ROTATE
from hinet_protocol.chain.graph import Graph, Node
from hinet_protocol.identity import root_commitment

Rank = tuple[int, int, bytes]


def root_line(graph: Graph, mask: int) -> list[Node]:
    """Genesis and the rotations that count inside a past, in their order; the last one names the root in force."""
    line = [graph.genesis]
    rotations = graph.of_kind(ROOT_ROTATE, mask)
    while rotations:
        promise = line[-1].entry.body["next"]
        gone = {node.entry.body["root"] for node in line}
        rotations = [node for node in rotations if node.entry.body["root"] not in gone]
        kept = [node for node in rotations if root_commitment(node.entry.body["root"]) == promise]
        if not kept:
            break
        line.append(min(kept, key=lambda node: node.place))
    return line


class Standing:
    """What stands inside one past, or in the whole chain. Built by `settle`."""

    def __init__(self, graph: Graph, mask: int) -> None:
        self.graph, self.mask = graph, mask
        self.line = root_line(graph, mask)
        self._place_on_line = {node.entry.body["root"]: at for at, node in enumerate(self.line)}
        self.checkpoints = [node for node in graph.of_kind(CHECKPOINT, mask) if self.by_root(node)]
        self.ranks: dict[bytes, Rank] = {}
        self.removals: dict[bytes, list[Node]] = {}
        self.introductions: dict[bytes, list[Node]] = {}

    # --- what is set aside -------------------------------------------------------------------------------------------

    def by_root(self, node: Node) -> bool:
        """The root signed it, and it counts: the key is in force, or was when its successor took over."""
        at = self._place_on_line.get(node.entry.signer) if node.as_root else None
        if at is None:
            return False
        return at + 1 == len(self.line) or self.line[at + 1].follows(node)

    def grant_aside(self, node: Node) -> bool:
        """A grant does not count whoever may sign: a root out of force made it, or a checkpoint closed its place."""
        if node.as_root:
            return not self.by_root(node)
        return any(node.apart(checkpoint) for checkpoint in self.checkpoints)

    def removal_aside(self, node: Node) -> bool:
        """The same for what takes away (a removal, a consent withdrawn): whom a checkpoint or a rotation knows as live
        in its own past may still do it."""
        if node.as_root:
            return not self.by_root(node)
        signer = node.entry.signer
        for closing in (*self.checkpoints, *self.line[1:]):
            if not node.apart(closing) or signer in closing.members.admins:
                continue
            own = signer == node.entry.removes or node.entry.kind == CONSENT
            if not own or not self.graph.certified(signer, closing.past):
                return True
            if not self.graph.live_in(signer, closing.past, closing.members):
                return True
        return False

    # --- what stands -------------------------------------------------------------------------------------------------

    def live(self, public: bytes) -> bool:
        """The key has a certificate that counts and no removal that does."""
        return bool(self.introductions.get(public)) and not self.removals.get(public)

    def stands(self, node: Node) -> bool:
        """A grant counts: its signer is the root, or admin by a standing certificate, all of whose removals follow
        it; and if it continues a device, the device's certificate stands too."""
        if self.grant_aside(node):
            return False
        signer, continues = node.entry.signer, node.entry.continues
        if not node.as_root:
            # A certificate as member gives no standing to what the key signed as the admin that a void one made it.
            if not any(one.role == "admin" for one in self.introductions.get(signer, ())):
                return False
            if not all(removal.follows(node) for removal in self.removals.get(signer, ())):
                return False
        if continues is None:
            return True
        # A removal that did not know of the new keys reaches them too; two sets of new keys leave each other alone.
        if node.entry.introduces and not all(
            removal.follows(node) for removal in self.removals.get(continues, ()) if removal.entry.kind == DEVICE_REVOKE
        ):
            return False
        return any(
            node.follows(one) and (one.role, one.tier) == (node.role, node.tier)
            for one in self.introductions.get(continues, ())
        )

    def counts(self, node: Node) -> bool:
        """Any entry: it says something in the chain as a whole."""
        kind, removed = node.entry.kind, node.entry.removes
        if kind == CHECKPOINT:
            return node in self.checkpoints
        if kind in (GENESIS, ROOT_ROTATE):
            return node in self.line
        if removed is not None and node in self.removals.get(removed, ()):
            return True
        if kind == CONSENT and node.entry.reduces:
            return not self.removal_aside(node)
        return kind != DEVICE_REVOKE and self.stands(node)

    def introduction(self, public: bytes) -> Node | None:
        """Of the standing entries that brought a key in (more than one if they were made apart) the one that counts:
        root-signed first, then by the signer's seniority, then by name. It gives role and tier."""
        return min(self.introductions.get(public, ()), key=self.order, default=None)

    def certificate(self, public: bytes) -> Node | None:
        """The certificate in force: the introduction, or the last renewal of it; of several made apart the one that
        ends latest, then the lowest name."""
        first = self.introduction(public)
        if first is None:
            return None
        found: list[Node] = []
        covered = 0
        for node in sorted(self.graph.renewals_of(public, self.mask), key=lambda one: one.place, reverse=True):
            if not covered >> node.index & 1 and self._renews(node, first):
                covered |= node.past
                found.append(node)
        return min(found, key=lambda node: (-(node.entry.body["expires"] or 2**63), node.hash), default=first)

    def _renews(self, node: Node, first: Node) -> bool:
        same = (node.role, node.tier, node.entry.body["box"]) == (first.role, first.tier, first.entry.body["box"])
        return same and node.follows(first) and self.stands(node)

    def order(self, node: Node) -> tuple[int, int, int, bytes, bytes]:
        """The order of grants that exclude each other: root-signed, then by the signer's seniority, then by name."""
        if self.by_root(node):
            return (0, 0, 0, b"", node.hash)
        return (1, *self.ranks.get(node.entry.signer, (2, 0, b"")), node.hash)


def settle(graph: Graph, mask: int) -> Standing:
    """Settles a past, or with `graph.everything` the whole chain. Renewals settle nothing: each hangs on an
    introduction below it."""
    settled = Standing(graph, mask)
    known = {key: found for key in graph.device_keys() if (found := graph.introductions_of(key, mask))}
    settled.ranks = {key: _rank(settled, nodes) for key, nodes in known.items()}
    ordered = sorted((node for nodes in known.values() for node in nodes), key=lambda one: one.place)
    settled.removals = {key: _standing_removals(settled, key, ordered) for key in known}
    admins = [node for node in ordered if node.role == "admin"]
    # A signer's own introduction is mostly lower than what it signs, so rising height settles signers first. A key that
    # was brought in again, apart and higher, needs another turn; what hangs on nothing but itself never stands.
    left = len(admins) + 1
    while len(admins) < left:
        left, admins = len(admins), _take_standing(settled, admins)
    # The others grant nothing, and what they continue is lower: once is enough.
    _take_standing(settled, [node for node in ordered if node.role != "admin"])
    return settled


def _take_standing(settled: Standing, waiting: list[Node]) -> list[Node]:
    """Enters the introductions that stand, in the order given; gives back the others."""
    falling = []
    for node in waiting:
        certified = node.entry.certifies
        assert certified is not None
        if settled.stands(node):
            settled.introductions.setdefault(certified, []).append(node)
        else:
            falling.append(node)
    return falling


def _rank(settled: Standing, introductions: Iterable[Node]) -> Rank:
    """Seniority, the smaller the senior: the lowest introduction that was not set aside. Without one, after all."""
    return min((int(settled.grant_aside(node)), *node.place) for node in introductions)


def _standing_removals(settled: Standing, target: bytes, introductions: list[Node]) -> list[Node]:
    """The removals of `target` that count. Those by juniors whom it removed itself, not knowing of them, do not."""
    graph, mask, ranks = settled.graph, settled.mask, settled.ranks
    removals = [node for node in graph.removals_of(target, mask) if not settled.removal_aside(node)]
    if not removals:
        return removals
    removed: dict[bytes, list[Node]] = {}
    for answer in graph.removals_by(target, mask):
        key = answer.entry.removes
        if key in ranks and ranks[target] < ranks[key] and not settled.removal_aside(answer):
            removed.setdefault(key, []).append(answer)
    if not removed:
        return removals

    tainted: set[int] = set()

    def answered(key: bytes, node: Node) -> bool:
        return any(not answer.follows(node) for answer in removed.get(key, ()))

    def hollow(key: bytes, node: Node) -> bool:
        return all(one.index in tainted for one in graph.introductions_of(key, node.past))

    def fallen(node: Node) -> bool:
        """`target` removed the signer, or made its introductions fall, without this entry in its past."""
        signer = node.entry.signer
        return not node.as_root and signer != target and (answered(signer, node) or hollow(signer, node))

    # A removed junior must not escape by having a helper, added apart from the removal, sign in its place; nor under
    # new keys.
    for node in introductions:
        continues = node.entry.continues
        if fallen(node) or (continues is not None and (answered(continues, node) or hollow(continues, node))):
            tainted.add(node.index)
    return [node for node in removals if not fallen(node)]


__all__ = ["Standing", "root_line", "settle"]
