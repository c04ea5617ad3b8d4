"""Which chunks are needed: everything that can be reached from the view, from kept trees and from the kept past.
SPEC.md, 6.10.

The ids go into a temporary table of the index, so that a million chunks cost tens of megabytes and no Python objects.
Leaves which packs to keep for them to `choosing`, the order of the past to `hinet_protocol.past`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.vault.index import Index
from hinet_node.vault.reader import ChunkReader
from hinet_protocol.errors import TreeMalformed
from hinet_protocol.heads import Head
from hinet_protocol.past import PastRow, decode_past, past_of, walk
from hinet_protocol.trees import Version, Versions, decode_root

_BATCH = 16_384
_NAMES_TOLD_MAX = 100
DAY_S = 86_400


@dataclass(frozen=True)
class Retention:
    """How much of the past is kept: what was replaced less than `days` ago, and of every name always the newest
    `versions`. What was replaced before `given_up_s` the owner has given up, but for the newest `given_up_versions`."""

    days: int = 30
    versions: int = 3
    given_up_s: int = 0
    given_up_versions: int = 0

    def keeps(self, replaced_s: int, newer: int, now_s: int) -> bool:
        """Whether a version is kept that was replaced then, when so many past versions of the name are newer."""
        if replaced_s < self.given_up_s and newer >= self.given_up_versions:
            return False
        return newer < self.versions or replaced_s > now_s - self.days * DAY_S


@dataclass
class Lost:
    """What could not be restored any more once nobody retains it."""

    versions: int = 0
    deleted_files: int = 0
    names: dict[bytes, int] = field(default_factory=dict)
    """Some of the names, with how many past versions each loses."""
    deleted_names: list[bytes] = field(default_factory=list)

    def add(self, name: bytes, versions: int, wholly: bool) -> None:
        self.versions += versions
        self.deleted_files += wholly
        if len(self.names) < _NAMES_TOLD_MAX or name in self.names:
            self.names[name] = self.names.get(name, 0) + versions
        if wholly and len(self.deleted_names) < _NAMES_TOLD_MAX:
            self.deleted_names.append(name)


class Incomplete(IntegrityError):
    """Something on the way can't be read, so nobody can say what is needed behind it."""


def incomplete(why: str) -> Incomplete:
    return Incomplete(f"What the vault needs can't be told, so nothing is given up: {why}", code="E_PACK_MISSING",
                      next_step="Bring a sibling that holds it into reach, then: hinet-node vault verify")


class Marker:
    """Finds what is needed. `whole` says whether every pack that may hold something is here and open: only then does a
    chunk of the past that is not found mean that it was given up, and not that it is missing."""

    def __init__(self, reader: ChunkReader, index: Index, retention: Retention, now_s: int, *, whole: bool) -> None:
        self._reader = reader
        self._index = index
        self.retention = retention
        self._now_s = now_s
        self._whole = whole
        self.lost = Lost()

    def tree(self, head: Head) -> Iterator[bytes]:
        """The chunks of a head's tree: root and pages, not what the pages name."""
        try:
            pages = decode_root(self._reader.read(head.tree_chunk))
        except (IntegrityError, NotAuthorised, TreeMalformed) as error:
            raise incomplete(f"the tree of device {head.device.hex()[:16]} does not open.") from error
        yield head.tree_chunk
        for page in pages:
            yield page.chunk_id

    def file(self, name: bytes, versions: Versions) -> Iterator[bytes]:
        """The chunks of all versions of a name, and of its kept past."""
        for version in versions:
            yield from self._content(version)
        if any(past_of(version) is not None for version in versions):
            yield from self._past(name, versions)

    def _content(self, version: Version) -> Iterator[bytes]:
        for chunk_id in version.chunk_ids():
            yield chunk_id
            if version.indirect:
                try:
                    ids = self._reader.read(chunk_id)
                except (IntegrityError, NotAuthorised) as error:
                    raise incomplete("the list of a large file's parts does not open.") from error
                yield from (ids[at:at + 32] for at in range(0, len(ids), 32))

    def _past(self, name: bytes, versions: Versions) -> Iterator[bytes]:
        replaced_s: dict[PastRow, int] = {}
        held_by: dict[PastRow, list[bytes]] = {}
        now = set(versions)
        kept = lost = 0
        content_kept = not all(version.deleted for version in versions)
        for step in walk([(name, version) for version in versions], self._read_past, self._now_s):
            row = (step.name, step.version)
            chunk = past_of(step.version)
            for other in step.replaced or ():
                replaced_s[other] = max(step.time, replaced_s.get(other, step.time))
                if chunk is not None:
                    held_by.setdefault(other, []).append(chunk)
            if step.version in now and row not in replaced_s:
                continue
            if self.retention.keeps(replaced_s.get(row, self._now_s), kept, self._now_s):
                kept += not step.version.deleted  # a deletion is only the way to what was there before
                content_kept = content_kept or not step.version.deleted
                yield from held_by.get(row, ())
                yield from self._content(step.version)
            elif not step.version.deleted and self._held(step.version):
                lost += 1
        if lost:
            self.lost.add(name, lost, not content_kept)

    def _held(self, version: Version) -> bool:
        """Whether its content is here still, by what the index says of its first chunk."""
        first = next(version.chunk_ids(), None)
        return first is not None and self._index.pack_of(first) is not None

    def _read_past(self, chunk_id: bytes) -> tuple[PastRow, ...] | None:
        try:
            return decode_past(self._reader.read(chunk_id))
        except TreeMalformed:
            return None
        except (IntegrityError, NotAuthorised) as error:
            if self._whole and not self._index.places(chunk_id):
                return None
            raise incomplete("a part of the past does not open.") from error


class Marks:
    """The ids that were found, in a temporary table of the index: one marking at a time."""

    def __init__(self, index: Index) -> None:
        self.index = index

        def work(db: sqlite3.Connection) -> None:
            db.execute("DROP TABLE IF EXISTS temp.marks")
            db.execute("CREATE TEMP TABLE marks (id BLOB PRIMARY KEY, home INTEGER) WITHOUT ROWID")
        index.run(work)

    def add(self, ids: Iterable[bytes], pause: Callable[[], None] = lambda: None) -> None:
        """Enter ids; repeating is harmless. `pause` is called now and then, with nothing locked."""
        batch: list[tuple[bytes]] = []
        for one in ids:
            batch.append((one,))
            if len(batch) == _BATCH:
                self._insert(batch)
                batch = []
                pause()
        self._insert(batch)

    def count(self) -> int:
        return int(self.index.run(lambda db: db.execute("SELECT count(*) FROM temp.marks").fetchone())[0])

    def close(self) -> None:
        self.index.run(lambda db: db.execute("DROP TABLE IF EXISTS temp.marks"))

    def _insert(self, batch: list[tuple[bytes]]) -> None:
        self.index.run(lambda db: db.executemany("INSERT OR IGNORE INTO temp.marks (id) VALUES (?)", batch))
