"""One direction between two hosts: when what is sent now arrives. All arithmetic, from the link's own random stream.

A stream's piece travels as packets of 1,400 bytes. Its bytes leave at the link's rate, after those before it. A lost
packet costs the sender's retransmission time-out, doubled for each further loss of the same packet; losses in one
window of packets are mended together. A reordered packet holds up those behind it for one more delay. A duplicate costs
rate. Big pieces are not walked packet by packet: the gaps between events are drawn. Datagrams really are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import cos, exp, floor, log, log1p, pi, sqrt

from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import Delay, LinkSpec

PACKET_BYTES = 1_400
HEADER_BYTES = 40
WINDOW_PACKETS = 64
RETRANSMIT_S = 0.2
RETRANSMIT_S_MAX = 60.0
TRIES_MAX = 8


class Link:
    """Packets from one host to another."""

    __slots__ = ("_free_s", "_randomness", "spec")

    def __init__(self, spec: LinkSpec, seed: str) -> None:
        self.spec = spec
        self._randomness = SeededRandomness(seed, "link")
        self._free_s = 0.0

    def stream_arrival_s(self, now_s: float, size_bytes: int) -> float:
        """When the last byte of a stream's piece is there; 0 bytes are a packet without content."""
        spec = self.spec
        packets = max(1, -(-size_bytes // PACKET_BYTES))
        extra_s, again = 0.0, 0
        if spec.loss or spec.reorder or spec.duplicate:
            extra_s, again = self._trouble(packets)
        if spec.rate_bytes_s is None:
            return now_s + self.delay_s() + extra_s
        whole = size_bytes + packets * HEADER_BYTES + again * (PACKET_BYTES + HEADER_BYTES)
        self._free_s = max(self._free_s, now_s) + whole / spec.rate_bytes_s
        return self._free_s + self.delay_s() + extra_s

    def datagram_arrivals_s(self, now_s: float, size_bytes: int = 300) -> list[float]:
        """When copies of one datagram are there: none, one or two."""
        spec, found = self.spec, []
        for _ in range(2 if self._happens(spec.duplicate) else 1):
            start_s = now_s
            if spec.rate_bytes_s is not None:
                self._free_s = start_s = max(self._free_s, now_s) + size_bytes / spec.rate_bytes_s
            if not self._happens(spec.loss):
                late_s = self.delay_s() + RETRANSMIT_S if self._happens(spec.reorder) else 0.0
                found.append(start_s + self.delay_s() + late_s)
        return found

    def delay_s(self) -> float:
        """How long one packet travels, this time."""
        return _draw(self.spec.delay, self._randomness)

    def _trouble(self, packets: int) -> tuple[float, int]:
        """Seconds that losses and reordering cost a piece, and packets that cross the link once more."""
        spec, again = self.spec, sum(1 for _ in self._hits(packets, self.spec.duplicate))
        lost: dict[int, float] = {}
        for at in self._hits(packets, spec.loss):
            wait_s = timeout_s = max(RETRANSMIT_S, 2 * self.delay_s())
            again += 1
            for _ in range(TRIES_MAX):
                if not self._happens(spec.loss):
                    break
                timeout_s = min(2 * timeout_s, RETRANSMIT_S_MAX)
                wait_s += timeout_s
                again += 1
            window = at // WINDOW_PACKETS
            lost[window] = max(lost.get(window, 0.0), wait_s)
        late = {at // WINDOW_PACKETS for at in self._hits(packets, spec.reorder)}
        held_s = sum(self.delay_s() for _ in range(len(late - lost.keys())))
        return sum(lost.values()) + held_s, again

    def _hits(self, packets: int, share: float) -> Iterator[int]:
        """Which of so many packets something happens to, by drawing the gaps between them."""
        if share <= 0.0:
            return
        if share >= 1.0:
            yield from range(packets)
            return
        at = -1
        while True:
            at += 1 + floor(log1p(-self._randomness.unit()) / log1p(-share))
            if at >= packets:
                return
            yield at

    def _happens(self, share: float) -> bool:
        return share > 0.0 and self._randomness.unit() < share


def _draw(delay: Delay, randomness: SeededRandomness) -> float:
    a_s, b_s = delay.a_s, delay.b_s
    if delay.kind == "constant":
        return a_s
    if delay.kind == "uniform":
        return a_s + randomness.unit() * (b_s - a_s)
    if delay.kind == "exponential":
        return a_s - b_s * log1p(-randomness.unit())
    normal = sqrt(-2 * log1p(-randomness.unit())) * cos(2 * pi * randomness.unit())
    if delay.kind == "lognormal":
        return a_s * exp(min(b_s * normal, log(1e6)))
    assert delay.kind == "normal", f"no such delay: {delay.kind}"
    return max(0.0, a_s + b_s * normal)
