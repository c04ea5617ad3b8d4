"""Which entries are valid, and which of the valid ones count. SPEC.md, 3.3 and 3.4.

*Valid* depends on an entry's past alone, so every replica says the same whatever else it knows. *Standing* depends
on the whole set: a granting entry (add, epoch) falls when its signer was revoked by an entry that does not follow it;
a revocation always stands, except that of two admins who revoke each other the senior one prevails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hinet_protocol import limits
from hinet_protocol.chain.entries import DEVICE_ADD, DEVICE_REVOKE, EPOCH_NEW, GENESIS, Entry
from hinet_protocol.chain.graph import Graph, Members, Node
from hinet_protocol.errors import (
    ChainForeign,
    EntryConflict,
    EntryMalformed,
    EntryUnauthorised,
    LastAdmin,
    LimitError,
)
from hinet_protocol.identity import identity_id


@dataclass(frozen=True)
class Settlement:
    """What stands inside one past: per device key the revocations and the certificates that count, best first."""

    revokes: dict[bytes, list[Node]]
    adds: dict[bytes, list[Node]]

    def live(self, public: bytes) -> bool:
        """The key has a certificate that counts and no revocation that does."""
        return bool(self.adds.get(public)) and not self.revokes.get(public)

    def grants(self, graph: Graph, node: Node) -> bool:
        """A granting entry stands: its signer is admin by a standing certificate, whose revocations all follow it."""
        signer = node.entry.signer
        if signer == graph.root:
            return True
        # A certificate as member gives no standing to what the key signed as the admin that a void one made it.
        return any(add.entry.body["role"] == "admin" for add in self.adds.get(signer, ())) and all(
            revoke.follows(node) for revoke in self.revokes.get(signer, ())
        )


def settle(graph: Graph, mask: int, admins_only: bool = False) -> Settlement:
    """Settles a past. With `admins_only`, devices that no entry ever made admin are left out: they grant nothing."""
    keys = graph.admin_keys() if admins_only else graph.device_keys()
    adds = {key: found for key in keys if (found := graph.adds_of(key, mask))}
    seniority = {key: min((node.height, node.hash) for node in nodes) for key, nodes in adds.items()}
    revokes = {key: _standing_revokes(graph, key, mask, seniority) for key in adds}
    settled = Settlement(revokes, {})
    # A signer's own certificate is mostly lower than what it signs, so rising height settles signers first. A key that
    # was certified again, apart and higher, needs another turn; what hangs on nothing but itself never stands.
    waiting = sorted((node for nodes in adds.values() for node in nodes), key=lambda one: (one.height, one.hash))
    before = len(waiting) + 1
    while len(waiting) < before:
        before, falling = len(waiting), []
        for node in waiting:
            if settled.grants(graph, node):
                settled.adds.setdefault(node.entry.body["sign"], []).append(node)
            else:
                falling.append(node)
        waiting = falling
    for nodes in settled.adds.values():
        nodes.sort(key=lambda node: _grant_order(graph, node, seniority))
    return settled


def _grant_order(graph: Graph, node: Node, seniority: dict[bytes, tuple[int, bytes]]) -> tuple[int, bytes, bytes]:
    """Root-signed first, then by the signer's seniority, then by hash."""
    if node.entry.signer == graph.root:
        return (-1, b"", node.hash)
    height, name = seniority[node.entry.signer]
    return (height, name, node.hash)


def _standing_revokes(graph: Graph, target: bytes, mask: int, seniority: dict[bytes, tuple[int, bytes]]) -> list[Node]:
    """The revocations of `target` that count. Those by juniors whom it revoked itself, not knowing of them, do not."""
    revokes = graph.revokes_of(target, mask)
    answers = [
        answer
        for answer in graph.revokes_by(target, mask)
        if answer.entry.body["device"] in seniority and seniority[target] < seniority[answer.entry.body["device"]]
    ]
    if not revokes or not answers:
        return revokes
    removed: dict[bytes, list[Node]] = {}
    for answer in answers:
        removed.setdefault(answer.entry.body["device"], []).append(answer)

    def fallen(node: Node, tainted: set[int]) -> bool:
        """`target` removed the signer, or made its certificate fall, without this entry in its past."""
        signer = node.entry.signer
        if signer in (graph.root, target):
            return False
        if any(not answer.follows(node) for answer in removed.get(signer, ())):
            return True
        return all(add.index in tainted for add in graph.adds_of(signer, node.past))

    # A removed junior must not escape by having a helper, added apart from the removal, sign in its place.
    tainted: set[int] = set()
    helpers = [node for key in graph.admin_keys() for node in graph.adds_of(key, mask)]
    for node in sorted(helpers, key=lambda one: (one.height, one.hash)):
        if fallen(node, tainted):
            tainted.add(node.index)
    return [node for node in revokes if not fallen(node, tainted)]


def members_before(graph: Graph, entry: Entry) -> Members:
    """Who belongs in the past of an entry whose parents are all there."""
    past = graph.past_of(entry.parents)
    for name in entry.parents:
        parent = graph.get(name)
        if parent is not None and parent.past == past:
            return parent.members
    settled, admin_keys = settle(graph, past, admins_only=True), graph.admin_keys()
    admins = frozenset(
        key for key in settled.adds if settled.live(key) and settled.adds[key][0].entry.body["role"] == "admin"
    )
    live_count, exceptions = 0, set()
    for key in graph.device_keys():
        adds, removed = graph.adds_of(key, past), bool(graph.revokes_of(key, past))
        live = settled.live(key) if key in admin_keys else not removed and any(settled.grants(graph, a) for a in adds)
        live_count += live
        if adds and live == removed:
            exceptions.add(key)
    return Members(admins, live_count, frozenset(exceptions))


