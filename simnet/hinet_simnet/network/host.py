"""The Network port of one host: listening, dialling, dying.

Keys are proved by construction: the peer's key is the one that its host serves with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from nacl.signing import SigningKey

from hinet_node.errors import NetworkError, PortBusy
from hinet_node.ports import BulkEnd, Connection, Stream, StreamHandler
from hinet_node.sessions.addresses import not_through_a_relay, parse_address
from hinet_simnet.network import bulk
from hinet_simnet.network.streams import MemoryConnection, MemoryStream
from hinet_simnet.network.tunnel import Tunnel, receive_exactly

if TYPE_CHECKING:
    from hinet_simnet.network.internet import Internet

HANDSHAKE_S = 10.0


class MemoryNetwork:
    """`hinet_node.ports.Network` of one host."""

    def __init__(self, internet: Internet, name: str, ip: str) -> None:
        self.internet = internet
        self.name = name
        self.ip = ip
        self.handlers: Mapping[str, StreamHandler] = {}
        self.ports: frozenset[int] = frozenset()
        self.public = b""
        self.busy_ports: set[int] = set()
        self.bulk_expected: dict[bytes, bulk.ExpectedMemoryBulk] = {}
        self.bulk_blocked = False
        """Bulk connections can't be made from here, as behind a firewall that lets one connection through."""
        self.connections: dict[MemoryConnection, None] = {}
        self.alive = True
        self.frozen = False
        self._held: list[Callable[[], None]] = []
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
                    await connection.close()
                nursery.cancel_scope.cancel()
            if failed is not None:
                raise failed
        finally:
            self._nursery, self.handlers, self.ports = None, {}, frozenset()
            self.bulk_expected.clear()

    async def dial(self, address: str, expected_public: bytes | None, timeout_s: float) -> MemoryConnection:
        place = parse_address(address)
        if self._nursery is None or not self.alive:
            raise NetworkError("The network is closed.")
        if place.relay:
            raise not_through_a_relay(address)
        with trio.move_on_after(timeout_s):
            return await self.connect(address, place.host, place.port, expected_public)
        raise NetworkError(f"{address} did not answer within {timeout_s:g} s.")

    async def dial_over(self, stream: Stream, address: str, expected_public: bytes, timeout_s: float) -> Tunnel:
        public = b""
        with trio.move_on_after(timeout_s):
            await stream.send_all(self.public)
            public = await receive_exactly(stream, len(self.public))
        if public != expected_public:
            await stream.close()
            raise NetworkError(f"{address} is another device than the one expected there." if public else
                               f"{address} did not answer within {timeout_s:g} s.", code="E_WRONG_PEER")
        tunnel = Tunnel(self, stream, public, address, first=1)
        self.start_soon(tunnel.run)
        return tunnel

    async def accept_over(self, stream: Stream, address: str, expected_public: bytes) -> None:
        public = b""
        with trio.move_on_after(HANDSHAKE_S):
            await stream.send_all(self.public)
            public = await receive_exactly(stream, len(self.public))
        if public == expected_public:
            await Tunnel(self, stream, public, address, first=2).run()
        await stream.close()

    def bulk_certificate(self, seed: bytes) -> bytes:
        return bulk.certificate(seed)

    def expect_bulk(self, end: BulkEnd) -> bulk.ExpectedMemoryBulk:
        if self._nursery is None or not self.alive:
            raise NetworkError("The network is closed.")
        return bulk.expect(self, end)

    async def dial_bulk(self, address: str, end: BulkEnd, timeout_s: float) -> bulk.MemoryBulk:
        place = parse_address(address)
        if self._nursery is None or not self.alive:
            raise NetworkError("The network is closed.")
        if place.relay:
            raise not_through_a_relay(address)
        if self.bulk_blocked:
            raise NetworkError(f"Nothing answers at {address}: connection refused.")
        with trio.move_on_after(timeout_s):
            return await bulk.secure(await self.connect(address, place.host, place.port, None), end)
        raise NetworkError(f"{address} did not answer within {timeout_s:g} s.")

    async def connect(self, address: str, ip: str, port: int, expected_public: bytes | None) -> MemoryConnection:
        """A connection to a host that listens on this port. Errors: `NetworkError`; without an answer it waits."""
        internet = self.internet
        peer = internet.find(ip)
        if peer is None:
            await trio.sleep_forever()  # nobody has this address: no answer ever comes
            raise AssertionError
        await self._cross(self.name, peer.name)
        await self._cross(peer.name, self.name)
        if port not in peer.ports or not peer.alive or not self.alive:
            raise NetworkError(f"Nothing answers at {address}: connection refused.")
        if expected_public is not None and expected_public != peer.public:
            raise NetworkError(f"{address} is another device than the one expected there.", code="E_WRONG_PEER")
        near = MemoryConnection(internet, self, peer, peer.public, address)
        far = MemoryConnection(internet, peer, self, self.public, f"/ip4/{self.ip}/tcp/50000")
        near.other, far.other = far, near
        return near

    async def _cross(self, source: str, target: str) -> None:
        await trio.sleep_until(self.internet.link(source, target).stream_arrival_s(trio.current_time(), 0))
        await self.internet.wait_for_way(source, target)

    def start(self, handler: StreamHandler, connection: MemoryConnection, stream: MemoryStream) -> None:
        """Run a stream's handler in this host's nursery."""
        if self._nursery is not None:
            self._nursery.start_soon(self._handle, handler, connection, stream)

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something in this host's nursery; nothing when it is down."""
        if self._nursery is not None:
            self._nursery.start_soon(work, *args)

    def start_in_tunnel(self, handler: StreamHandler, connection: Connection, stream: Stream) -> None:
        """As `start`, for a stream inside a circuit."""
        self.start_soon(self._handle_in_tunnel, handler, connection, stream)

    async def _handle_in_tunnel(self, handler: StreamHandler, connection: Connection, stream: Stream) -> None:
        try:
            await handler(connection, stream)
        except NetworkError as error:
            self.internet.trace.note(f"{self.name}: a stream ended: {error}")
        finally:
            await stream.close()

    async def _handle(self, handler: StreamHandler, connection: MemoryConnection, stream: MemoryStream) -> None:
        try:
            await handler(connection, stream)
        except NetworkError as error:
            self.internet.trace.note(f"{self.name}: a stream ended: {error}")
        finally:
            await stream.close()
            connection.streams.pop(stream, None)

    def when_awake(self, act: Callable[[], None]) -> None:
        """Do it now, or when this host thaws: what a frozen host closes is open for the others until then."""
        if self.frozen:
            self._held.append(act)
        else:
            act()

    def thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for act in held:
            act()

    def die(self) -> None:
        """Every connection breaks; the other ends learn of it when the link carries that news."""
        self.alive = False
        self.thaw()
        for connection in list(self.connections):
            connection.snap()
            self.internet.snap_far_end(connection)
