"""The owner's real folders: what is in them, never through a link, and word of changes where the kernel gives it.

Word comes from Linux's inotify, called through the C library: one watch for each folder, which the caller asks for.
(The libraries that wrap it watch whole trees by themselves, follow links out of them until the system's limit is used
up, and stop at a name that is no UTF-8.) Elsewhere nothing is told, and the caller looks by itself. Leaves what a
change means to `hinet_node.vault.watching`, the in-memory twin to `hinet_simnet.folders`.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from hinet_node.ports import FolderChanges, FolderEntry

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0x40 | 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x0100_0000, 0x0200_0000, 0x0400_0000
_WANTED = (_MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
           | _DONT_FOLLOW | _EXCL_UNLINK)
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65_536
_FOLDERS_TOLD_MAX = 4_096


class RealFolders:
    """See the port."""

    def place(self, root: str) -> FolderEntry | None:
        try:
            found = os.lstat(root)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _entry(os.fsencode(Path(root).name), found) if stat.S_ISDIR(found.st_mode) else None

    def entries(self, root: str, folder: bytes) -> list[FolderEntry]:
        found = []
        with _opened(root, folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                try:
                    found.append(_entry(os.fsencode(entry.name), entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue  # gone since it was listed
        return sorted(found, key=lambda one: one.part)

    def read(self, root: str, name: bytes, bytes_max: int) -> bytes:
        folder, _, part = name.rpartition(b"/")
        with _opened(root, folder) as descriptor:
            file = os.open(part, _FILE_FLAGS, dir_fd=descriptor)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise FileNotFoundError(name)
                return os.read(file, bytes_max)
            finally:
                os.close(file)

    def source(self, root: str, name: bytes) -> tuple[bytes, ...]:
        return (os.fsencode(root), *name.split(b"/"))

    @contextmanager
    def changes(self, root: str) -> Iterator[FolderChanges]:
        try:
            notified = Inotify(root) if sys.platform == "linux" else None
        except OSError:
            notified = None  # the user has too many of them already
        if notified is None:
            yield Silence()
            return
        try:
            yield notified
        finally:
            notified.close()


class Silence:
    """Changes of which there is no word."""

    def follow(self, folder: bytes) -> bool:
        return False

    async def wait(self) -> frozenset[bytes] | None:
        await trio.sleep_forever()


class Inotify:
    """Word from the kernel. `follow` may be called from another thread than `wait`. Errors: `OSError`."""

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "no inotify")
        self._folders: dict[int, bytes] = {}

    def close(self) -> None:
        os.close(self._descriptor)

    def follow(self, folder: bytes) -> bool:
        path = self._root + b"/" + folder if folder else self._root
        number = self._library.inotify_add_watch(self._descriptor, path, _WANTED)
        if number < 0:
            return False
        self._folders[number] = folder
        return True

    async def wait(self) -> frozenset[bytes] | None:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                found = self._told(os.read(self._descriptor, _READ_BYTES))
            except BlockingIOError:
                continue
            if found is None or found:
                return found

    def _told(self, events: bytes) -> frozenset[bytes] | None:
        found: set[bytes] = set()
        at, lost = 0, False
        while at + _EVENT.size <= len(events):
            number, kind, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            lost |= bool(kind & (_OVERFLOW | _UNMOUNT))
            folder = self._folders.get(number)
            if kind & _IGNORED:
                self._folders.pop(number, None)
            elif folder is not None:
                found.add(folder)
                if kind & (_DELETE_SELF | _MOVE_SELF):
                    found.add(folder.rpartition(b"/")[0])
        return None if lost or len(found) > _FOLDERS_TOLD_MAX else frozenset(found)


@contextmanager
def _opened(root: str, folder: bytes) -> Iterator[int]:
    """A descriptor of a folder below the root, reached step by step."""
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        for part in folder.split(b"/") if folder else ():
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _entry(part: bytes, found: os.stat_result) -> FolderEntry:
    kind = ("folder" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other")
    return FolderEntry(part, kind, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
