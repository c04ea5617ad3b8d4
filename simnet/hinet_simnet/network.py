"""An in-memory Network: named hosts, links with latency from a seed, partitions, hosts that die.

A connection behaves as TCP does: bytes arrive whole and in order or not at all; across a partition they wait; a dead
host's peers see the connection break once the link carries that news. Keys are proved by construction. Leaves real
sockets to `hinet_node.real.transport`. Every byte that is sent goes into the trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
from nacl.signing import SigningKey

from hinet_node.errors import NetworkError, PortBusy
from hinet_node.ports import StreamHandler
from hinet_node.sessions.addresses import parse_address
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.trace import Trace

QUEUE_BYTES_MAX = 2 << 20
LATENCY_S = (0.0002, 0.005)
JITTER = 0.5


class Internet:
    """All hosts and the links between them."""

    def __init__(self, seed: int | str, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace()
        self._randomness = SeededRandomness(seed, "links")
        self._latency_s: dict[tuple[str, str], float] = {}
        self._groups: dict[str, int] = {}
        self._hosts: dict[str, MemoryNetwork] = {}
        self._ips: dict[str, str] = {}
        self._changed = trio.Event()

    # ---- links ---------------------------------------------------------------------------------------------------

    def partition(self, *groups: Sequence[str]) -> None:
        """Only hosts of one group reach each other from now on; a host in no group is alone with the other such."""
        self._groups = {name: number for number, group in enumerate(groups, 1) for name in group}
        self._change("partition " + " | ".join(",".join(group) for group in groups))

    def heal(self) -> None:
        """All hosts reach each other again."""
        self._groups = {}
        self._change("heal")

    def reaches(self, a: str, b: str) -> bool:
        return self._groups.get(a, 0) == self._groups.get(b, 0)

    def latency_s(self, a: str, b: str) -> float:
        """One way, this time: the link's own latency and a little jitter."""
        pair = (min(a, b), max(a, b))
        if pair not in self._latency_s:
            own = SeededRandomness("/".join(pair), self._randomness.draw(8).hex()).unit() if a != b else 0.0
            self._latency_s[pair] = LATENCY_S[0] + own * (LATENCY_S[1] - LATENCY_S[0])
        return self._latency_s[pair] * (1 + JITTER * self._randomness.unit())

    def _change(self, what: str) -> None:
        self.trace.note(what)
        self.wake()

    def wake(self) -> None:
        """Something changed that waiting streams should look at."""
        self._changed.set()
        self._changed = trio.Event()

    def change(self) -> trio.Event:
        """Set at the next change of links or announcements."""
        return self._changed

    async def wait_for_link(self, a: str, b: str) -> None:
        while not self.reaches(a, b):
            await self._changed.wait()

    # ---- hosts ---------------------------------------------------------------------------------------------------

    def host(self, name: str) -> MemoryNetwork:
        """A network port for this host: a new one each time it starts; its IP address stays."""
        ip = self._ips.setdefault(name, f"10.0.{len(self._ips) >> 8}.{(len(self._ips) & 255) + 1}")
        self._hosts[name] = MemoryNetwork(self, name, ip)
        return self._hosts[name]

    def kill(self, name: str) -> None:
        """Power is lost at this host: its connections break without a word."""
        host = self._hosts.pop(name, None)
        if host is not None:
            host.die()

    def find(self, ip: str) -> MemoryNetwork | None:
        return next((host for host in self._hosts.values() if host.ip == ip), None)


@dataclass
class _Pipe:
    """One direction of a stream: pieces with the time at which each has crossed the link."""

    pieces: deque[tuple[float, bytes]] = field(default_factory=deque)
    held_bytes: int = 0
    last_s: float = 0.0
    news: trio.Event = field(default_factory=trio.Event)

    def wake(self) -> None:
        self.news.set()
        self.news = trio.Event()


