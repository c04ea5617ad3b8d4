"""Whether bytes may go to the device past the page cache: packs that come in by the gigabyte.

Through the cache each page is taken from the system, cleared, filled and flushed; on a virtual machine that costs more
processor time than receiving, opening and hashing it (measured: docs/benchmarks.md), and it throws out what the owner's
own programs had there. What comes in pages of its own (a view on an mmap) can go directly, where the file system lets
it. Leaves files to `hinet_node.real.disk`.
"""

from __future__ import annotations

import errno
import mmap
import os

DIRECT_FLAG: int = getattr(os, "O_DIRECT", 0)
"""0 where there is no such thing (macOS)."""
ALIGNED_BYTES = 4_096
_REFUSED = frozenset((errno.EINVAL, errno.EOPNOTSUPP))


def may_go_direct(data: bytes | memoryview) -> bool:
    """Whole pages, from memory that is aligned as devices want it."""
    return bool(DIRECT_FLAG and isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap)
                and data.nbytes and data.nbytes % ALIGNED_BYTES == 0)


def refused_direct(error: OSError) -> bool:
    """The file system, or where the file ends now, does not allow it: it goes through the cache then."""
    return error.errno in _REFUSED
