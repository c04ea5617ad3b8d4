"""Honest restores: forks, lost packs, old copies. Nobody is locked out, and alarms end when the owner says so."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hinet_node.errors import UsageError
from hinet_node.vault.packstore import pack_path
from hinet_simnet.randomness import SeededRandomness


def noise(size: int, seed: str = "noise") -> bytes:
    return SeededRandomness(seed).draw(size)


async def told(node: Any) -> set[str]:
    return {trouble.code for trouble in (await node.vault.status()).trouble}


async def meet(world: Any, *nodes: Any) -> None:
    """Bring these into step, then end all sessions."""
    async with world.running(*nodes):
        await world.until(lambda: world.in_step(*nodes))
    for node in nodes:
        await node.open()


async def clone(world: Any, node: Any) -> Any:
    twin = await world.node(node.member.name, node.disk.copy())
    twin.opened = 100
    return await twin.open()


async def forked(world: Any) -> list[Any]:
    """A laptop, its clone, and a cloud device that has met both after they wrote under the same numbers."""
    laptop, cloud = await world.node("laptop"), await world.node("cloud")
    await laptop.vault.put(b"a", b"common")
    twin = await clone(world, laptop)
    await laptop.vault.put(b"b", b"the one")
    await twin.vault.put(b"c", b"the other")
    for one in (laptop, twin):
        await meet(world, one, cloud)
    return [laptop, twin, cloud]


async def accept(node: Any, beginning: str, **more: Any) -> Any:
    return await node.vault.change(lambda core: core.acceptance.accept(beginning, **more))


async def heads(node: Any) -> list[Any]:
    found: list[Any] = await node.vault.look(lambda core: core.acceptance.overview())
    return found


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_a_fork_that_the_owner_knows_of_is_no_alarm_any_more_on_any_device(world: Any) -> None:
    async def main() -> None:
        laptop, twin, cloud = await forked(world)
        assert "E_FORK" in await told(cloud)
        fork = [state for state in await heads(cloud) if state.state == "fork"]
        assert len(fork) == 2
        said = await accept(cloud, fork[0].head.hash.hex()[:8], dry=True)
        assert (said.what, "E_FORK" in await told(cloud)) == ("fork", True)
        await accept(cloud, fork[0].head.hash.hex()[:8])
        pocket = await world.node("pocket")
        for one in (laptop, twin, pocket, laptop):
            await meet(world, one, cloud)
        for node in (laptop, twin, cloud, pocket):
            assert "E_FORK" not in await told(node)
            assert await node.names() == [b"a", b"b", b"c"]
            assert (await node.vault.status()).missing_packs == 0
    trio.run(main)


def test_what_was_accepted_stays_accepted_and_a_new_fork_is_told_again(world: Any) -> None:
    async def main() -> None:
        laptop, twin, cloud = await forked(world)
        await accept(cloud, next(state for state in await heads(cloud) if state.state == "fork").head.hash.hex())
        for number in range(5):
            await cloud.vault.put(b"more", b"%d" % number)
            await cloud.open()
            assert "E_FORK" not in await told(cloud)
        for one in (laptop, twin, laptop):
            await meet(world, one, cloud)
        numbers = {(await node.vault.status()).head_seq for node in (laptop, twin)}
        assert len(numbers) == 1
        await laptop.vault.put(b"d", b"again")
        await twin.vault.put(b"e", b"again")
        for one in (laptop, twin):
            await meet(world, one, cloud)
        assert "E_FORK" in await told(cloud)
        assert {b"d", b"e"} < set(await cloud.names())
    trio.run(main)


def test_a_prefix_that_fits_several_heads_is_refused(world: Any) -> None:
    async def main() -> None:
        cloud = await world.node("cloud")
        for number in range(17):  # of 17 hashes two begin with the same digit
            other = await world.node(f"device {number}")
            await other.vault.put(b"n", b"%d" % number)
            await meet_once(world, other, cloud)
        digits = [state.head.hash.hex()[0] for state in await heads(cloud)]
        with pytest.raises(UsageError) as refused:
            await accept(cloud, max(digits, key=digits.count))
        assert refused.value.code == "E_HEAD_AMBIGUOUS"
    trio.run(main)


def test_a_prefix_that_fits_no_head_or_a_whole_one_is_refused(world: Any) -> None:
    async def main() -> None:
        _, _, cloud = await forked(world)
        states = await heads(cloud)
        whole = next(state for state in states if state.state == "whole")
        cases = [("", "E_NO_SUCH_HEAD"), ("xyz", "E_NO_SUCH_HEAD"), ("00" * 32, "E_NO_SUCH_HEAD"),
                 (whole.head.hash.hex(), "E_NOTHING_TO_ACCEPT")]
        for beginning, code in cases:
            with pytest.raises(UsageError) as refused:
                await accept(cloud, beginning)
            assert refused.value.code == code
        assert "E_FORK" in await told(cloud)
    trio.run(main)


def test_a_device_keeps_a_bounded_number_of_contradicting_heads(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hinet_node.vault import headstore
    monkeypatch.setattr(headstore, "_CONTRADICTING_MAX", 3)

    async def main() -> None:
        laptop, cloud = await world.node("laptop"), await world.node("cloud")
        await laptop.vault.put(b"a", b"common")
        twins = [await clone(world, laptop) for _ in range(8)]
        for number, twin in enumerate(twins):
            twin.opened = 100 + number
            await twin.open()
            await twin.vault.put(b"%d" % number, b"x")
            await meet_once(world, twin, cloud)
        assert len([state for state in await heads(cloud) if state.state == "fork"]) == 4
        await cloud.open()
        assert len(await cloud.names()) == 5
    trio.run(main)


async def meet_once(world: Any, left: Any, right: Any) -> None:
    """The right one sees what the left one has, and the left one learns nothing."""
    await right.vault.core.disk.run_blocking(lambda: None)
    for name in left.vault.core.store.on_disk():
        right.vault.core.store.add_whole(name, left.disk.read(pack_path(name)))
    await right.vault.accept(left.vault.core.offered_heads())


def test_a_device_that_can_not_write_now_still_tells_its_newest_head_when_another_settled_it(world: Any) -> None:
    """It is the only one that has it."""
    async def main() -> None:
        laptop, cloud = await world.node("laptop"), await world.node("cloud")
        await laptop.vault.put(b"a", b"1")
        await cloud.vault.put(b"b", b"2")
        only = laptop.vault.core.heads.own().hash
        await cloud.vault.change(lambda core: core.publish_settling([only]))
        world.family.epochs[b"2" * 32], world.family.current = b"K" * 32, b"2" * 32
        laptop.member.lacks_epochs = {b"2" * 32}
        await meet_once(world, cloud, laptop)
        assert only in laptop.vault.core.heads.settled
        assert laptop.vault.core.heads.own().hash == only
        async with world.running(laptop, cloud):
            await world.until(lambda: set(cloud.vault.core.shown()) == {b"a", b"b"})
    trio.run(main)


# ---- packs that nobody holds -----------------------------------------------------------------------------------------


async def with_lost_pack(world: Any) -> list[Any]:
    """A laptop and a cloud device whose only copies of the file `lost` are gone."""
    laptop, cloud = await world.node("laptop"), await world.node("cloud")
    await laptop.vault.put(b"kept", noise(20_000))
    before = set(laptop.vault.core.store.on_disk())
    await laptop.vault.put(b"lost", noise(200_000, "lost"))
    await meet(world, laptop, cloud)
    gone = set(laptop.vault.core.store.on_disk()) - before
    tree_packs = {head.tree_pack for node in (laptop, cloud) for head in node.vault.core.heads.current()}
    for name in gone - tree_packs:
        for node in (laptop, cloud):
            node.disk.remove(pack_path(name))
    for node in (laptop, cloud):
        await node.open()
        assert (await node.vault.status()).missing_packs == len(gone - tree_packs) > 0
    return [laptop, cloud]


def test_a_lost_pack_keeps_nobody_from_working(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await with_lost_pack(world)
        await laptop.vault.put(b"new", b"from the laptop")
        await cloud.vault.put(b"newer", b"from the cloud")
        async with world.running(laptop, cloud):
            await world.until(lambda: all(len(node.vault.core.shown()) == 4 for node in (laptop, cloud)))
        for node in (laptop, cloud):
            await node.open()
            assert await node.vault.get(b"kept") == noise(20_000)
            assert await node.vault.get(b"new") == b"from the laptop"
            assert (await node.vault.status()).missing_packs > 0, "it goes on saying what is missing"
    trio.run(main)


def test_what_is_given_up_is_missed_no_more_and_a_new_device_gets_all_the_rest(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await with_lost_pack(world)
        state = next(state for state in await heads(cloud) if state.state == "lost")
        said = await accept(cloud, state.head.hash.hex()[:10], dry=True)
        assert (said.what, said.files, said.files_total) == ("lost", (b"lost",), 1)
        await accept(cloud, state.head.hash.hex()[:10])
        assert (await cloud.vault.status()).missing_packs == 0
        pocket = await world.node("pocket")
        async with world.running(laptop, cloud, pocket):
            await world.until(lambda: world.in_step(laptop, cloud, pocket)
                              and len(pocket.vault.core.shown()) == 2)
        for node in (laptop, cloud, pocket):
            await node.open()
            assert (await node.vault.status()).missing_packs == 0
            assert await node.vault.get(b"kept") == noise(20_000)
            assert not node.trouble()
            await node.vault.put(node.member.name.encode(), b"works")
        await meet(world, laptop, cloud, pocket)
        assert await pocket.names() == [b"cloud", b"kept", b"laptop", b"lost", b"pocket"]
    trio.run(main)


def test_a_new_device_says_why_it_gets_nothing_and_what_to_type(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await with_lost_pack(world)
        pocket = await world.node("pocket")
        async with world.running(laptop, cloud, pocket):
            await world.until(lambda: "E_PACK_MISSING" in pocket.trouble())
            (trouble, *_) = [one for one in (await pocket.vault.status()).trouble if one.code == "E_PACK_MISSING"]
            beginning = trouble.next_step.split()[-1]
            await accept(cloud, beginning)
            await world.until(lambda: world.in_step(laptop, cloud, pocket) and not pocket.trouble()
                              and len(pocket.vault.core.shown()) == 2)
    trio.run(main)


def test_what_was_given_up_too_early_is_there_again_when_its_device_comes_back(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await world.node("laptop"), await world.node("cloud")
        await cloud.vault.put(b"mine", b"1")
        await laptop.vault.put(b"far", noise(100_000))
        await meet(world, laptop, cloud)
        wanted = {name for name in cloud.vault.core.store.on_disk()
                  if name in laptop.vault.core.heads.own().packs and name not in (
                      cloud.vault.core.heads.own().tree_pack,)}
        for name in wanted:
            cloud.disk.remove(pack_path(name))
        await cloud.open()
        lost = [state for state in await heads(cloud) if state.state == "lost"]
        await accept(cloud, lost[0].head.hash.hex())
        assert (await cloud.vault.status()).missing_packs == 0
        async with world.running(laptop, cloud):
            await world.until(lambda: world.in_step(laptop, cloud))
            await world.until(lambda: all(cloud.vault.core.store.holds(name) for name in wanted))
        assert await cloud.vault.get(b"far") == noise(100_000)
        assert (await cloud.vault.verify(deep=True)).ok
    trio.run(main)


def test_a_device_that_can_not_read_its_own_newest_state_goes_on_and_gets_it_back_with_the_pack(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", b"1")
        before = set(node.vault.core.store.on_disk())
        await node.vault.put(b"b", b"2")
        (gone,) = set(node.vault.core.store.on_disk()) - before
        raw = node.disk.read(pack_path(gone))
        node.disk.remove(pack_path(gone))
        await node.open()
        assert await node.names() == [b"a"]
        assert "E_TREE_UNREADABLE" in node.trouble()
        await node.vault.put(b"c", b"3")
        for _ in range(2):
            await node.open()
            assert await node.names() == [b"a", b"c"]
            assert (await node.vault.status()).missing_packs == 1
            assert "E_TREE_UNREADABLE" in node.trouble()
        node.disk.write_atomic(pack_path(gone), raw)
        for _ in range(2):
            await node.open()
            await node.vault.keys_changed()
            assert await node.names() == [b"a", b"b", b"c"]
            assert not node.trouble()
            await node.vault.put(b"d", b"4")
            assert {state.state for state in await heads(node)} == {"whole", "settled"}
            await node.vault.remove([b"d"])
    trio.run(main)


def test_a_device_can_give_up_its_own_newest_state(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", b"1")
        before = set(node.vault.core.store.on_disk())
        await node.vault.put(b"b", b"2")
        (gone,) = set(node.vault.core.store.on_disk()) - before
        node.disk.remove(pack_path(gone))
        await node.open()
        (state,) = await heads(node)
        assert state.state == "lost"
        await accept(node, state.head.hash.hex()[:6])
        for _ in range(2):
            assert await node.names() == [b"a"]
            assert not node.trouble()
            assert (await node.vault.status()).missing_packs == 0
            await node.open()
    trio.run(main)


# ---- old copies ------------------------------------------------------------------------------------------------------


def test_a_sibling_that_comes_with_an_older_state_is_told_of_until_it_is_in_step(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await world.node("laptop"), await world.node("cloud")
        await laptop.vault.put(b"a", b"1")
        backup = laptop.disk.copy()
        await laptop.vault.put(b"b", b"2")
        await meet(world, laptop, cloud)
        restored = await world.node("laptop", backup)
        seen: set[str] = set()
        async with world.running(restored, cloud):
            async def watch() -> None:
                while True:
                    seen.update(cloud.trouble())
                    await trio.sleep(0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await world.until(lambda: world.in_step(restored, cloud) and len(restored.vault.core.shown()) == 2)
                await world.until(lambda: "E_ROLLBACK" in seen and not cloud.trouble())
                nursery.cancel_scope.cancel()
            await restored.vault.put(b"c", b"3")
            await world.until(lambda: len(cloud.vault.core.shown()) == 3)
        assert "E_FORK" not in await told(cloud)
        assert "E_ROLLBACK" not in await told(cloud)
    trio.run(main)


def test_an_old_copy_that_left_before_it_was_in_step_is_told_of_until_it_comes_back(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await world.node("laptop"), await world.node("cloud")
        await laptop.vault.put(b"a", b"1")
        backup = laptop.disk.copy()
        await laptop.vault.put(b"b", b"2")
        await meet(world, laptop, cloud)
        restored = await world.node("laptop", backup)
        restored.disk.full = True
        async with world.running(restored, cloud):
            await world.until(lambda: "E_ROLLBACK" in cloud.trouble())
            restored.peers.sessions[0].cut()
            await world.until(lambda: not cloud.replicator._followers)
            assert "E_ROLLBACK" in await told(cloud)
            restored.disk.full = False
            world.connect(restored, cloud)
            await world.until(lambda: world.in_step(restored, cloud) and not cloud.trouble())
    trio.run(main)


def test_devices_in_step_tell_of_no_old_copy(world: Any) -> None:
    async def main() -> None:
        nodes = [await world.node(name) for name in ("cloud", "laptop", "pocket")]
        seen: set[str] = set()
        async with world.running(*nodes):
            for number in range(30):
                await nodes[number % 3].vault.put(b"%d" % (number % 4), b"%d" % number)
                await trio.sleep(0.002)
                seen.update(*(node.trouble() for node in nodes))
            await world.until(lambda: world.in_step(*nodes))
        assert not seen
    trio.run(main)
