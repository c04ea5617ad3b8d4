"""Moving chunks: they keep their ids, nothing is lost on the way, and what it costs is bounded."""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from hinet_node.vault import repack
from hinet_node.vault.choosing import Choice
from hinet_node.vault.marking import Marks
from hinet_node.vault.upkeep import Upkeep
from hinet_protocol.packs import read_header

NEW = b"2" * 32


def in_trio(test: Callable[[Any], Awaitable[None]]) -> Callable[[Any], None]:
    @functools.wraps(test)
    def run(world: Any) -> None:
        trio.run(test, world)
    return run


def headers(node: Any) -> dict[bytes, bytes]:
    """Pack -> the epoch in its header, from the disk."""
    found = {}
    for name in node.vault.core.store.on_disk():
        raw = node.vault.core.store.read_at(name, 0, 72)
        if raw.startswith(b"HINETPK"):
            found[name] = read_header(raw).epoch_id
    return found


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def rotate(world: Any) -> None:
    """A device was removed: from now on another epoch is in force."""
    world.family.epochs[NEW] = b"n" * 32
    world.family.current = NEW


async def delete_what_can_go(*nodes: Any) -> None:
    for node in nodes:
        await node.vault.collect()
    for node in nodes:
        for other in nodes:
            node.vault.core.accept(other.vault.core.offered_heads())
    for node in nodes:
        node.vault.core.collector.confirm()
    for node in nodes:
        for other in nodes:
            node.vault.core.accept(other.vault.core.offered_heads())
    for node in nodes:
        node.clock.now += 1_000
        await node.vault.sweep(packs_max=1_000, waive_age=True)


@in_trio
async def test_a_pack_that_is_mostly_dead_is_rewritten_and_goes(world: Any) -> None:
    one = await world.node("one")
    await one.vault.put_many({b"%02d" % at: noise(at, 4_000) for at in range(12)})
    await one.vault.put(b".hinet/kept", noise(99, 4_000))
    (pack,) = {one.vault.core.store.index.pack_of(chunk) for chunk in one.vault.core.version(b"03")[0].chunk_ids()}
    chunk_ids = one.vault.core.version(b"03")[0].chunks
    await one.vault.remove([b"%02d" % at for at in range(12) if at != 3])
    one.clock.now += 60
    core = one.vault.core

    def rewrite(marks: Marks, choice: Choice) -> repack.Mover:
        picked = repack.mostly_dead(choice)
        assert pack in [use.name for use in picked]
        return repack.move(core, marks, picked, 1 << 30)
    await one.vault.collect(core.collector.retention(0, 0), rewrite=rewrite)
    assert core.version(b"03")[0].chunks == chunk_ids, "no version changed"
    await delete_what_can_go(one)
    assert pack not in core.store.index.packs()
    await one.open()
    assert await one.vault.get(b"03") == noise(3, 4_000)
    assert (await one.vault.verify(deep=True)).ok


@in_trio
async def test_many_small_packs_are_merged_by_the_agent_and_that_costs_a_bounded_number_of_bytes(world: Any) -> None:
    one = await world.node("one")
    upkeep = Upkeep(one.vault, world.quiet_peers(), one.clock)
    written = 0
    committed = one.disk.commit

    def commit(part: str, name: str) -> None:
        nonlocal written
        written += one.disk.size(part)
        committed(part, name)
    one.disk.commit = commit
    edits = 0
    for number in range(120):
        before = written
        await one.vault.put(b"note", noise(number, 2_000))
        edits += written - before
        one.clock.now += 3_600
        await upkeep.look()
    assert one.vault.core.collector.small_packs() <= repack.SMALL_MAX + 1
    assert written <= 3 * edits, "each byte is written twice more at most"
    for _ in range(4 * 24):
        one.clock.now += 3_600
        await upkeep.look()
    assert len(one.vault.core.store.index.packs()) <= repack.SMALL_MAX + 2, "and what was merged goes"
    await one.open()
    versions = [change.version for change in one.vault.core.history.of_file(b"note")]
    assert [b"".join(one.vault.core.content(version)) for version in versions] == [
        noise(number, 2_000) for number in reversed(range(120))], "every version of the last days is there"


