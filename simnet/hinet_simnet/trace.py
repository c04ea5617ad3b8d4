"""What happened in a simulated world, in order, as one digest: same seed, same digest.

Leaves the meaning of events to those who note them. Keeps the last lines for a person to read.
"""

from __future__ import annotations

from collections import deque

import trio
from blake3 import blake3

LINES_MAX = 20_000


class Trace:
    """A running hash over all events, and the last lines."""

    def __init__(self) -> None:
        self._hash = blake3()
        self.events = 0
        self.lines: deque[str] = deque(maxlen=LINES_MAX)

    def note(self, what: str) -> None:
        """Something happened now, in virtual time."""
        line = f"{trio.current_time():.9f} {what}"
        self._hash.update(line.encode("utf-8", "surrogateescape") + b"\n")
        self.events += 1
        self.lines.append(line)

    def bytes(self, where: str, data: bytes) -> None:
        """Bytes were sent: their digest goes into the trace."""
        self.note(f"{where} {len(data)} {blake3(data).hexdigest(8)}")

    def digest(self) -> str:
        return self._hash.copy().hexdigest(16)
