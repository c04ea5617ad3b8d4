"""Takes entries into a graph in whatever order they came, and says what was refused. SPEC.md, 3.3 and 3.6."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hinet_protocol.chain.entries import Entry, entry_hash, parse_entry
from hinet_protocol.chain.graph import Graph
from hinet_protocol.chain.rules import check_entry
from hinet_protocol.errors import EntryOrphan, ProtocolError


@dataclass(frozen=True)
class Rejected:
    """An entry that was not taken, and why."""

    hash: bytes
    error: ProtocolError


def root_cause(rejected: Sequence[Rejected]) -> ProtocolError | None:
    """The first error that is not merely an orphan's, else the first, else None."""
    errors = [one.error for one in rejected]
    return next((error for error in errors if not isinstance(error, EntryOrphan)), errors[0] if errors else None)


def take(graph: Graph, raws: Iterable[bytes]) -> tuple[tuple[bytes, ...], tuple[Rejected, ...]]:
    """Puts the valid ones into the graph: the hashes of those that are new in it, and what was refused."""
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
    return added, tuple(Rejected(name, rejected[name]) for name in sorted(rejected))


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
            seen = check_entry(graph, entry)
        except ProtocolError as error:
            rejected[name] = error
            continue
        graph.add(entry, seen)
        added.append(name)
        for child in children.get(name, ()):
            lacking[child] -= 1
            if not lacking[child]:
                ready.append(child)
    for name in waiting:
        rejected[name] = EntryOrphan("A chain entry follows one that is missing here or was refused. Sync again.")
    return tuple(added)
