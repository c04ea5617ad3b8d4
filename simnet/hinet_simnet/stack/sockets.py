"""`Sockets` in memory: what TCP is to the real transport, over the simulator's links.

One connection with one stream carries the raw bytes, so delay, loss, rate, partitions, cuts and frozen hosts are what
they are at the world level. An end that is closed says so after all that it sent before, and the other end may still
read that. Leaves the arithmetic to `hinet_simnet.network`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from hinet_node.errors import NetworkError, PortBusy
from hinet_node.sessions.addresses import Address
from hinet_simnet.network import MemoryConnection, MemoryNetwork, MemoryStream

TCP = "tcp"
DEFAULT_PORT = 4001
BACKLOG = 128


class MemorySocket(trio.abc.Stream):
    """One end of a raw byte stream."""

    def __init__(self, connection: MemoryConnection, stream: MemoryStream) -> None:
        self.connection = connection
        self._stream = stream
        self._closed = False
        self._far: MemorySocket | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        try:
            await self._stream.send_all(bytes(data))
        except NetworkError as error:
            raise self._gone() from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        try:
            return await self._stream.receive_some(1 << 16 if max_bytes is None else max_bytes)
        except NetworkError as error:
            raise self._gone() from error

    async def aclose(self) -> None:
        """Close at once. The connection is over when both ends are closed, so that what was sent can still be read."""
        if not self._closed:
            self._closed = True
            await self._stream.close()
            self._stream.other.wake()  # a writer of ours that waits for room there
            if self._far is None or self._far._closed:
                await self.connection.close()
        await trio.lowlevel.checkpoint()

    def _gone(self) -> Exception:
        return trio.ClosedResourceError("this end was closed") if self._closed else trio.BrokenResourceError("gone")


class MemoryListener(trio.abc.Listener[MemorySocket]):
    """Where the connections to one host come in; more than a backlog of them at once are refused."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[MemorySocket](BACKLOG)

    def put(self, socket: MemorySocket) -> bool:
        """Whether there was room, and somebody who listens."""
        try:
            self._send.send_nowait(socket)
        except (trio.WouldBlock, trio.BrokenResourceError):
            return False
        return True

    async def accept(self) -> MemorySocket:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self._receive.close()


class MemorySockets:
    """`hinet_node.real.transport.sockets.Sockets` of one simulated host."""

    def __init__(self, host: MemoryNetwork) -> None:
        self._host = host

    async def open(self, address: Address) -> MemorySocket:
        near = await self._host.connect(str(address), address.host, address.port, None)
        take: Any = near.peer_network.handlers.get(TCP)
        ends = MemoryStream(near, TCP), MemoryStream(near.other, TCP)
        ends[0].other, ends[1].other = ends[1], ends[0]
        near.streams[ends[0]] = near.other.streams[ends[1]] = None
        socket, far = MemorySocket(near, ends[0]), MemorySocket(near.other, ends[1])
        socket._far, far._far = far, socket
        if take is None or not take(far):
            await near.close()
            raise NetworkError(f"Nothing answers at {address}: connection refused.")
        return socket

    async def listen(self, addresses: Sequence[Address]) -> Sequence[MemoryListener]:
        await trio.lowlevel.checkpoint()
        wanted = {address.port or DEFAULT_PORT: None for address in addresses if address.kind == "ip4"}
        for port in wanted:
            if port in self._host.busy_ports:
                raise PortBusy(f"Another program already listens on port {port}.", next_step="--port 0")
        if not wanted:
            return []
        listener = MemoryListener()
        self._host.ports = frozenset(wanted)
        self._host.handlers = {TCP: listener.put}
        return [listener]

    def dialable(self, listeners: Sequence[Any]) -> Sequence[str]:
        return tuple(f"/ip4/{self._host.ip}/tcp/{port}" for port in sorted(self._host.ports))

    def close(self, listeners: Sequence[Any]) -> None:
        self._host.ports, self._host.handlers = frozenset(), {}
        for listener in listeners:
            listener.close()

    def peer_of(self, stream: Any) -> str:
        return f"/ip4/{stream.connection.peer_network.ip}/tcp/50000"
