"""What a power cut leaves, from the record of a file system's changes.

The promise is that of POSIX and no more: a file's bytes are on the platter after fsync of the file; a name (made,
moved, removed) after fsync of its folder, a name that moved between folders after fsync of both. Whatever was not
synced may be there or not, each change by itself and in any order: a name without its bytes, the end of a file without
its middle, zeros where bytes should be, single sectors of 512 bytes. A rename is whole or not at all. The bytes that a
failed fsync was asked to sync may stay lost, whatever later ones say. (ext4 in its usual mode promises more; not every
disk is ext4.) Leaves what must hold then to the tests.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from hinet_simnet.filesystem.model import (
    ROOT,
    Change,
    Inode,
    Link,
    ModelFilesystem,
    Rename,
    Sync,
    Truncate,
    Unlink,
    Write,
)

SECTOR_BYTES = 512
_NEVER = 1 << 60

Kept = tuple[tuple[int, int], ...]
"""The pieces of a write that reached the platter, as [begin, end) within it; where the file grew, zeros lie between."""


@dataclass(frozen=True)
class Outcome:
    """One way in which a power cut may end: what became of the changes that were not synced. A change that `fate`
    does not name happened whole; else None is lost, and for a write the pieces that are left."""

    what: str
    fate: tuple[tuple[int, Kept | None], ...] = ()


@dataclass
class State:
    """Files and folders by number."""

    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})

    def copy(self) -> State:
        return State(dict(self.files), {number: dict(entries) for number, entries in self.folders.items()})

    def apply(self, change: Change, kept: Kept | None = None) -> None:
        """Make a change, or, of a write, only the pieces `kept`."""
        if isinstance(change, Link):
            if change.is_folder:
                self.folders.setdefault(change.number, {})
            else:
                self.files.setdefault(change.number, b"")
            self.folders[change.folder][change.name] = change.number
        elif isinstance(change, Unlink):
            self.folders[change.folder].pop(change.name, None)
        elif isinstance(change, Rename):
            if self.folders[change.source].get(change.source_name) == change.number:
                del self.folders[change.source][change.source_name]
            self.folders[change.target][change.target_name] = change.number
        elif isinstance(change, Write):
            self._write(change, ((0, len(change.data)),) if kept is None else kept)
        elif isinstance(change, Truncate):
            data = self.files.get(change.number, b"")
            self.files[change.number] = data[:change.size] + bytes(max(0, change.size - len(data)))

    def _write(self, change: Write, kept: Kept) -> None:
        data = bytearray(self.files.get(change.number, b""))
        for begin, end in kept:
            at = change.offset + begin
            if at > len(data):
                data.extend(bytes(at - len(data)))
            data[at:at + end - begin] = change.data[begin:end]
        self.files[change.number] = bytes(data)

    def tree(self) -> dict[str, bytes]:
        """Every file that a name leads to, by its path; a folder is its path and a slash."""
        found: dict[str, bytes] = {}
        waiting = [("", ROOT)]
        while waiting:
            path, number = waiting.pop()
            if number in self.folders:
                found[path + "/"] = b""
                waiting += [(f"{path}/{name}", inner) for name, inner in self.folders[number].items()]
            else:
                found[path] = self.files.get(number, b"")
        return found

    def filesystem(self) -> ModelFilesystem:
        """What an operating system finds there at the next start."""
        made = ModelFilesystem()
        for number in (*self.folders, *self.files):
            if number != ROOT:
                made.adopt(Inode(number, number in self.folders, bytearray(self.files.get(number, b""))))
        for number, entries in self.folders.items():
            made.inodes[number].entries.update({name: made.inodes[inner] for name, inner in entries.items()})
        return made


class History:
    """A record, cut at any place. Asked for rising places it does each piece of work once."""

    def __init__(self, record: Sequence[Change]) -> None:
        self.record = record
        self._durable_at = _durable_at(record)
        self._base, self._base_at = State(), 0

    def pending(self, at: int) -> list[int]:
        """The changes before `at` that a power cut there may take."""
        return [number for number in range(self._base_at if at >= self._base_at else 0, at)
                if not isinstance(self.record[number], Sync) and self._durable_at[number] >= at]

    def state(self, at: int, outcome: Outcome) -> State:
        """What is there after a power cut before the call `at`."""
        pending = self.pending(at)
        sure = pending[0] if pending else at
        if sure < self._base_at:
            self._base, self._base_at = State(), 0
        for change in self.record[self._base_at:sure]:
            self._base.apply(change)
        self._base_at = sure
        state, fate = self._base.copy(), dict(outcome.fate)
        for number in range(sure, at):
            if number not in fate:
                state.apply(self.record[number])
            else:
                _apply_damaged(state, self.record[number], fate[number])
        return state


def _apply_damaged(state: State, change: Change, kept: Kept | None) -> None:
    if kept is not None:
        state.apply(change, kept)
    elif isinstance(change, Link):
        # The name is lost; the file may still come to light by a rename that survived.
        (state.folders if change.is_folder else state.files).setdefault(change.number, {} if change.is_folder else b"")


def _durable_at(record: Sequence[Change]) -> list[int]:
    """For each change the call that made it durable."""
    syncs: dict[int, list[int]] = {}
    failed: dict[int, list[int]] = {}
    for at, change in enumerate(record):
        if isinstance(change, Sync):
            (failed if change.failed else syncs).setdefault(change.number, []).append(at)

    def since(number: int, at: int) -> int:
        places = syncs.get(number, [])
        here = bisect_right(places, at)
        found = places[here] if here < len(places) else _NEVER
        broken = failed.get(number, [])
        first = bisect_left(broken, at)
        return _NEVER if first < len(broken) and broken[first] < found else found

    made = []
    for at, change in enumerate(record):
        if isinstance(change, Link | Unlink):
            made.append(since(change.folder, at))
        elif isinstance(change, Rename):
            made.append(max(since(change.source, at), since(change.target, at)))
        else:
            made.append(since(change.number, at))
    return made


def outcomes(history: History, at: int, dice: Random, reorderings: int) -> Iterator[Outcome]:
    """The plain prefix; each change that was not synced lost by itself; the last write torn; nothing but what was
    synced; and so many draws of what survives."""
    record, pending = history.record, history.pending(at)
    yield Outcome("plain")
    if not pending:
        return
    for number in pending:
        yield Outcome(f"lost {number}", ((number, None),))
    last = record[at - 1]
    if isinstance(last, Write):
        whole = len(last.data)
        for left in sorted({whole // 2, max(0, whole - SECTOR_BYTES)}):
            yield Outcome(f"torn after {left}", ((at - 1, ((0, left),)),))
        if whole > SECTOR_BYTES:
            yield Outcome("first sector lost", ((at - 1, ((SECTOR_BYTES, whole),)),))
    yield Outcome("only what was synced", tuple((number, None) for number in pending))
    for draw in range(reorderings):
        yield Outcome(f"draw {draw}", tuple(_draw(record, pending, dice)))


def _draw(record: Sequence[Change], pending: Sequence[int], dice: Random) -> Iterator[tuple[int, Kept | None]]:
    survives = dice.choice((0.1, 0.5, 0.9))
    for number in pending:
        change = record[number]
        if dice.random() < survives:
            continue
        if isinstance(change, Write) and dice.random() < 0.6:
            yield number, _sectors(change, dice)
        else:
            yield number, None


def _sectors(change: Write, dice: Random) -> Kept:
    """Some of the sectors of a write; at times its length as well, with zeros for what is missing."""
    kept: list[tuple[int, int]] = []
    share = dice.choice((0.0, 0.5, 0.95))
    edges = [0, *range(SECTOR_BYTES - change.offset % SECTOR_BYTES, len(change.data), SECTOR_BYTES), len(change.data)]
    for begin, end in pairwise(edges):
        if dice.random() < share:
            kept.append((begin, end))
    if dice.random() < 0.5:
        kept.append((len(change.data), len(change.data)))
    return tuple(kept)
