"""Bulk connections in memory: the twin of `hinet_node.real.transport.bulk` on the links of the simulator.

A certificate is the hash of its seed, so pins can be right or wrong; what a thread does there happens here at once.
Leaves links and hosts to the other modules of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio
from blake3 import blake3

from hinet_node.errors import NetworkError
from hinet_node.ports import BulkEnd, Pace
from hinet_protocol import limits
from hinet_simnet.network.streams import MemoryConnection, MemoryStream

if TYPE_CHECKING:
    from hinet_simnet.network.host import MemoryNetwork

LABEL = "bulk"
PIECE_BYTES = 1 << 20
PART_BYTES = 1 << 16
STALL_S = 30.0
WINDOW_BYTES = 1 << 18
"""On the link at once: as with TCP, sessions beside it are not kept waiting for all that there is to send."""


def certificate(seed: bytes) -> bytes:
    """What stands for a certificate here."""
    return blake3(b"simnet certificate" + seed).digest()


class MemoryBulk:
    """`hinet_node.ports.BulkStream`."""

    def __init__(self, connection: MemoryConnection, stream: MemoryStream) -> None:
        self._connection = connection
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive_exactly(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            data += await self._some(size_bytes - len(data))
        return data

    async def send_from(self, pieces: Iterator[bytes | memoryview], pace: Pace | None = None) -> None:
        try:
            for piece in pieces:
                for at in range(0, len(piece), PART_BYTES):
                    part = bytes(piece[at:at + PART_BYTES])  # the piece's memory is used again
                    await _wait_turn(len(part), pace)
                    with trio.move_on_after(STALL_S) as scope:
                        await self._stream.send_all(part)
                    if scope.cancelled_caught:
                        raise NetworkError(f"Nothing moved on the bulk connection for {STALL_S:g} s.")
        except BaseException:
            await self.close()
            raise

    async def receive_into(self, size_bytes: int, sink: Callable[[memoryview], None],
                           pace: Pace | None = None) -> None:
        left = size_bytes
        try:
            while left:
                want, data = min(left, PIECE_BYTES), bytearray()
                while len(data) < want:
                    most = min(want - len(data), PART_BYTES)
                    await _wait_turn(most, pace)
                    with trio.move_on_after(STALL_S) as scope:
                        data += await self._some(most)
                    if scope.cancelled_caught:
                        raise NetworkError(f"Nothing moved on the bulk connection for {STALL_S:g} s.")
                sink(memoryview(data))
                left -= want
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        with trio.CancelScope(shield=True):
            await self._connection.close()

    async def _some(self, bytes_max: int) -> bytes:
        data = await self._stream.receive_some(bytes_max)
        if not data:
            raise NetworkError("The other end closed the bulk connection.")
        return data


class ExpectedMemoryBulk:
    """`hinet_node.ports.ExpectedBulk`."""

    def __init__(self, host: MemoryNetwork, end: BulkEnd) -> None:
        self.end = end
        self._host = host
        self._came = trio.Event()
        self._stream: MemoryBulk | None = None

    async def arrive(self, timeout_s: float) -> MemoryBulk:
        try:
            with trio.move_on_after(timeout_s):
                await self._came.wait()
            found, self._stream = self._stream, None
        finally:
            self.forget()
        if found is None:
            raise NetworkError("The bulk connection did not come in time.")
        return found

    def forget(self) -> None:
        if self._host.bulk_expected.get(self.end.token) is self:
            del self._host.bulk_expected[self.end.token]
        if self._stream is not None:  # it came, and nobody wants it any more
            self._host.start_soon(self._stream.close)
            self._stream = None

    def take(self, stream: MemoryBulk) -> None:
        del self._host.bulk_expected[self.end.token]
        self._stream = stream
        self._came.set()


def expect(host: MemoryNetwork, end: BulkEnd) -> ExpectedMemoryBulk:
    """Errors: `NetworkError`, as the real one."""
    if end.token in host.bulk_expected or len(host.bulk_expected) >= limits.bulk_connections_max:
        raise NetworkError("Too many bulk connections are expected at once.", code="E_BUSY")
    host.bulk_expected[end.token] = found = ExpectedMemoryBulk(host, end)
    return found


async def secure(near: MemoryConnection, end: BulkEnd) -> MemoryBulk:
    """The handshake. Errors: `NetworkError`; the connection is closed then."""
    expected = near.peer_network.bulk_expected.get(end.token)
    if (expected is None or certificate(end.seed) != expected.end.remote_certificate
            or certificate(expected.end.seed) != end.remote_certificate):
        await near.close()
        raise NetworkError("The other end of a bulk connection shows another certificate.", code="E_WRONG_PEER")
    stream, far = MemoryStream(near, LABEL), MemoryStream(near.other, LABEL)
    stream.other, far.other = far, stream
    stream.queue_bytes_max = far.queue_bytes_max = WINDOW_BYTES
    near.streams[stream] = near.other.streams[far] = None
    expected.take(MemoryBulk(near.other, far))
    return MemoryBulk(near, stream)


async def _wait_turn(size_bytes: int, pace: Pace | None) -> None:
    if pace is not None and (wait_s := pace(size_bytes)) > 0:
        await trio.sleep(wait_s)