def members_after(graph: Graph, entry: Entry, past: int, before: Members) -> Members:
    """Who belongs once a valid entry is added on top of its past."""
    if entry.kind == DEVICE_ADD:
        added = {entry.body["sign"]} if entry.body["role"] == "admin" else frozenset()
        return Members(before.admins | added, before.live_count + 1, before.exceptions)
    if entry.kind == DEVICE_REVOKE:
        gone = {entry.body["device"]}
        left = before.live_count - _live(graph, entry.body["device"], past, before)
        return Members(before.admins - gone, left, before.exceptions - gone)
    return before


# --- validity --------------------------------------------------------------------------------------------------------


def check_genesis(entry: Entry) -> None:
    """Raises unless the entry is a genesis signed by the root that it names."""
    if entry.kind != GENESIS or entry.signer != entry.body["root"] or identity_id(entry.signer) != entry.identity_id:
        raise EntryMalformed("The genesis entry is not signed by the root key of the identity that it names.")


def check_entry(graph: Graph, entry: Entry) -> Members:
    """Raises a ChainError or LimitError unless the entry is valid in its past. Gives back who belongs after it."""
    if entry.identity_id != graph.genesis.entry.identity_id:
        raise ChainForeign("A chain entry belongs to another identity; it was refused.")
    if entry.kind == GENESIS:
        raise ChainForeign("A second genesis entry appeared: another chain was begun with the same words. Keep one.")
    past = graph.past_of(entry.parents)
    members = members_before(graph, entry)
    admins = members.admins
    if entry.kind == DEVICE_REVOKE:
        _check_revoke(graph, entry, past, members)
    else:
        if len(graph) - graph.reducing_count >= limits.chain_entries_max:
            raise LimitError(f"The chain has its most of {limits.chain_entries_max} entries; nothing can be added.")
        if entry.signer != graph.root and entry.signer not in admins:
            raise EntryUnauthorised(f"A {entry.kind} entry was signed by a key that was no admin at that point.")
        if entry.kind == DEVICE_ADD:
            _check_add(graph, entry, past, members)
        else:
            _check_epoch(graph, entry, past, members)
    return members_after(graph, entry, past, members)


def _live(graph: Graph, public: bytes, past: int, members: Members) -> bool:
    """Whether a device that was added in this past is live in it."""
    return bool(graph.revokes_of(public, past)) == (public in members.exceptions)


def _check_revoke(graph: Graph, entry: Entry, past: int, members: Members) -> None:
    target, admins = entry.body["device"], members.admins
    if graph.reducing_count >= limits.chain_reducing_entries_max and graph.revokes_of(target, past):
        raise LimitError("The chain is full of revocations, and this one says nothing new.")
    if not graph.adds_of(target, past):
        raise EntryMalformed("A revocation names a device that was not added before it.")
    if entry.signer == graph.root:
        return
    leaves = entry.signer == target and _live(graph, target, past, members)
    if entry.signer not in admins and not leaves:
        raise EntryUnauthorised("A revocation was signed by a key that was no admin at that point.")
    if admins == {target}:
        raise LastAdmin(
            "This is the last admin of the household. Without one nothing can be added or removed any more, so "
            "only the 24 words can remove it: add another admin first, or recover with the words."
        )


def _check_add(graph: Graph, entry: Entry, past: int, members: Members) -> None:
    body = entry.body
    if body["sign"] == graph.root or graph.adds_of(body["sign"], past) or graph.adds_with_box(body["box"], past):
        raise EntryConflict("This device key was added before. A device that was removed needs new keys to come back.")
    for node in graph.adds_named(body["name"], past):
        if _live(graph, node.entry.body["sign"], past, members):
            raise EntryConflict(f"A device named {body['name']!r} belongs to the household already. Choose another.")
    if members.live_count >= limits.devices_max:
        raise LimitError(f"The household has its most of {limits.devices_max} devices. Remove one first.")
    if bool(body["epochs"]) != (body["ephemeral"] is not None):
        raise EntryMalformed("A certificate needs an ephemeral key exactly when it carries vault keys.")
    if body["epochs"] and body["role"] == "keeper":
        raise EntryMalformed("A keeper's certificate carries vault keys; keepers get none.")
    _check_epoch_ids(graph, (epoch_id for epoch_id, _ in body["epochs"]), past)


def _check_epoch(graph: Graph, entry: Entry, past: int, members: Members) -> None:
    wraps = [public for public, _ in entry.body["wraps"]]
    if len(set(wraps)) != len(wraps):
        raise EntryMalformed("An epoch entry wraps its key twice for one device.")
    for public in wraps:
        if public == graph.root:
            continue
        adds = graph.adds_of(public, past)
        if not adds or not _live(graph, public, past, members):
            raise EntryMalformed("An epoch entry wraps its key for a device that does not belong to the household.")
        if all(node.entry.body["role"] == "keeper" for node in adds):
            raise EntryMalformed("An epoch entry wraps its key for a keeper; keepers get none.")
    _check_epoch_ids(graph, (epoch_id for epoch_id, _ in entry.body["previous"]), past)


def _check_epoch_ids(graph: Graph, epoch_ids: Iterable[bytes], past: int) -> None:
    seen: set[bytes] = set()
    for epoch_id in epoch_ids:
        node = graph.get(epoch_id)
        if node is None or not past >> node.index & 1 or node.entry.kind != EPOCH_NEW or epoch_id in seen:
            raise EntryMalformed(
                "An entry carries the key of a vault epoch that is not in its past, or is there twice."
            )
        seen.add(epoch_id)
