"""Listening and dialling over TCP, with libp2p's Noise handshake. See the package's docstring."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, overload

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

from hinet_node.errors import NetworkError, PortBusy
from hinet_node.ports import StreamHandler
from hinet_node.real.interfaces import dialable
from hinet_node.real.transport.muxed import NEGOTIATION_BYTES_MAX, Guard, MuxedConnection, MuxedStream
from hinet_node.real.transport.wire import Capped, Wire
from hinet_node.sessions.addresses import Address, parse_address

if TYPE_CHECKING:
    from trio_typing import TaskStatus

logging.getLogger("libp2p").setLevel(logging.CRITICAL + 1)  # it logs ordinary disconnects as errors

NOISE = "/noise"
HANDSHAKE_S = 10.0
CONNECTIONS_MAX = 128
HANDSHAKES_MAX = 32
ADDRESSES_REFRESH_S = 1.0
_ED25519_ID_PREFIX = bytes.fromhex("002408011220")


class ListenAddresses(Sequence[str]):
    """The addresses that this host can be dialled at, read anew when interfaces come and go."""

    def __init__(self, listening: Sequence[Address], only: Sequence[str] | None) -> None:
        self._listening = tuple(listening)
        self._only = only
        self._read_at_s = -ADDRESSES_REFRESH_S
        self._addresses: tuple[str, ...] = ()

    def _now(self) -> tuple[str, ...]:
        if trio.current_time() - self._read_at_s >= ADDRESSES_REFRESH_S:
            self._addresses = tuple(str(address) for address in dialable(self._listening, self._only))
            self._read_at_s = trio.current_time()
        return self._addresses

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._now()[index]

    def __len__(self) -> int:
        return len(self._now())

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())


class Libp2pNetwork:
    """The real Network. `interfaces` names the interfaces to advertise instead of all real ones. Dialling works while
    `serve` is open (with an empty `listen` it only dials)."""

    def __init__(self, *, interfaces: Sequence[str] | None = None) -> None:
        self._interfaces = interfaces
        self._host: _Host | None = None

    @asynccontextmanager
    async def serve(self, device_seed: bytes, listen: Sequence[str],
                    handlers: Mapping[str, StreamHandler]) -> AsyncIterator[Sequence[str]]:
        assert self._host is None, "one network serves once at a time"
        listeners = await open_listeners([parse_address(text) for text in listen])
        failed: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._host = _Host(device_seed, handlers, nursery)
                if listeners:
                    nursery.start_soon(_accept, self._host, listeners)
                try:
                    yield ListenAddresses([_listening_at(listener) for listener in listeners], self._interfaces)
                except Exception as error:  # raised again below: it is the caller's, and no group of ours
                    failed = error
                await self._host.close()
                nursery.cancel_scope.cancel()
            if failed is not None:
                raise failed
        finally:
            self._host = None
            for listener in listeners:
                listener.socket.close()

    async def dial(self, address: str, expected_public: bytes | None, timeout_s: float) -> MuxedConnection:
        host, place = self._host, parse_address(address)
        if host is None:
            raise NetworkError("The network is closed.")
        try:
            with trio.fail_after(timeout_s):
                stream = await trio.open_tcp_stream(place.socket_host, place.port)
                return await host.connect(Wire(stream, is_initiator=True), address, expected_public)
        except trio.TooSlowError:
            raise NetworkError(f"{address} did not answer within {timeout_s:g} s.") from None
        except OSError as error:
            raise NetworkError(f"Nothing answers at {address}: {_plainly(error)}.") from error


class _Host:
    """What `serve` holds: the keys, the nursery and the open connections."""

    def __init__(self, device_seed: bytes, handlers: Mapping[str, StreamHandler], nursery: trio.Nursery) -> None:
        self._keys = ed25519.create_new_key_pair(device_seed)
        self._noise_key = x25519.create_new_key_pair().private_key
        self._local = ID.from_pubkey(self._keys.public_key)
        self._handlers = dict(handlers)
        self._nursery = nursery
        self._connections: set[MuxedConnection] = set()
        self._handshakes = 0

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

    async def accept(self, stream: trio.SocketStream) -> None:
        """Hold one inbound connection (trio closes the socket when this returns); strangers' faults end here."""
        if len(self._connections) >= CONNECTIONS_MAX or self._handshakes >= HANDSHAKES_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._handshakes += 1
        connection = None
        try:
            with trio.move_on_after(HANDSHAKE_S):
                connection = await self.connect(Wire(stream, is_initiator=False), _peer_of(stream), None)
        except NetworkError as error:
            logging.getLogger(__name__).debug("refused: %s", error)
        finally:
            self._handshakes -= 1
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
        return await pattern.handshake_inbound(wire)

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
        self._connections.add(connection)
        try:
            await connection.run(self._handlers, self._serve, task_status=task_status)
        finally:
            self._connections.discard(connection)

    def _serve(self, connection: MuxedConnection, stream: MuxedStream, handler: StreamHandler) -> None:
        """In the network's nursery, so that a handler outlives its connection long enough to end properly."""
        self._nursery.start_soon(self._handle, connection, stream, handler)

    async def _handle(self, connection: MuxedConnection, stream: MuxedStream, handler: StreamHandler) -> None:
        try:
            await handler(connection, stream)
        except NetworkError as error:
            logging.getLogger(__name__).debug("stream from %s: %s", connection.remote_address, error)
        finally:
            await stream.close()


