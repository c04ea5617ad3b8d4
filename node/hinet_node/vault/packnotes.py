"""What this device remembers of its packs beyond the packs themselves: when each was verified, what those that were set
aside held, what siblings said they hold.

A SQLite file of its own beside the index, since it should outlive that: a kill or a power cut gives the index up. It
may be lost all the same, and then it is learnt again. Times are unix seconds of this device's clock, for display and
for choosing what to verify next; nothing is ever deleted because of them.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hinet_protocol.packs import Slot

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS checked (
    name BLOB PRIMARY KEY, seen INTEGER NOT NULL, time INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS aside (
    name BLOB NOT NULL, slot INTEGER NOT NULL, row BLOB NOT NULL, PRIMARY KEY (name, slot)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holders (
    device BLOB PRIMARY KEY, time INTEGER NOT NULL, packs BLOB NOT NULL) WITHOUT ROWID;
"""
_ROW = struct.Struct(">BQIIB32s")
DEVICES_MAX = 256
NAMES_MAX = 1 << 17
REWRITE_S = 3_600
"""What a sibling holds is written down when it changes; that it still does, so often."""


@dataclass(frozen=True)
class Verified:
    """How far the packs that are held have been verified. `oldest_s` and `newest_s` are 0 when none was."""

    packs: int
    checked: int
    oldest_s: int
    newest_s: int


