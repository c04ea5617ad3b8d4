"""Verifying: each kind of damage is found, named, and told with the files that it touches; and nothing else is."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.real.disk import RealDisk
from hinet_node.vault.packfolder import pack_path
from hinet_node.vault.report import DAMAGED, MISPLACED, MISSING, REBUILT, UNREADABLE
from hinet_protocol.packs import PackBuilder, pack_name
from hinet_simnet.randomness import SeededRandomness


def noise(size: int, seed: str = "noise") -> bytes:
    return SeededRandomness(seed).draw(size)


FILES = {b"large": noise(150_000), b"notes/a.md": b"The dog is called Bo.", b"twin": noise(5_000, "twin")}


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def linked(path: Path) -> None:
    path.rename(path.parent.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent.parent / "elsewhere")


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").write_bytes(b"x")


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (flipped, DAMAGED),
    "cut short": (lambda path: os.truncate(path, 1_000), DAMAGED),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), DAMAGED),
    "zeros": (lambda path: path.write_bytes(bytes(path.stat().st_size)), DAMAGED),
    "empty": (lambda path: path.write_bytes(b""), DAMAGED),
    "a folder": (foldered, DAMAGED),
    "a link": (linked, DAMAGED),
    "gone": (Path.unlink, MISSING),
    "another name": (lambda path: path.rename(path.parent / "pack (1)"), MISPLACED),
}


async def vault_in(world: Any, home: Path, *, keeper: bool = False) -> Any:
    """A vault of three packs; a keeper's is a copy of a member's."""
    settings = replace(world.small, index_path=None)
    if keeper:
        await vault_in(world, home.parent / "member")
        shutil.copytree(home.parent / "member", home)
        (home / "vault" / "index.sqlite").unlink()
        return await world.node("keeper", RealDisk(home), keeper=True, settings=settings)
    node = await world.node("laptop", RealDisk(home), settings=settings)
    for name, content in FILES.items():
        await node.vault.put(name, content)
    return node


def holder_of(node: Any, name: bytes) -> bytes:
    """The pack that the first chunk of a file is in."""
    version, _ = node.vault.core.version(name)
    pack = node.vault.core.store.index.pack_of(next(iter(version.chunk_ids())))
    return bytes(pack)


@pytest.mark.parametrize("reopened", [False, True], ids=["while it runs", "after a restart"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_pack_is_named_with_the_files_that_it_touches(world: Any, tmp_path: Path, kind: str,
                                                                reopened: bool) -> None:
    damage, state = DAMAGE[kind]

    async def main() -> None:
        node = await vault_in(world, tmp_path / "home")
        pack = holder_of(node, b"large")
        damage(tmp_path / "home" / pack_path(pack))
        if reopened:
            await node.vault.close()
            await node.open()
        report = await node.vault.verify()
        assert not report.ok
        assert report.missing == (pack,)
        assert report.damaged in ((pack,), ())
        (fault,) = [one for one in report.faults if one.name == pack]
        assert fault.next_step
        if not reopened:
            assert fault.state == state
            assert fault.files == (b"large",)
        assert report.files_unreadable == (b"large",)
        assert [one for one in report.faults if one.name != pack] == []
        told = report.as_json()
        assert told["ok"] is False
        assert told["missing"] == [pack.hex()]
        again = await node.vault.verify(deep=True)
        assert again.missing == (pack,)
        assert again.files_unreadable == (b"large",)
    trio.run(main)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_keeper_finds_the_same_damage_without_a_key(world: Any, tmp_path: Path, kind: str) -> None:
    damage, state = DAMAGE[kind]

    async def main() -> None:
        node = await vault_in(world, tmp_path / "home", keeper=True)
        assert (await node.vault.verify(deep=True)).ok
        pack = next(iter(node.vault.core.store.on_disk()))
        damage(tmp_path / "home" / pack_path(pack))
        report = await node.vault.verify()
        (fault,) = report.faults
        assert (fault.name, fault.state, fault.files) == (pack, state, ())
        assert report.files_unreadable == ()
    trio.run(main)


def test_an_index_that_lies_about_a_chunk_is_found_and_put_right(world: Any, tmp_path: Path) -> None:
    """It is a cache, so nothing is lost; but a chunk that it does not know can't be read."""
    lies = ["UPDATE chunks SET offset = offset + 1 WHERE kind = 1", "DELETE FROM chunks", "DELETE FROM packs",
            "UPDATE packs SET size = size + 65536", "UPDATE chunks SET id = randomblob(32)",
            "UPDATE chunks SET pack = pack + 77"]

    async def main(lie: str) -> None:
        home = tmp_path / str(lies.index(lie))
        node = await vault_in(world, home)
        with sqlite3.connect(home / "vault" / "index.sqlite") as db:
            db.execute(lie)
        db.close()
        report = await node.vault.verify()
        assert {fault.state for fault in report.faults} == {REBUILT}, lie
        assert (report.missing, report.damaged) == ((), ())
        assert (await node.vault.verify(deep=True)).ok, lie
        for name, content in FILES.items():
            assert await node.vault.get(name) == content
    for lie in lies:
        trio.run(main, lie)


