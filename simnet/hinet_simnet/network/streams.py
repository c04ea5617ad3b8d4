"""Connections and streams as TCP makes them: bytes arrive whole and in order, or not at all.

Across a partition, and at a frozen host, they wait. All streams of a connection share its order, as they do in one TCP
connection. Where only the way back is cut, no acknowledgement comes, so the sender stops after one window.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from hinet_node.errors import NetworkError
from hinet_simnet.clock import call_at

if TYPE_CHECKING:
    from hinet_simnet.network.host import MemoryNetwork
    from hinet_simnet.network.internet import Internet

QUEUE_BYTES_MAX = 2 << 20
PIECE_BYTES = 1 << 16
WINDOW_BYTES = 1 << 16
"""What TCP sends before the first acknowledgement comes."""


class MemoryStream:
    """One end of a stream. `hinet_node.ports.Stream`; read by one task at a time."""

    __slots__ = ("_arrived", "_closed", "_connection", "_label", "_reader", "_room", "held_bytes", "other",
                 "queue_bytes_max")

    def __init__(self, connection: MemoryConnection, label: str) -> None:
        self._connection = connection
        self._label = label
        self._arrived: deque[bytes] = deque()
        self._closed = False
        self._reader: trio.lowlevel.Task | None = None
        self._room: trio.lowlevel.ParkingLot | None = None
        self.queue_bytes_max = QUEUE_BYTES_MAX
        self.held_bytes = 0
        """On their way to this end, or there and not read."""
        self.other: MemoryStream

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        connection, far = self._connection, self.other
        while (far.held_bytes >= self.queue_bytes_max or connection.network.frozen) and not self._broken():
            if connection.network.frozen:
                await connection.wait_for_way(connection.host, connection.host)
                continue
            if far._room is None:
                far._room = trio.lowlevel.ParkingLot()
            await far._room.park()
        if self._broken():
            raise NetworkError("The connection is gone." if not self._closed else "The stream is closed.")
        if data:
            connection.send(self, data if isinstance(data, memoryview) else bytes(data), self._label)

    async def receive_some(self, bytes_max: int) -> bytes:
        connection, arrived = self._connection, self._arrived
        if arrived:
            await trio.lowlevel.checkpoint()
        while not arrived or connection.network.frozen:
            if self._broken():
                raise NetworkError("The connection is gone.")
            if connection.network.frozen:
                await connection.wait_for_way(connection.host, connection.host)
                continue
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._leave)
        if self._broken():
            raise NetworkError("The connection is gone.")
        data = arrived[0]
        if not data:
            return b""  # the end stays
        if len(data) > bytes_max:
            arrived[0] = data[bytes_max:]
            data = data[:bytes_max]
        else:
            arrived.popleft()
        self.held_bytes -= len(data)
        if self._room is not None:
            self._room.unpark_all()
        return data

    async def close(self) -> None:
        if not self._closed and not self._connection.broken:
            self._connection.network.when_awake(self._send_end)
        self._closed = True
        self.wake()
        if self.other._room is not None:
            self.other._room.unpark_all()  # a sender of ours may wait for room there

    def _send_end(self) -> None:
        if not self._connection.broken:
            self._connection.send(self, b"", self._label)

    def take(self, data: bytes) -> None:
        """Bytes have arrived, or (b"") the end."""
        self._arrived.append(data)
        reader = self._reader
        if reader is not None:
            self._reader = None
            trio.lowlevel.reschedule(reader)

    def wake(self) -> None:
        """Whoever waits at this end or for it looks again."""
        reader = self._reader
        if reader is not None:
            self._reader = None
            trio.lowlevel.reschedule(reader)
        if self._room is not None:
            self._room.unpark_all()

    def _leave(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _broken(self) -> bool:
        return self._closed or self._connection.broken


class MemoryConnection:
    """One end of a connection. `hinet_node.ports.Connection`."""

    def __init__(self, internet: Internet, network: MemoryNetwork, peer: MemoryNetwork, remote_public: bytes,
                 remote_address: str) -> None:
        self.internet = internet
        self.network, self.peer_network = network, peer
        self.host, self.peer_host = network.name, peer.name
        self.remote_public = remote_public
        self.remote_address = remote_address
        self.broken = False
        self.last_s = 0.0
        """When the last of what is on its way to this end will be there."""
        self.streams: dict[MemoryStream, None] = {}
        self.other: MemoryConnection
        self._coming: deque[tuple[float, MemoryStream | None, bytes]] = deque()
        self._unacknowledged_bytes = 0
        self._gone: trio.Event | None = None
        network.connections[self] = None

    # ---- the port --------------------------------------------------------------------------------------------------

    async def open_stream(self, protocol: str) -> MemoryStream:
        await self._cross(self.host, self.peer_host)
        handler = self.peer_network.handlers.get(protocol)
        await self._cross(self.peer_host, self.host)
        if handler is None:
            raise NetworkError(f"{self.remote_address} did not open {protocol}: it does not speak it.")
        stream, far = MemoryStream(self, protocol), MemoryStream(self.other, protocol)
        stream.other, far.other = far, stream
        self.streams[stream] = self.other.streams[far] = None
        self.peer_network.start(handler, self.other, far)
        return stream

    async def close(self) -> None:
        if not self.broken:
            self.snap()
            self.network.when_awake(self._tell_far_end)

    def _tell_far_end(self) -> None:
        self.internet.snap_far_end(self)

    # ---- what travels ----------------------------------------------------------------------------------------------

    def send(self, stream: MemoryStream, data: bytes, label: str) -> None:
        """Put bytes on the link; b"" is the stream's end. A memoryview travels by reference and in one piece: its
        sender leaves the memory alone until the other side has read it."""
        internet, far = self.internet, self.other
        internet.trace.sent(self.host, self.peer_host, label, data)
        for tap in internet.taps:
            tap(self.host, self.peer_host, label, data)
        target = stream.other
        target.held_bytes += len(data)
        link, now_s = internet.link(self.host, self.peer_host), trio.current_time()
        step = len(data) if isinstance(data, memoryview) else PIECE_BYTES
        for at in range(0, len(data) or 1, step):
            piece = data[at:at + step]
            far.last_s = max(far.last_s, link.stream_arrival_s(now_s, len(piece)))
            far._coming.append((far.last_s, target, piece))
            call_at(far.last_s, far.arrive)

    def see_end(self) -> None:
        """The news that the other end is gone is here; it waits its turn, as bytes do."""
        self._coming.append((trio.current_time(), None, b""))
        self.arrive()

    def arrive(self) -> None:
        """Take in what has come by now, as far as there is a way."""
        coming = self._coming
        if not coming or self.broken:
            return
        now_s = trio.current_time()
        while coming and coming[0][0] <= now_s and not self.network.frozen and self._passes(len(coming[0][2])):
            _, stream, data = coming.popleft()
            if stream is None:
                self.snap()
                return
            stream.take(data)

    def _passes(self, size_bytes: int) -> bool:
        if not self.internet.reaches(self.peer_host, self.host):
            return False
        if self.internet.reaches(self.host, self.peer_host):
            self._unacknowledged_bytes = 0
            return True
        self._unacknowledged_bytes += size_bytes
        return self._unacknowledged_bytes <= WINDOW_BYTES

    # ---- the end ---------------------------------------------------------------------------------------------------

    def snap(self) -> None:
        """This end is gone now."""
        self.broken = True
        if self._gone is not None:
            self._gone.set()
        self.network.connections.pop(self, None)
        self._coming.clear()
        for stream in self.streams:
            stream.wake()
            stream.other.wake()

    async def wait_for_way(self, source: str, target: str) -> None:
        """Until there is a way, or this connection is gone."""
        async with trio.open_nursery() as nursery:
            async def watch() -> None:
                if self._gone is None:
                    self._gone = trio.Event()
                await self._gone.wait()
                nursery.cancel_scope.cancel()

            if self.broken:
                return
            nursery.start_soon(watch)
            await self.internet.wait_for_way(source, target)
            nursery.cancel_scope.cancel()

    async def _cross(self, source: str, target: str) -> None:
        link = self.internet.link(source, target)
        await trio.sleep_until(link.stream_arrival_s(trio.current_time(), 0))
        if not (self.internet.reaches(source, target) and self.internet.awake(source) and self.internet.awake(target)):
            await self.wait_for_way(source, target)
        if self.broken:
            raise NetworkError("The connection is gone.")
