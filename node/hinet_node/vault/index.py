"""Where each chunk is: a SQLite cache that can be rebuilt from the packs at any time.

Holds no names of files and nothing that the packs do not say. When its own file fails (full or read-only disk, damage)
it goes on in memory. Nothing is ever synced; instead the file's hash is written beside it when it is closed, and a file
that does not have that hash at the next start (a power cut, a kill, a rotten sector) is made anew: SQLite can tell a
torn tree, but not old pages beside new ones, and these would make held chunks look missing. Leaves the packs themselves
to `packstore`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from hinet_protocol.packs import Slot

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS packs (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, size INTEGER NOT NULL, opened INTEGER NOT NULL,
    epoch BLOB NOT NULL, id_epoch BLOB NOT NULL, mine INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS chunks (
    id BLOB NOT NULL, pack INTEGER NOT NULL, slot INTEGER NOT NULL, kind INTEGER NOT NULL, offset INTEGER NOT NULL,
    stored INTEGER NOT NULL, plain INTEGER NOT NULL, form INTEGER NOT NULL, PRIMARY KEY (id, pack)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chunks_by_pack ON chunks (pack);
CREATE TABLE IF NOT EXISTS looks (key BLOB PRIMARY KEY, mark BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_VERSION = 3
_ASKED_AT_ONCE = 500


def slot_of(chunk_id: bytes, number: int, kind: int, offset: int, stored: int, plain: int, form: int,
            id_epoch: bytes) -> Slot:
    """A slot as it is kept in the index."""
    return Slot(number, kind, chunk_id, offset, stored, plain, bool(form & 1), id_epoch if form & 2 else b"")


@dataclass(frozen=True, slots=True)
class Place:
    """One copy of a chunk."""

    pack: bytes
    slot: Slot


class Index:
    """`path` is a file or `:memory:`. `refill` is called with the index after its file was given up, to fill it anew;
    it may be called from any thread that uses the index."""

    def __init__(self, path: str, refill: Callable[[Index], None]) -> None:
        self._lock = threading.RLock()
        self._refill = refill
        self.made_anew = ""
        """Why the file was given up while it was used, and made anew; empty when it was fine."""
        self.changes = 0
        """Rises whenever a pack comes or goes."""
        self._path: Path | None = None if path == ":memory:" else Path(path)
        """The file in use; None in memory."""
        self._db = self._open()

    def close(self) -> None:
        with self._lock:
            self._db.close()
            if self._path is not None:
                try:
                    _hash_place(self._path).write_bytes(_hash_of(self._path))
                except OSError:
                    pass  # then it is made anew at the next start

    # ---- packs ---------------------------------------------------------------------------------------------------

    def packs(self) -> dict[bytes, int]:
        """Name -> size of every pack and pack list that is held."""
        return self._run(lambda db: dict(db.execute("SELECT name, size FROM packs")))

    def packs_after(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """At most `limit` rows of name and size above `after`, in rising order."""
        return self._run(lambda db: db.execute(
            "SELECT name, size FROM packs WHERE name > ? ORDER BY name LIMIT ?", (after, limit)).fetchall())

    def pack_size(self, name: bytes) -> int | None:
        row = self._run(lambda db: db.execute("SELECT size FROM packs WHERE name = ?", (name,)).fetchone())
        return None if row is None else int(row[0])

    def totals(self) -> tuple[int, int]:
        """Number and bytes of the packs."""
        row = self._run(lambda db: db.execute("SELECT count(*), coalesce(sum(size), 0) FROM packs").fetchone())
        return int(row[0]), int(row[1])

    def unopened(self) -> list[tuple[bytes, int]]:
        """Packs whose footer was not read yet, for want of a key."""
        return self._run(lambda db: db.execute("SELECT name, size FROM packs WHERE opened = 0").fetchall())

    def add_pack(self, name: bytes, size_bytes: int, slots: Sequence[Slot] | None, *, epoch: bytes = b"",
                 mine: bool = False) -> None:
        """Enter a pack and its slots; None for a pack that can't be opened here (yet). `epoch` is that of its header,
        empty for a pack list; `mine` says that this device sealed it. Repeating is harmless."""
        id_epoch = next((slot.id_epoch for slot in slots or () if slot.id_epoch), b"")

        def work(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO packs (name, size, opened, epoch, id_epoch, mine) VALUES (?, ?, ?, ?, ?, ?) "
                       "ON CONFLICT (name) DO UPDATE SET size = excluded.size, opened = max(opened, excluded.opened), "
                       "epoch = excluded.epoch, id_epoch = excluded.id_epoch, mine = max(mine, excluded.mine)",
                       (name, size_bytes, int(slots is not None), epoch, id_epoch, int(mine)))
            number = db.execute("SELECT number FROM packs WHERE name = ?", (name,)).fetchone()[0]
            db.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [
                (s.chunk_id, number, s.number, s.kind, s.offset, s.stored_bytes, s.plain_bytes, s.form)
                for s in slots or ()])
        self._run(work)
        self.changes += 1

    def remove_pack(self, name: bytes) -> None:
        def work(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT number FROM packs WHERE name = ?", (name,)).fetchone()
            if row is not None:
                db.execute("DELETE FROM chunks WHERE pack = ?", row)
                db.execute("DELETE FROM packs WHERE number = ?", row)
        self._run(work)
        self.changes += 1

    # ---- chunks --------------------------------------------------------------------------------------------------

    def places(self, chunk_id: bytes) -> list[Place]:
        """Every copy of a chunk that is held."""
        rows = self._run(lambda db: db.execute(
            "SELECT name, slot, kind, offset, stored, plain, form, id_epoch FROM chunks JOIN packs ON pack = number "
            "WHERE id = ? ORDER BY name", (chunk_id,)).fetchall())
        return [Place(name, slot_of(chunk_id, *row)) for name, *row in rows]

    def pack_of(self, chunk_id: bytes) -> bytes | None:
        """One pack that holds the chunk, always the same one while it is held."""
        row = self._run(lambda db: db.execute(
            "SELECT name FROM chunks JOIN packs ON pack = number WHERE id = ? ORDER BY name LIMIT 1",
            (chunk_id,)).fetchone())
        return None if row is None else bytes(row[0])

    def held(self, chunk_ids: Iterable[bytes]) -> set[bytes]:
        """Those of these chunks that some pack holds."""
        return {row[0] for row in self._asked("SELECT id FROM chunks WHERE id IN", chunk_ids)}

    # ---- looks at files outside the home: see `looks` --------------------------------------------------------------

    def marks(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return dict(self._asked("SELECT key, mark FROM looks WHERE key IN", keys))

    def mark(self, rows: Iterable[tuple[bytes, bytes]], rows_max: int) -> None:
        """Enter key and mark. A table that grew above `rows_max` begins again: it is a cache."""
        def work(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR REPLACE INTO looks VALUES (?, ?)", rows)
            if db.execute("SELECT count(*) FROM looks").fetchone()[0] > rows_max:
                db.execute("DELETE FROM looks")
        self._run(work)

    def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A random value that lives as long as this file does."""
        def work(db: sqlite3.Connection) -> bytes:
            row = db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
            if row is not None:
                return bytes(row[0])
            value = make()
            db.execute("INSERT INTO secrets VALUES (?, ?)", (name, value))
            return value
        return self._run(work)

    def slots_in(self, pack: bytes) -> tuple[Slot, ...]:
        """The slots of one pack, as they are here."""
        rows = self._run(lambda db: db.execute(
            "SELECT id, slot, kind, offset, stored, plain, form, id_epoch FROM chunks JOIN packs ON pack = number "
            "WHERE name = ? ORDER BY slot", (pack,)).fetchall())
        return tuple(slot_of(*row) for row in rows)

    def ids(self) -> set[bytes]:
        """The ids of all chunks that are held."""
        return {row[0] for row in self._run(lambda db: db.execute("SELECT DISTINCT id FROM chunks").fetchall())}

    def ids_of_kind(self, kind: int) -> list[bytes]:
        """The ids of all chunks of a type, sorted."""
        return [row[0] for row in self._run(lambda db: db.execute(
            "SELECT DISTINCT id FROM chunks WHERE kind = ? ORDER BY id", (kind,)).fetchall())]

    def prune(self) -> int:
        """Remove rows of chunks whose pack is in no row; how many there were."""
        return self._run(lambda db: db.execute(
            "DELETE FROM chunks WHERE pack NOT IN (SELECT number FROM packs)").rowcount)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _asked(self, question: str, keys: Iterable[bytes]) -> list[Any]:
        """`question (?, ?, …)`, in as many parts as it takes."""
        asked = list(keys)

        def work(db: sqlite3.Connection) -> list[Any]:
            found: list[Any] = []
            for at in range(0, len(asked), _ASKED_AT_ONCE):
                part = asked[at:at + _ASKED_AT_ONCE]
                found += db.execute(f"{question} ({','.join('?' * len(part))})", part).fetchall()
            return found
        return self._run(work)

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction of `marking` or `choosing`. When the file fails, the index goes on in memory, and
        the work is done there."""
        return self._run(work)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                with self._db:
                    return work(self._db)
            except sqlite3.DatabaseError as error:
                self.made_anew = str(error)
                self._db.close()
                self._db, self._path = _connect(None), None
                self._refill(self)
                with self._db:
                    return work(self._db)

    def _open(self) -> sqlite3.Connection:
        """The file if it is as it was left, else a new one, else memory."""
        if self._path is None:
            return _connect(None)
        try:
            if _is_as_left(self._path):
                return _connect(self._path)
        except (sqlite3.Error, OSError):
            pass  # made anew, as below
        try:
            for ending in ("", "-journal", "-wal", "-shm"):
                Path(f"{self._path}{ending}").unlink(missing_ok=True)
            return _connect(self._path)
        except (sqlite3.Error, OSError):
            self._path = None
            return _connect(None)


def _is_as_left(path: Path) -> bool:
    return path.exists() and _hash_of(path) == _hash_place(path).read_bytes()


def _hash_of(path: Path) -> bytes:
    return blake3().update_mmap(path).digest()


def _hash_place(path: Path) -> Path:
    return path.with_name(path.name + ".blake3")


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    db = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=5.0)
    try:
        # A cache: what a power cut takes from it is read from the packs again.
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA temp_store = MEMORY")  # marking works on a full disk
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError("another version of the index")
        if version != _VERSION:
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version = {_VERSION}")
            db.commit()
    except sqlite3.Error:
        db.close()
        raise
    return db
