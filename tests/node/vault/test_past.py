"""What the owner can get back: histories, removed files, renamed files, and that remembering costs next to nothing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.errors import ConflictError, IntegrityError, UsageError
from hinet_node.vault.history import Change
from hinet_protocol.packs import PAST
from hinet_simnet.randomness import SeededRandomness


def noise(size: int, seed: str = "noise") -> bytes:
    return SeededRandomness(seed).draw(size)


async def history(node: Any, name: bytes) -> list[Change]:
    found: list[Change] = await node.vault.look(lambda core: list(core.history.of_file(name)))
    return found


async def put_back(node: Any, name: bytes, version: Any) -> None:
    await node.vault.put_back({name: version})


def past_chunks(node: Any) -> int:
    def count(db: Any) -> int:
        return int(db.execute("SELECT count(*) FROM chunks WHERE kind = ?", (PAST,)).fetchone()[0])
    found: int = node.vault.core.store.index._run(count)
    return found


def test_every_version_of_a_file_is_in_its_history_and_can_be_put_back(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        for number in range(4):
            node.clock.now += 60
            await node.vault.put(b"note.md", b"%d" % number)
        await node.open()
        found = await history(node, b"note.md")
        assert [(change.what, change.version.size, change.stands) for change in found] == [
            ("changed", 1, True), ("changed", 1, False), ("changed", 1, False), ("added", 1, False)]
        assert [change.time for change in found] == sorted((change.time for change in found), reverse=True)
        assert len({change.id for change in found}) == 4
        await put_back(node, b"note.md", found[-2].version)
        assert await node.vault.get(b"note.md") == b"1"
        assert len(await history(node, b"note.md")) == 5
        await put_back(node, b"note.md", found[0].version)
        assert await node.vault.get(b"note.md") == b"3", "what was undone can be done again"
    trio.run(main)


def test_a_removed_file_is_in_the_history_and_comes_back_on_another_device(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        async with world.running(left, right):
            await left.vault.put_many({b"a": noise(20_000), b"b": b"2"})
            await world.until(lambda: len(right.vault.core.shown()) == 2)
            await left.vault.remove([b"a"])
            await world.until(lambda: len(right.vault.core.shown()) == 1)
            found = await history(right, b"a")
            assert [change.what for change in found] == ["removed", "added"]
            version = await right.vault.look(lambda core: core.history.last_content(b"a"))
            await put_back(right, b"a", version)
            await world.until(lambda: len(left.vault.core.shown()) == 2)
            assert await left.vault.get(b"a") == noise(20_000)
            assert [change.what for change in await history(left, b"a")] == ["restored", "removed", "added"]
    trio.run(main)


def test_recent_changes_are_those_of_the_whole_vault_removed_files_included(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        for name, content in ((b"x/a", b"1"), (b"y/b", b"2"), (b"x/a", b"3"), (b".hinet/state", b"4")):
            node.clock.now += 60
            await node.vault.put(name, content)
        node.clock.now += 60
        await node.vault.remove([b"y/b"])
        rows = await node.vault.look(lambda core: list(core.history.of_folder(b"")))
        assert [(row.name, row.what) for row in rows] == [
            (b"y/b", "removed"), (b"x/a", "changed"), (b"y/b", "added"), (b"x/a", "added")]
        rows = await node.vault.look(lambda core: list(core.history.of_folder(b"x/")))
        assert [row.name for row in rows] == [b"x/a", b"x/a"]
        opened = []
        read = node.vault.core.reader.read
        node.vault.core.reader.read = lambda name: (opened.append(name), read(name))[1]
        assert len(await node.vault.look(lambda core: list(islice(core.history.of_folder(b""), 2)))) == 2
        assert len(opened) <= 2, "no more of the past is opened than is asked for"
    trio.run(main)


def test_the_history_goes_on_across_a_renaming(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        await left.vault.put(b"old.md", b"1")
        await left.vault.put(b"old.md", b"22")
        await left.vault.put(b"other", b"x")
        with pytest.raises(ConflictError) as taken:
            await left.vault.move({b"old.md": b"other"})
        assert taken.value.code == "E_NAME_TAKEN"
        assert await left.vault.move({b"old.md": b"folder/new.md"}) == 1
        await left.vault.put(b"folder/new.md", b"333")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and len(right.vault.core.shown()) == 2)
        assert await right.names() == [b"folder/new.md", b"other"]
        found = await history(right, b"folder/new.md")
        assert [(change.name, change.what, change.version.size) for change in found] == [
            (b"folder/new.md", "changed", 3), (b"folder/new.md", "renamed", 2), (b"old.md", "changed", 2),
            (b"old.md", "added", 1)]
        assert found[1].came_from == b"old.md"
        assert [change.what for change in await history(right, b"old.md")] == ["removed", "changed", "added"]
        await put_back(right, b"folder/new.md", found[-1].version)
        assert await right.vault.get(b"folder/new.md") == b"1"
    trio.run(main)


def test_files_change_places_by_renaming(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many({b"a": b"1", b"b": b"2", b"c": b"3"})
        await node.vault.move({b"a": b"b", b"b": b"a"})
        assert [await node.vault.get(name) for name in (b"a", b"b", b"c")] == [b"2", b"1", b"3"]
        await node.open()
        assert await node.names() == [b"a", b"b", b"c"]
        with pytest.raises(ConflictError):
            await node.vault.move({b"a": b"new", b"c": b"new"})
        with pytest.raises(UsageError):
            await node.vault.move({b"a": b"new", b"never": b"there"})
        assert await node.names() == [b"a", b"b", b"c"]
    trio.run(main)


def test_an_edit_elsewhere_meets_a_renaming_and_neither_is_lost(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("cloud"), await world.node("laptop")
        async with world.running(left, right):
            await left.vault.put(b"old", b"base")
            await world.until(lambda: len(right.vault.core.shown()) == 1)
        for node in (left, right):
            await node.open()
        await left.vault.move({b"old": b"new"})
        await right.vault.put(b"old", b"edited")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right))
            for node in (left, right):
                assert await node.names() == [b"new", b"old"]
                assert await node.vault.get(b"old") == b"edited"
    trio.run(main)


def test_a_file_as_it_was_at_a_time(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        start = int(node.clock.now)
        for step, content in enumerate((b"one", b"two")):
            node.clock.now = start + 100 * (step + 1)
            await node.vault.put(b"n", content)
        node.clock.now = start + 300
        await node.vault.remove([b"n"])

        def size_at(after_s: int) -> Any:
            found = node.vault.core.history.before(b"n", start + after_s)
            return None if found is None else found.digest

        node.clock.now = start + 400
        versions = await history(node, b"n")
        assert size_at(50) is None
        assert size_at(150) == versions[2].version.digest
        assert size_at(250) == versions[1].version.digest
        assert size_at(350) is None
    trio.run(main)


def test_a_version_whose_packs_are_gone_is_refused_and_a_past_that_is_gone_ends_visibly(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"n", noise(90_000, "1"))
        old = set(node.vault.core.store.on_disk())
        await node.vault.put(b"n", noise(90_000, "2"))
        middle = set(node.vault.core.store.on_disk()) - old
        await node.vault.put(b"n", noise(90_000, "3"))
        found = await history(node, b"n")
        for name in old:
            node.vault.core.store.remove(name)
        assert [node.vault.core.edits.held(change.version) for change in found] == [True, True, False]
        with pytest.raises(IntegrityError) as gone:
            await put_back(node, b"n", found[2].version)
        assert gone.value.code == "E_VERSION_GONE"
        assert await node.vault.get(b"n") == noise(90_000, "3")
        for name in middle:
            node.vault.core.store.remove(name)
        left = await history(node, b"n")
        assert [(change.ends, change.version.size) for change in left] == [(False, 90_000), (True, 90_000)]
        with pytest.raises(IntegrityError) as ended:
            node.vault.core.history.before(b"n", 5)
        assert ended.value.code == "E_PAST_ENDS"
    trio.run(main)


def test_new_files_have_no_past_and_an_edit_costs_one_chunk_in_the_same_pack(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many({b"%03d" % number: b"%d" % number for number in range(200)})
        assert past_chunks(node) == 0
        before = await node.vault.status()
        await node.vault.put_many({b"%03d" % number: b"new %d" % number for number in range(3)})
        assert past_chunks(node) == 3
        after = await node.vault.status()
        assert (after.packs - before.packs, after.packs_bytes - before.packs_bytes) == (1, 65_536)
        await node.vault.put(b"000", b"new 0")
        assert past_chunks(node) == 3, "nothing changed, nothing is kept"
    trio.run(main)


def test_machine_state_has_no_past(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        for number in range(5):
            await node.vault.put_many({b".hinet/state": b"%d" % number})
            await node.vault.put(b"job", b"%d" % number, keep_past=False)
        assert past_chunks(node) == 0
        for name in (b".hinet/state", b"job"):
            assert [change.ends for change in await history(node, name)] == [True]
    trio.run(main)


def test_a_version_is_written_to_a_path_as_it_was(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"x/n", noise(50_000, "1"))
        await node.vault.put(b"x/n", b"short")
        old = (await history(node, b"x/n"))[1].version
        await node.vault.write_version(old, tmp_path / "old")
        assert (tmp_path / "old").read_bytes() == noise(50_000, "1")
        await node.vault.take_out({b"x/n": old, b"../n": old}, tmp_path / "below")
        assert (tmp_path / "below" / "x" / "n").read_bytes() == noise(50_000, "1")
        assert not (tmp_path / "n").exists()
    trio.run(main)


def test_a_past_that_is_rubbish_ends_the_history_and_hurts_nothing(world: Any) -> None:
    from dataclasses import replace

    from hinet_protocol.attributes import make_attributes

    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"content", b"\x93\xa4past\x01\x90")
        core = node.vault.core
        wrong = core.view.tree[b"content"][0].chunks[:32]
        await node.vault.put(b"n", b"1")
        for past in (wrong, b"?" * 32):
            bad = replace(core.view.tree[b"n"][0], attributes=make_attributes(past=past))
            core.view.tree[b"n"] = (bad,)
            assert [change.ends for change in await history(node, b"n")] == [True]
            await node.vault.put(b"n", past)
            assert await node.vault.get(b"n") == past
    trio.run(main)
