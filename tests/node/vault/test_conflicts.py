"""Devices that were apart and edited the same files: everything is kept, shown alike on all, and settled for all."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hinet_node.errors import UsageError
from hinet_protocol.trees import version_hash


async def apart(world: Any, edits: dict[str, Any], base: dict[bytes, bytes]) -> list[Any]:
    """Three devices that had `base` in common and then, each on its own, did what `edits` says of it."""
    nodes = [await world.node(name) for name in ("cloud", "laptop", "pocket")]
    await nodes[0].vault.put_many(base)
    async with world.running(*nodes):
        await world.until(lambda: world.in_step(*nodes) and all(node.vault.core.shown() for node in nodes))
    for at, node in enumerate(nodes):
        await node.open()
        node.clock.now += 1_000 * (3 - at)  # clocks are wrong, and decide nothing
        if node.member.name in edits:
            await edits[node.member.name](node.vault)
    return nodes


async def together(world: Any, *nodes: Any) -> None:
    async with world.running(*nodes):
        await world.until(lambda: world.in_step(*nodes))
    for node in nodes:
        await node.open()


def put(name: bytes, content: bytes) -> Any:
    return lambda vault: vault.put(name, content)


async def seen_by(node: Any) -> tuple[Any, Any, Any]:
    """What a person sees of the vault: the list, the conflicts, the contents."""
    items = await node.vault.list()
    contested = await node.vault.look(lambda core: core.edits.contested())
    return ([(item.name, item.digest, item.conflict_of) for item in items], contested,
            {item.name: await node.vault.get(item.name) for item in items})


def test_three_devices_that_were_apart_see_the_same_list_byte_for_byte(world: Any) -> None:
    async def main() -> None:
        nodes = await apart(world, {name: put(b"notes/\xffdog.md", name.encode()) for name in
                                    ("cloud", "laptop", "pocket")}, {b"notes/\xffdog.md": b"base"})
        await together(world, *nodes)
        seen = [await seen_by(node) for node in nodes]
        assert seen[0] == seen[1] == seen[2]
        items, contested, contents = seen[0]
        assert set(contents.values()) == {b"cloud", b"laptop", b"pocket"}
        assert len(items) == 3
        assert len([item for item in items if item[2] == b"notes/\xffdog.md"]) == 2
        (one,) = contested
        assert one.name == b"notes/\xffdog.md"
        assert {version.device for version, _ in one.versions} == {node.member.public for node in nodes}
        assert one.versions[0][1] == one.name
        assert {shown_as for _, shown_as in one.versions} == set(contents)
        assert {(await node.vault.status()).conflicts for node in nodes} == {2}
    trio.run(main)


@pytest.mark.parametrize("keep", ["mine", "newest-shown", "both", "id", "shown name"])
def test_a_settled_conflict_is_settled_on_every_device_and_the_others_are_history(world: Any, keep: str) -> None:
    async def main() -> None:
        nodes = await apart(world, {"cloud": put(b"n.md", b"cloud's"), "pocket": put(b"n.md", b"pocket's")},
                            {b"n.md": b"base"})
        await together(world, *nodes)
        pocket = nodes[2]
        (one,) = await pocket.vault.look(lambda core: core.edits.contested())
        loser, shown_as = one.versions[1]
        wanted = {"id": version_hash(loser).hex()[:6], "shown name": (shown_as or b"").decode()}.get(keep, keep)
        names = await pocket.vault.settle(b"n.md", wanted)
        await together(world, *nodes)
        seen = [await seen_by(node) for node in nodes]
        assert seen[0] == seen[1] == seen[2]
        items, contested, contents = seen[0]
        assert contested == []
        assert {name for name, _, _ in items} == set(names)
        if keep == "both":
            assert set(contents.values()) == {b"cloud's", b"pocket's"}
            assert {b"n.md"} < set(names) <= {b"n.md", b"n.from-cloud.md", b"n.from-pocket.md"}
        else:
            expected = {"mine": b"pocket's", "newest-shown": content_of(one.versions[0][0], nodes)}.get(
                keep, content_of(loser, nodes))
            assert contents == {b"n.md": expected}
        for node in nodes:
            history = await node.vault.look(lambda core: list(core.history.of_file(b"n.md")))
            assert {change.version.device for change in history} == {nodes[0].member.public, pocket.member.public}
            assert [change.what for change in history][::len(history) - 1] == ["settled", "added"]
            assert len(history) == 4
    trio.run(main)


def content_of(version: Any, nodes: list[Any]) -> bytes:
    return {nodes[0].member.public: b"cloud's", nodes[2].member.public: b"pocket's"}[version.device]


def test_a_deletion_against_an_edit_is_told_and_the_edit_stays(world: Any) -> None:
    async def main() -> None:
        nodes = await apart(world, {"cloud": lambda vault: vault.remove([b"n"]), "pocket": put(b"n", b"rather not")},
                            {b"n": b"base", b"m": b"other"})
        await together(world, *nodes)
        for node in nodes:
            assert await node.names() == [b"m", b"n"]
            (one,) = await node.vault.look(lambda core: core.edits.contested())
            assert [(version.deleted, shown_as) for version, shown_as in one.versions] == [(False, b"n"), (True, None)]
        gone = version_hash(one.versions[1][0]).hex()
        assert await nodes[1].vault.settle(b"n", gone) == []
        await together(world, *nodes)
        for node in nodes:
            assert await node.names() == [b"m"]
            version = await node.vault.look(lambda core: core.history.last_content(b"n"))
            await node.vault.put_back({b"n": version})
            assert await node.vault.get(b"n") == b"rather not"
    trio.run(main)


def test_the_same_edit_on_two_devices_is_no_conflict(world: Any) -> None:
    async def main() -> None:
        nodes = await apart(world, {name: put(b"n", b"same") for name in ("cloud", "pocket")}, {b"n": b"base"})
        await together(world, *nodes)
        for node in nodes:
            assert await node.names() == [b"n"]
            assert await node.vault.look(lambda core: core.edits.contested()) == []
            assert (await node.vault.status()).conflicts == 0
        await nodes[1].vault.put(b"n", b"later")
        await together(world, *nodes)
        for node in nodes:
            assert await node.names() == [b"n"]
            assert await node.vault.get(b"n") == b"later"
    trio.run(main)


def test_two_devices_that_settle_differently_disagree_visibly_again(world: Any) -> None:
    async def main() -> None:
        nodes = await apart(world, {"cloud": put(b"n", b"1"), "pocket": put(b"n", b"2")}, {b"n": b"base"})
        await together(world, *nodes)
        for node in (nodes[0], nodes[2]):
            await node.vault.settle(b"n", "mine")
        await together(world, *nodes)
        seen = [await seen_by(node) for node in nodes]
        assert seen[0] == seen[1] == seen[2]
        assert set(seen[0][2].values()) == {b"1", b"2"}
        await nodes[1].vault.settle(b"n", "newest-shown")
        await together(world, *nodes)
        assert len(await nodes[0].names()) == 1
    trio.run(main)


def test_an_edit_during_the_settling_is_not_lost(world: Any) -> None:
    async def main() -> None:
        nodes = await apart(world, {"cloud": put(b"n", b"1"), "pocket": put(b"n", b"2")}, {b"n": b"base"})
        await together(world, *nodes)
        await nodes[0].vault.settle(b"n", "mine")
        await nodes[2].vault.put(b"n", b"3")
        await together(world, *nodes)
        for node in nodes:
            assert b"3" in {await node.vault.get(name) for name in await node.names()}
    trio.run(main)


def test_the_name_of_a_conflict_stays_when_files_come_and_go_around_it(world: Any) -> None:
    async def main() -> None:
        nodes = await apart(world, {"cloud": put(b"n.md", b"1"), "pocket": put(b"n.md", b"2")}, {b"n.md": b"base"})
        await together(world, *nodes)
        (name,) = [name for name in await nodes[0].names() if name != b"n.md"]
        await nodes[1].vault.put(b"n.md", b"newest")
        await nodes[0].vault.put_many({b"n.conflict-other.md": b"x", name + b"~": b"y"})
        await together(world, *nodes)
        for node in nodes:
            assert name in await node.names()
            assert len(await node.names()) == 4
    trio.run(main)


def test_a_concurrent_edit_can_be_renamed_into_a_file_of_its_own(world: Any) -> None:
    async def main() -> None:
        nodes = await apart(world, {"cloud": put(b"n.md", b"1"), "pocket": put(b"n.md", b"2")}, {b"n.md": b"base"})
        await together(world, *nodes)
        (name,) = [name for name in await nodes[0].names() if name != b"n.md"]
        content = await nodes[0].vault.get(name)
        await nodes[0].vault.move({name: b"mine.md"})
        await together(world, *nodes)
        for node in nodes:
            assert await node.names() == [b"mine.md", b"n.md"]
            assert await node.vault.get(b"mine.md") == content
            history = await node.vault.look(lambda core: list(core.history.of_file(b"mine.md")))
            assert [change.what for change in history] == ["renamed", "changed", "added"]
    trio.run(main)


@pytest.mark.parametrize(("name", "keep", "code"), [
    (b"m", "mine", "E_NO_CONFLICT"), (b"never", "mine", "E_NO_CONFLICT"), (b"n", "00", "E_NO_SUCH_VERSION"),
    (b"n", "mine", "E_NO_SUCH_VERSION"), (b"n", "", "E_NO_SUCH_VERSION"),
])
def test_what_can_not_be_settled_is_refused_and_changes_nothing(world: Any, name: bytes, keep: str, code: str) -> None:
    async def main() -> None:
        nodes = await apart(world, {"cloud": put(b"n", b"1"), "pocket": put(b"n", b"2")}, {b"n": b"base", b"m": b"0"})
        await together(world, *nodes)
        before = await seen_by(nodes[1])
        with pytest.raises(UsageError) as refused:
            await nodes[1].vault.settle(name, keep)
        assert refused.value.code == code
        assert refused.value.next_step
        assert await seen_by(nodes[1]) == before
    trio.run(main)