@in_trio
async def test_more_packs_than_a_head_can_name_are_given_up_as_well(world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    for number in range(150):
        await one.vault.put(b".hinet/%03d" % number, noise(number, 4_000))
    async with world.running(one, two):
        await world.until(lambda: world.in_step(one, two))
    core = one.vault.core
    assert core.heads.own().lists
    await one.vault.remove([b".hinet/%03d" % number for number in range(150) if number % 3])
    old_lists = set(core.heads.own().lists)
    async with world.running(one, two):
        for work in (lambda node: node.vault.collect(), *[lambda node: node.vault.change(
                lambda core: core.publisher.publish(core.publisher.writer(), lambda seq: []))] * 2):
            for node in (one, two):
                await work(node)
                await world.until(lambda: world.in_step(one, two))
    for node in (one, two):
        node.clock.now += 1_000
        await node.vault.sweep(packs_max=1_000, waive_age=True)
        held = node.vault.core.store.index.packs()
        assert len(held) < 150
        assert not old_lists & held.keys(), "a list is collected like a pack"
        await node.open()
        assert (await node.vault.verify(deep=True)).ok
        assert await node.vault.get(b".hinet/147") == noise(147, 4_000)


@in_trio
async def test_resealing_goes_on_by_itself_after_a_restart_and_ends_when_it_is_withdrawn(world: Any) -> None:
    one = await world.node("one")
    for at in range(3):
        await one.vault.put(b"%02d" % at, noise(at, 9_000))
    rotate(world)
    one.vault.core.reseal.start()
    one.disk.crash()
    await one.open()
    assert one.vault.core.reseal.status().left_packs > 0
    await Upkeep(one.vault, world.quiet_peers(), one.clock).look()
    assert one.vault.core.reseal.status().done
    assert one.vault.core.reseal.stop().asked is False
    world.family.epochs[b"3" * 32] = b"m" * 32
    world.family.current = b"3" * 32
    await Upkeep(one.vault, world.quiet_peers(), one.clock).look()
    assert not one.vault.core.reseal.status().done, "nobody asked for it since"
    for damaged in (b"", b"x" * 64, b"\xff" * 64 + b"\n"):
        one.disk.write_atomic("vault/reseal", damaged)
        assert not one.vault.core.reseal.due()


@in_trio
async def test_two_that_reseal_at_once_share_the_work(world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    for at in range(24):
        await one.vault.put(b"%02d" % at, noise(at, 40_000))
    async with world.running(one, two):
        await world.until(lambda: world.in_step(one, two))
        rotate(world)
        moved = [0, 0]
        for node in (one, two):
            node.vault.core.reseal.start()
        while one.vault.core.reseal.due() or two.vault.core.reseal.due():
            for at, node in enumerate((one, two)):
                def count(size: int, at: int = at) -> None:
                    moved[at] += size
                await few_at_once(node, count)
            await world.until(lambda: world.in_step(one, two))
    assert min(moved) > 0.2 * sum(moved), "both took part"
    assert sum(moved) < 1.5 * 24 * 40_000, "and little was moved twice"


async def few_at_once(node: Any, count: Any) -> None:
    """A step of resealing that moves a few packs."""
    core = node.vault.core

    def work(marks: Marks, choice: Choice) -> repack.Mover:
        picked = repack.of_epochs(choice, core.reseal.asked(), core.household.device_public)
        return repack.move(core, marks, picked, 150_000, count)
    await node.vault.collect(rewrite=work)


@in_trio
async def test_resealing_moves_everything_under_the_new_key_and_the_old_packs_go(world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    await one.vault.put_many({b"%02d" % at: noise(at, 9_000) for at in range(30)})
    await one.vault.put(b"03", noise(103, 9_000))
    async with world.running(one, two):
        await world.until(lambda: world.in_step(one, two))
        rotate(world)
        core = one.vault.core
        assert core.reseal.start().left_packs > 0
        while core.reseal.due():
            await one.vault.reseal_step()
        await world.until(lambda: world.in_step(one, two) and two.vault.core.heads.newest()[one.member.public].seq
                          == core.heads.own().seq)
    status = one.vault.core.reseal.status()
    assert (status.asked, status.done, status.left_packs) == (True, True, 0)
    assert status.waiting_packs > 0
    await delete_what_can_go(one, two)
    await delete_what_can_go(one, two)
    assert set(headers(one).values()) == set(headers(two).values()) == {NEW}
    for node in (one, two):
        await node.open()
        assert await node.vault.get(b"03") == noise(103, 9_000)
        assert await node.vault.get(b"29") == noise(29, 9_000)
        assert (await node.vault.verify(deep=True)).ok
        past = [change.version for change in node.vault.core.history.of_file(b"03")]
        assert b"".join(node.vault.core.content(past[1])) == noise(3, 9_000), "the past was moved as well"


@in_trio
async def test_what_a_device_wrote_under_the_old_key_is_resealed_when_it_comes(world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    await one.vault.put(b"note", noise(1, 9_000))
    async with world.running(one, two):
        await world.until(lambda: world.in_step(one, two))
    rotate(world)
    before = set(headers(one))
    one.vault.core.reseal.start()
    await one.vault.put(b"after", noise(2, 9_000))
    assert {epoch for name, epoch in headers(one).items() if name not in before} == {NEW}
    while one.vault.core.reseal.due():
        await one.vault.reseal_step()
    # The other one was away: it does not know of the new epoch and goes on under the old one.
    two.member.lacks_epochs.add(NEW)
    world.family.current, current = b"1" * 32, world.family.current
    await two.vault.put(b"late", noise(3, 9_000))
    world.family.current = current
    two.member.lacks_epochs.clear()
    assert not one.vault.core.reseal.due()
    async with world.running(one, two):
        await world.until(lambda: one.vault.core.view.lookup(b"late") is not None)
        assert one.vault.core.reseal.due()
        while one.vault.core.reseal.due():
            await one.vault.reseal_step()
        await world.until(lambda: world.in_step(one, two))
    await delete_what_can_go(one, two)
    await delete_what_can_go(one, two)
    assert set(headers(one).values()) == {NEW}
    assert await one.vault.get(b"late") == noise(3, 9_000)
