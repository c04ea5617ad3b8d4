"""A limit on how fast packs travel: token buckets, one for each direction, shared by all siblings.

`TokenBucket` is pure; `Limit` gives it the clock and may be asked from several threads. Leaves waiting to the one who
asks, and sessions' own few bytes unlimited.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from hinet_node.ports import Clock, Pace

BURST_S = 0.25
"""So much of a second's bytes may leave at once after a pause."""


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """`rate` bytes a second on average. `tokens` may be negative: bytes that were let go in advance."""

    rate: int
    tokens: float
    at_s: float

    @classmethod
    def full(cls, rate: int, now_s: float) -> TokenBucket:
        return cls(rate, rate * BURST_S, now_s)

    def take(self, size_bytes: int, now_s: float) -> tuple[TokenBucket, float]:
        """The bucket after so many bytes, and the seconds to wait before they move."""
        grown = min(self.rate * BURST_S, self.tokens + max(0.0, now_s - self.at_s) * self.rate)
        left = grown - size_bytes
        return TokenBucket(self.rate, left, max(now_s, self.at_s)), max(0.0, -left / self.rate)


class Limit:
    """What this device may send and receive of packs each second; 0 for no limit."""

    def __init__(self, clock: Clock, rate: int = 0) -> None:
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, TokenBucket] = {}

    def outbound(self) -> Pace | None:
        return self._pace("out")

    def inbound(self) -> Pace | None:
        return self._pace("in")

    def _pace(self, way: str) -> Pace | None:
        if not self.rate:
            return None

        def pace(size_bytes: int) -> float:
            now_s = self._clock.monotonic_s()
            with self._lock:
                bucket = self._buckets.get(way) or TokenBucket.full(self.rate, now_s)
                self._buckets[way], wait_s = bucket.take(size_bytes, now_s)
            return wait_s

        return pace
