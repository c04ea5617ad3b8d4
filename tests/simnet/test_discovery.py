"""The in-memory LAN: announcements are datagrams, repeated as zeroconf repeats them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from hinet_node.ports import Announcement
from hinet_simnet.clock import virtual_run
from hinet_simnet.discovery import REFRESH_S, Lan
from hinet_simnet.network import Internet
from hinet_simnet.scenario.model import Delay, LinkSpec

SERVICE = "_t._tcp"
HERE = Announcement("x", SERVICE, ("/ip4/10.0.0.1/tcp/1",), {})


def on_lan(test: Callable[[Internet, Lan], Awaitable[None]], seed: int = 1) -> None:
    async def main() -> None:
        internet = Internet(seed)
        for name in "abc":
            internet.host(name)
        with trio.fail_after(36_000):
            await test(internet, Lan(internet))

    virtual_run(main, seed=seed)


async def heard_after_s(lan: Lan, host: str, seconds: float) -> float | None:
    """When a host that begins to browse now hears something; None when it does not in that time."""
    begun_s = trio.current_time()
    with trio.move_on_after(seconds):
        async with lan.host(host).browse(SERVICE) as found:
            await anext(aiter(found))
            return trio.current_time() - begun_s
    return None


def test_who_browses_later_asks_and_is_answered() -> None:
    async def test(internet: Internet, lan: Lan) -> None:
        async with lan.host("a").announce(HERE):
            await trio.sleep(1000)
            waited_s = await heard_after_s(lan, "b", 10)
            assert waited_s is not None
            assert waited_s < 1
            assert await heard_after_s(lan, "a", 1) is not None, "one's own announcement is heard too"
        assert await heard_after_s(lan, "b", 100) is None, "nothing is answered after the goodbye"

    on_lan(test)


def test_loss_delays_a_host_and_never_silences_it() -> None:
    async def test(internet: Internet, lan: Lan) -> None:
        internet.set_link(LinkSpec(loss=0.8))
        async with lan.host("a").announce(HERE):
            waits = [await heard_after_s(lan, "b", 100 * REFRESH_S) for _ in range(30)]
        assert None not in waits
        assert max(wait for wait in waits if wait is not None) > 3, "some are only heard at a repeat"
        internet.set_link(LinkSpec(loss=1.0))
        async with lan.host("a").announce(HERE):
            assert await heard_after_s(lan, "b", 20 * REFRESH_S) is None

    on_lan(test)


def test_the_same_again_is_no_news_and_what_comes_back_is() -> None:
    async def test(internet: Internet, lan: Lan) -> None:
        internet.set_link(LinkSpec(duplicate=1.0, delay=Delay("constant", 0.001)))
        heard: list[Announcement] = []

        async def listen() -> None:
            async with lan.host("b").browse(SERVICE) as found:
                async for announcement in found:
                    heard.append(announcement)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            async with lan.host("a").announce(HERE):
                await trio.sleep(10 * REFRESH_S)
                assert heard == [HERE]
            await trio.sleep(5)
            async with lan.host("a").announce(HERE):
                await trio.sleep(5)
            assert heard == [HERE, HERE]
            changed = replace(HERE, addresses=("/ip4/10.0.0.1/tcp/2",))
            async with lan.host("a").announce(changed):
                await trio.sleep(5)
            assert heard == [HERE, HERE, changed]
            nursery.cancel_scope.cancel()

    on_lan(test)


def test_a_dead_and_a_frozen_host_say_nothing_and_a_frozen_one_hears_later() -> None:
    async def test(internet: Internet, lan: Lan) -> None:
        async with lan.host("a").announce(HERE), lan.host("b").browse(SERVICE) as found:
            internet.freeze("b")
            with trio.move_on_after(50) as scope:
                await anext(aiter(found))
            assert scope.cancelled_caught
            internet.thaw("b")
            with trio.fail_after(1):
                assert await anext(aiter(found)) == HERE
            internet.freeze("a")
            assert await heard_after_s(lan, "c", 500) is None
            internet.thaw("a")
            assert await heard_after_s(lan, "c", 10) is not None
            lan.kill("a")
            assert await heard_after_s(lan, "c", 500) is None

    on_lan(test)


def test_lans_hear_nothing_of_each_other() -> None:
    async def test(internet: Internet, lan: Lan) -> None:
        async with lan.host("a").announce(HERE):
            assert await heard_after_s(Lan(internet), "b", 500) is None

    on_lan(test)
