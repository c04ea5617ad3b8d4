"""The in-memory Network and Discovery mean what the real ones mean, plus partitions and power cuts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from nacl.signing import SigningKey

from hinet_node.errors import NetworkError, PortBusy
from hinet_node.ports import Announcement, Connection, Stream, StreamHandler
from hinet_simnet.clock import virtual_run
from hinet_simnet.discovery import Lan
from hinet_simnet.network import Internet, MemoryNetwork
from hinet_simnet.randomness import SeededRandomness

SEEDS = {name: name.encode() * 32 for name in "abc"}
PUBLIC = {name: bytes(SigningKey(seed).verify_key) for name, seed in SEEDS.items()}


async def echo(connection: Connection, stream: Stream) -> None:
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


def with_hosts(test: Callable[[Internet, Mapping[str, MemoryNetwork], Mapping[str, str]], Awaitable[None]],
               handlers: Mapping[str, StreamHandler], seed: int = 1) -> Internet:
    internets: list[Internet] = []

    async def main() -> None:
        internet = Internet(seed)
        internets.append(internet)
        hosts = {name: internet.host(name) for name in "abc"}
        async with AsyncExitStack() as stack:
            places = {}
            for name, host in hosts.items():
                addresses = await stack.enter_async_context(host.serve(SEEDS[name], ["/ip4/0.0.0.0/tcp/0"], handlers))
                places[name] = addresses[0]
            with trio.fail_after(3600):
                await test(internet, hosts, places)

    virtual_run(main, seed=seed)
    return internets[0]


async def receive_exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        assert piece
        data += piece
    return data


def test_bytes_arrive_whole_in_order_and_take_time() -> None:
    async def test(internet: Internet, hosts: Any, places: Any) -> None:
        connection = await hosts["a"].dial(places["b"], PUBLIC["b"], 5)
        stream = await connection.open_stream("/echo/1")
        begun_s = trio.current_time()
        data = bytes(range(256)) * 20_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, data)
            assert await receive_exactly(stream, len(data)) == data
        assert 0.0004 < trio.current_time() - begun_s < 2
        await stream.close()
        with pytest.raises(NetworkError):
            await stream.send_all(b"x")

    with_hosts(test, {"/echo/1": echo})


def test_keys_ports_and_protocols_are_checked_as_by_the_real_one() -> None:
    async def test(internet: Internet, hosts: Any, places: Any) -> None:
        assert (await hosts["a"].dial(places["b"], None, 5)).remote_public == PUBLIC["b"]
        with pytest.raises(NetworkError, match="another device") as caught:
            await hosts["a"].dial(places["b"], PUBLIC["c"], 5)
        assert caught.value.code == "E_WRONG_PEER"
        with pytest.raises(NetworkError, match="refused"):
            await hosts["a"].dial(places["b"].replace("4001", "4999"), None, 5)
        with pytest.raises(NetworkError, match="within 5 s"):
            await hosts["a"].dial("/ip4/10.9.9.9/tcp/4001", None, 5)
        with pytest.raises(NetworkError, match="/nothing/1"):
            await (await hosts["a"].dial(places["b"], None, 5)).open_stream("/nothing/1")
        busy = internet.host("d")
        busy.busy_ports.add(4001)
        with pytest.raises(PortBusy):
            await busy.serve(b"d" * 32, ["/ip4/0.0.0.0/tcp/4001"], {}).__aenter__()

    with_hosts(test, {"/echo/1": echo})


def test_a_partition_holds_bytes_back_and_heals() -> None:
    async def test(internet: Internet, hosts: Any, places: Any) -> None:
        stream = await (await hosts["a"].dial(places["b"], None, 5)).open_stream("/echo/1")
        internet.partition(["a", "c"], ["b"])
        await stream.send_all(b"hello")
        with trio.move_on_after(100) as scope:
            await stream.receive_some(5)
        assert scope.cancelled_caught
        with pytest.raises(NetworkError, match="did not answer"):
            await hosts["a"].dial(places["b"], None, 5)
        await hosts["a"].dial(places["c"], None, 5)
        internet.heal()
        assert await receive_exactly(stream, 5) == b"hello"

    with_hosts(test, {"/echo/1": echo})


def test_a_dead_host_breaks_its_connections_and_is_dialled_in_vain() -> None:
    async def test(internet: Internet, hosts: Any, places: Any) -> None:
        stream = await (await hosts["a"].dial(places["b"], None, 5)).open_stream("/echo/1")
        internet.kill("b")
        with trio.fail_after(1), pytest.raises(NetworkError):
            await stream.receive_some(1)
        with pytest.raises(NetworkError):
            await stream.send_all(b"x")
        with pytest.raises(NetworkError):
            await hosts["a"].dial(places["b"], None, 5)

    with_hosts(test, {"/echo/1": echo})


def test_last_words_arrive_before_the_connection_is_gone() -> None:
    async def speaker(connection: Connection, stream: Stream) -> None:
        await stream.send_all(b"last words")
        await stream.close()
        await connection.close()

    async def test(internet: Internet, hosts: Any, places: Any) -> None:
        for _ in range(30):
            stream = await (await hosts["a"].dial(places["b"], None, 5)).open_stream("/speak/1")
            assert await receive_exactly(stream, 10) == b"last words"

    with_hosts(test, {"/speak/1": speaker})


def test_a_seed_fixes_latencies_and_trace() -> None:
    async def test(internet: Internet, hosts: Any, places: Any) -> None:
        stream = await (await hosts["a"].dial(places["b"], None, 5)).open_stream("/echo/1")
        for _ in range(10):
            await stream.send_all(b"x")
            await receive_exactly(stream, 1)

    digests = [with_hosts(test, {"/echo/1": echo}, seed).trace.digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_announcements_reach_the_lan_change_and_end() -> None:
    async def main() -> None:
        internet = Internet(1)
        lan = Lan(internet)
        first = Announcement("x", "_t._tcp", ("/ip4/10.0.0.1/tcp/1",), {})
        second = Announcement("x", "_t._tcp", ("/ip4/10.0.0.1/tcp/2",), {})
        async with lan.host("a").browse("_t._tcp") as found:
            async with lan.host("b").announce(first):
                assert await anext(aiter(found)) == first
            async with lan.host("b").announce(second), lan.host("b").announce(Announcement("y", "_other._tcp", (), {})):
                assert await anext(aiter(found)) == second
                with trio.move_on_after(100) as scope:
                    await anext(aiter(found))
                assert scope.cancelled_caught
        internet.partition(["a"], ["b"])
        async with lan.host("a").browse("_t._tcp") as found, lan.host("b").announce(first):
            with trio.move_on_after(100) as scope:
                await anext(aiter(found))
            assert scope.cancelled_caught

    virtual_run(main)


def test_seeded_randomness_repeats_and_labels_stand_apart() -> None:
    first, again, other = SeededRandomness(1, "a"), SeededRandomness(1, "a"), SeededRandomness(1, "b")
    assert [first.draw(5), first.draw(40)] == [again.draw(5), again.draw(40)]
    assert first.draw(32) != other.draw(32)
    assert len({first.draw(16) for _ in range(1000)}) == 1000
    values = [first.unit() for _ in range(2000)]
    assert 0 <= min(values) < max(values) < 1
    assert 0.45 < sum(values) / 2000 < 0.55
    assert {first.below(3) for _ in range(100)} == {0, 1, 2}
    assert first.draw(0) == b""
    with pytest.raises(ValueError, match="negative"):
        first.draw(-1)