class PackNotes:
    """May be used from several threads. `path` is a file or `:memory:`."""

    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()
        self._db = _connect(path)
        self._holders: dict[bytes, tuple[int, frozenset[bytes]]] = {}
        self._written_s: dict[bytes, int] = {}
        self._checked: dict[bytes, tuple[int, int]] = {
            name: (seen, time) for name, seen, time in self._run(lambda db: db.execute(
                "SELECT name, seen, time FROM checked WHERE typeof(seen) = 'integer' AND typeof(time) = 'integer'"
            ).fetchall())}
        for device, time_s, names in self._run(lambda db: db.execute("SELECT * FROM holders").fetchall()):
            if isinstance(names, bytes) and isinstance(time_s, int):
                self._holders[device] = (time_s, frozenset(names[at:at + 32] for at in range(0, len(names), 32)))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # ---- verifying -----------------------------------------------------------------------------------------------

    def note_checked(self, name: bytes, now_s: int) -> None:
        """This pack was read from the disk and was whole."""
        with self._lock:
            self._checked[name] = (self._checked.get(name, (now_s, 0))[0], now_s)
        self._run(lambda db: db.execute(
            "INSERT INTO checked VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET time = excluded.time",
            (name, now_s, now_s)))

    def verified(self, held: Collection[bytes], now_s: int) -> Verified:
        """Of these packs. Times in the future, from a clock that was wrong, count as now."""
        with self._lock:
            times = [min(time, now_s) for name in held if (time := self._checked.get(name, (0, 0))[1])]
        return Verified(len(held), len(times), min(times, default=0), max(times, default=0))

    def longest_unchecked(self, held: Mapping[bytes, int], now_s: int) -> tuple[bytes, int] | None:
        """Of these packs the one that waits longest for being verified, and since when it waits. One that never was
        waits since it was first met here."""
        with self._lock:
            fresh = [name for name in held if name not in self._checked]
            gone = [name for name in self._checked if name not in held]
            for name in fresh:
                self._checked[name] = (now_s, 0)
            for name in gone:
                del self._checked[name]
            best = min(((time > 0, min(max(seen, time), now_s), name) for name, (seen, time) in self._checked.items()),
                       default=None)
        if fresh or gone:
            def work(db: sqlite3.Connection) -> None:
                db.executemany("INSERT OR IGNORE INTO checked VALUES (?, ?, 0)", [(name, now_s) for name in fresh])
                db.executemany("DELETE FROM checked WHERE name = ?", [(name,) for name in gone])
            self._run(work)
        return None if best is None else (best[2], best[1])

    # ---- set aside -----------------------------------------------------------------------------------------------

    def keep_slots(self, name: bytes, slots: Iterable[Slot]) -> None:
        """What a pack held that is set aside now: its own footer may be the part that is damaged."""
        rows = [(name, slot.number, _ROW.pack(slot.kind, slot.offset, slot.stored_bytes, slot.plain_bytes,
                                              int(slot.compressed), slot.chunk_id) + slot.id_epoch)
                for slot in slots]
        if rows:
            self._run(lambda db: db.executemany("INSERT OR REPLACE INTO aside VALUES (?, ?, ?)", rows))

    def slots_aside(self, name: bytes) -> tuple[Slot, ...]:
        """The slots that were kept; none when nothing is known."""
        rows = self._run(lambda db: db.execute(
            "SELECT slot, row FROM aside WHERE name = ? ORDER BY slot", (name,)).fetchall())
        found = []
        for number, row in rows:
            kind, offset, stored, plain, compressed, chunk_id = _ROW.unpack_from(row)
            found.append(Slot(number, kind, chunk_id, offset, stored, plain, bool(compressed), row[_ROW.size:]))
        return tuple(found)

    def prune_aside(self, missing: Collection[bytes]) -> None:
        """Forget what packs held that nobody misses any more."""
        names = self._run(lambda db: [row[0] for row in db.execute("SELECT DISTINCT name FROM aside").fetchall()])
        for name in names:
            if name not in missing:
                self.forget_aside(name)

    def forget_aside(self, name: bytes) -> None:
        self._run(lambda db: db.execute("DELETE FROM aside WHERE name = ?", (name,)))

    # ---- siblings ------------------------------------------------------------------------------------------------

    def said(self, device: bytes, names: Collection[bytes], now_s: int) -> None:
        """A sibling said what it holds. Of one that says too much nothing is kept."""
        held = frozenset(names)
        before = self._holders.get(device, (0, None))[1]
        full = device not in self._holders and len(self._holders) >= DEVICES_MAX
        if full or len(held) > NAMES_MAX:
            return
        self._holders[device] = (now_s, held)
        if before != held or now_s - self._written_s.get(device, 0) >= REWRITE_S:
            self._written_s[device] = now_s
            self._run(lambda db: db.execute(
                "INSERT OR REPLACE INTO holders VALUES (?, ?, ?)", (device, now_s, b"".join(sorted(held)))))

    def holdings(self, device: bytes) -> frozenset[bytes] | None:
        """What a sibling holds, as it last said; None when it never did."""
        known = self._holders.get(device)
        return None if known is None else known[1]

    def said_s(self, device: bytes) -> int:
        """When it said so; 0 when it never did."""
        return self._holders.get(device, (0, frozenset()))[0]

    def holders(self, name: bytes) -> list[bytes]:
        """The siblings that said they hold a pack."""
        return sorted(device for device, (_, held) in self._holders.items() if name in held)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                with self._db:
                    return work(self._db)
            except sqlite3.DatabaseError:
                self._db.close()
                self._db = _connect(":memory:")
                with self._db:
                    return work(self._db)


def _connect(path: str) -> sqlite3.Connection:
    """The file, or a new one in the place of one that is damaged; in memory where even that fails."""
    for attempt in (path, path, ":memory:"):
        try:
            if attempt != ":memory:":
                Path(attempt).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            db = sqlite3.connect(attempt, check_same_thread=False, timeout=5.0)
            try:
                db.execute("PRAGMA synchronous = OFF")
                if db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                    raise sqlite3.DatabaseError("damaged")
                db.executescript(_SCHEMA)
                return db
            except sqlite3.Error:
                db.close()
                raise
        except (sqlite3.Error, OSError):
            if attempt != ":memory:":
                _remove(attempt)
    raise AssertionError("SQLite has no room for an empty table in memory")


def _remove(path: str) -> None:
    for ending in ("", "-journal"):
        try:
            Path(path + ending).unlink(missing_ok=True)
        except OSError:
            return
