"""Who belongs at one point of the chain: kept up entry by entry, and settled anew where branches meet. SPEC.md, 3.4.

Along a line each entry changes little, so the state after it follows from the state before it; `standing` alone says
what a merge means. That both ways agree is tested.
"""

from __future__ import annotations

from collections.abc import Mapping

from hinet_protocol.chain.bodies import DEVICE_REVOKE, ROOT_ROTATE
from hinet_protocol.chain.entries import Entry
from hinet_protocol.chain.graph import Graph, Members, Node
from hinet_protocol.chain.standing import settle


def members_before(graph: Graph, entry: Entry, past: int) -> Members:
    """Who belongs in the past of an entry whose parents are all there."""
    parents = [node for name in entry.parents if (node := graph.get(name)) is not None]
    for parent in parents:
        if parent.past == past:
            return parent.members
    joined = _joined(graph, parents, past)
    return members_settled(graph, past) if joined is None else joined


def members_after(graph: Graph, entry: Entry, past: int, before: Members, role: str) -> Members:
    """Who belongs once a valid entry is added on top of its past. `role` is what a certificate gives."""
    if entry.kind == ROOT_ROTATE:
        return Members(len(graph), before.admins, before.live_count, before.exceptions, before.chosen)
    introduced = entry.certifies if entry.introduces else None
    removed = entry.removes
    if introduced is None and removed is None:
        return before
    admins, live_count, exceptions = before.admins, before.live_count, before.exceptions
    chosen: Mapping[bytes, int] = before.chosen
    if removed is not None:
        live_count -= graph.live_in(removed, past, before)
        admins, exceptions = admins - {removed}, exceptions - {removed}
        if removed in chosen:
            chosen = {key: index for key, index in chosen.items() if key != removed}
    if introduced is not None:
        live_count += 1
        admins = admins | {introduced} if role == "admin" else admins
    return Members(before.root, admins, live_count, exceptions, chosen)


def members_settled(graph: Graph, past: int) -> Members:
    """Who belongs in a past, from all of it."""
    settled = settle(graph, past)
    admins, exceptions, chosen, live_count = set(), set(), {}, 0
    for key in settled.ranks:
        live = settled.live(key)
        live_count += live
        if live == bool(graph.removals_of(key, past)):
            exceptions.add(key)
        first = settled.introduction(key) if live else None
        if first is None:
            continue
        if first.role == "admin":
            admins.add(key)
        if len(graph.introductions_of(key, past)) > 1:
            chosen[key] = first.index
    return Members(settled.line[-1].index, frozenset(admins), live_count, frozenset(exceptions), chosen)


def _joined(graph: Graph, parents: list[Node], past: int) -> Members | None:
    """The state where branches meet whose difference is simple: grants, none to a key that another branch knows, and
    revocations of devices that never could grant. Then what holds on each branch adds up. None if it is not so."""
    common = past
    for parent in parents:
        common &= parent.past
    apart = past & ~common
    introduced = {node.entry.certifies: node for node in graph.marked(apart & graph.introducing)}
    removed = {node.entry.removes: node for node in graph.marked(apart & graph.unsettling)}
    for key in introduced:
        if key is None or len(graph.introductions_of(key, past)) > 1:
            return None
    for key in removed:
        if key is None or any(node.role == "admin" for node in graph.introductions_of(key, past)):
            return None
        if any(node.entry.kind != DEVICE_REVOKE for node in graph.removals_of(key, past)):
            return None
    first = parents[0]
    admins: frozenset[bytes] = frozenset().union(*(parent.members.admins for parent in parents))
    exceptions = set().union(*(parent.members.exceptions for parent in parents))
    live_count, dead = first.members.live_count, set()
    for key in introduced.keys() | removed.keys():
        assert key is not None
        known = [parent for parent in parents if graph.certified(key, parent.past)]
        live = all(graph.live_in(key, parent.past, parent.members) for parent in known)
        live_count += live - (first in known and graph.live_in(key, first.past, first.members))
        if live == bool(graph.removals_of(key, past)):
            exceptions.add(key)
        else:
            exceptions.discard(key)
        if not live:
            dead.add(key)
    chosen = {key: index for key, index in first.members.chosen.items() if key not in dead}
    return Members(first.members.root, admins, live_count, frozenset(exceptions), chosen)


__all__ = ["members_after", "members_before", "members_settled"]
