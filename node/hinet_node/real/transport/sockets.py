"""The sockets under the transport: plain TCP through trio, behind an interface small enough for an in-memory twin.

`TcpSockets` listens without SO_REUSEPORT and knows which addresses of this machine others can dial. Leaves securing a
connection to `network`, and links in memory to the simulator.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, overload

import trio

from hinet_node.errors import NetworkError, PortBusy
from hinet_node.real.interfaces import dialable
from hinet_node.sessions.addresses import Address, parse_address

ADDRESSES_REFRESH_S = 1.0


class Sockets(Protocol):
    """Raw byte streams between hosts, and listening for them."""

    async def open(self, address: Address) -> trio.abc.Stream:
        """Connect. Errors: `OSError`, or `NetworkError` that says it all."""

    async def listen(self, addresses: Sequence[Address]) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        """Listen on each address. Errors: `PortBusy`, `NetworkError`."""

    def dialable(self, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]]) -> Sequence[str]:
        """The addresses that others can dial to reach these listeners; may change while they are open."""

    def close(self, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]]) -> None:
        """Stop listening, at once."""

    def peer_of(self, stream: trio.abc.Stream) -> str:
        """Where an accepted stream comes from."""


class ListenAddresses(Sequence[str]):
    """The addresses that this host can be dialled at, read anew when interfaces come and go."""

    def __init__(self, listening: Sequence[Address], only: Sequence[str] | None) -> None:
        self._listening = tuple(listening)
        self._only = only
        self._read_at_s = -ADDRESSES_REFRESH_S
        self._addresses: tuple[str, ...] = ()

    def _now(self) -> tuple[str, ...]:
        if trio.current_time() - self._read_at_s >= ADDRESSES_REFRESH_S:
            with suppress(OSError):  # such as no file descriptor left to ask the kernel with: what was known stays
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


class TcpSockets:
    """`Sockets` of this machine: its listeners and streams are trio's socket ones. `interfaces` names the interfaces to
    advertise instead of all real ones."""

    def __init__(self, interfaces: Sequence[str] | None = None) -> None:
        self._interfaces = interfaces

    async def open(self, address: Address) -> trio.abc.Stream:
        return await trio.open_tcp_stream(address.socket_host, address.port)

    async def listen(self, addresses: Sequence[Address]) -> Sequence[Any]:
        return await open_listeners(addresses)

    def dialable(self, listeners: Sequence[Any]) -> Sequence[str]:
        return ListenAddresses([_listening_at(listener) for listener in listeners], self._interfaces)

    def close(self, listeners: Sequence[Any]) -> None:
        for listener in listeners:
            listener.socket.close()

    def peer_of(self, stream: Any) -> str:
        return _peer_of(stream)


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
                    problems.append(f"{address}: {plainly(error)}")  # this machine lacks IPv4 or IPv6
                    continue
                else:
                    raise NetworkError(f"Can't listen on {address}: {plainly(error)}.",
                                       next_step="`ip addr` lists the addresses of this machine.") from error
            port_taken = port_taken or listeners[-1].socket.getsockname()[1]
        if addresses and not listeners:
            raise NetworkError(f"Can't listen on any address: {'; '.join(problems)}.")
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


async def check_listening(addresses: Sequence[str]) -> None:
    """Whether all of them could be listened on now; nothing is left open. Errors: as `open_listeners`."""
    for listener in await open_listeners([parse_address(text) for text in addresses]):
        listener.socket.close()


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
        zone = socket.if_indextoname(more[1]) if more and more[1] else ""
    except OSError:  # the peer left at once, or the interface did
        return "a peer that left at once"
    if not more:
        return str(Address("ip4", host, port))
    return str(Address("ip6", host.split("%")[0], port, zone))


def plainly(error: OSError) -> str:
    """trio wraps the errors of several tries; the first one says it."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        error = cause
    elif isinstance(cause, BaseExceptionGroup) and isinstance(cause.exceptions[0], OSError):
        error = cause.exceptions[0]
    return (error.strerror or str(error)).lower()
