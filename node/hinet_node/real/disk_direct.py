"""Bytes that go to the device past the page cache: packs that come in, or are made, by the gigabyte.

Through the cache each page is taken from the system, cleared, filled and flushed; on a virtual machine that costs more
processor time than receiving, opening and hashing it (measured: docs/benchmarks.md), and it throws out what the owner's
own programs had there. What comes in pages of its own (a view on an mmap) can go directly, where the file system lets
it. What does not is copied into one aligned buffer. Leaves files to `hinet_node.real.disk`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading

DIRECT_FLAG: int = getattr(os, "O_DIRECT", 0)
"""0 where there is no such thing (macOS)."""
ALIGNED_BYTES = 4_096
_REFUSED = frozenset((errno.EINVAL, errno.EOPNOTSUPP))
_BUFFER_BYTES = 4 << 20
_WORTH_BYTES = 1 << 20


def may_go_direct(data: bytes | memoryview) -> bool:
    """Whole pages, from memory that is aligned as devices want it."""
    return bool(DIRECT_FLAG and isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap)
                and data.nbytes and data.nbytes % ALIGNED_BYTES == 0)


def refused_direct(error: OSError) -> bool:
    """The file system, or where the file ends now, does not allow it: it goes through the cache then."""
    return error.errno in _REFUSED


def read_direct(descriptor: int, offset: int, buffer: memoryview) -> int | None:
    """Fill the buffer from the device as far as the file goes; None where that can't be. Errors: `OSError`."""
    if not _set(descriptor, direct=True):
        return None
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(descriptor, [buffer[done:]], offset + done)
        except OSError as error:
            if refused_direct(error):
                return None
            raise
        done += count
        if not count or count % ALIGNED_BYTES:
            break
    return done


class DirectWriter:
    """One aligned buffer, which one thread at a time uses; the others write as usual meanwhile."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._buffer: mmap.mmap | None = None

    def write(self, descriptor: int, data: bytes | memoryview, at: int) -> int:
        """Write what fits to the end of an append-only file that has `at` bytes; how many bytes were written, of which
        there may be none. Errors: `OSError`."""
        whole = len(data) - len(data) % ALIGNED_BYTES
        if len(data) < _WORTH_BYTES or at % ALIGNED_BYTES or not self._busy.acquire(blocking=False):
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
            if written % ALIGNED_BYTES:
                break
        return done


def _set(descriptor: int, *, direct: bool) -> bool:
    """Whether the descriptor could be told to write past the cache, or through it again."""
    flag = DIRECT_FLAG
    if not flag:
        return False
    try:
        now = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, now | flag if direct else now & ~flag)
    except OSError:
        return False
    return True
