"""Collecting among the unlucky and the faulty: what must never be deleted, and what must not stop the rest."""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.vault import repack
from hinet_node.vault.choosing import Choice
from hinet_node.vault.counting import count
from hinet_node.vault.marking import Marks
from hinet_node.vault.packstore import pack_path
from hinet_node.vault.upkeep import Upkeep
from hinet_protocol.heads import encode_pack_list, make_head
from hinet_protocol.messages import PacksGet, PacksList
from hinet_protocol.packs import DATA, PackBuilder, pack_name
from hinet_protocol.reconcile import needs_of
from hinet_protocol.trees import join

DAY_S = 86_400.0


def in_trio(test: Callable[[Any], Awaitable[None]]) -> Callable[[Any], None]:
    @functools.wraps(test)
    def run(world: Any) -> None:
        trio.run(test, world)
    return run


def noise(seed: int, size: int = 9_000) -> bytes:
    return random.Random(seed).randbytes(size)


def exchange(to: Any, source: Any) -> None:
    """What `to` pulls from `source`: packs that heads need, then the heads."""
    core, other = to.vault.core, source.vault.core
    heads = [head for head in other.offered_heads() if core.heads.judge(head).kind in ("new", "fork")]
    for _ in range(2):
        for name in needs_of([*core.needed_heads(), *heads], core.store.read_list).packs:
            if not core.store.holds(name) and other.store.holds(name):
                raw = other.disk.read(pack_path(name))
                core.disk.write_atomic(pack_path(name), raw)
                core.store.enter(name, len(raw))
    core.accept(heads)


def meet(*nodes: Any) -> None:
    for to in nodes:
        for source in nodes:
            if to is not source:
                exchange(to, source)


def give_up(*nodes: Any) -> None:
    """Each gives up what it does not need, keeping no past."""
    for node in nodes:
        node.clock.now += 60
        collector = node.vault.core.collector
        collector.give_up(collector.plan(collector.retention(0, 0)))


def confirm(*nodes: Any) -> None:
    for node in nodes:
        node.vault.core.collector.confirm()


def ran(node: Any, days: float) -> None:
    node.clock.now += days * DAY_S
    node.vault.core.collector.tick(days * DAY_S)


def sweep(node: Any, **how: Any) -> Any:
    return node.vault.core.collector.sweep(packs_max=1_000, **{"waive_age": True, **how})


def packs(node: Any) -> set[bytes]:
    return set(node.vault.core.store.index.packs())


def pack_with(node: Any, name: bytes) -> bytes:
    """The pack with the first chunk of a file."""
    core = node.vault.core
    found: bytes = core.store.index.pack_of(next(core.view.tree[name][0].chunk_ids()))
    return found


def retains(node: Any, pack: bytes) -> bool:
    core = node.vault.core
    return pack in needs_of([core.heads.own()], core.store.read_list).packs


async def gone_file(world: Any, *names: str) -> tuple[list[Any], bytes]:
    """Devices in step, with one pack that only the past needs."""
    nodes = [await world.node(name) for name in names]
    await nodes[0].vault.put(b"small", noise(1, 3_000))
    pack = pack_with(nodes[0], b"small")
    await nodes[0].vault.put(b"kept", noise(2))
    meet(*nodes)
    await nodes[0].vault.remove([b"small"])
    meet(*nodes)
    meet(*nodes)
    return nodes, pack


# ---- what comes back into use ----------------------------------------------------------------------------------------


