"""Which packs are kept for the chunks that are needed, and which are worth rewriting. SPEC.md, 6.10.

Of a chunk that is in several packs one copy is enough. Packs are looked at in an order of preference (needed until now,
sealed under the current epoch, little dead in them), and each takes what the ones before it do not hold. Leaves what
is needed to `marking`, proving that copies open to `collect`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from hinet_node.vault.index import Index
from hinet_node.vault.marking import Marks

_PACKS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class PackUse:
    """One held pack and what of it is needed."""

    number: int
    name: bytes
    size_bytes: int
    epoch: bytes
    """Empty for a pack list, and for a pack whose header is none."""
    mine: bool
    opened: bool
    live: int
    """Chunks of it that are needed, wherever else they are."""
    live_bytes: int
    stored_bytes: int
    """What its chunks take, tags left out."""

    @property
    def live_share(self) -> float:
        return self.live_bytes / self.stored_bytes if self.stored_bytes else 0.0


@dataclass(frozen=True)
class Choice:
    """The packs that hold what is needed."""

    uses: dict[bytes, PackUse]
    """Every held pack and pack list."""
    homes: frozenset[bytes]
    """The packs that are kept for the sake of their chunks."""
    missing: int
    """Chunks that are needed and of which no copy is held."""
    at_home: dict[int, int]
    """Number of a pack -> stored bytes of the chunks that have their home there."""


def measure(marks: Marks) -> dict[bytes, PackUse]:
    """What of each held pack is needed."""
    rows = marks.index.run(lambda db: db.execute(
        "SELECT number, name, size, epoch, mine, opened FROM packs ORDER BY number").fetchall())
    found: dict[bytes, PackUse] = {}
    for at in range(0, len(rows), _PACKS_AT_ONCE):
        some = rows[at:at + _PACKS_AT_ONCE]
        span = (some[0][0], some[-1][0])
        live, stored = _sums(marks.index, span)
        for number, name, size, epoch, mine, opened in some:
            count, live_bytes = live.get(number, (0, 0))
            found[name] = PackUse(number, name, size, epoch, bool(mine), bool(opened), count, live_bytes,
                                  stored.get(number, 0))
    return found


def _sums(index: Index, span: tuple[int, int]) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """Of the packs numbered so: needed chunks and their bytes; bytes of all chunks."""
    live = index.run(lambda db: db.execute(
        "SELECT c.pack, count(*), sum(c.stored) FROM chunks c JOIN temp.marks m ON m.id = c.id "
        "WHERE c.pack BETWEEN ? AND ? GROUP BY c.pack", span).fetchall())
    stored = index.run(lambda db: db.execute(
        "SELECT pack, sum(stored) FROM chunks WHERE pack BETWEEN ? AND ? GROUP BY pack", span).fetchall())
    return {number: (count, size) for number, count, size in live}, dict(stored)


def choose(marks: Marks, current_epoch: bytes, unneeded: Collection[bytes]) -> Choice:
    """Give every needed chunk that is held a home, and tell which packs are one."""
    uses = measure(marks)
    order = sorted((use for use in uses.values() if use.live), key=lambda use: (
        use.name in unneeded, use.epoch != current_epoch, -use.live_share, -use.live_bytes, use.name))
    for use in order:
        _take(marks.index, use.number)
    return chosen(marks, uses)


def chosen(marks: Marks, uses: dict[bytes, PackUse]) -> Choice:
    """The choice by the homes as they are now."""
    at_home: dict[int, int] = {}
    numbers = sorted(use.number for use in uses.values() if use.live)
    for at in range(0, len(numbers), _PACKS_AT_ONCE):
        span = (numbers[at], numbers[min(at + _PACKS_AT_ONCE, len(numbers)) - 1])
        at_home.update(_at_home(marks.index, span))
    missing = marks.index.run(lambda db: db.execute("SELECT count(*) FROM temp.marks WHERE home IS NULL").fetchone())
    return Choice(uses, frozenset(use.name for use in uses.values() if use.number in at_home), int(missing[0]),
                  at_home)


def _at_home(index: Index, span: tuple[int, int]) -> dict[int, int]:
    return dict(index.run(lambda db: db.execute(
        "SELECT c.pack, sum(c.stored) FROM chunks c JOIN temp.marks m ON m.id = c.id AND m.home = c.pack "
        "WHERE c.pack BETWEEN ? AND ? GROUP BY c.pack", span).fetchall()))


def _take(index: Index, number: int) -> None:
    """Make this pack the home of what has none yet."""
    index.run(lambda db: db.execute("UPDATE temp.marks SET home = ? WHERE home IS NULL AND id IN "
                                    "(SELECT id FROM chunks WHERE pack = ?)", (number, number)))


def elsewhere(index: Index, pack_number: int) -> list[tuple[bytes, bytes]]:
    """The needed chunks in a pack whose home is another one: chunk id and the name of its home."""
    return [(chunk, home) for chunk, home in index.run(lambda db: db.execute(
        "SELECT c.id, p.name FROM chunks c JOIN temp.marks m ON m.id = c.id JOIN packs p ON p.number = m.home "
        "WHERE c.pack = ? AND m.home != ?", (pack_number, pack_number)).fetchall())]


def move_home(index: Index, chunk_id: bytes, pack_number: int) -> None:
    """The copy that was chosen does not open: this pack is the chunk's home."""
    index.run(lambda db: db.execute("UPDATE temp.marks SET home = ? WHERE id = ?", (pack_number, chunk_id)))


def moved_home(index: Index, pack: bytes) -> None:
    """A new pack is the home of all that is in it."""
    def work(db: sqlite3.Connection) -> None:
        number = db.execute("SELECT number FROM packs WHERE name = ?", (pack,)).fetchone()[0]
        db.execute("UPDATE temp.marks SET home = ? WHERE id IN (SELECT id FROM chunks WHERE pack = ?)",
                   (number, number))
    index.run(work)


def rows_at_home(index: Index, use: PackUse) -> list[tuple[bytes, int, bytes]]:
    """The needed chunks that have their home in a pack, in its order: id, type, and the epoch that the id is of."""
    rows = index.run(lambda db: db.execute(
        "SELECT c.id, c.kind, c.form, p.id_epoch FROM chunks c JOIN temp.marks m ON m.id = c.id "
        "JOIN packs p ON p.number = c.pack WHERE c.pack = ? AND m.home = c.pack ORDER BY c.slot",
        (use.number,)).fetchall())
    return [(chunk, kind, id_epoch if form & 2 else use.epoch) for chunk, kind, form, id_epoch in rows]
