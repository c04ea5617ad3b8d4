"""Streams between devices on loopback, where the kernel gives no networks of their own.

For each ordered pair a relay listens on a port of its own and stands in for the target; the source's launcher dials it
instead. A relay does to a stream what the pair's links do: delay, rate, the time that lost packets cost; while a
partition or a cut lies between, bytes wait, as TCP's do. Needs no privilege. Multicast can't be cut here: devices hear
of each other across a partition and only fail to connect. Leaves what a link does to `links`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

import trio

from hinet_simnet.processes.links import Links, Path

PIECE_BYTES = 64 * 1024
PIECES_MAX = 32
"""What is on its way over one link in one direction, at most."""
HOST = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


class Relays:
    """All relays of one run. To be used inside the nursery."""

    def __init__(self, links: Links, nursery: trio.Nursery) -> None:
        self._links = links
        self._nursery = nursery
        self._ports: dict[str, int] = {}
        self._routes: dict[str, dict[str, str]] = {}
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}
        self._changed = trio.Event()
        links.changed = self._wake

    async def plug(self, name: str, port: int) -> None:
        """A device that listens on this port."""
        others = dict(self._ports)
        self._ports[name], self._routes[name] = port, {}
        for other, other_port in others.items():
            await self._relay(name, other, other_port)
            await self._relay(other, name, port)

    def routes(self, source: str) -> dict[str, str]:
        """Address of a device -> address of the relay that this source has to dial instead."""
        return self._routes[source]

    def take_counts(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Pieces and bytes that were sent since the last time."""
        counted, self._counted = self._counted, {}
        return counted

    async def _relay(self, source: str, target: str, port: int) -> None:
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        relay_port = listeners[0].socket.getsockname()[1]
        self._routes[source][f"/ip4/{HOST}/tcp/{port}"] = f"/ip4/{HOST}/tcp/{relay_port}"

        async def serve(inbound: trio.SocketStream) -> None:
            async with inbound:
                try:
                    outbound = await trio.open_tcp_stream(HOST, port)
                except OSError:
                    return  # nobody listens there now: the source sees its connection end
                async with outbound, trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry, inbound, outbound, source, target)
                    nursery.start_soon(self._carry, outbound, inbound, target, source)

        self._nursery.start_soon(trio.serve_listeners, serve, listeners)

    async def _carry(self, inbound: trio.SocketStream, outbound: trio.SocketStream, source: str, target: str) -> None:
        """One direction of one stream, until its end has been passed on."""
        path = self._links.path(source, target)
        send, receive = trio.open_memory_channel[tuple[float, bytes]](PIECES_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, receive, outbound, path)
            async with send:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    last_s = 0.0
                    while data := await inbound.receive_some(PIECE_BYTES):
                        pieces, size = self._counted.get((source, target), (0, 0))
                        self._counted[source, target] = pieces + 1, size + len(data)
                        last_s = max(last_s, path.piece_time_s(len(data), trio.current_time()))
                        await send.send((last_s, bytes(data)))

    async def _deliver(self, receive: trio.MemoryReceiveChannel[tuple[float, bytes]], outbound: trio.SocketStream,
                       path: Path) -> None:
        async with receive:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for due_s, data in receive:
                    await trio.sleep_until(due_s)
                    await self._until_open(path)
                    await outbound.send_all(data)
                await self._until_open(path)
                await outbound.send_eof()

    async def _until_open(self, path: Path) -> None:
        while not path.is_open:
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
