"""Writing many files below one folder: each appears whole or not at all, and all of them are on disk at the end.

Small files are synced many at a time: a file system that is told to write everything down does so in a fraction of the
time that it takes to be told of each file. Leaves writing one file to `files`, what to write to `vault`.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hinet_node.errors import NodeError
from hinet_node.ports import Disk, Pending
from hinet_node.vault import files
from hinet_protocol.attributes import Attributes

_FILES_MAX = 512
_FOLDERS_MAX = 64
_DEPTH_KEPT = 32
_BYTES_MAX = 64 << 20
_ONE_BY_ONE = 4
"""So few files are synced one by one: what else waits on the same disk is not ours."""
_AHEAD = 3


@dataclass(slots=True)
class _Written:
    folder: tuple[bytes, ...]
    temporary: bytes
    last: bytes
    place: Path


class FolderWriter:
    """Files below `root`, which is made if it is missing. Each step is opened from the one before without following
    links, so a link inside `root` can't lead out of it. As a context manager: leaving it makes all durable."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)
        self._folders: dict[tuple[bytes, ...], int] = {}
        self._written: list[_Written] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if self._written:  # also when a later file failed: these are whole
                self._appear()
        except (NodeError, OSError):
            if error is None:
                raise
        finally:
            self._let_go()

    def write(self, parts: tuple[bytes, ...], pieces: Iterable[bytes], on_bytes: Callable[[int], None],
              attributes: Attributes) -> None:
        """Write a file, which appears under its name by the end. Errors: `UsageError` E_NAME_ESCAPES, `NoSpace`; what
        `pieces` raises."""
        place = self._root.joinpath(*map(os.fsdecode, parts))

        def counted(count: int) -> None:
            self._bytes += count
            on_bytes(count)

        with files.reported(place):
            temporary = files.write_temporary(self._folder(parts[:-1], place), pieces, counted, attributes)
        self._written.append(_Written(parts[:-1], temporary, parts[-1], place))
        if len(self._written) >= _FILES_MAX or len(self._folders) >= _FOLDERS_MAX or self._bytes >= _BYTES_MAX:
            self._appear()
            self._let_go()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _folder(self, parts: tuple[bytes, ...], place: Path) -> int:
        """A descriptor that is kept open until what is in the folder has appeared. So are those of the folders above,
        down to a depth; deeper ones are only passed through."""
        if () not in self._folders:
            self._root.mkdir(parents=True, exist_ok=True)
            self._folders[()] = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held = next(depth for depth in range(len(parts), -1, -1) if parts[:depth] in self._folders)
        at = self._folders[parts[:held]]
        for depth in range(held + 1, len(parts) + 1):
            try:
                inner = files.step(at, parts[depth - 1], place)
            finally:
                if parts[:depth - 1] not in self._folders:
                    os.close(at)
            at = inner
            if depth <= _DEPTH_KEPT or depth == len(parts):
                self._folders[parts[:depth]] = at
        return at

    def _appear(self) -> None:
        """Sync what was written, give each its name, sync the folders: in this order."""
        if len(self._written) <= _ONE_BY_ONE or not _sync_all(self._folders[()]):
            for one in self._written:
                with files.reported(one.place):
                    files.sync_file(one.temporary, self._folders[one.folder])
        while self._written:
            one = self._written[-1]
            folder = self._folders[one.folder]
            with files.reported(one.place):
                os.replace(one.temporary, one.last, src_dir_fd=folder, dst_dir_fd=folder)
            self._written.pop()
        if len(self._folders) <= _ONE_BY_ONE or not _sync_all(self._folders[()]):
            with files.reported(self._root):
                for folder in self._folders.values():
                    os.fsync(folder)
        self._bytes = 0

    def _let_go(self) -> None:
        """Close the folders; what has not appeared is removed."""
        for one in self._written:
            with suppress(OSError):
                os.unlink(one.temporary, dir_fd=self._folders[one.folder])
        self._written.clear()
        for folder in self._folders.values():
            os.close(folder)
        self._folders.clear()


def _sync_all(descriptor: int) -> bool:
    """Have the file system of this descriptor write everything down, where it can be asked to (Linux)."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).syncfs(descriptor) == 0)
    except (OSError, AttributeError):
        return False


def ahead(disk: Disk, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, the next ones made in a lane of the disk while the caller works on one."""
    lane = disk.lane()
    waiting: deque[Pending[bytes | None]] = deque()
    try:
        while True:
            while len(waiting) < _AHEAD:
                waiting.append(lane.do(lambda: next(pieces, None)))
            piece = waiting.popleft().result()
            if piece is None:
                return
            yield piece
    finally:
        lane.close()