@in_trio
async def test_an_edit_that_refers_to_a_pack_that_was_given_up_takes_it_back(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    give_up(one)
    assert not retains(one, pack)
    await one.vault.put(b"again", noise(1, 3_000))
    assert retains(one, pack)
    confirm(one)
    ran(one, 2)
    sweep(one)
    await one.open()
    assert await one.vault.get(b"again") == noise(1, 3_000)


@in_trio
async def test_a_siblings_edit_that_refers_to_a_pack_which_this_device_gave_up_takes_it_back(world: Any) -> None:
    (one, two), pack = await gone_file(world, "one", "two")
    give_up(one)
    await two.vault.put(b"again", noise(1, 3_000))
    assert packs(two) & {pack} == {pack}, "it stored nothing anew"
    exchange(one, two)
    assert retains(one, pack), "its own next head keeps what the sibling's edit needs"
    # The sibling loses everything: the content is here.
    confirm(one)
    ran(one, 200)
    sweep(one)
    assert await one.vault.get(b"again") == noise(1, 3_000)


@in_trio
async def test_an_edit_beside_the_marking_is_looked_at_before_anything_is_given_up(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    one.clock.now += 60
    collector = one.vault.core.collector
    plan = collector.plan(collector.retention(0, 0))
    assert pack in plan.unneeded
    await one.vault.put(b"again", noise(1, 3_000))
    collector.give_up(plan)
    assert retains(one, pack)
    assert not plan.unneeded <= one.vault.core.ledger.unneeded


@in_trio
async def test_edits_that_a_restart_finds_unpublished_take_packs_back_as_well(world: Any) -> None:
    (one, two), pack = await gone_file(world, "one", "two")
    give_up(one)
    await two.vault.put(b"again", noise(1, 3_000))
    # The sibling's head is kept, and the power goes before this device has published that it knows of it.
    core = one.vault.core
    for name in needs_of(two.vault.core.offered_heads(), core.store.read_list).packs - packs(one):
        one.disk.write_atomic(pack_path(name), two.disk.read(pack_path(name)))
    core.heads.keep(two.vault.core.offered_heads())
    await one.open()
    await one.vault.put(b"other", b"x")
    assert retains(one, pack)


# ---- agreement -------------------------------------------------------------------------------------------------------


@in_trio
async def test_one_set_is_not_enough_however_long_it_stands(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    give_up(one)
    ran(one, 400)
    assert sweep(one).packs == 0
    assert set(sweep(one).retained_by) == {one.member.public}
    confirm(one)
    assert sweep(one).packs > 0
    assert pack not in packs(one)


@in_trio
async def test_a_keeper_follows_the_heads_without_a_key_and_waits_for_a_month(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    keeper = await world.node("keeper", keeper=True)
    exchange(keeper, one)
    assert pack in packs(keeper)
    for step in (give_up, confirm):
        step(one)
        exchange(keeper, one)
    sweep(keeper, waive_age=False)
    ran(keeper, 30)
    assert sweep(keeper, waive_age=False).packs == 0
    ran(keeper, 2)
    assert sweep(keeper, waive_age=False).packs > 0
    assert pack not in packs(keeper)
    assert (await keeper.vault.verify()).ok


@in_trio
async def test_who_was_away_hears_it_twice_in_the_end(world: Any) -> None:
    (one, two), pack = await gone_file(world, "one", "two")
    give_up(two)
    confirm(two)
    exchange(one, two)
    give_up(one)
    confirm(one)
    assert sweep(one).packs == 0, "of the other one it knows the newest head, and one from before"
    exchange(two, one)
    ran(two, 0.1)
    assert two.vault.core.collector.restate_due()
    two.vault.core.collector.restate()
    assert not two.vault.core.collector.restate_due()
    exchange(one, two)
    assert sweep(one).packs > 0
    assert pack not in packs(one)


@in_trio
async def test_a_faulty_member_that_retains_nothing_has_nothing_deleted_that_another_needs(world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    await one.vault.put(b"kept", noise(1))
    await one.vault.put(b"more", noise(2))
    meet(one, two)
    core = two.vault.core
    for _ in range(3):
        own = core.heads.own()
        core.heads.keep([make_head(
            two.member.sign, identity=own.identity, device=own.device, seq=core.heads.reserve(), prev=own.hash,
            epoch=own.epoch, tree_chunk=own.tree_chunk, tree_pack=own.tree_pack, packs=[own.tree_pack], lists=[],
            vector=join([own.vector, one.vault.core.heads.own().vector, ((own.device, core.heads.reserved),)]),
            time=own.time)])
        exchange(one, two)
    assert one.vault.core.collector.follow_due()
    give_up(one)
    assert not one.vault.core.collector.follow_due(), "it has judged that once, and does not look again"
    ran(one, 400)
    before = packs(one)
    sweep(one)
    assert pack_with(one, b"kept") in packs(one)
    assert packs(one) >= before - {name for name in before if not retains(one, name)}
    assert await one.vault.get(b"kept") == noise(1)


@in_trio
async def test_a_pack_that_claims_to_hold_a_chunk_and_does_not_makes_nobody_give_up_the_one_that_does(
        world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    await one.vault.put_many({b"kept": noise(1), b".hinet/other": noise(3)})
    await one.vault.put(b".hinet/other", noise(4))
    pack = pack_with(one, b"kept")
    liar = PackBuilder(b"1" * 32, b"k" * 32, noise(9, 32))
    for chunk in one.vault.core.view.tree[b"kept"][0].chunk_ids():
        liar.add(DATA, chunk, noise(7, 4_096))
    raw = liar.finish()[0]
    name = pack_name(raw)
    two.disk.write_atomic(pack_path(name), raw)
    two.vault.core.store.enter(name, len(raw))
    writer = two.vault.core.publisher.writer()
    writer.packs.add(name)
    meet(one, two)
    two.vault.core.publisher.publish(writer, lambda seq: [])
    exchange(one, two)
    assert name in packs(one)
    give_up(one)
    assert retains(one, pack), "a footer is not believed"
    confirm(one)
    ran(one, 400)
    sweep(one)
    assert await one.vault.get(b"kept") == noise(1)


# ---- silent, removed and returning devices ---------------------------------------------------------------------------


@in_trio
async def test_a_device_that_was_silent_for_a_season_stops_nobody_and_loses_nothing(world: Any) -> None:
    (one, two, three), pack = await gone_file(world, "one", "two", "three")
    low, high = sorted((one, two), key=lambda node: node.member.public)
    for number in range(4):
        for node in (one, two):
            ran(node, 31)
        await one.vault.put(b"news", noise(number))
        meet(one, two)
    three_key = three.member.public
    assert three_key not in count(one.vault.core.heads, one.member, one.vault.core.ledger).counted
    give_up(one, two)
    meet(one, two)
    confirm(one, two)
    meet(one, two)
    for node in (low, high):
        assert sweep(node).last_copies >= 1, "nobody is known to hold what the silent one retains"
    # The higher one hears that the lower one has it, and lets it go; the lower one keeps the last copy.
    assert pack in low.vault.core.collector.last_copies()
    high.vault.core.collector.listed = {low.member.public: {pack}}
    low.vault.core.collector.listed = {high.member.public: {pack}}
    sweep(high)
    sweep(low)
    assert pack not in packs(high)
    assert pack in packs(low)
    # It comes back, its disk has lost that pack, and its own last state can be read again.
    three.disk.remove(pack_path(pack))
    await three.open()
    meet(one, two, three)
    assert three.vault.core.store.holds(pack) == (pack in needs_of(
        three.vault.core.needed_heads(), three.vault.core.store.read_list).packs)
    assert await three.vault.get(b"kept") == noise(2)
    assert (await three.vault.verify(deep=True)).ok


@in_trio
async def test_what_a_silent_device_wrote_stays_until_all_who_count_have_taken_it_up(world: Any) -> None:
    one, two, three = [await world.node(name) for name in ("one", "two", "three")]
    await one.vault.put(b"kept", noise(1))
    meet(one, two, three)
    await three.vault.put(b"theirs", noise(5))
    pack = pack_with(three, b"theirs")
    exchange(one, three)  # only one of the two others has met it
    for _ in range(4):
        ran(one, 31)
        core = two.vault.core
        core.publisher.publish(core.publisher.writer(), lambda seq: [])
        exchange(one, two)
    counting = count(one.vault.core.heads, one.member, one.vault.core.ledger)
    assert three.member.public not in counting.counted
    assert [head.device for head in counting.others] == [three.member.public]
    assert pack in needs_of(one.vault.core.needed_heads(), one.vault.core.store.read_list).packs


@in_trio
async def test_a_removed_device_holds_nothing_back_and_deletes_nothing_itself(world: Any) -> None:
    (one, two), pack = await gone_file(world, "one", "two")
    world.family.revoked.add(two.member.public)
    for step in (give_up, confirm):
        step(one)
    assert sweep(one).packs > 0
    assert pack not in packs(one)
    assert sweep(two).blocked


@in_trio
async def test_an_old_copy_of_a_disk_and_a_clone_bring_back_nothing_and_lose_nothing(world: Any) -> None:
    (one, two), pack = await gone_file(world, "one", "two")
    old = two.disk.copy()
    await two.vault.put(b"new", noise(6))
    meet(one, two)
    for step in (give_up, confirm):
        step(one, two)
        meet(one, two)
    for node in (one, two):
        sweep(node)
    assert pack not in packs(one)
    # The old copy is put back: it has the pack, and an old head that retains it.
    two.disk = old
    await two.open()
    assert pack in packs(two)
    meet(one, two)
    meet(one, two)
    for node in (one, two):
        assert await node.vault.get(b"new") == noise(6)
        assert await node.vault.get(b"kept") == noise(2)
        assert (await node.vault.verify(deep=True)).ok
    for _ in range(3):
        give_up(one, two)
        meet(one, two)
        confirm(one, two)
        meet(one, two)
    for node in (one, two):
        sweep(node)
        assert (await node.vault.verify(deep=True)).ok
        assert await node.vault.get(b"new") == noise(6)


@in_trio
async def test_two_devices_that_collect_and_rewrite_at_once_lose_nothing_and_come_to_one_set(world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    for number in range(20):
        await one.vault.put(b"%02d" % (number % 5), noise(number))
    meet(one, two)

    def rewrite(node: Any) -> Callable[[Marks, Choice], repack.Mover]:
        return lambda marks, choice: repack.move(node.vault.core, marks, repack.too_many_small(
            choice, mine_only=False), 1 << 30)
    for node in (one, two):
        node.clock.now += 60
        await node.vault.collect(node.vault.core.collector.retention(0, 0), rewrite=rewrite(node))
    for _ in range(4):
        meet(one, two)
        give_up(one, two)
        confirm(one, two)
    for node in (one, two):
        sweep(node)
    meet(one, two)
    assert packs(one) == packs(two)
    for node in (one, two):
        await node.open()
        assert (await node.vault.verify(deep=True)).ok
        assert [await node.vault.get(b"%02d" % number) for number in range(5)] == [noise(n) for n in range(15, 20)]


# ---- disks, clocks, transfers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["heads", "own heads", "list", "folder"])
def test_what_is_missing_or_empty_deletes_nothing(world: Any, lost: str) -> None:
    async def main() -> None:
        one, two = (await gone_file(world, "one", "two"))[0]
        await one.vault.put(b"mine", noise(8))
        give_up(one)
        confirm(one)
        before = {name: one.disk.read(pack_path(name)) for name in packs(one)}
        core = one.vault.core
        if lost == "list":
            raw = encode_pack_list(sorted(before))
            core.heads.keep([make_head(
                two.member.sign, identity=world.member("two").identity_id, device=two.member.public,
                seq=two.vault.core.heads.reserve(), prev=b"", epoch=b"1" * 32, tree_chunk=core.heads.own().tree_chunk,
                tree_pack=core.heads.own().tree_pack, packs=[], lists=[pack_name(raw)],
                vector=((two.member.public, two.vault.core.heads.reserved),), time=1)])
        else:
            for folder in one.disk.list("vault/heads"):
                if lost == "heads" or (lost == "own heads" and folder == one.member.public.hex()):
                    for entry in one.disk.list(f"vault/heads/{folder}"):
                        one.disk.remove(f"vault/heads/{folder}/{entry}")
            if lost == "folder":
                for name in before:
                    one.disk.remove(pack_path(name))
            await one.open()
        ran(one, 400)
        swept = sweep(one)
        assert swept.packs == 0
        if lost != "folder":
            assert swept.blocked
            assert packs(one) == set(before)
    trio.run(main)


@in_trio
async def test_a_keeper_that_lost_its_heads_deletes_nothing(world: Any) -> None:
    """It makes no heads of its own, so it can't miss them: that nobody is there to need a pack must be enough."""
    one, keeper = await world.node("one"), await world.node("keeper", keeper=True)
    await one.vault.put(b"a", noise(1))
    meet(one, keeper)
    before = packs(keeper)
    for folder in keeper.disk.list("vault/heads"):
        for entry in keeper.disk.list(f"vault/heads/{folder}"):
            keeper.disk.remove(f"vault/heads/{folder}/{entry}")
    await keeper.open()
    ran(keeper, 400)
    assert sweep(keeper).packs == 0
    assert packs(keeper) == before


@in_trio
async def test_nothing_is_given_up_while_what_is_needed_can_not_be_told(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    await one.vault.put(b"newer", noise(4))
    one.disk.remove(pack_path(one.vault.core.heads.own().tree_pack))
    await one.open()
    with pytest.raises(IntegrityError, match="nothing is given up"):
        give_up(one)
    assert retains(one, pack)


@in_trio
async def test_a_full_disk_is_freed_and_a_read_only_one_is_told_of(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    for step in (give_up, confirm):
        step(one)
    sweep(one, waive_age=False)
    ran(one, 2)
    one.disk.full = True
    assert sweep(one, waive_age=False).packs > 0
    assert pack not in packs(one)
    one.disk.full = False
    await one.vault.remove([b"kept"])
    for step in (give_up, confirm):
        step(one)
    one.disk.read_only = True
    with pytest.raises(NoSpace):
        sweep(one)
    one.disk.read_only = False
    await one.open()
    assert (await one.vault.verify(deep=True)).ok


@in_trio
async def test_a_pack_that_a_sibling_is_fetching_or_that_is_awaited_stays_for_now(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    for step in (give_up, confirm):
        step(one)
    one.vault.core.pins.read(pack)
    assert sweep(one).pinned == 1
    assert pack in packs(one)
    one.clock.now += 1_000
    one.vault.core.pins.await_for(b"d" * 32, {pack})
    assert sweep(one).pinned == 1
    one.vault.core.pins.await_for(b"d" * 32, ())
    writer = one.vault.core.publisher.writer()
    writer.packs.add(pack)
    assert sweep(one).pinned == 1
    del writer
    assert sweep(one).packs == 1


@in_trio
async def test_a_clock_that_jumps_brings_no_day_nearer(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    upkeep = Upkeep(one.vault, world.quiet_peers(), one.clock)
    give_up(one)
    for hours in range(3):
        one.clock.now += 10 * 365 * DAY_S * (-1) ** hours
        await upkeep.look()
    assert one.vault.core.ledger.ran_s <= 3 * 2 * one.vault.core.settings.collect_interval_s
    assert pack in packs(one)


@in_trio
async def test_the_agents_upkeep_does_all_of_it_by_itself(world: Any) -> None:
    (one, two), pack = await gone_file(world, "one", "two")
    upkeeps = [Upkeep(node.vault, world.quiet_peers(), node.clock) for node in (one, two)]
    one.clock.now = two.clock.now = one.clock.now + 40 * DAY_S
    for number in range(5):  # the newest three stay, however old
        await one.vault.put(b"small", noise(number))
    one.clock.now = two.clock.now = one.clock.now + 40 * DAY_S
    meet(one, two)
    collector = one.vault.core.collector
    collector.give_up(collector.plan(collector.retention()))
    for _ in range(220):
        for node, upkeep in zip((one, two), upkeeps, strict=True):
            node.clock.now += 1_000
            await upkeep.look()
        meet(one, two)
    for node in (one, two):
        assert pack not in packs(node)
        assert await node.vault.get(b"kept") == noise(2)
        assert node.trouble() <= {"E_FORK"}


@in_trio
async def test_who_holds_a_last_copy_is_asked_for_one_by_one(world: Any) -> None:
    (one,), pack = await gone_file(world, "one")
    asked: list[PacksGet] = []

    class Holder:
        device = SimpleNamespace(public=b"\0" * 32)

        async def request(self, question: PacksGet, *, timeout_s: float) -> PacksList:
            asked.append(question)
            return PacksList(((pack, 65_536),), False)
    peers = world.quiet_peers()
    peers.sessions = [Holder()]
    upkeep = Upkeep(one.vault, peers, one.clock)
    one.vault.core.collector.last_copies = lambda: [pack]
    await upkeep._ask_for_copies()
    assert [(question.limit, int.from_bytes(pack, "big") - int.from_bytes(question.after, "big"))
            for question in asked] == [(1, 1)]
    assert one.vault.core.collector.listed == {b"\0" * 32: {pack}}