def test_an_index_whose_file_is_damaged_while_it_is_used_is_told_of_once(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await vault_in(world, tmp_path / "home")
        (tmp_path / "home/vault/index.sqlite").write_bytes(b"overwritten while it is open" * 2_000)
        report = await node.vault.verify()
        assert [(fault.kind, fault.state) for fault in report.faults] == [("index", REBUILT)]
        assert (await node.vault.verify(deep=True)).ok
    trio.run(main)


def test_a_damaged_head_is_written_again_from_memory_or_named(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await vault_in(world, tmp_path / "home")
        folder = tmp_path / "home/vault/heads" / node.member.public.hex()
        first, *_, newest = sorted(folder.iterdir())
        good = newest.read_bytes()
        for damage in (flipped, Path.unlink):
            damage(newest)
            (fault,) = (await node.vault.verify()).faults
            assert (fault.kind, fault.state, fault.device) == ("head", REBUILT, node.member.public)
            assert newest.read_bytes() == good
        flipped(first)
        (fault,) = (await node.vault.verify()).faults
        assert (fault.kind, fault.state) == ("head", DAMAGED)
        assert (await node.vault.verify()).ok, "an old record that nothing needs is no damage any more"
        flipped(newest)
        await node.vault.close()
        await node.open()
        (fault,) = (await node.vault.verify()).faults
        assert (fault.kind, fault.state) == ("head", DAMAGED)
        assert fault.path.endswith(".damaged")
    trio.run(main)


@pytest.mark.parametrize("text", [None, b"", b"seq 3 kept 3 00000000\n", b"rubbish", b"seq 9 kept 2 \xff"])
def test_a_number_file_that_says_nothing_is_written_again_and_no_number_is_used_twice(world: Any, tmp_path: Path,
                                                                                      text: bytes | None) -> None:
    async def main() -> None:
        node = await vault_in(world, tmp_path / "home")
        before = (await node.vault.status()).head_seq
        for reopened in (False, True):
            file = tmp_path / "home/vault/seq"
            file.unlink() if text is None else file.write_bytes(text)
            if reopened:
                await node.vault.close()
                await node.open()
            (fault,) = (await node.vault.verify()).faults
            assert (fault.kind, fault.state) == ("seq", REBUILT)
            assert (await node.vault.verify()).ok
            await node.vault.put(b"n%d" % reopened, b"x")
            after = (await node.vault.status()).head_seq
            assert after > before
            before = after
    trio.run(main)


def test_a_changed_byte_in_the_number_file_is_noticed(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", b"1")
        good = node.disk.read("vault/seq")
        for at in range(len(good)):
            for bit in range(8):
                raw = bytearray(good)
                raw[at] ^= 1 << bit
                node.disk.write_atomic("vault/seq", bytes(raw))
                assert [fault.kind for fault in (await node.vault.verify()).faults] == ["seq"], bytes(raw)
    trio.run(main)


def test_folders_that_are_none_are_named_and_delete_nothing(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await vault_in(world, tmp_path / "home")
        pack = holder_of(node, b"large")
        place = tmp_path / "home" / "vault/packs" / pack.hex()[:2]
        place.rename(tmp_path / "kept")
        place.write_bytes(b"a file in the place of a folder")
        await node.vault.close()
        await node.open()
        report = await node.vault.verify()
        assert [(fault.kind, fault.state) for fault in report.faults if fault.kind == "folder"] == [
            ("folder", UNREADABLE)]
        assert pack in report.missing
        place.unlink()
        place.symlink_to(tmp_path / "kept")
        (fault,) = [fault for fault in (await node.vault.verify()).faults if fault.kind == "folder"]
        assert "symbolic link" in fault.what
        place.unlink()
        (tmp_path / "kept").rename(place)
        await node.vault.verify()
        assert (await node.vault.verify(deep=True)).ok
        assert await node.vault.get(b"large") == FILES[b"large"]
    trio.run(main)


def test_what_this_user_may_not_read_stays_where_it_is_and_is_named(world: Any, tmp_path: Path) -> None:
    """As root everything can be read, so the child that looks is another user."""
    home = tmp_path / "home"

    async def make() -> bytes:
        node = await vault_in(world, home)
        pack = holder_of(node, b"large")
        await node.vault.close()
        return pack

    async def look(pack: bytes) -> None:
        node = await world.node("laptop", RealDisk(home), settings=replace(world.small, index_path=None))
        (fault,) = [fault for fault in (await node.vault.verify()).faults if fault.name == pack]
        assert fault.state == UNREADABLE
        assert "may not read" in fault.what
        assert "ls -ld" in fault.next_step
        assert (home / pack_path(pack)).lstat().st_size > 0

    pack = trio.run(make)
    (home / pack_path(pack)).chmod(0)
    if os.getuid() != 0:
        trio.run(look, pack)
        return
    for place in (home, *home.rglob("*")):
        os.chown(place, 65_534, 65_534)
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == 0 and str(place).startswith(str(tmp_path.parent.parent)):
            place.chmod(place.stat().st_mode | 0o055)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65_534)
            os.setuid(65_534)
            trio.run(look, pack)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_vault_that_is_written_to_gives_no_false_alarm(world: Any, tmp_path: Path) -> None:
    """Packs that were just committed, heads that come and go, records that are trimmed: all of that is no fault."""
    async def main() -> None:
        settings = replace(world.small, index_path=None, heads_kept=3)
        node = await world.node("laptop", RealDisk(tmp_path / "home"), settings=settings)
        done = trio.Event()

        async def write() -> None:
            for number in range(20):
                await node.vault.put_many({b"a": noise(9_000, str(number)), b"b%d" % number: b"%d" % number})
            await node.vault.remove([b"a"])
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            looks = 0
            while not done.is_set():
                report = await node.vault.verify(deep=looks % 2 == 0)
                assert report.ok, report.faults
                looks += 1
        assert looks >= 2
        assert (await node.vault.verify(deep=True)).ok
    trio.run(main)


def test_verifying_counts_and_tells_how_far_it_is(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await vault_in(world, tmp_path / "home")
        seen: list[Any] = []
        report = await node.vault.verify(deep=True, on_progress=seen.append)
        assert report.ok
        assert report.packs == 5
        assert report.heads == len(FILES)
        assert report.chunks == len(node.vault.core.store.index.ids())
        packs = [one for one in seen if one.what == "packs"]
        assert packs[-1].bytes_done == report.packs_bytes
        assert seen[-1].bytes_done == seen[-1].bytes_total, "files that are read whole count too, and are foreseen"
        assert {one.bytes_total for one in seen} == {seen[-1].bytes_total}
        held = node.vault.core.store.index.packs()
        verified = node.vault.core.store.notes.verified(held, int(node.clock.now))
        assert (verified.packs, verified.checked, verified.oldest_s) == (5, 5, int(node.clock.now))
    trio.run(main)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_chunk_that_lies_in_the_middle_of_a_file_is_named_and_the_others_are_opened_all_the_same(
        world: Any, tmp_path: Path, wrong: int) -> None:
    """A pack that is as its (faulty) writer made it, and holds other bytes under one chunk's id."""
    async def main() -> None:
        node = await world.node("laptop", RealDisk(tmp_path / "home"))
        await node.vault.put(b"long", noise(3 * 4096))
        core = node.vault.core
        version, _ = core.version(b"long")
        pieces = list(core.content(version))
        (honest,) = core.store.index.packs()
        epoch, key = core.publisher.epoch()
        slots = core.store.index.slots_in(honest)
        builder = PackBuilder(epoch, key, b"s" * 32)
        for slot in slots:
            plain = core.reader.read(slot.chunk_id)
            builder.add(slot.kind, slot.chunk_id, b"a lie" if plain == pieces[wrong] else plain)
        raw = builder.finish()[0]
        name = pack_name(raw)
        core.store.add_whole(name, raw)
        node.disk.remove(pack_path(honest))
        core.store.index.remove_pack(honest)
        report = await node.vault.verify(deep=True)
        (fault,) = [fault for fault in report.faults if fault.state == "malformed"]
        assert f"Slot {wrong} of pack {name.hex()[:16]}" in fault.what
        assert fault.files == (b"long",)
        assert report.chunks == len(slots) - 1
    trio.run(main)


def test_while_a_damaged_head_has_not_come_again_nothing_is_collected(world: Any) -> None:
    """Nobody knows what it retains."""
    async def main() -> None:
        left, keeper = await world.node("laptop"), await world.node("nas", keeper=True)
        await left.vault.put(b"a", noise(9_000))
        async with world.running(left, keeper):
            await world.until(lambda: world.in_step(left, keeper))
        assert not keeper.vault.core.collector.sweep(packs_max=10, waive_age=True).blocked
        folder = f"vault/heads/{left.member.public.hex()}"
        keeper.disk.write_atomic(f"{folder}/{keeper.disk.list(folder)[-1]}", b"rubbish")
        other = await world.node("desk")
        await other.vault.put(b"b", b"so that a head is here at all")
        await keeper.open()
        async with world.running(other, keeper):
            await world.until(lambda: keeper.vault.core.heads.newest().get(other.member.public) is not None)
        swept = keeper.vault.core.collector.sweep(packs_max=10, waive_age=True)
        assert "damaged" in swept.blocked
        assert keeper.vault.core.store.index.totals()[0] >= 2
    trio.run(main)