def peer_of(public: bytes) -> ID:
    """The libp2p peer id of an Ed25519 key."""
    return ID(_ED25519_ID_PREFIX + public)


def public_of(peer: ID) -> bytes:
    """The Ed25519 key in a peer id. Errors: `NetworkError` for a peer with another kind of key."""
    raw: bytes = peer.to_bytes()
    if len(raw) != 38 or not raw.startswith(_ED25519_ID_PREFIX):
        raise NetworkError("The peer proves a key that is not Ed25519.")
    return raw[len(_ED25519_ID_PREFIX):]


async def _accept(host: _Host, listeners: Sequence[trio.SocketListener]) -> None:
    await trio.serve_listeners(host.accept, list(listeners))


async def open_listeners(addresses: Sequence[Address]) -> list[trio.SocketListener]:
    """Listen on each address, without SO_REUSEPORT: the kernel then refuses a port that anybody listens on.

    Port 0 means any; a second wildcard address takes the port that the first one got, when it can.
    """
    listeners: list[trio.SocketListener] = []
    problems: list[str] = []
    port_taken = 0
    try:
        for address in addresses:
            try:
                listeners.append(_listen(address, address.port or (port_taken if address.is_wildcard else 0)))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and address.port == 0:
                    listeners.append(_listen(address, 0))
                elif error.errno == errno.EADDRINUSE:
                    raise PortBusy(
                        f"Another program already listens on port {address.port} ({address}).",
                        next_step="Stop it (is another hinet-node running?), or choose another port: "
                                  "hinet-node run --port 0") from error
                elif address.is_wildcard:
                    problems.append(f"{address}: {_plainly(error)}")  # this machine lacks IPv4 or IPv6
                    continue
                else:
                    raise NetworkError(f"Can't listen on {address}: {_plainly(error)}.",
                                       next_step="`ip addr` lists the addresses of this machine.") from error
            port_taken = port_taken or listeners[-1].socket.getsockname()[1]
        if addresses and not listeners:
            raise NetworkError(f"Can't listen on any address: {'; '.join(problems)}.")
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


def _listen(address: Address, port: int) -> trio.SocketListener:
    family = socket.AF_INET6 if address.kind == "ip6" else socket.AF_INET
    if address.kind not in ("ip4", "ip6"):
        raise NetworkError(f"Can't listen on {address}: a listening address is a number, not a name.")
    raw = socket.socket(family, socket.SOCK_STREAM)
    try:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT may be taken again at once
        if family == socket.AF_INET6:
            raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        flags = socket.AI_NUMERICHOST | socket.AI_PASSIVE
        found = socket.getaddrinfo(address.socket_host, port, family, socket.SOCK_STREAM, 0, flags)
        raw.bind(found[0][4])
        raw.listen(128)
        return trio.SocketListener(trio.socket.from_stdlib_socket(raw))
    except BaseException:
        raw.close()
        raise


def _listening_at(listener: trio.SocketListener) -> Address:
    host, port, *more = listener.socket.getsockname()
    if not more:
        return Address("ip4", host, port)
    zone = socket.if_indextoname(more[1]) if more[1] else ""
    return Address("ip6", host.split("%")[0], port, zone)


def _peer_of(stream: trio.SocketStream) -> str:
    try:
        host, port, *more = stream.socket.getpeername()
    except OSError:
        return "a peer that left at once"
    if not more:
        return str(Address("ip4", host, port))
    zone = socket.if_indextoname(more[1]) if more[1] else ""
    return str(Address("ip6", host.split("%")[0], port, zone))


def _plainly(error: OSError) -> str:
    """trio wraps the errors of several tries; the first one says it."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        error = cause
    elif isinstance(cause, BaseExceptionGroup) and isinstance(cause.exceptions[0], OSError):
        error = cause.exceptions[0]
    return (error.strerror or str(error)).lower()
