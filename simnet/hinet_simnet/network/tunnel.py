"""A connection inside a stream, for what a relay passes on: the twin of Noise and yamux over a circuit.

Each end says its key first (keys are proved by construction here), then frames carry the streams: number, kind, length,
bytes. One stream that nobody reads holds up the others once its 2 MiB are full; the real transport has windows. Leaves
relays and their rules to the agent.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Stream

if TYPE_CHECKING:
    from hinet_simnet.network.host import MemoryNetwork

BUFFER_BYTES_MAX = 2 << 20
FRAME_BYTES_MAX = 1 << 20
_HEAD = struct.Struct(">IBI")
_OPEN, _OPENED, _REFUSED, _DATA, _END = range(5)


class TunnelStream:
    """One stream of a tunnel. `hinet_node.ports.Stream`."""

    def __init__(self, tunnel: Tunnel, number: int) -> None:
        self._tunnel = tunnel
        self._number = number
        self._arrived: deque[bytes] = deque()
        self._held_bytes = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._closed = False
        self.answered: bool | None = None

    async def send_all(self, data: bytes) -> None:
        for at in range(0, len(data), FRAME_BYTES_MAX):
            if self._closed:
                raise NetworkError("The stream is closed.")
            await self._tunnel.send(self._number, _DATA, bytes(data[at:at + FRAME_BYTES_MAX]))

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._arrived:
            self._check()
            await self._changed.park()
        data = self._arrived[0]
        if not data:
            return b""  # the end stays
        if len(data) > bytes_max:
            self._arrived[0] = data[bytes_max:]
            data = data[:bytes_max]
        else:
            self._arrived.popleft()
        self._held_bytes -= len(data)
        self._changed.unpark_all()
        return data

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tunnel.forget(self._number)
            self.wake()
            self._tunnel.send_soon(self._number, _END, b"")

    async def answer(self) -> bool:
        """Whether the other end serves what was asked for."""
        while self.answered is None:
            self._check()
            await self._changed.park()
        return self.answered

    async def take(self, data: bytes) -> None:
        """Bytes have come, or (b"") the end; waits while the reader is far behind."""
        while self._held_bytes >= BUFFER_BYTES_MAX and not self._closed:
            await self._changed.park()
        self._arrived.append(data)
        self._held_bytes += len(data)
        self.wake()

    def wake(self) -> None:
        """Whoever waits here looks again."""
        self._changed.unpark_all()

    def _check(self) -> None:
        if self._closed or self._tunnel.broken:
            raise NetworkError("The connection is gone.")


class Tunnel:
    """One end. `hinet_node.ports.Connection`; `run` moves the bytes."""

    def __init__(self, network: MemoryNetwork, stream: Stream, remote_public: bytes, remote_address: str, *,
                 first: int) -> None:
        self.remote_public = remote_public
        self.remote_address = remote_address
        self.broken = False
        self._network = network
        self._stream = stream
        self._streams: dict[int, TunnelStream] = {}
        self._next = first
        self._turn = trio.Lock()

    async def open_stream(self, protocol: str) -> TunnelStream:
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = TunnelStream(self, number)
        await self.send(number, _OPEN, protocol.encode())
        if not await stream.answer():
            self.forget(number)
            raise NetworkError(f"{self.remote_address} did not open {protocol}: it does not speak it.")
        return stream

    async def close(self) -> None:
        self._snap()
        await self._stream.close()

    async def run(self) -> None:
        """Until the connection is gone."""
        try:
            while True:
                number, kind, size = _HEAD.unpack(await receive_exactly(self._stream, _HEAD.size))
                await self._take(number, kind, await receive_exactly(self._stream, min(size, FRAME_BYTES_MAX)))
        except NetworkError:
            pass  # the circuit ended
        finally:
            self._snap()
            await self._stream.close()

    async def _take(self, number: int, kind: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if kind == _OPEN:
            handler = self._network.handlers.get(data.decode())
            await self.send(number, _OPENED if handler is not None else _REFUSED, b"")
            if handler is not None:
                self._streams[number] = TunnelStream(self, number)
                self._network.start_in_tunnel(handler, self, self._streams[number])
        elif stream is not None and kind in (_OPENED, _REFUSED):
            stream.answered = kind == _OPENED
            stream.wake()
        elif stream is not None:
            await stream.take(data if kind == _DATA else b"")

    async def send(self, number: int, kind: int, data: bytes) -> None:
        """Errors: `NetworkError`."""
        if self.broken:
            raise NetworkError("The connection is gone.")
        async with self._turn:
            await self._stream.send_all(_HEAD.pack(number, kind, len(data)) + data)

    def send_soon(self, number: int, kind: int, data: bytes) -> None:
        """Without waiting; nothing when the connection is gone."""
        if not self.broken:
            self._network.start_soon(self._send_quietly, number, kind, data)

    async def _send_quietly(self, number: int, kind: int, data: bytes) -> None:
        try:
            await self.send(number, kind, data)
        except NetworkError:
            pass

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def _snap(self) -> None:
        self.broken = True
        for stream in self._streams.values():
            stream.wake()


async def receive_exactly(stream: Stream, size: int) -> bytes:
    """Errors: `NetworkError` when the stream ends before."""
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise NetworkError("The connection is gone.")
        data += piece
    return data
