"""Which entries are valid. SPEC.md, 3.3.

It depends on an entry's form and its past alone, so every replica says the same whatever else it knows. Which of the
valid ones count in the end is left to `standing`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hinet_protocol import limits
from hinet_protocol.chain.bodies import (
    CHECKPOINT,
    CONSENT,
    DEVICE_ADD,
    DEVICE_REVOKE,
    DEVICE_ROTATE,
    EPOCH_NEW,
    GENESIS,
    ROOT_ROTATE,
)
from hinet_protocol.chain.entries import Entry
from hinet_protocol.chain.graph import Graph, Members, Node, Standpoint
from hinet_protocol.chain.members import members_after, members_before
from hinet_protocol.errors import (
    ChainForeign,
    EntryConflict,
    EntryMalformed,
    EntryUnauthorised,
    LastAdmin,
    LimitError,
)
from hinet_protocol.identity import identity_id, root_commitment


def check_genesis(entry: Entry) -> None:
    """Raises unless the entry is a genesis signed by the root that it names."""
    if entry.kind != GENESIS or entry.signer != entry.body["root"] or identity_id(entry.signer) != entry.identity_id:
        raise EntryMalformed("The genesis entry is not signed by the root key of the identity that it names.")


def check_entry(graph: Graph, entry: Entry) -> Standpoint:
    """Raises a ChainError or LimitError unless the entry is valid in its past. Gives back what its past says of it."""
    if entry.identity_id != graph.genesis.entry.identity_id:
        raise ChainForeign("A chain entry belongs to another identity; it was refused.")
    if entry.kind == GENESIS:
        raise ChainForeign("A second genesis entry appeared: another chain was begun with the same words. Keep one.")
    past = graph.past_of(entry.parents)
    place = _Place(graph, entry, past, members_before(graph, entry, past))
    if not entry.reduces:
        _check_room(graph, entry, as_root=place.as_root)
    role, tier = "", ""
    if entry.kind == ROOT_ROTATE:
        _check_root_rotate(place)
    elif entry.kind == DEVICE_REVOKE:
        _check_revoke(place)
    elif entry.kind == CONSENT and entry.body["decision"] == "out":
        _check_out(place)
    else:
        if not place.as_root and (entry.kind == CHECKPOINT or entry.signer not in place.members.admins):
            right = "the root in force" if entry.kind == CHECKPOINT else "an admin"
            raise EntryUnauthorised(f"A {entry.kind} entry was signed by a key that was not {right} at that point.")
        if entry.kind == DEVICE_ADD:
            role, tier = _check_add(place)
        elif entry.kind == DEVICE_ROTATE:
            role, tier = _check_rotate(place)
        elif entry.kind == EPOCH_NEW:
            _check_epoch(place)
    return Standpoint(members_after(graph, entry, past, place.members, role), place.as_root, role, tier)


def _check_room(graph: Graph, entry: Entry, *, as_root: bool) -> None:
    """Removals have their own bounds, and the root has more room than all others: a stolen admin key must not shut it
    out. A chain is read back in one piece, so all together have an end."""
    most = limits.chain_entries_max + (limits.chain_root_entries_max if as_root else 0)
    if len(graph) - graph.reducing_count >= most:
        raise LimitError(f"The chain has its most of {most} entries; nothing can be added.")
    most_bytes = limits.chain_additions_bytes_max + (limits.chain_root_bytes_max if as_root else 0)
    if graph.additions_bytes + len(entry.raw) > most_bytes:
        raise LimitError(f"The chain has its most of {most_bytes} bytes; nothing can be added.")


class _Place:
    """An entry on top of its past."""

    def __init__(self, graph: Graph, entry: Entry, past: int, members: Members) -> None:
        self.graph, self.entry, self.past, self.members = graph, entry, past, members
        self.root = graph.at(members.root).entry.body
        self.as_root: bool = entry.signer == (entry.body["root"] if entry.kind == ROOT_ROTATE else self.root["root"])

    def live(self, public: bytes) -> bool:
        """A device belongs to the household in this past."""
        return self.graph.certified(public, self.past) and self.graph.live_in(public, self.past, self.members)

    def role_of(self, public: bytes) -> str | None:
        """The role of a live device in this past."""
        return self.introduction(public).role if self.live(public) else None

    def introduction(self, public: bytes) -> Node:
        """What brought a live device in."""
        return self.graph.introduction_in(public, self.past, self.members)

    def roots(self) -> set[bytes]:
        """The keys that are or were the root in this past."""
        rotations = self.graph.of_kind(ROOT_ROTATE, self.past)
        return {node.entry.body["root"] for node in (self.graph.genesis, *rotations)}


def _check_root_rotate(place: _Place) -> None:
    new = place.entry.body["root"]
    if not place.as_root or root_commitment(new) != place.root["next"]:
        raise EntryUnauthorised("A new root was not signed by the root that the one before it promised.")
    if new in place.roots() or place.graph.certified(new, place.past):
        raise EntryConflict("The key of a new root was a root or a device before. Use the spare words.")


def _check_revoke(place: _Place) -> None:
    graph, entry, past, admins = place.graph, place.entry, place.past, place.members.admins
    target = entry.body["device"]
    if graph.reducing_count >= limits.chain_reducing_entries_max:
        known = graph.removals_of(target, graph.everything)
        if any(past >> node.index & 1 or node.entry.signer == entry.signer for node in known):
            raise LimitError("The chain is full of revocations, and this one says nothing new.")
    if not graph.certified(target, past):
        raise EntryMalformed("A revocation names a device that was not added before it.")
    if place.as_root:
        return
    leaves = entry.signer == target and place.live(target)
    if entry.signer not in admins and not leaves:
        raise EntryUnauthorised("A revocation was signed by a key that was no admin at that point.")
    if admins == {target}:
        raise LastAdmin(
            "This is the last admin of the household. Without one nothing can be added or removed any more, so "
            "only the 24 words can remove it: add another admin first, or recover with the words."
        )


def _check_out(place: _Place) -> None:
    graph, entry, body = place.graph, place.entry, place.entry.body
    if body["expires"]:
        raise EntryMalformed("A consent that is withdrawn does not expire.")
    if graph.reducing_count >= limits.chain_reducing_entries_max:
        said = [one for one in graph.of_kind(CONSENT, graph.everything) if one.entry.body["commune"] == body["commune"]]
        outs = [one for one in said if one.entry.reduces]
        agreed = [one for one in said if not one.entry.reduces and place.past >> one.index & 1]
        known = [one for one in outs if not any(yes.follows(one) for yes in agreed)]
        if any(place.past >> one.index & 1 or one.entry.signer == entry.signer for one in known):
            raise LimitError("The chain is full of withdrawals, and this one says nothing new.")
    if not place.as_root and place.role_of(entry.signer) not in ("admin", "member"):
        raise EntryUnauthorised("A consent was withdrawn by a key that was no admin or member at that point.")


def _check_add(place: _Place) -> tuple[str, str]:
    body = place.entry.body
    _check_new_keys(place)
    _check_name(place)
    if place.members.live_count >= limits.devices_max:
        raise LimitError(f"The household has its most of {limits.devices_max} devices. Remove one first.")
    _check_certificate_epochs(place, body["role"])
    return body["role"], body["tier"]


def _check_rotate(place: _Place) -> tuple[str, str]:
    body, entry = place.entry.body, place.entry
    device = body["device"]
    if not place.live(device):
        raise EntryMalformed("A new certificate is for a device that does not belong to the household.")
    if not place.as_root and entry.signer == device and place.members.admins != {device}:
        raise EntryUnauthorised("A device can't renew its own certificate while there is another admin to do it.")
    first = place.introduction(device)
    if entry.introduces:
        _check_new_keys(place)
    elif body["box"] != first.entry.body["box"]:
        raise EntryMalformed("A renewed certificate keeps both keys of its device, or changes both.")
    _check_name(place)
    _check_certificate_epochs(place, first.role)
    return first.role, first.tier


def _check_new_keys(place: _Place) -> None:
    graph, body, past = place.graph, place.entry.body, place.past
    if body["sign"] in place.roots() or graph.certified(body["sign"], past) or graph.box_introduced(body["box"], past):
        raise EntryConflict("This device key was added before. A device that was removed needs new keys to come back.")


def _check_name(place: _Place) -> None:
    """No other live device has the name. One that it bore before its certificate was renewed under another is free. A
    device may keep its own, which another one took apart: else neither could be renewed."""
    name = place.entry.body["name"]
    own = dict(place.graph.holders_of(name)).get(place.entry.continues or b"", ())
    if any(place.past >> node.index & 1 for node in own):
        return
    for public, nodes in place.graph.holders_of(name):
        if public == place.entry.continues or not place.live(public):
            continue
        renewals = place.graph.renewals_of(public, place.past)
        known = [node for node in nodes if place.past >> node.index & 1]
        if all(any(later is not node and later.follows(node) for later in renewals) for node in known):
            continue
        raise EntryConflict(f"A device named {name!r} belongs to the household already. Choose another.")


def _check_certificate_epochs(place: _Place, role: str) -> None:
    body = place.entry.body
    if bool(body["epochs"]) != (body["ephemeral"] is not None):
        raise EntryMalformed("A certificate needs an ephemeral key exactly when it carries vault keys.")
    if body["epochs"] and role == "keeper":
        raise EntryMalformed("A keeper's certificate carries vault keys; keepers get none.")
    _check_epoch_ids(place, (epoch_id for epoch_id, _ in body["epochs"]))


def _check_epoch(place: _Place) -> None:
    wraps = [public for public, _ in place.entry.body["wraps"]]
    if len(set(wraps)) != len(wraps):
        raise EntryMalformed("An epoch entry wraps its key twice for one device.")
    for public in wraps:
        if public == place.root["root"]:
            continue
        role = place.role_of(public)
        if role is None:
            raise EntryMalformed("An epoch entry wraps its key for a device that does not belong to the household.")
        if role == "keeper":
            raise EntryMalformed("An epoch entry wraps its key for a keeper; keepers get none.")
    _check_epoch_ids(place, (epoch_id for epoch_id, _ in place.entry.body["previous"]))


def _check_epoch_ids(place: _Place, epoch_ids: Iterable[bytes]) -> None:
    graph, seen = place.graph, set()
    for epoch_id in epoch_ids:
        node = graph.get(epoch_id)
        if node is None or not place.past >> node.index & 1 or node.entry.kind != EPOCH_NEW or epoch_id in seen:
            raise EntryMalformed(
                "An entry carries the key of a vault epoch that is not in its past, or is there twice."
            )
        seen.add(epoch_id)
