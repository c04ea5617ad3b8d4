"""The in-memory twin of the home folder: same meaning as `hinet_node.real.disk.RealDisk`, plus crashes and full disks.

What is written atomically or committed survives `crash()`; what was only appended is lost, or torn at a point that
the given randomness picks. Reads may fail as a bad card's do (`bad_reads`). Passes the same tests as the real disk.
Leaves names to `hinet_node.real.disk_names`.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from hinet_node.errors import NoSpace
from hinet_node.real.disk_names import split_folder, split_name
from hinet_node.real.lanes import AtOnceLane

_UNLIMITED_BYTES = 1 << 40


class MemoryDisk:
    """Files by name. `capacity_bytes` bounds their sum; `full` and `read_only` refuse every write while set; so many
    of the next reads as `bad_reads` says fail with an input/output error. Asking for room and listing a folder cost the
    same however many files there are."""

    def __init__(self, label: str = "home", *, capacity_bytes: int = _UNLIMITED_BYTES) -> None:
        self.label = label
        self.capacity_bytes = capacity_bytes
        self.full = False
        self.read_only = False
        self.crashes = 0
        self.bad_reads = 0
        self.hold: Callable[[], Awaitable[None]] | None = None
        """Awaited before long work: a frozen host's disk waits here."""
        self._files: dict[tuple[str, ...], bytearray | bytes] = {}
        self._unsynced: dict[tuple[str, ...], int] = {}
        """Files with bytes that a power cut may take, and how many of their bytes it can't."""
        self._folders: dict[tuple[str, ...], dict[str, None]] = {(): {}}
        self._used_bytes = 0

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        return bytes(self._readable(name))

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise ValueError("Offset and length can't be negative.")
        return bytes(memoryview(self._readable(name))[offset:offset + length])

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        data = self.read_at(name, offset, len(buffer))
        buffer[:len(data)] = data
        return len(data)

    def size(self, name: str) -> int:
        return len(self._file(split_name(name), name))

    def exists(self, name: str) -> bool:
        parts = split_name(name)
        return parts in self._files or parts in self._folders

    def list(self, folder: str) -> list[str]:
        parts = split_folder(folder)
        if parts in self._files:
            raise NotADirectoryError(errno.ENOTDIR, "Not a folder", folder)
        return sorted(self._folders.get(parts, ()))

    def free_bytes(self) -> int:
        if self.full:
            return 0
        return max(0, self.capacity_bytes - self.used_bytes())

    def used_bytes(self) -> int:
        return self._used_bytes

    def path(self, name: str) -> str:
        return "/".join((f"memory:{self.label}", *split_folder(name)))

    # ---- writing -------------------------------------------------------------------------------------------------

    def write_atomic(self, name: str, data: bytes, *, private: bool = False) -> None:
        parts = split_name(name)
        self._refuse_folder(parts, name)
        self._make_folders(parts[:-1], name)
        self._make_room(name, len(data))  # as on the real disk, old and new bytes are there at once for a moment
        self._set(parts, bytes(data))

    def append(self, name: str, data: bytes | memoryview) -> None:
        parts = split_name(name)
        self._refuse_folder(parts, name)
        self._make_folders(parts[:-1], name)
        self._make_room(name, len(data))
        held = self._files.get(parts)
        if parts not in self._unsynced:
            self._set(parts, bytearray(held or b""))
            self._unsynced[parts] = len(held or b"")
        growing = self._files[parts]
        assert isinstance(growing, bytearray)
        growing += data
        self._used_bytes += len(data)

    def commit(self, part: str, name: str) -> None:
        source, target = split_name(part), split_name(name)
        data = self._file(source, part)
        self._make_room(name, 0)
        self._refuse_folder(target, name)
        self._make_folders(target[:-1], name)
        self._drop(source)
        self._set(target, bytes(data))

    def move(self, name: str, target: str) -> None:
        source, there = split_name(name), split_name(target)
        if source not in self._folders:
            self._file(source, name)  # it is there at all
        self._make_room(target, 0)
        if source not in self._folders or there in self._files:
            self._refuse_folder(there, target)
        self._make_folders(there[:-1], target)
        if source in self._folders:
            if self._folders.get(there) or there in self._files:
                raise OSError(errno.ENOTEMPTY, "Not an empty folder", target)
            self._move_folder(source, there)
            return
        durable = self._unsynced.get(source)
        data = self._files[source]
        self._drop(source)
        self._set(there, data)
        if durable is not None:
            self._unsynced[there] = durable

    def _move_folder(self, source: tuple[str, ...], there: tuple[str, ...]) -> None:
        _renamed(self._files, source, there)
        _renamed(self._unsynced, source, there)
        _renamed(self._folders, source, there)
        del self._folders[source[:-1]][source[-1]]
        self._folders[there[:-1]][there[-1]] = None

    def remove(self, name: str) -> None:
        parts = split_name(name)
        self._refuse_folder(parts, name)
        if parts not in self._files:
            return
        if self.read_only:
            self._make_room(name, 0)
        self._drop(parts)

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        """At once: virtual time stands still while the work runs."""
        await trio.lowlevel.checkpoint()
        if self.hold is not None:
            await self.hold()
        return work()

    def lane(self) -> AtOnceLane:
        return AtOnceLane()

    # ---- faults --------------------------------------------------------------------------------------------------

    def crash(self, keep: Callable[[int], int] | None = None) -> None:
        """Power is lost: bytes that were appended and not committed are gone. `keep(n)` may return how many of `n`
        such bytes were written all the same (a torn write); a file of which nothing is left is gone."""
        self.crashes += 1
        for parts, durable in list(self._unsynced.items()):
            data = self._files[parts]
            left = durable + (keep(len(data) - durable) if keep is not None else 0)
            if left == 0:
                self._drop(parts)
            else:
                self._set(parts, bytes(data[:left]))

    def copy(self, label: str = "") -> MemoryDisk:
        """A second disk with the same bytes (a cloned card)."""
        twin = MemoryDisk(label or self.label, capacity_bytes=self.capacity_bytes)
        twin._folders = {parts: dict(inside) for parts, inside in self._folders.items()}
        for parts, data in self._files.items():
            twin._set(parts, bytes(data))
        return twin

    # ---- inside --------------------------------------------------------------------------------------------------

    def _readable(self, name: str) -> bytes | bytearray:
        found = self._file(split_name(name), name)
        if self.bad_reads > 0:
            self.bad_reads -= 1
            raise OSError(errno.EIO, "Input/output error", name)
        return found

    def _file(self, parts: tuple[str, ...], name: str) -> bytes | bytearray:
        try:
            return self._files[parts]
        except KeyError:
            if parts in self._folders:
                raise IsADirectoryError(errno.EISDIR, "Is a folder", name) from None
            if any(parts[:depth] in self._files for depth in range(1, len(parts))):
                raise NotADirectoryError(errno.ENOTDIR, "Not a folder", name) from None
            raise FileNotFoundError(errno.ENOENT, "No such file", name) from None

    def _refuse_folder(self, parts: tuple[str, ...], name: str) -> None:
        if parts in self._folders:
            raise IsADirectoryError(errno.EISDIR, "Is a folder", name)

    def _make_folders(self, parts: tuple[str, ...], name: str) -> None:
        for depth in range(1, len(parts) + 1):
            if parts[:depth] in self._files:
                raise NotADirectoryError(errno.ENOTDIR, "Not a folder", name)
        if self.read_only:
            self._make_room(name, 0)
        for depth in range(1, len(parts) + 1):
            if parts[:depth] not in self._folders:
                self._folders[parts[:depth]] = {}
                self._folders[parts[:depth - 1]][parts[depth - 1]] = None

    def _set(self, parts: tuple[str, ...], data: bytes | bytearray) -> None:
        self._used_bytes += len(data) - len(self._files.get(parts, b""))
        self._files[parts] = data
        self._unsynced.pop(parts, None)
        self._folders[parts[:-1]][parts[-1]] = None

    def _drop(self, parts: tuple[str, ...]) -> None:
        self._used_bytes -= len(self._files.pop(parts))
        self._unsynced.pop(parts, None)
        del self._folders[parts[:-1]][parts[-1]]

    def _make_room(self, name: str, size_bytes: int) -> None:
        if self.read_only:
            raise NoSpace(f"{self.path(name)} was not written: it is on a read-only disk.",
                          next_step="Remount it writable, or set HINET_HOME to a folder that is.")
        if (self.full and size_bytes > 0) or self.used_bytes() + size_bytes > self.capacity_bytes:
            raise NoSpace(f"{self.path(name)} was not written: the disk is full.",
                          next_step="Free some space there (`df -h` shows how much is left), then try again.")


def _renamed(table: dict[tuple[str, ...], Any], source: tuple[str, ...], there: tuple[str, ...]) -> None:
    """Everything at and below one place, under another."""
    for parts in [parts for parts in table if parts[:len(source)] == source]:
        table[there + parts[len(source):]] = table.pop(parts)
