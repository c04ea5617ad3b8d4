"""Looks: what was seen of a file the last time that it was read, so that an unchanged one need not be read again.

For each path, under a key that is a keyed hash of it, a mark is kept: a keyed hash of what `fstat` said (device, inode,
size, mode, times of change) and of the content that was read then. A file is unchanged if what `lstat` says now and the
content of the vault's version give the same mark. So neither names nor digests are written down, and a mark can't vouch
for a version that is not the one it was made for. Leaves the table to `index`.

A file that changed only just before it was read may change once more within the same tick of its clock, and look the
same: such a look is not remembered (git's index calls such entries racy).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable

from blake3 import blake3

from hinet_node.vault.index import Index

_MARK_BYTES = 16
_ROWS_MAX = 2_500_000
_STAT = struct.Struct("<QQQQqq")
_SECOND_NS = 1_000_000_000
_TICK_NS = 100_000_000
"""Longer than any tick of a file system whose times have parts of a second."""
_COARSE_TICK_NS = 2_500_000_000
"""Longer than the two seconds of the coarsest, which are known by times without such parts."""


class Looks:
    """The looks of one home. Blocks on the index."""

    def __init__(self, index: Index, draw: Callable[[int], bytes]) -> None:
        self._index = index
        self._draw = draw
        self._key: bytes | None = None

    def key(self, path: bytes) -> bytes:
        return blake3(path, key=self._secret()).digest(_MARK_BYTES)

    def mark(self, found: os.stat_result, digest: bytes) -> bytes:
        told = _STAT.pack(found.st_dev & (2**64 - 1), found.st_ino & (2**64 - 1), found.st_size, found.st_mode,
                          found.st_mtime_ns, found.st_ctime_ns)
        return blake3(told + digest, key=self._secret()).digest(_MARK_BYTES)

    def remembered(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return self._index.marks(keys)

    def remember(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._index.mark(rows, _ROWS_MAX)

    def _secret(self) -> bytes:
        if self._key is None:
            self._key = self._index.secret("looks", lambda: self._draw(32))
        return self._key


def is_settled(found: os.stat_result, looked_ns: int) -> bool:
    """Whether the file's last change is so long before the look that a later one can't have the same times. A time
    ahead of the clock is none to go by."""
    newest_ns = max(found.st_mtime_ns, found.st_ctime_ns)
    coarse = found.st_mtime_ns % _SECOND_NS == 0 and found.st_ctime_ns % _SECOND_NS == 0
    return looked_ns - newest_ns > (_COARSE_TICK_NS if coarse else _TICK_NS)