class MemoryStream:
    """One end of a stream. `hinet_node.ports.Stream`."""

    def __init__(self, connection: MemoryConnection, label: str) -> None:
        self._connection = connection
        self._label = label
        self._in = _Pipe()
        self._closed = False
        self.other: MemoryStream

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        pipe = self.other._in
        while pipe.held_bytes >= QUEUE_BYTES_MAX and not self._broken():
            await pipe.news.wait()
        if self._broken():
            raise NetworkError("The connection is gone." if not self._closed else "The stream is closed.")
        if data:
            self._put(data)

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        connection, pipe = self._connection, self._in
        while True:
            if self._closed or connection.broken:
                raise NetworkError("The connection is gone.")
            if not pipe.pieces:
                await pipe.news.wait()
                continue
            due_s, data = pipe.pieces[0]
            if due_s > trio.current_time():
                with trio.move_on_at(due_s):
                    await connection.gone.wait()
                continue
            if not connection.internet.reaches(connection.host, connection.peer_host):
                await connection.wait_for_link()
                continue
            if not data:
                return b""  # the end stays in the pipe
            taken, rest = data[:bytes_max], data[bytes_max:]
            if rest:
                pipe.pieces[0] = (due_s, rest)
            else:
                pipe.pieces.popleft()
            pipe.held_bytes -= len(taken)
            pipe.wake()
            return taken

    async def close(self) -> None:
        if not self._closed and not self._connection.broken:
            self._put(b"")
        self._closed = True
        self._in.wake()

    def _put(self, data: bytes) -> None:
        connection, pipe = self._connection, self.other._in
        now_s = trio.current_time()
        pipe.last_s = max(pipe.last_s, now_s + connection.internet.latency_s(connection.host, connection.peer_host))
        pipe.pieces.append((pipe.last_s, data))
        pipe.held_bytes += len(data)
        connection.internet.trace.sent(connection.host, connection.peer_host, self._label, data)
        pipe.wake()

    def _broken(self) -> bool:
        return self._closed or self._connection.broken


class MemoryConnection:
    """One end of a connection. `hinet_node.ports.Connection`."""

    def __init__(self, internet: Internet, host: MemoryNetwork, peer: MemoryNetwork, remote_public: bytes,
                 remote_address: str) -> None:
        self.internet = internet
        self.host, self.peer_host = host.name, peer.name
        self.remote_public = remote_public
        self.remote_address = remote_address
        self.broken = False
        self.gone = trio.Event()
        self.other: MemoryConnection
        self._network, self._peer_network = host, peer
        self._streams: list[MemoryStream] = []
        host.connections[self] = None

    async def open_stream(self, protocol: str) -> MemoryStream:
        await self._cross()
        handler = self._peer_network.handlers.get(protocol)
        await self._cross()
        if handler is None:
            raise NetworkError(f"{self.remote_address} did not open {protocol}: it does not speak it.")
        stream, far = MemoryStream(self, protocol), MemoryStream(self.other, protocol)
        stream.other, far.other = far, stream
        self._streams.append(stream)
        self.other._streams.append(far)
        self._peer_network.start(handler, self.other, far)
        return stream

    async def close(self) -> None:
        if not self.broken:
            self.snap()
            self._network.start_work(self._snap_other)

    async def wait_for_link(self) -> None:
        async with trio.open_nursery() as nursery:
            async def watch() -> None:
                await self.gone.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self.internet.wait_for_link(self.host, self.peer_host)
            nursery.cancel_scope.cancel()

    def snap(self) -> None:
        """This end is gone now."""
        self.broken = True
        self.gone.set()
        self._network.connections.pop(self, None)
        for stream in self._streams:
            stream._in.wake()
            stream.other._in.wake()

    async def _snap_other(self) -> None:
        """The other end learns that this one is gone, after all that was sent before has arrived."""
        last_s = max((stream.other._in.last_s for stream in self._streams), default=0.0)
        await trio.sleep_until(max(last_s, trio.current_time()) + self.internet.latency_s(self.host, self.peer_host))
        await self.internet.wait_for_link(self.host, self.peer_host)
        if not self.other.broken:
            self.other.snap()

    async def _cross(self) -> None:
        await trio.sleep(self.internet.latency_s(self.host, self.peer_host))
        if not self.internet.reaches(self.host, self.peer_host):
            await self.wait_for_link()
        if self.broken:
            raise NetworkError("The connection is gone.")


