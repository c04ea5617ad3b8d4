"""The system calls that the real disk makes: a seam below it, so that tests can put a file system of their own there.

`os` itself is the real one. Whatever stands in its place (`hinet_simnet.filesystem`) records the calls, loses what was
not synced, or fails as a bad disk does. Leaves what the calls are made for to `hinet_node.real.disk`.
"""

from __future__ import annotations

import fcntl
import os
from typing import Protocol


class SystemCalls(Protocol):
    """As the functions of `os` with these names. Every path is one part below `dir_fd`, or the home's own."""

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int: ...

    def close(self, fd: int, /) -> None: ...

    def read(self, fd: int, length: int, /) -> bytes: ...

    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...

    def write(self, fd: int, data: bytes | memoryview, /) -> int: ...

    def ftruncate(self, fd: int, length: int, /) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def fstat(self, fd: int) -> os.stat_result: ...

    def stat(self, path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result: ...

    def statvfs(self, path: str) -> os.statvfs_result: ...

    def listdir(self, path: int) -> list[str]: ...

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None: ...

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None: ...

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None: ...

    def replace(self, src: str, dst: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None: ...



def sync(calls: SystemCalls, descriptor: int) -> None:
    """To the platter: on macOS plain fsync stops at the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None and calls is os:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError:
            pass  # network file systems lack it; plain fsync below is what they have
        else:
            return
    calls.fsync(descriptor)
