"""Streams over troubled links are TCP's: time is lost, bytes are not. Cuts, frozen hosts, many hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Connection, Stream
from hinet_simnet.clock import virtual_run
from hinet_simnet.network import Internet
from hinet_simnet.scenario.model import Delay, LinkSpec
from hinet_simnet.trace import Trace

DATA = bytes(range(256)) * 4_000


class Net:
    """Three hosts that serve; what b and c receive is kept, with the time of each byte's arrival."""

    def __init__(self, seed: int) -> None:
        self.internet = Internet(seed)
        self.places: dict[str, str] = {}
        self.received = bytearray()
        self.arrivals_s: list[float] = []

    async def take(self, connection: Connection, stream: Stream) -> None:
        while data := await stream.receive_some(1 << 20):
            self.received += data
            self.arrivals_s.append(trio.current_time())

    async def echo(self, connection: Connection, stream: Stream) -> None:
        while data := await stream.receive_some(1 << 20):
            await stream.send_all(data)

    async def open(self, protocol: str = "/take/1") -> Stream:
        return await (await self.internet.hosts["a"].dial(self.places["b"], None, 60)).open_stream(protocol)

    async def sent_s(self, data: bytes = DATA) -> float:
        """Seconds until all of it has arrived."""
        begun_s, size = trio.current_time(), len(self.received) + len(data)
        stream = await self.open()
        await stream.send_all(data)
        while len(self.received) < size:
            await trio.sleep(0.01)
        return trio.current_time() - begun_s


def on_net(test: Callable[[Net], Awaitable[None]], seed: int = 1) -> Net:
    nets: list[Net] = []

    async def main() -> None:
        net = Net(seed)
        nets.append(net)
        async with AsyncExitStack() as stack:
            for name in "abc":
                addresses = await stack.enter_async_context(net.internet.host(name).serve(
                    name.encode() * 32, ["/ip4/0.0.0.0/tcp/0"], {"/take/1": net.take, "/echo/1": net.echo}))
                net.places[name] = addresses[0]
            with trio.fail_after(36_000):
                await test(net)

    virtual_run(main, seed=seed)
    return nets[0]


def test_loss_reordering_and_duplicates_change_the_time_and_not_the_bytes() -> None:
    async def test(net: Net) -> None:
        clean_s = await net.sent_s()
        assert bytes(net.received) == DATA
        net.internet.set_link(LinkSpec(delay=Delay("exponential", 0.01, 0.02), loss=0.1, duplicate=0.2, reorder=0.3))
        assert await net.sent_s() > 3 * clean_s
        assert bytes(net.received) == DATA * 2

    on_net(test)


def test_a_stream_takes_as_long_as_its_links_rate_says_and_two_share_it() -> None:
    async def test(net: Net) -> None:
        net.internet.set_link(LinkSpec(source="a", target="b", delay=Delay("constant", 0.001), rate_bytes_s=100_000))
        assert await net.sent_s() == pytest.approx(len(DATA) / 100_000, rel=0.05)
        begun_s, first = trio.current_time(), await net.open()
        await first.send_all(DATA)
        await net.sent_s(DATA)
        while len(net.received) < 3 * len(DATA):
            await trio.sleep(0.01)
        assert trio.current_time() - begun_s == pytest.approx(2 * len(DATA) / 100_000, rel=0.05)
        steps = [later - sooner for sooner, later in zip(net.arrivals_s, net.arrivals_s[1:], strict=False)]
        assert max(steps) < 5, "a big piece trickles in: it does not come at once at its end"

    on_net(test)


def test_a_named_link_counts_more_than_the_default_and_only_in_its_direction() -> None:
    async def test(net: Net) -> None:
        net.internet.set_link(LinkSpec(delay=Delay("constant", 0.001)))
        net.internet.set_link(LinkSpec(source="b", target="a", delay=Delay("constant", 5.0)))
        assert [net.internet.link(*pair).delay_s() for pair in ("ab", "ba", "ac")] == [0.001, 5.0, 0.001]
        net.internet.set_link(LinkSpec(delay=Delay("constant", 0.002)))
        assert [net.internet.link(*pair).delay_s() for pair in ("ab", "ba")] == [0.002, 5.0]

    on_net(test)


