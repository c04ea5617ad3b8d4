"""The slow verification in the background: every pack in time, evenly, at a bounded rate, resumed after a restart."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio
from tests.node.vault.test_checking import FILES
from tests.node.vault.test_salvage import alone, flip

from hinet_node.real.disk import RealDisk
from hinet_node.vault.packfolder import aside_path, pack_path
from hinet_node.vault.scrub import PAUSE_S_MAX, PAUSE_S_MIN, Scrub, ScrubSettings

DAY_S = 86_400


async def days(node: Any, scrub: Scrub, count: float, up_share: float = 1.0) -> tuple[int, float]:
    """Let so many days pass, of which the device is up for a share of each; wakes per hour of being up, and the longest
    time that any pack has waited for being verified."""
    notes, held = node.vault.core.store.notes, node.vault.core.store.index.packs()
    end, wakes, worst, up_s = node.clock.now + count * DAY_S, 0, 0.0, 0.0
    begun = node.clock.now
    while node.clock.now < end:
        if (node.clock.now - begun) % DAY_S > up_share * DAY_S:
            node.clock.now += DAY_S - (node.clock.now - begun) % DAY_S
        pause = await scrub.step()
        wakes += 1
        node.clock.now += pause
        up_s += pause
        since = notes.longest_unchecked(held, int(node.clock.now))[1]
        worst = max(worst, node.clock.now - since)
    return round(wakes / (up_s / 3_600)), worst / DAY_S


@pytest.mark.parametrize("up_share", [1.0, 0.05])
def test_every_pack_is_verified_in_time_without_waking_the_device_much(world: Any, up_share: float) -> None:
    async def main() -> None:
        node = await alone(world)
        scrub = Scrub(node.vault, node.clock, ScrubSettings(days=10), lambda line: None)
        wakes_per_hour, worst_days = await days(node, scrub, 35, up_share)
        assert worst_days <= 11
        assert wakes_per_hour <= 60
        held = node.vault.core.store.index.packs()
        assert node.vault.core.store.notes.verified(held, int(node.clock.now)).checked == len(held)
    trio.run(main)


def test_packs_are_spread_over_the_time_and_not_read_more_often(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        scrub = Scrub(node.vault, node.clock, ScrubSettings(days=10), lambda line: None)
        read: list[float] = []
        digest = node.vault.core.store.digest
        node.vault.core.store.digest = lambda path: (read.append(node.clock.now), digest(path))[1]
        await days(node, scrub, 40)
        packs = len(node.vault.core.store.index.packs())
        assert 40 / 10 * packs <= len(read) <= 1.5 * 40 / 10 * packs
        assert min(later - first for first, later in pairwise(read)) > DAY_S
    trio.run(main)


def test_after_a_long_sleep_it_catches_up_at_the_rate_that_is_allowed(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        scrub = Scrub(node.vault, node.clock, ScrubSettings(days=10, rate=1_000), lambda line: None)
        await scrub.step()
        node.clock.now += 100 * DAY_S
        held = node.vault.core.store.index.packs()
        pauses = [await scrub.step() for _ in held]
        assert pauses[0] in {size / 1_000 for size in held.values()}
        assert await scrub.step() >= PAUSE_S_MIN
        assert node.vault.core.store.notes.verified(held, int(node.clock.now)).oldest_s == int(node.clock.now)
    trio.run(main)


def test_it_goes_on_after_a_restart_where_it_was(world: Any, tmp_path: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop", RealDisk(tmp_path / "h"), settings=replace(world.small, index_path=None))
        for name, content in FILES.items():
            await node.vault.put(name, content)
        await days(node, Scrub(node.vault, node.clock, ScrubSettings(days=10), lambda line: None), 4)
        notes, held = node.vault.core.store.notes, node.vault.core.store.index.packs()
        before = notes.verified(held, int(node.clock.now))
        assert 0 < before.checked < before.packs
        await node.open()  # as after a kill: nothing was closed
        after = node.vault.core.store.notes.verified(held, int(node.clock.now))
        assert after == before
    trio.run(main)


@pytest.mark.parametrize("keeper", [False, True])
def test_what_it_finds_is_set_aside_told_and_fetched(world: Any, keeper: bool) -> None:
    async def main() -> None:
        node = await alone(world)
        other = await world.node("nas", keeper=keeper)
        async with world.running(node, other):
            await world.until(lambda: world.in_step(node, other))
            pack = next(iter(other.vault.core.store.on_disk()))
            flip(other.disk, pack_path(pack), 300)
            said: list[str] = []
            scrub = Scrub(other.vault, other.clock, ScrubSettings(days=1), said.append)
            await days(other, scrub, 1)
            assert any(pack.hex()[:16] in line for line in said)
            await world.until(lambda: other.vault.core.store.holds(pack))
            assert not other.disk.exists(aside_path(pack))
        assert (await other.vault.verify()).ok
    trio.run(main)


def test_a_clock_that_was_wrong_neither_stops_it_nor_hurries_it(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        scrub = Scrub(node.vault, node.clock, ScrubSettings(days=10), lambda line: None)
        node.clock.now += 3_650 * DAY_S
        await days(node, scrub, 12)
        node.clock.now -= 3_650 * DAY_S
        assert await scrub.step() >= PAUSE_S_MIN
        _, worst_days = await days(node, scrub, 25)
        assert worst_days <= 11
    trio.run(main)


def test_without_packs_it_sleeps_and_switched_off_it_ends(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        assert await Scrub(node.vault, node.clock, ScrubSettings(), lambda line: None).step() == PAUSE_S_MAX
        with trio.fail_after(1):
            await Scrub(node.vault, node.clock, ScrubSettings(days=0), lambda line: None).run()
    trio.run(main)
