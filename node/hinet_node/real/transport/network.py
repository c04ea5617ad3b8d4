"""Listening and dialling, with libp2p's Noise handshake. See the package's docstring."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio
from libp2p.crypto import ed25519, x25519
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.patterns import PatternXX
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux

from hinet_node.errors import NetworkError
from hinet_node.ports import BulkEnd, ExpectedBulk, Stream, StreamHandler
from hinet_node.real.transport.bulk import BulkListener, TlsBulk, begins_as_tls, certificate
from hinet_node.real.transport.muxed import NEGOTIATION_BYTES_MAX, Guard, MuxedConnection, MuxedStream
from hinet_node.real.transport.over import StreamPipe
from hinet_node.real.transport.sockets import Sockets, TcpSockets, plainly
from hinet_node.real.transport.wire import Capped, Wire
from hinet_node.sessions.addresses import not_through_a_relay, parse_address

if TYPE_CHECKING:
    from trio_typing import TaskStatus

logging.getLogger("libp2p").setLevel(logging.CRITICAL + 1)  # it logs ordinary disconnects as errors

NOISE = "/noise"
HANDSHAKE_S = 10.0
CONNECTIONS_MAX = 128
CONNECTIONS_OF_ONE_MAX = 64
HANDSHAKES_MAX = 32
HANDSHAKES_OF_ONE_MAX = 16
"""Inbound ones from one machine, so that a crowd from one keeps nobody else out."""
_ED25519_ID_PREFIX = bytes.fromhex("002408011220")


class Libp2pNetwork:
    """The real Network. `interfaces` names the interfaces to advertise instead of all real ones; `sockets` takes
    the place of TCP. Dialling works while `serve` is open (with an empty `listen` it only dials)."""

    def __init__(self, *, interfaces: Sequence[str] | None = None, sockets: Sockets | None = None) -> None:
        self._sockets: Sockets = TcpSockets(interfaces) if sockets is None else sockets
        self._host: _Host | None = None

    @asynccontextmanager
    async def serve(self, device_seed: bytes, listen: Sequence[str],
                    handlers: Mapping[str, StreamHandler]) -> AsyncIterator[Sequence[str]]:
        assert self._host is None, "one network serves once at a time"
        listeners = await self._sockets.listen([parse_address(text) for text in listen])
        failed: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._host = _Host(device_seed, handlers, nursery, self._sockets)
                if listeners:
                    nursery.start_soon(_accept, self._host, listeners)
                try:
                    yield self._sockets.dialable(listeners)
                except Exception as error:  # raised again below: it is the caller's, and no group of ours
                    failed = error
                await self._host.close()
                nursery.cancel_scope.cancel()
            if failed is not None:
                raise failed
        finally:
            self._host = None
            self._sockets.close(listeners)

    async def dial(self, address: str, expected_public: bytes | None, timeout_s: float) -> MuxedConnection:
        host, place = self._host, parse_address(address)
        if host is None:
            raise NetworkError("The network is closed.")
        if place.relay:
            raise not_through_a_relay(address)
        try:
            with trio.fail_after(timeout_s):
                stream = await self._sockets.open(place)
                return await host.connect(Wire(stream, is_initiator=True), address, expected_public)
        except trio.TooSlowError:
            raise NetworkError(f"{address} did not answer within {timeout_s:g} s.") from None
        except OSError as error:
            raise NetworkError(f"Nothing answers at {address}: {plainly(error)}.") from error
        except (UnicodeError, ExceptionGroup) as error:
            # A name that no resolver takes (it came from another machine); libp2p's own tasks, ended by the time-out.
            raise NetworkError(f"{address} can't be dialled: {error}.") from error

    async def dial_over(self, stream: Stream, address: str, expected_public: bytes,
                        timeout_s: float) -> MuxedConnection:
        host = self._host
        if host is None:
            await stream.close()
            raise NetworkError("The network is closed.")
        try:
            with trio.fail_after(timeout_s):
                return await host.connect(Wire(host.pipe(stream), is_initiator=True), address, expected_public)
        except trio.TooSlowError:
            raise NetworkError(f"{address} did not answer within {timeout_s:g} s.") from None
        except ExceptionGroup as error:  # libp2p's own tasks, ended by the time-out
            raise NetworkError(f"{address} can't be dialled: {error}.") from error

    async def accept_over(self, stream: Stream, address: str, expected_public: bytes) -> None:
        if self._host is not None:
            await self._host.accept_over(stream, address, expected_public)
        await stream.close()

    def bulk_certificate(self, seed: bytes) -> bytes:
        if not isinstance(self._sockets, TcpSockets):
            raise NetworkError("This network makes no bulk connections.")
        return certificate(seed)

    def expect_bulk(self, end: BulkEnd) -> ExpectedBulk:
        return self._bulk_host().bulk.expect(end)

    async def dial_bulk(self, address: str, end: BulkEnd, timeout_s: float) -> TlsBulk:
        host, place = self._bulk_host(), parse_address(address)
        if place.relay:
            raise not_through_a_relay(address)
        try:
            with trio.fail_after(timeout_s):
                stream = await self._sockets.open(place)
                assert isinstance(stream, trio.SocketStream), "TCP gives sockets"
                return await host.bulk.dial(stream, end)
        except trio.TooSlowError:
            raise NetworkError(f"{address} did not answer within {timeout_s:g} s.") from None
        except (OSError, UnicodeError) as error:
            raise NetworkError(f"No bulk connection to {address}: {error}.") from error

    def _bulk_host(self) -> _Host:
        if self._host is None or not isinstance(self._sockets, TcpSockets):
            raise NetworkError("The network is closed, or makes no bulk connections.")
        return self._host


class _Host:
    """What `serve` holds: the keys, the nursery and the open connections."""

    def __init__(self, device_seed: bytes, handlers: Mapping[str, StreamHandler], nursery: trio.Nursery,
                 sockets: Sockets) -> None:
        self._keys = ed25519.create_new_key_pair(device_seed)
        self._noise_key = x25519.create_new_key_pair().private_key
        self._local = ID.from_pubkey(self._keys.public_key)
        self._handlers = dict(handlers)
        self._nursery = nursery
        self._sockets = sockets
        self.bulk = BulkListener()
        self._connections: dict[MuxedConnection, None] = {}  # in order, so that a simulation repeats
        self._handshakes: Counter[str] = Counter()  # by the machine that they come from

    async def connect(self, wire: Wire, address: str, expected_public: bytes | None) -> MuxedConnection:
        """Secure a raw connection and start it. Errors: `NetworkError`; the wire is closed then."""
        try:
            secured = await self._secure(wire, expected_public)
            muxed = await self._mux(secured)
            public = public_of(secured.get_remote_peer())
            connection = MuxedConnection(muxed, wire, public, address)
            await self._nursery.start(self._run, connection)
            return connection
        except PeerIDMismatchesPubkey as error:
            await wire.abort()
            raise NetworkError(f"{address} is another device than the one expected there.",
                               code="E_WRONG_PEER") from error
        except NetworkError:
            await wire.abort()
            raise
        except Exception as error:  # libp2p lets errors of every layer through
            await wire.abort()
            raise NetworkError(f"{address} does not speak this protocol: {error or type(error).__name__}.") from error
        except BaseException:
            await wire.abort()
            raise

    async def accept(self, stream: trio.abc.Stream) -> None:
        """Hold one inbound connection (trio closes the stream when this returns); strangers' faults end here."""
        await self._accept(stream, self._sockets.peer_of(stream), None)

    async def accept_over(self, stream: Stream, address: str, expected_public: bytes) -> None:
        """Hold one connection that a relay passes on; the faults of whoever is there, or of the relay, end here. For
        the bounds it comes from the relay's machine."""
        await self._accept(self.pipe(stream), address, expected_public)

    def pipe(self, stream: Stream) -> StreamPipe:
        """The stream as one that Noise can run over."""
        return StreamPipe(stream, self._nursery.start_soon)

    async def _accept(self, stream: trio.abc.Stream, address: str, expected_public: bytes | None) -> None:
        machine = _machine(address)
        connected = [_machine(connection.remote_address) for connection in self._connections]
        if (len(connected) >= CONNECTIONS_MAX or connected.count(machine) >= CONNECTIONS_OF_ONE_MAX
                or self._handshakes.total() >= HANDSHAKES_MAX or self._handshakes[machine] >= HANDSHAKES_OF_ONE_MAX):
            await trio.aclose_forcefully(stream)
            return
        self._handshakes[machine] += 1
        connection = None
        try:
            with trio.move_on_after(HANDSHAKE_S):
                if expected_public is None and await begins_as_tls(stream):
                    await self.bulk.accept(stream)  # type: ignore[arg-type]  # a socket's, or it would not begin so
                else:
                    connection = await self.connect(Wire(stream, is_initiator=False), address, expected_public)
        except (NetworkError, ExceptionGroup) as error:  # groups: libp2p's own tasks, ended by the time-out
            logging.getLogger(__name__).debug("refused: %s", error)
        finally:
            self._handshakes -= Counter({machine: 1})  # leaves out what is at zero
        if connection is not None:
            await connection.wait_closed()

    async def close(self) -> None:
        async with trio.open_nursery() as nursery:
            for connection in tuple(self._connections):
                nursery.start_soon(connection.close)

    async def _secure(self, wire: Wire, expected_public: bytes | None) -> Any:
        speaker = MultiselectCommunicator(Capped(wire, NEGOTIATION_BYTES_MAX))
        pattern = PatternXX(self._local, self._keys.private_key, self._noise_key)
        if wire.is_initiator:
            await MultiselectClient().select_one_of([NOISE], speaker)
            expected = None if expected_public is None else peer_of(expected_public)
            return await pattern.handshake_outbound(wire, expected)
        await Multiselect({NOISE: None}).negotiate(speaker)
        secured = await pattern.handshake_inbound(wire)
        if expected_public is not None and public_of(secured.get_remote_peer()) != expected_public:
            raise NetworkError("The caller is another device than the relay said.", code="E_WRONG_PEER")
        return secured

    async def _mux(self, secured: Any) -> Any:
        speaker = MultiselectCommunicator(Capped(secured, NEGOTIATION_BYTES_MAX))
        if secured.is_initiator:
            await MultiselectClient().select_one_of([YAMUX], speaker)
        else:
            await Multiselect({YAMUX: None}).negotiate(speaker)
        guard = Guard(secured)
        guard.muxed = Yamux(guard, secured.get_remote_peer(), is_initiator=secured.is_initiator)
        return guard.muxed

    async def _run(self, connection: MuxedConnection, *, task_status: TaskStatus[None]) -> None:
        self._connections[connection] = None
        try:
            await connection.run(self._handlers, self._serve, task_status=task_status)
        finally:
            self._connections.pop(connection, None)

    def _serve(self, connection: MuxedConnection, stream: MuxedStream, handler: StreamHandler) -> None:
        """In the network's nursery, so that a handler outlives its connection long enough to end properly."""
        self._nursery.start_soon(self._handle, connection, stream, handler)

    async def _handle(self, connection: MuxedConnection, stream: MuxedStream, handler: StreamHandler) -> None:
        try:
            await handler(connection, stream)
        except* NetworkError as errors:  # a handler has nurseries, and what comes out of those is a group
            logging.getLogger(__name__).debug("stream from %s: %s", connection.remote_address, errors)
        finally:
            await stream.close()


def _machine(address: str) -> str:
    """An address without its port."""
    return address.rpartition("/tcp/")[0]


def peer_of(public: bytes) -> ID:
    """The libp2p peer id of an Ed25519 key."""
    return ID(_ED25519_ID_PREFIX + public)


def public_of(peer: ID) -> bytes:
    """The Ed25519 key in a peer id. Errors: `NetworkError` for a peer with another kind of key."""
    raw: bytes = peer.to_bytes()
    if len(raw) != 38 or not raw.startswith(_ED25519_ID_PREFIX):
        raise NetworkError("The peer proves a key that is not Ed25519.")
    return raw[len(_ED25519_ID_PREFIX):]


async def _accept(host: _Host, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]]) -> None:
    await trio.serve_listeners(host.accept, list(listeners))
