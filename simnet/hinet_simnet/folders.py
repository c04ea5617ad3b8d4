"""The in-memory twin of the owner's folders: same meaning as `hinet_node.real.folders.RealFolders`, in virtual time.

A test or a scenario writes, moves and removes files here; the agent's watches hear of it, or do not (`mute`). Passes
the same tests as the real one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from hinet_node.ports import FolderChanges, FolderEntry


@dataclass
class _Node:
    kind: str
    inode: int
    device: int
    mtime_ns: int
    ctime_ns: int
    content: bytes = b""


class MemoryFolders:
    """Absolute paths of files and folders. `clock` gives unix seconds; `follow_max` bounds how many folders are heard
    of; `mute` loses every word; `unreadable` holds paths whose reading fails."""

    def __init__(self, clock: Callable[[], float], *, follow_max: int = 1_000_000) -> None:
        self.follow_max = follow_max
        self.mute = False
        self.unreadable: set[bytes] = set()
        self._clock = clock
        self._nodes: dict[bytes, _Node] = {}
        self._inodes = 0
        self._listening: list[_Changes] = []

    # ---- what the owner does -------------------------------------------------------------------------------------

    def make(self, path: str | bytes, *, device: int = 1) -> None:
        """A folder, and those above it."""
        parts = _key(path).strip(b"/").split(b"/")
        for depth in range(1, len(parts) + 1):
            self._nodes.setdefault(b"/" + b"/".join(parts[:depth]), self._node("folder", device))

    def write(self, path: str | bytes, content: bytes) -> None:
        """A file: made, or written anew in place."""
        key = _key(path)
        folder = key.rpartition(b"/")[0]
        self.make(folder)
        now_ns = int(self._clock() * 1e9)
        node = self._nodes.get(key)
        if node is None or node.kind != "file":
            node = self._nodes[key] = self._node("file", self._nodes[folder].device)
        node.content, node.mtime_ns, node.ctime_ns = content, now_ns, now_ns
        self._tell(folder)

    def link(self, path: str | bytes) -> None:
        """Something that is neither file nor folder."""
        self._nodes[_key(path)] = self._node("other", 1)
        self._tell(_key(path).rpartition(b"/")[0])

    def move(self, old: str | bytes, new: str | bytes) -> None:
        """A file, or a folder with all that is in it."""
        before, after = _key(old), _key(new)
        self.make(after.rpartition(b"/")[0])
        for key in [one for one in self._nodes if one == before or one.startswith(before + b"/")]:
            node = self._nodes.pop(key)
            self._nodes[after + key[len(before):]] = node
        self._nodes[after].ctime_ns = int(self._clock() * 1e9)
        self._tell(before.rpartition(b"/")[0])
        self._tell(after.rpartition(b"/")[0])

    def remove(self, path: str | bytes) -> None:
        """A file, or a folder with all that is in it."""
        gone = _key(path)
        for key in [one for one in self._nodes if one == gone or one.startswith(gone + b"/")]:
            del self._nodes[key]
        self._tell(gone.rpartition(b"/")[0])

    # ---- the port ------------------------------------------------------------------------------------------------

    def place(self, root: str) -> FolderEntry | None:
        node = self._nodes.get(_key(root))
        return _entry(_key(root).rpartition(b"/")[2], node) if node is not None and node.kind == "folder" else None

    def entries(self, root: str, folder: bytes) -> list[FolderEntry]:
        key = self._folder(root, folder)
        if key in self.unreadable:
            raise OSError(errno.EIO, "Input/output error", key)
        above = key + b"/"
        return [_entry(one[len(above):], node) for one, node in sorted(self._nodes.items())
                if one.startswith(above) and b"/" not in one[len(above):]]

    def read(self, root: str, name: bytes, bytes_max: int) -> bytes:
        return self.source(root, name)[:bytes_max]

    def source(self, root: str, name: bytes) -> bytes:
        key = _key(root) + b"/" + name
        node = self._nodes.get(key)
        if node is None or node.kind != "file":
            raise FileNotFoundError(errno.ENOENT, "No such file", key)
        if key in self.unreadable:
            raise OSError(errno.EIO, "Input/output error", key)
        return node.content

    @contextmanager
    def changes(self, root: str) -> Iterator[FolderChanges]:
        one = _Changes(_key(root), self.follow_max)
        self._listening.append(one)
        try:
            yield one
        finally:
            self._listening.remove(one)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _node(self, kind: str, device: int) -> _Node:
        self._inodes += 1
        now_ns = int(self._clock() * 1e9)
        return _Node(kind, self._inodes, device, now_ns, now_ns)

    def _folder(self, root: str, folder: bytes) -> bytes:
        key = _key(root) + (b"/" + folder if folder else b"")
        node = self._nodes.get(key)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such folder", key)
        if node.kind != "folder":
            raise NotADirectoryError(errno.ENOTDIR, "Not a folder", key)
        return key

    def _tell(self, folder: bytes) -> None:
        for one in self._listening if not self.mute else ():
            one.tell(folder)


class _Changes:
    def __init__(self, root: bytes, follow_max: int) -> None:
        self._root, self._follow_max = root, follow_max
        self._followed: dict[bytes, None] = {}
        self._told: set[bytes] = set()
        self._woken = trio.Event()

    def follow(self, folder: bytes) -> bool:
        if len(self._followed) >= self._follow_max and folder not in self._followed:
            return False
        self._followed[folder] = None
        return True

    def tell(self, folder: bytes) -> None:
        if folder == self._root or folder.startswith(self._root + b"/"):
            below = folder[len(self._root) + 1:]
            if below in self._followed:
                self._told.add(below)
                self._woken.set()

    async def wait(self) -> frozenset[bytes] | None:
        await self._woken.wait()
        self._woken = trio.Event()
        found, self._told = frozenset(self._told), set()
        return found


def _key(path: str | bytes) -> bytes:
    return path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path


def _entry(part: bytes, node: _Node) -> FolderEntry:
    return FolderEntry(part, node.kind, node.device, node.inode, len(node.content), node.mtime_ns, node.ctime_ns)
