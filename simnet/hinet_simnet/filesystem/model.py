"""The system calls of `hinet_node.real.disk_calls.SystemCalls` on files in memory, each change written down in order.

What a reader sees is always the newest; what a power cut leaves is made from the record by `crash`. Permissions, links
and times do not exist here. Leaves failing calls to `faults`.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

ROOT = 0
"""The number of the root folder."""


@dataclass(frozen=True, slots=True)
class Link:
    """A name now means this file or folder (which is new, and empty)."""

    folder: int
    name: str
    number: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name is gone."""

    folder: int
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A name moved, replacing what the new name meant."""

    source: int
    source_name: str
    target: int
    target_name: str
    number: int


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written."""

    number: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file was cut or grown to a length."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """All that was done to a file or folder before is on the platter; or, `failed`, it never will be."""

    number: int
    failed: bool = False


Change = Link | Unlink | Rename | Write | Truncate | Sync


@dataclass(eq=False, slots=True)
class Inode:
    """A file or folder."""

    number: int
    is_folder: bool
    data: bytearray = field(default_factory=bytearray)
    entries: dict[str, Inode] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Opened:
    inode: Inode
    flags: int
    at: int = 0


class ModelFilesystem:
    """Empty at first, or as `State.filesystem` makes it. `record` holds every change. `capacity_bytes` bounds the sum
    of the files' sizes, each rounded up to blocks of 4 KiB, and of the folders, one block each."""

    block_bytes = 4096

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.record: list[Change] = []
        self.capacity_bytes = capacity_bytes
        self.root = Inode(ROOT, True)
        self.inodes: dict[int, Inode] = {ROOT: self.root}
        self._opened: dict[int, _Opened] = {}
        self._numbers = 1

    # ---- descriptors ---------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        folder, name = self._place(path, dir_fd)
        inode = self.root if name == "" else folder.entries.get(name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            inode = self._link(folder, name, False)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        if flags & os.O_DIRECTORY and not inode.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if inode.is_folder and flags & (os.O_WRONLY | os.O_RDWR):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if flags & os.O_TRUNC and inode.data:
            self._truncate(inode, 0)
        # As an operating system does: the lowest number that is free, so that a use after closing is found.
        descriptor = next(number for number in range(3, 3 + len(self._opened) + 1) if number not in self._opened)
        self._opened[descriptor] = _Opened(inode, flags)
        return descriptor

    def close(self, fd: int, /) -> None:
        self._file(fd)
        del self._opened[fd]

    def open_descriptors(self) -> int:
        """How many were not closed."""
        return len(self._opened)

    def read(self, fd: int, length: int, /) -> bytes:
        opened = self._file(fd)
        piece = self.pread(fd, length, opened.at)
        opened.at += len(piece)
        return piece

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        opened = self._file(fd)
        if opened.inode.is_folder:
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        return bytes(memoryview(opened.inode.data)[offset:offset + length])

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        opened = self._file(fd)
        if not opened.flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EBADF, "Bad file descriptor")
        inode = opened.inode
        offset = len(inode.data) if opened.flags & os.O_APPEND else opened.at
        room = self._room_in(inode) - offset
        piece = bytes(data[:max(0, room)])
        if data and not piece:
            raise OSError(errno.ENOSPC, "No space left on device")
        if offset > len(inode.data):
            inode.data.extend(bytes(offset - len(inode.data)))
        inode.data[offset:offset + len(piece)] = piece
        self.record.append(Write(inode.number, offset, piece))
        opened.at = offset + len(piece)
        return len(piece)

    def ftruncate(self, fd: int, length: int, /) -> None:
        self._truncate(self._file(fd).inode, length)

    def fsync(self, fd: int) -> None:
        self.record.append(Sync(self._file(fd).inode.number))

    def fstat(self, fd: int) -> os.stat_result:
        return _stat_of(self._file(fd).inode)

    # ---- names ---------------------------------------------------------------------------------------------------

    def stat(self, path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        return _stat_of(self._find(path, dir_fd))

    def statvfs(self, path: str) -> os.statvfs_result:
        self._find(path, None)
        blocks, free = self.capacity_bytes // self.block_bytes, self.free_bytes() // self.block_bytes
        return os.statvfs_result((self.block_bytes, self.block_bytes, blocks, free, free, 0, 0, 0, 0, 255))

    def free_bytes(self) -> int:
        """How much room is left."""
        return max(0, self.capacity_bytes - sum(self._blocks(len(inode.data)) for inode in self._reachable(self.root)))

    def listdir(self, path: int) -> list[str]:
        return list(self._file(path).inode.entries)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        folder, name = self._place(path, dir_fd)
        if name == "" or name in folder.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self._link(folder, name, True)

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        folder, name = self._place(path, dir_fd)
        found = self._find(path, dir_fd)
        if not found.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if found.entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self._drop(folder, name)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        folder, name = self._place(path, dir_fd)
        if self._find(path, dir_fd).is_folder:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self._drop(folder, name)

    def replace(self, src: str, dst: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        source, source_name = self._place(src, src_dir_fd)
        target, target_name = self._place(dst, dst_dir_fd)
        moved = self._find(src, src_dir_fd)
        there = target.entries.get(target_name)
        if there is not None and there.is_folder:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", dst)
        del source.entries[source_name]
        target.entries[target_name] = moved
        self.record.append(Rename(source.number, source_name, target.number, target_name, moved.number))

    # ---- for tests -----------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Every file by its path from the root."""
        found: dict[str, bytes] = {}
        waiting = [("", self.root)]
        while waiting:
            path, inode = waiting.pop()
            if inode.is_folder:
                waiting += [(f"{path}/{name}", inner) for name, inner in inode.entries.items()]
            else:
                found[path] = bytes(inode.data)
        return dict(sorted(found.items()))

    # ---- inside --------------------------------------------------------------------------------------------------

    def adopt(self, inode: Inode) -> None:
        """Enter a file or folder of a state that was made elsewhere."""
        self.inodes[inode.number] = inode
        self._numbers = max(self._numbers, inode.number + 1)

    def _file(self, fd: int) -> _Opened:
        try:
            return self._opened[fd]
        except KeyError:
            raise OSError(errno.EBADF, "Bad file descriptor") from None

    def _place(self, path: str, dir_fd: int | None) -> tuple[Inode, str]:
        """The folder and the name in it; "" is the root itself."""
        folder = self.root if dir_fd is None else self._file(dir_fd).inode
        *parts, name = path.strip("/").split("/")
        for part in parts:
            following = folder.entries.get(part)
            if following is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            folder = following
        if not folder.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return folder, name

    def _find(self, path: str, dir_fd: int | None) -> Inode:
        folder, name = self._place(path, dir_fd)
        found = folder if name == "" else folder.entries.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return found

    def _link(self, folder: Inode, name: str, is_folder: bool) -> Inode:
        if self.free_bytes() < self.block_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        inode = Inode(self._numbers, is_folder)
        self.adopt(inode)
        folder.entries[name] = inode
        self.record.append(Link(folder.number, name, inode.number, is_folder))
        return inode

    def _drop(self, folder: Inode, name: str) -> None:
        del folder.entries[name]
        self.record.append(Unlink(folder.number, name))

    def _truncate(self, inode: Inode, size: int) -> None:
        if size > len(inode.data):
            inode.data.extend(bytes(size - len(inode.data)))
        else:
            del inode.data[size:]
        self.record.append(Truncate(inode.number, size))

    def _reachable(self, inode: Inode) -> list[Inode]:
        found, waiting = [], [inode]
        while waiting:
            found.append(waiting.pop())
            waiting += found[-1].entries.values()
        return found

    def _blocks(self, size: int) -> int:
        return max(1, -(-size // self.block_bytes)) * self.block_bytes

    def _room_in(self, inode: Inode) -> int:
        """How long the file can become."""
        return self.free_bytes() + self._blocks(len(inode.data)) if self.capacity_bytes < 1 << 40 else 1 << 40


def _stat_of(inode: Inode) -> os.stat_result:
    mode = (stat.S_IFDIR | 0o700) if inode.is_folder else (stat.S_IFREG | 0o600)
    return os.stat_result((mode, inode.number, 0, 1, 0, 0, len(inode.data), 0, 0, 0))
