"""Writing large pieces past the page cache, where the system can: packs are read back seldom and late.

Filling the cache with what nobody reads costs more than the disk does (measured on one ext4: 300 to 1,000 MB/s through
the cache, 1,500 past it, with a thirtieth of the CPU), and drives out what the owner is using. Linux only; a file
system that can't do it, and pieces that do not fit its blocks, are written as usual. Leaves syncing to the caller.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading

_BLOCK_BYTES = 4_096
_BUFFER_BYTES = 4 << 20
_WORTH_BYTES = 1 << 20


class DirectWriter:
    """One aligned buffer, which one thread at a time uses; the others write as usual meanwhile."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._buffer: mmap.mmap | None = None

    def write(self, descriptor: int, data: bytes | memoryview, at: int) -> int:
        """Write what fits to the end of an append-only file that has `at` bytes; how many bytes were written, of which
        there may be none. Errors: `OSError`."""
        whole = len(data) - len(data) % _BLOCK_BYTES
        if len(data) < _WORTH_BYTES or at % _BLOCK_BYTES or not self._busy.acquire(blocking=False):
            return 0
        try:
            return self._write(descriptor, memoryview(data)[:whole]) if _set(descriptor, direct=True) else 0
        finally:
            _set(descriptor, direct=False)
            self._busy.release()

    def _write(self, descriptor: int, data: memoryview) -> int:
        if self._buffer is None:
            self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        done = 0
        while done < len(data):
            piece = data[done:done + _BUFFER_BYTES]
            self._buffer[:len(piece)] = piece
            with memoryview(self._buffer) as aligned:
                try:
                    written = os.write(descriptor, aligned[:len(piece)])
                except OSError as error:
                    if error.errno == errno.EINVAL:
                        break  # its blocks are larger than ours, or it does not mean what it said
                    raise
            done += written
            if written % _BLOCK_BYTES:
                break
        return done


def _set(descriptor: int, *, direct: bool) -> bool:
    """Whether the descriptor could be told to write past the cache, or through it again."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return False
    try:
        now = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, now | flag if direct else now & ~flag)
    except OSError:
        return False
    return True