class MemoryNetwork:
    """The Network port of one host."""

    def __init__(self, internet: Internet, name: str, ip: str) -> None:
        self.internet = internet
        self.name = name
        self.ip = ip
        self.handlers: Mapping[str, StreamHandler] = {}
        self.ports: frozenset[int] = frozenset()
        self.public = b""
        self.busy_ports: set[int] = set()
        self.connections: dict[MemoryConnection, None] = {}
        self.alive = True
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def serve(self, device_seed: bytes, listen: Sequence[str],
                    handlers: Mapping[str, StreamHandler]) -> AsyncIterator[Sequence[str]]:
        assert self._nursery is None, "one network serves once at a time"
        wanted = [parse_address(text).port or 4001 for text in listen if "/ip6/" not in text]
        for port in wanted:
            if port in self.busy_ports:
                raise PortBusy(f"Another program already listens on port {port}.", next_step="--port 0")
        failed: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery, self.handlers, self.ports = nursery, dict(handlers), frozenset(wanted)
                self.public = bytes(SigningKey(device_seed).verify_key)
                try:
                    yield tuple(f"/ip4/{self.ip}/tcp/{port}" for port in sorted(self.ports))
                except Exception as error:
                    failed = error
                for connection in list(self.connections):
                    connection.snap()
                    connection.other.snap()
                nursery.cancel_scope.cancel()
            if failed is not None:
                raise failed
        finally:
            self._nursery, self.handlers, self.ports = None, {}, frozenset()

    async def dial(self, address: str, expected_public: bytes | None, timeout_s: float) -> MemoryConnection:
        place = parse_address(address)
        if self._nursery is None or not self.alive:
            raise NetworkError("The network is closed.")
        with trio.move_on_after(timeout_s):
            return await self._dial(address, place.host, place.port, expected_public)
        raise NetworkError(f"{address} did not answer within {timeout_s:g} s.")

    async def _dial(self, address: str, ip: str, port: int, expected_public: bytes | None) -> MemoryConnection:
        peer = self.internet.find(ip)
        if peer is None:
            await trio.sleep_forever()  # nobody has this address: no answer ever comes
            raise AssertionError
        await trio.sleep(self.internet.latency_s(self.name, peer.name))
        await self.internet.wait_for_link(self.name, peer.name)
        await trio.sleep(self.internet.latency_s(peer.name, self.name))
        if port not in peer.ports or not peer.alive or not self.alive:
            raise NetworkError(f"Nothing answers at {address}: connection refused.")
        if expected_public is not None and expected_public != peer.public:
            raise NetworkError(f"{address} is another device than the one expected there.", code="E_WRONG_PEER")
        near = MemoryConnection(self.internet, self, peer, peer.public, address)
        far = MemoryConnection(self.internet, peer, self, self.public, f"/ip4/{self.ip}/tcp/50000")
        near.other, far.other = far, near
        return near

    def start(self, handler: StreamHandler, connection: MemoryConnection, stream: MemoryStream) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._handle, handler, connection, stream)

    def start_work(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(work)

    async def _handle(self, handler: StreamHandler, connection: MemoryConnection, stream: MemoryStream) -> None:
        try:
            await handler(connection, stream)
        except NetworkError as error:
            self.internet.trace.note(f"{self.name}: a stream ended: {error}")
        finally:
            await stream.close()

    def die(self) -> None:
        """Every connection breaks; the other ends learn of it when a packet of theirs finds nobody (see Internet)."""
        self.alive = False
        for connection in list(self.connections):
            connection.snap()
            peer = connection._peer_network
            peer.start_work(connection._snap_other)
