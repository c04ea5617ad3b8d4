"""The in-memory sockets mean what TCP means to libp2p: order, ends, refusals, closing under a waiting writer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from nacl.signing import SigningKey

from hinet_node.errors import NetworkError, PortBusy
from hinet_node.ports import Connection, Stream
from hinet_node.real.transport import Libp2pNetwork
from hinet_node.sessions.addresses import parse_address
from hinet_simnet.clock import virtual_run
from hinet_simnet.network import Internet
from hinet_simnet.stack.sockets import BACKLOG, MemorySocket, MemorySockets

SEEDS = {name: name.encode() * 32 for name in "ab"}
PUBLIC = {name: bytes(SigningKey(seed).verify_key) for name, seed in SEEDS.items()}


def with_pair(test: Callable[[Internet, MemorySocket, MemorySocket], Awaitable[None]]) -> None:
    """Two ends of a raw stream from a to b."""
    async def main() -> None:
        internet = Internet(1)
        a, b = MemorySockets(internet.host("a")), MemorySockets(internet.host("b"))
        listeners = await b.listen([parse_address("/ip4/0.0.0.0/tcp/0")])
        near = await a.open(parse_address(b.dialable(listeners)[0]))
        far = await listeners[0].accept()
        assert b.peer_of(far).startswith("/ip4/10.0.0.1/")
        with trio.fail_after(3600):
            await test(internet, near, far)

    virtual_run(main)


def test_what_was_sent_before_the_end_can_still_be_read() -> None:
    async def test(internet: Internet, near: MemorySocket, far: MemorySocket) -> None:
        await near.send_all(b"last words")
        await near.aclose()
        await trio.sleep(1)
        assert await far.receive_some(4) == b"last"
        assert await far.receive_some() == b" words"
        assert await far.receive_some() == b""
        await far.aclose()
        await trio.sleep(1)
        assert not internet.hosts["a"].connections
        assert not internet.hosts["b"].connections
        with pytest.raises(trio.ClosedResourceError):
            await near.send_all(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some()

    with_pair(test)


def test_closing_frees_a_reader_and_a_writer_that_wait() -> None:
    async def test(internet: Internet, near: MemorySocket, far: MemorySocket) -> None:
        freed: list[str] = []

        async def write() -> None:
            for _ in range(2):
                await near.send_all(bytes(1 << 20))
            with pytest.raises(trio.ClosedResourceError):
                await near.send_all(bytes(1 << 20))
            freed.append("writer")

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await near.receive_some()
            freed.append("reader")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(read)
            await trio.sleep(1)
            assert freed == []
            await trio.aclose_forcefully(near)
        assert sorted(freed) == ["reader", "writer"]

    with_pair(test)


def test_a_power_cut_breaks_the_other_end() -> None:
    async def test(internet: Internet, near: MemorySocket, far: MemorySocket) -> None:
        internet.kill("a")
        with pytest.raises(trio.BrokenResourceError):
            await far.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await far.send_all(b"x")

    with_pair(test)


def test_ports_are_refused_when_busy_closed_or_overrun() -> None:
    async def main() -> None:
        internet = Internet(1)
        host = internet.host("b")
        a, b = MemorySockets(internet.host("a")), MemorySockets(host)
        place = parse_address(f"/ip4/{host.ip}/tcp/4001")
        with pytest.raises(NetworkError, match="refused"):
            await a.open(place)
        host.busy_ports = {4001}
        with pytest.raises(PortBusy, match="4001"):
            await b.listen([place])
        host.busy_ports = set()
        listeners = await b.listen([place])
        for _ in range(BACKLOG):
            await a.open(place)
        with pytest.raises(NetworkError, match="refused"):
            await a.open(place)
        b.close(listeners)
        with pytest.raises(NetworkError, match="refused"):
            await a.open(place)
        assert await b.listen([]) == []

    virtual_run(main)


def test_libp2p_proves_keys_and_refuses_strangers_over_them() -> None:
    async def echo(connection: Connection, stream: Stream) -> None:
        assert connection.remote_public == PUBLIC["a"]
        while data := await stream.receive_some(65536):
            await stream.send_all(data)

    async def main() -> None:
        internet = Internet(1)
        a, b = (Libp2pNetwork(sockets=MemorySockets(internet.host(name))) for name in "ab")
        async with (b.serve(SEEDS["b"], ["/ip4/0.0.0.0/tcp/0"], {"/echo/1": echo}) as places,
                    a.serve(SEEDS["a"], [], {}) as nowhere):
            assert list(nowhere) == []
            with pytest.raises(NetworkError, match="another device") as caught:
                await a.dial(places[0], PUBLIC["a"], 5)
            assert caught.value.code == "E_WRONG_PEER"
            with pytest.raises(NetworkError, match="did not answer within 5 s"):
                await a.dial("/ip4/10.9.9.9/tcp/4001", None, 5)
            connection = await a.dial(places[0], PUBLIC["b"], 5)
            with pytest.raises(NetworkError, match="did not open /other/1"):
                await connection.open_stream("/other/1")
            stream = await connection.open_stream("/echo/1")
            data = bytes(range(256)) * 20_000
            got = b""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, data)
                while len(got) < len(data):
                    got += await stream.receive_some(1 << 20)
            assert got == data
            await connection.close()
        assert not any(host.connections for host in internet.hosts.values())

    virtual_run(main)


def test_a_silent_address_answers_nobody_and_a_stranger_that_talks_something_else_is_refused() -> None:
    async def main() -> Any:
        internet = Internet(1)
        sockets = MemorySockets(internet.host("a"))
        b = Libp2pNetwork(sockets=MemorySockets(internet.host("b")))
        async with b.serve(SEEDS["b"], ["/ip4/0.0.0.0/tcp/0"], {}) as places:
            raw = await sockets.open(parse_address(places[0]))
            await raw.send_all(b"GET / HTTP/1.1\r\n\r\n")
            with trio.fail_after(60):
                while await raw.receive_some():
                    pass

    virtual_run(main)
