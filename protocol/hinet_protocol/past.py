"""The past of a version: which versions it replaced, as a chunk that the version names. SPEC.md, 6.3.

The rows of such a chunk are whole versions, whose attributes may name a chunk of their own: a linked list, as the
commits of git are. So a tree stays small and everything that stood in it can be found again, deletions included, as
long as the chunks are held. Each row has the name that its version stood under, so the past goes on across a renaming.

Nothing here decides about merging: whoever lies about the past lies about the past only. Leaves rows to `trees`,
finding and opening chunks to the node.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hinet_protocol import canonical
from hinet_protocol.attributes import attributes_bytes_max, no_attributes, read_attributes
from hinet_protocol.errors import EncodingError, LimitError, TreeMalformed
from hinet_protocol.trees import (
    Version,
    entry_weight,
    name_bytes_max,
    name_weight_max,
    open_rows,
    pack_rows,
    version_hash,
    version_of_row,
    versions_max,
)

past_rows_max = versions_max
_PAST, _MOVED = "past", "moved"
_ROOM_FOR_PAST = 64

PastRow = tuple[bytes, Version]
"""A version and the name that it stood under."""
ReadPast = Callable[[bytes], "tuple[PastRow, ...] | None"]
"""From the id of a chunk to its rows; None when it is not held (any more), or is no past."""


def encode_past(rows: Iterable[PastRow]) -> bytes:
    """The plaintext of a PAST chunk: 1 to 256 rows, each once, in rising order of their bytes; equal sets of rows are
    equal chunks. Beyond 256 rows, or beyond the weight of one name, the first in this order are kept."""
    packed = sorted({pack_rows([name, version.row()]): (name, version) for name, version in rows}.items())
    kept: list[PastRow] = []
    weight = 0
    for _, (name, version) in packed[:past_rows_max]:
        weight += entry_weight(name, (version,))
        if kept and weight > name_weight_max:
            break
        kept.append((name, version))
    if not kept:
        raise ValueError("A past has at least one row.")
    return pack_rows([_PAST, 1, [[name, version.row()] for name, version in kept]])


def decode_past(raw: bytes) -> tuple[PastRow, ...]:
    """The rows of a PAST chunk. Raises TreeMalformed."""
    found: list[PastRow] = []
    last, weight = b"", 0
    for entry in open_rows(raw, _PAST, past_rows_max):
        if not (isinstance(entry, list) and len(entry) == 2):
            raise _malformed("a row is no pair")
        name, row = entry
        if not (isinstance(name, bytes) and 1 <= len(name) <= name_bytes_max):
            raise _malformed("a name has a wrong length")
        version = version_of_row(row)
        packed = pack_rows(entry)
        if packed <= last:
            raise _malformed("its rows are not sorted")
        weight += entry_weight(name, (version,))
        found.append((name, version))
        last = packed
    if not found or (len(found) > 1 and weight > name_weight_max):
        raise _malformed("it has no rows, or they are too long")
    return tuple(found)


def _malformed(what: str) -> TreeMalformed:
    return TreeMalformed(f"A chunk of past versions is malformed: {what}.")


def past_of(version: Version) -> bytes | None:
    """The id of the chunk that holds what this version replaced."""
    return read_attributes(version.attributes).past


def moved_attributes(new_name: bytes) -> bytes:
    """The attributes of a removal that was a renaming; none where the name is too long for them."""
    raw = canonical.encode({_MOVED: new_name})
    return raw if len(raw) <= attributes_bytes_max - _ROOM_FOR_PAST else no_attributes


def moved_to(version: Version) -> bytes | None:
    """For a removal that was a renaming: the new name."""
    if not version.deleted or version.attributes == no_attributes:
        return None
    try:
        found = canonical.decode(version.attributes, attributes_bytes_max)
    except (EncodingError, LimitError):
        return None
    name = found.get(_MOVED) if isinstance(found, dict) else None
    return name if isinstance(name, bytes) and 1 <= len(name) <= name_bytes_max else None


# --- walking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One version of a walk through the past. `replaced` are the rows of its chunk; None where the version replaced
    something and the rows are not held any more, or were never kept."""

    name: bytes
    version: Version
    replaced: tuple[PastRow, ...] | None
    time: int
    """The version's time, and no later than that of the versions which replaced it: for showing in order."""

    @property
    def ends(self) -> bool:
        """Whether there was something before that can't be shown."""
        return self.replaced is None


def walk(rows: Iterable[PastRow], read: ReadPast, now: int) -> Iterator[Step]:
    """These versions and all that they replaced, newest first, each once and after one that replaced it. Times
    above `now` count as now: another device's clock may be wrong.

    Reads one chunk for each version that it gives, when it gives it, so a caller that stops early reads little.
    """
    order = itertools.count()
    waiting = [(-min(version.time, now), 0, name, next(order), version) for name, version in rows]
    heapq.heapify(waiting)
    seen: set[tuple[bytes, bytes]] = set()
    while waiting:
        negative, depth, name, _, version = heapq.heappop(waiting)
        key = (name, version_hash(version))
        if key in seen:
            continue
        seen.add(key)
        chunk = past_of(version)
        replaced = read(chunk) if chunk is not None else (None if version.seen else ())
        for its_name, its_version in replaced or ():
            heapq.heappush(waiting, (max(negative, -its_version.time), depth + 1, its_name, next(order), its_version))
        yield Step(name, version, replaced, -negative)


def includes(version: Version, sought: Version, read: ReadPast, chunks_max: int = 64) -> bool | None:
    """Whether the past of a version holds exactly the one sought, and not just one of the same number: None where the
    past is not held far enough to tell.

    A number names one version as long as no device is cloned. Only the past tells which one a writer has seen.
    """
    waiting, opened = [version], set[bytes]()
    unknown = False
    while waiting:
        one = waiting.pop()
        chunk = past_of(one)
        if chunk in opened:
            continue
        rows = None
        if chunk is not None and len(opened) < chunks_max:
            opened.add(chunk)
            rows = read(chunk)
        if rows is None:
            unknown = True
            continue
        for _, row in rows:
            if row == sought:
                return True
            if row.has_seen(sought.dot):
                waiting.append(row)
    return None if unknown else False

