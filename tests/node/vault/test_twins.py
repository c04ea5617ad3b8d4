"""Two machines with one device key write under the same numbers: what neither has seen of the other is never lost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio


async def meet(world: Any, *nodes: Any) -> None:
    async with world.running(*nodes):
        await world.until(lambda: world.in_step(*nodes))
    for node in nodes:
        await node.open()


async def clone(world: Any, node: Any) -> Any:
    twin = await world.node(node.member.name, node.disk.copy())
    twin.opened = 100
    return await twin.open()


async def contents(node: Any) -> set[bytes]:
    return {await node.vault.get(name) for name in await node.names()}


@pytest.mark.parametrize("order", list(itertools.permutations(("one", "twin", "cloud"), 2)))
def test_an_edit_of_a_clone_is_not_hidden_by_its_twins_number(world: Any, order: tuple[str, str]) -> None:
    async def main() -> None:
        one, cloud = await world.node("laptop"), await world.node("cloud")
        await one.vault.put(b"n", b"base")
        await meet(world, one, cloud)
        twin = await clone(world, one)
        await twin.vault.put(b"n", b"the twin's")
        for number in range(3):
            await one.vault.put(b"n", b"mine %d" % number)
        assert one.vault.core.view.tree[b"n"][0].has_seen(twin.vault.core.view.tree[b"n"][0].dot)
        named = {"one": one, "twin": twin, "cloud": cloud}
        first = [named[name] for name in order]
        pairs = [first] if cloud in first else []
        pairs += [[one, cloud], [twin, cloud]] if order[0] == "one" else [[twin, cloud], [one, cloud]]
        for pair in [*pairs, [one, cloud], [twin, cloud], [one, cloud]]:
            await meet(world, *pair)
        for node in (one, twin, cloud):
            assert await contents(node) == {b"mine 2", b"the twin's"}
            assert len(await node.names()) == 2, "one copy of each, whoever saved it"
        (shown,) = await cloud.vault.look(lambda core: core.edits.contested())
        await cloud.vault.settle(b"n", "newest-shown")
        for pair in ([one, cloud], [twin, cloud], [one, cloud]):
            await meet(world, *pair)
        for node in (one, twin, cloud):
            assert await node.names() == [b"n"]
            assert await contents(node) == {await node.vault.get(shown.name)}
    trio.run(main)


def test_a_third_device_notices_what_a_number_hides(world: Any) -> None:
    """It has the one's edit, and never hears of the numbers that the other used alike."""
    async def main() -> None:
        one, cloud = await world.node("laptop"), await world.node("cloud")
        await one.vault.put(b"n", b"base")
        twin = await clone(world, one)
        await one.vault.put(b"n", b"the one's")
        await meet(world, one, cloud)
        for number in range(3):
            await twin.vault.put(b"n", b"twin %d" % number)
        await meet(world, twin, cloud)
        for node in (twin, cloud):
            assert await contents(node) == {b"the one's", b"twin 2"}
        await cloud.vault.put(b"n", b"cloud's")
        await meet(world, one, cloud)
        assert await contents(one) == {b"cloud's", b"the one's"} or await contents(one) == {b"cloud's", b"twin 2"}
    trio.run(main)


def test_where_no_key_is_copied_no_version_is_written_anew(world: Any) -> None:
    """However late a device comes, and whatever it brings: a past that is held explains all of it."""
    async def main() -> None:
        nodes = [await world.node(name) for name in ("cloud", "laptop", "pocket")]
        for round_number in range(4):
            for at, node in enumerate(nodes):
                await node.vault.put_many({b"n": b"%d %d" % (round_number, at), b"%d" % at: b"%d" % round_number})
            await nodes[round_number % 3].vault.remove([b"0"])
            await meet(world, *nodes[round_number % 2:round_number % 2 + 2])
            for node in nodes:
                assert node.vault.core.twins.due() == 0
                authors = {version.device for versions in node.vault.core.view.tree.values() for version in versions}
                assert authors <= {one.member.public for one in nodes}
        await meet(world, *nodes)
        kept = {(one.device, one.counter) for one in nodes[0].vault.core.view.tree[b"n"]}
        await nodes[0].vault.settle(b"n", "newest-shown")
        await meet(world, *nodes)
        for node in nodes:
            assert len(node.vault.core.view.tree[b"n"]) == 1
        assert kept
    trio.run(main)


def test_a_restored_old_copy_makes_no_conflicts_of_what_it_once_wrote(world: Any) -> None:
    async def main() -> None:
        laptop, cloud = await world.node("laptop"), await world.node("cloud")
        await laptop.vault.put_many({b"%d" % number: b"old" for number in range(20)})
        backup = laptop.disk.copy()
        for number in range(20):
            await laptop.vault.put(b"%d" % number, b"new")
        await meet(world, laptop, cloud)
        restored = await world.node("laptop", backup)
        await meet(world, restored, cloud)
        for node in (restored, cloud):
            assert len(await node.names()) == 20
            assert await contents(node) == {b"new"}
    trio.run(main)
