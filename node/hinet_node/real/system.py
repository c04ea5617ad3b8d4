"""The real Clock and Randomness, and the C library's memory: the operating system's.

Leaves waiting to trio and the virtual twins to `hinet_simnet.clock` and `hinet_simnet.randomness`.
"""

from __future__ import annotations

import os
import time


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
    """Have the C library give back to the system what was freed.

    After large buffers glibc keeps what is freed for the next burst, which for a process that rests nearly always is
    the wrong way round. (Its switches against that cost a tenth of the processor time of each transfer.) Takes about a
    millisecond; where the C library has no such call, nothing happens.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
