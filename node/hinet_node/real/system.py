"""The real Clock and Randomness, and the C library's memory: the operating system's.

Leaves waiting to trio and the virtual twins to `hinet_simnet.clock` and `hinet_simnet.randomness`.
"""

from __future__ import annotations

import os
import sys
import time

_POOLS_MAX, _KEPT_BYTES_MAX, _MAPPED_BYTES_MIN = -8, -1, -3
"""glibc's M_ARENA_MAX, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, from malloc.h."""


class SystemClock:
    """The machine's clocks. The wall clock may jump; see the port's docstring."""

    def now_unix_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class SystemRandomness:
    """The kernel's random generator."""

    def draw(self, size_bytes: int) -> bytes:
        return os.urandom(size_bytes)


def return_freed_memory() -> None:
    """Have the C library give freed memory back to the system instead of keeping it for the next burst.

    glibc keeps a pool for each thread, and after one large buffer it keeps all that is freed. For a process that rests
    nearly always this is the wrong way round. Other C libraries have no such switches and stay as they are.
    """
    import ctypes

    switch = getattr(ctypes.CDLL(None), "mallopt", None)
    if switch is not None and sys.platform == "linux":
        for parameter, value in ((_POOLS_MAX, 1), (_KEPT_BYTES_MAX, 512 * 1024), (_MAPPED_BYTES_MIN, 1024 * 1024)):
            switch(parameter, value)
