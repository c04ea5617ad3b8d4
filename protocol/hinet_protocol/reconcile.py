"""What to pull from a sibling: compare digests, then heads and lists, then a plan. Pure. SPEC.md, 6.6.

Only what a verified head needs is ever pulled, so a sibling can't fill this disk with packs that nobody signed for. A
head counts only when all of its packs are held. Above a thousand packs `ranges` finds what a sibling holds.
Leaves reading heads to `heads` and transfers to the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hinet_protocol.heads import Head

pieces_bytes = 1_048_576 - 4_096
"""Bytes asked for with one PackRead: the most that fits into a frame."""


def needs_exchange(own_digest: bytes, their_digest: bytes) -> bool:
    """Whether there is anything to ask a sibling with this digest."""
    return own_digest != their_digest


@dataclass(frozen=True, slots=True)
class Needs:
    """What heads need. `unknown_lists` are pack lists that are not held yet: their packs are not known."""

    packs: frozenset[bytes]
    unknown_lists: frozenset[bytes]


def needs_of(heads: Iterable[Head], read_list: Callable[[bytes], Sequence[bytes] | None]) -> Needs:
    """All packs and pack lists that these heads need. `read_list` gives the names in a held pack list, else None."""
    packs: set[bytes] = set()
    lists: set[bytes] = set()
    for head in heads:
        packs.update(head.packs)
        packs.add(head.tree_pack)
        lists.update(head.lists)
    unknown = set()
    for name in lists:
        names = read_list(name)
        if names is None:
            unknown.add(name)
        else:
            packs.update(names)
    return Needs(frozenset(packs | lists), frozenset(unknown))


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What to pull now, in this order, and what that takes. `absent` is needed, and the sibling does not have it."""

    packs: tuple[tuple[bytes, int], ...]
    size_bytes: int
    absent: tuple[bytes, ...]


def plan_pull(needs: Needs, held: Collection[bytes], offered: Mapping[bytes, int], *, size_bytes_max: int,
              started: Collection[bytes] = ()) -> PullPlan:
    """Which packs to pull from a sibling that offers `offered` (name -> bytes). Pack lists come first, then transfers
    that were begun, then the rest by name. An offer above `size_bytes_max` is not taken: no pack is that large."""
    missing = [name for name in needs.packs if name not in held]
    wanted = [(name, offered[name]) for name in missing if 0 < offered.get(name, 0) <= size_bytes_max]
    wanted.sort(key=lambda row: (row[0] not in needs.unknown_lists, row[0] not in started, row[0]))
    taken = {name for name, _ in wanted}
    return PullPlan(tuple(wanted), sum(size for _, size in wanted),
                    tuple(sorted(name for name in missing if name not in taken)))


def pieces(size_bytes: int, from_offset: int = 0, piece_bytes: int = pieces_bytes) -> list[tuple[int, int]]:
    """The (offset, length) rows that fetch the rest of a pack."""
    return [(at, min(piece_bytes, size_bytes - at)) for at in range(from_offset, size_bytes, piece_bytes)]


def whole_heads(heads: Iterable[Head], held: Collection[bytes], read_list: Callable[[bytes], Sequence[bytes] | None],
                lost: Collection[bytes] = ()) -> list[Head]:
    """Those of the heads whose packs are all held: they may be kept and shown.

    `lost` are packs that this device held once and misses: what it has no copy of already does not keep new heads
    away, or one lost pack would end all replication.
    """
    found = []
    for head in heads:
        needs = needs_of([head], read_list)
        if (all(name in lost for name in needs.unknown_lists)
                and all(name in held or name in lost for name in needs.packs)):
            found.append(head)
    return found


def heads_behind(own_vector: Iterable[tuple[bytes, int]], newest: Mapping[bytes, int]) -> int:
    """How many heads of others a device with this vector has not taken up, counted by their numbers."""
    seen = dict(own_vector)
    return sum(max(0, seq - seen.get(device, 0)) for device, seq in newest.items())
