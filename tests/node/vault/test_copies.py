"""Old copies of a disk that live again, and clones: what either wrote is kept, and all end up with the same heads."""

from __future__ import annotations

from typing import Any

import pytest
import trio


async def meet(world: Any, *nodes: Any) -> None:
    async with world.running(*nodes):
        await world.until(lambda: world.in_step(*nodes))
    for node in nodes:
        await node.open()


async def with_a_past(world: Any) -> tuple[Any, Any, Any]:
    """A laptop and a cloud that know its numbers up to some ten, and a copy of the laptop's disk from the beginning."""
    laptop, cloud = await world.node("laptop"), await world.node("cloud")
    await laptop.vault.put(b"a", b"1")
    await meet(world, laptop, cloud)
    backup = laptop.disk.copy()
    for number in range(8):
        await laptop.vault.put(b"later", b"%d" % number)
    await meet(world, laptop, cloud)
    restored = await world.node("laptop", backup)
    restored.opened = 100
    await restored.open()
    return laptop, cloud, restored


@pytest.mark.parametrize("adds_nothing", [False, True])
def test_what_a_restored_copy_wrote_before_it_met_anybody_is_kept_on_all(world: Any, adds_nothing: bool) -> None:
    """Its numbers are long used, so its heads are old to everybody; the head that it meets may bring it nothing."""
    async def main() -> None:
        laptop, cloud, restored = await with_a_past(world)
        if adds_nothing:
            # The copy is of the last state but one: what was published since then changed no file.
            restored = await world.node("laptop", laptop.disk.copy())
            restored.opened = 200
            await restored.open()
            for seed in range(3):
                other = await world.node(f"other {seed}")
                await meet(world, laptop, other, cloud)
        await restored.vault.put(b"b", b"only here")
        await meet(world, restored, cloud)
        for node in (restored, cloud):
            assert await node.vault.get(b"b") == b"only here"
            assert await node.vault.get(b"later") == b"7"
    trio.run(main)


def test_a_power_cut_between_meeting_ones_own_newer_head_and_joining_it_loses_nothing(world: Any) -> None:
    async def main() -> None:
        _, cloud, restored = await with_a_past(world)
        await restored.vault.put(b"b", b"only here")
        newer = cloud.vault.core.heads.newest()[restored.member.public]
        async with world.running(restored, cloud):
            # The power goes when the copy has kept the head and not yet published one that joins the two.
            publish = restored.vault.core.publisher.absorb
            restored.vault.core.publisher.absorb = lambda: None
            await world.until(lambda: newer.hash in restored.vault.core.head_hashes())
            restored.vault.core.publisher.absorb = publish
        await restored.open()
        assert await restored.vault.get(b"b") == b"only here"
        await cloud.open()
        async with world.running(restored, cloud):
            await world.until(lambda: b"b" in cloud.vault.core.shown())
        await restored.open()
        assert await restored.vault.get(b"b") == b"only here"
    trio.run(main)


def test_all_end_up_with_the_same_heads_of_a_fork_of_long_ago_and_stop_asking(world: Any) -> None:
    """One saw one side of it, one the other, and one neither: it met the device when it had long gone on."""
    async def main() -> None:
        laptop, clone = await world.node("laptop"), await world.node("laptop")
        clone.opened = 100
        await clone.open()
        cloud, tablet, late = [await world.node(name) for name in ("cloud", "tablet", "late")]
        await laptop.vault.put(b"a", b"the one")
        await meet(world, laptop, cloud)
        await clone.vault.put(b"b", b"the other")
        await meet(world, clone, tablet)
        for number in range(3):
            await laptop.vault.put(b"c", b"%d" % number)
        await meet(world, laptop, cloud)
        await meet(world, laptop, late)
        await meet(world, cloud, tablet)
        await meet(world, tablet, late)
        await meet(world, cloud, late)
        for node in (cloud, tablet, late):
            assert await node.names() == [b"a", b"b", b"c"]
            assert "E_FORK" in {trouble.code for trouble in (await node.vault.status()).trouble}
        assert world.in_step(cloud, tablet, late)
        async with world.running(cloud, tablet, late):
            await trio.sleep(0.3)
            asked = [session for node in (cloud, tablet, late) for session in node.peers.sessions]
            assert {type(one).__name__ for session in asked for one in session.sent} == {"HeadsGet"}
    trio.run(main)


def test_what_is_left_of_a_settled_fork_keeps_nobody_asking(world: Any) -> None:
    """Of two heads of one number one was settled, and the device went on from the other: that one is old, alone, to
    whoever comes later, and told to nobody."""
    async def main() -> None:
        laptop, clone = await world.node("laptop"), await world.node("laptop")
        clone.opened = 100
        await clone.open()
        cloud = await world.node("cloud")
        await laptop.vault.put(b"a", b"the one")
        await meet(world, laptop, cloud)
        await clone.vault.put(b"b", b"the other")
        clone.vault.core.publisher.absorb = lambda: None  # it loses power before it publishes a head that joins the two
        await meet(world, clone, cloud)
        (fork,) = cloud.vault.core.heads.forks()
        await cloud.vault.change(lambda core: core.acceptance.accept(fork[0].hash.hex()))
        await laptop.vault.put(b"c", b"goes on")
        await meet(world, laptop, cloud)
        late = await world.node("late")
        await meet(world, cloud, late)
        assert await late.names() == [b"a", b"b", b"c"]
        assert await late.vault.get(b"b") == b"the other"
        assert world.in_step(cloud, late)
    trio.run(main)
