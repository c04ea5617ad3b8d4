"""The real Clock and Randomness: the operating system's.

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