def test_a_one_way_cut_stops_one_direction_and_after_a_window_the_other() -> None:
    async def cut_at_once(net: Net) -> None:
        stream = await net.open()
        net.internet.cut("b", "a")
        await stream.send_all(DATA)
        await trio.sleep(60)
        assert 0 < len(net.received) <= 1 << 16, "without acknowledgements TCP sends one window"
        with pytest.raises(NetworkError, match="did not answer"):
            await net.internet.hosts["a"].dial(net.places["b"], None, 5)
        with pytest.raises(NetworkError, match="did not answer"):
            await net.internet.hosts["b"].dial(net.places["a"], None, 5)
        net.internet.heal()
        await trio.sleep(1)
        assert bytes(net.received) == DATA

    async def echo(net: Net) -> None:
        stream = await net.open("/echo/1")
        net.internet.cut("b", "a")
        await stream.send_all(b"hello")
        with trio.move_on_after(60) as scope:
            await stream.receive_some(5)
        assert scope.cancelled_caught
        net.internet.heal()
        assert await stream.receive_some(5) == b"hello"

    on_net(cut_at_once)
    on_net(echo)


def test_a_host_can_be_cut_off_from_all_in_one_direction() -> None:
    async def test(net: Net) -> None:
        net.internet.cut("a", "*")
        assert [net.internet.reaches(*pair) for pair in ("ab", "ac", "ba", "bc", "aa")] == [
            False, False, True, True, True]
        net.internet.heal()
        net.internet.cut("*", "b")
        assert [net.internet.reaches(*pair) for pair in ("ab", "cb", "ba", "ac")] == [False, False, True, True]

    on_net(test)


def test_nothing_is_read_from_a_frozen_host_and_its_connections_stay() -> None:
    async def test(net: Net) -> None:
        stream = await net.open("/echo/1")
        net.internet.freeze("b")
        await stream.send_all(b"hello")
        with trio.move_on_after(600) as scope:
            await stream.receive_some(5)
        assert scope.cancelled_caught
        with pytest.raises(NetworkError, match="did not answer"):
            await net.internet.hosts["c"].dial(net.places["b"], None, 5)
        net.internet.thaw("b")
        with trio.fail_after(1):
            assert await stream.receive_some(5) == b"hello"
        net.internet.freeze("a")
        await trio.sleep(1)
        with trio.move_on_after(60) as scope:
            await stream.send_all(b"x")
        assert scope.cancelled_caught, "a frozen host sends nothing either"
        net.internet.kill("b")
        net.internet.thaw("a")
        with trio.fail_after(5), pytest.raises(NetworkError):
            await stream.receive_some(1)

    on_net(test)


def test_a_dead_host_behind_a_partition_is_missed_when_it_heals() -> None:
    async def test(net: Net) -> None:
        stream = await net.open("/echo/1")
        net.internet.partition(["a"], ["b"])
        net.internet.kill("b")
        with trio.move_on_after(60) as scope:
            await stream.receive_some(1)
        assert scope.cancelled_caught, "no news crosses a partition"
        net.internet.heal()
        with trio.fail_after(5), pytest.raises(NetworkError):
            await stream.receive_some(1)

    on_net(test)


def test_one_seed_gives_the_same_arrivals_and_taps_see_every_byte() -> None:
    seen: list[bytes] = []

    async def test(net: Net) -> None:
        seen.clear()
        net.internet.taps.append(lambda source, target, protocol, data: seen.append(data))
        net.internet.set_link(LinkSpec(delay=Delay("lognormal", 0.01, 1.0), loss=0.05, reorder=0.1))
        await net.sent_s()

    runs = [on_net(test, seed) for seed in (5, 5, 6)]
    assert runs[0].arrivals_s == runs[1].arrivals_s != runs[2].arrivals_s
    assert b"".join(seen) == DATA


def test_there_are_addresses_for_a_hundred_thousand_hosts() -> None:
    internet = Internet(1, Trace(clock=lambda: 0.0))
    ips = [internet.host(f"h{number}").ip for number in range(100_000)]
    assert len(set(ips)) == len(ips)
    assert all(internet.find(ip) is internet.hosts[f"h{number}"] for number, ip in enumerate(ips))
    assert internet.host("h7").ip == ips[7], "a host keeps its address"


def test_closing_a_stream_ends_a_send_of_ours_that_waits_for_room() -> None:
    async def test(net: Net) -> None:
        net.internet.freeze("b")  # nobody reads there
        stream = await (await net.internet.hosts["c"].dial(net.places["a"], None, 60)).open_stream("/take/1")
        net.internet.freeze("a")

        async def send() -> None:
            while True:
                await stream.send_all(DATA)

        with trio.fail_after(60), pytest.RaisesGroup(NetworkError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await trio.sleep(5)
                await stream.close()

    on_net(test)
