"""Single system calls that fail: a full disk, a bad sector, a process that is killed.

Leaves what a crash then leaves to `crash`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from hinet_simnet.filesystem.model import ModelFilesystem, Sync

CHANGING = ("open", "write", "ftruncate", "fsync", "mkdir", "rmdir", "unlink", "replace")
"""The calls that change the disk; `open` counts when it may make a file."""
READING = ("open", "read", "pread", "fstat", "stat", "statvfs", "listdir")
NEEDING_ROOM = ("open", "write", "mkdir", "replace", "fsync")
"""The calls that a full disk refuses. Rename may need a block for its folder, and where room is given out late, as on
a network disk, fsync is where it is missed."""


class Killed(BaseException):
    """The process is gone. No `Exception`, so that nothing that handles errors can act on it."""


class FailingCalls:
    """`calls`, of which call number `at` (from 1, counted over the kinds `among`) fails with the error `number`; with
    `sticky` all later ones of these kinds as well, until `mend`. `number` 0 kills: every later call does too. `short`
    makes the write do half of its work and tell so. `after` does the work and fails all the same."""

    def __init__(self, calls: ModelFilesystem, *, at: int = 0, number: int = errno.EIO,
                 among: tuple[str, ...] = CHANGING, sticky: bool = False, short: bool = False,
                 after: bool = False) -> None:
        self.calls = calls
        self.at, self.number, self.among = at, number, among
        self.sticky, self.short, self.after = sticky, short, after
        self.count = 0
        self.made: list[str] = []
        """The names of the calls that were counted."""
        self.failed = 0

    def mend(self) -> None:
        """From now on all calls work."""
        self.at = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.calls, name)
        if name not in self.among:
            return real
        return lambda *args, **more: self._call(name, real, args, more)

    def _call(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        if name == "open" and self.among is not READING and not args[1] & os.O_CREAT:
            return real(*args, **more)
        self.count += 1
        self.made.append(name)
        goes_on = self.sticky or not self.number
        if not self.at or self.count < self.at or (self.count > self.at and not goes_on):
            return real(*args, **more)
        if self.short:
            return real(args[0], bytes(args[1][:max(1, len(args[1]) // 2)])) if name == "write" else real(*args, **more)
        self.failed += 1
        if self.after and name != "open":  # the descriptor would be nobody's
            real(*args, **more)
        if not self.number:
            raise Killed
        if name == "fsync" and not self.after:
            found = self.calls.fstat(args[0])
            if not stat.S_ISDIR(found.st_mode):  # names stay in the journal, and the next sync writes them
                self.calls.record.append(Sync(found.st_ino, failed=True))
        raise OSError(self.number, os.strerror(self.number))
