"""One device's vault: put, get, list, remove, restart, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.errors import IntegrityError, NoSpace, NotAuthorised, UsageError
from hinet_node.real.disk import RealDisk
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness


def noise(size: int, seed: str = "noise") -> bytes:
    return SeededRandomness(seed).draw(size)


@pytest.fixture(params=["memory", "real"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryDisk("home") if request.param == "memory" else RealDisk(tmp_path / "home")


def test_what_is_put_is_there_after_a_restart(world: Any, disk: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop", disk)
        item = await node.vault.put(b"notes/dog.md", b"The dog is called Bo.")
        assert (item.name, item.size, item.device) == (b"notes/dog.md", 21, node.member.public)
        await node.vault.close()
        await node.open()
        assert await node.vault.get(b"notes/dog.md") == b"The dog is called Bo."
        assert await node.names() == [b"notes/dog.md"]
        assert (await node.vault.status()).head_seq == 1
    trio.run(main)


def test_names_are_kept_byte_for_byte(world: Any) -> None:
    names = [b"empty", b"\xff\xfe not utf-8", b"\xc3\xa9", b"e\xcc\x81", b"Case", b"case", b"a" * 4096,
             b"with\nnewline", b"../escape", b"/absolute", b"\0"]

    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many({name: b"" if name == b"empty" else name for name in names})
        await node.open()
        assert await node.names() == sorted(names)
        assert await node.vault.get(b"empty") == b""
        for name in names[1:]:
            assert await node.vault.get(name) == name
    trio.run(main)


@pytest.mark.parametrize("name", [b"", b"a" * 4097])
def test_a_name_that_cannot_be_kept_is_refused(world: Any, name: bytes) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        with pytest.raises(UsageError):
            await node.vault.put(name, b"x")
        assert await node.names() == []
    trio.run(main)


def test_a_large_file_comes_back_whole_and_small_ones_share_packs(world: Any, tmp_path: Path) -> None:
    large = noise(1_000_001)

    async def main() -> None:
        node = await world.node("laptop")
        (tmp_path / "large").write_bytes(large)
        await node.vault.put(b"large", tmp_path / "large")
        packs_before = (await node.vault.status()).packs
        await node.vault.put_many((b"small/%d" % number, b"%d" % number) for number in range(200))
        assert (await node.vault.status()).packs == packs_before + 1
        await node.open()
        assert await node.vault.get(b"large") == large
        item = await node.vault.get_to(b"large", tmp_path / "back")
        assert item.size == len(large)
        assert (tmp_path / "back").read_bytes() == large
        assert await node.vault.get(b"small/117") == b"117"
        assert (await node.vault.verify(deep=True)).ok
    trio.run(main)


def test_a_file_of_more_than_1024_chunks_uses_lists_of_chunks(world: Any) -> None:
    content = noise(64 * 1500 + 7)

    async def main() -> None:
        node = await world.node("laptop", settings=replace(world.small, chunk_bytes=64))
        await node.vault.put(b"long", content)
        await node.open()
        assert await node.vault.get(b"long") == content
        assert node.vault.core.view.tree[b"long"][0].indirect
    trio.run(main)


def test_the_same_content_again_writes_nothing(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many({b"a": noise(20_000), b"b": b"short"})
        before = (await node.vault.status(), sorted(node.disk.list("vault/parts")))
        await node.vault.put_many({b"a": noise(20_000), b"b": b"short"})
        after = (await node.vault.status(), sorted(node.disk.list("vault/parts")))
        assert before == after
    trio.run(main)


def test_equal_content_under_another_name_is_stored_once(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", noise(50_000))
        before = (await node.vault.status()).packs_bytes
        await node.vault.put(b"b", noise(50_000))
        assert (await node.vault.status()).packs_bytes - before <= 65_536
        assert await node.vault.get(b"b") == noise(50_000)
    trio.run(main)


def test_an_overwritten_file_shows_its_newest_content(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        for number in range(5):
            await node.vault.put(b"a", b"%d" % number)
        await node.open()
        assert await node.vault.get(b"a") == b"4"
        assert (await node.vault.status()).head_seq == 5
    trio.run(main)


def test_a_removed_file_is_gone_after_a_restart_and_can_come_back(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many({b"a": b"1", b"b": b"2"})
        assert await node.vault.remove([b"a", b"never there"]) == 1
        await node.open()
        assert await node.names() == [b"b"]
        with pytest.raises(UsageError) as caught:
            await node.vault.get(b"a")
        assert caught.value.code == "E_NO_SUCH_FILE"
        await node.vault.put(b"a", b"1")
        assert await node.vault.get(b"a") == b"1"
    trio.run(main)


def test_a_keeper_neither_reads_nor_writes(world: Any) -> None:
    async def main() -> None:
        node = await world.node("keeper", keeper=True)
        with pytest.raises(NotAuthorised):
            await node.vault.put(b"a", b"1")
        with pytest.raises(NotAuthorised):
            await node.vault.list()
        with pytest.raises(NotAuthorised):
            await node.vault.get(b"a")
        assert (await node.vault.status()).files == 0
        assert (await node.vault.verify()).ok
    trio.run(main)


def test_a_full_disk_refuses_a_put_and_loses_nothing(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop", MemoryDisk("home", capacity_bytes=2 << 20))
        await node.vault.put(b"a", b"kept")
        with pytest.raises(NoSpace):
            await node.vault.put(b"large", noise(3 << 20))
        node.disk.full = True
        with pytest.raises(NoSpace):
            await node.vault.put(b"b", b"no room")
        assert await node.vault.get(b"a") == b"kept"
        assert await node.names() == [b"a"]
        await node.open()
        assert await node.vault.get(b"a") == b"kept"
        node.disk.full = False
        await node.vault.put(b"b", b"room again")
        assert await node.names() == [b"a", b"b"]
    trio.run(main)


def test_a_disk_that_fills_during_a_put_is_left_as_it_was(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop", MemoryDisk("home", capacity_bytes=1 << 20))
        await node.vault.put(b"a", b"kept")
        node.disk.free_bytes = lambda: 1 << 40
        with pytest.raises(NoSpace):
            await node.vault.put(b"large", noise(3 << 20))
        assert (await node.vault.status()).packs == 1
        assert node.disk.list("vault/parts") == []
        await node.vault.put(b"b", b"fits")
        await node.open()
        assert await node.names() == [b"a", b"b"]
    trio.run(main)


def test_a_read_only_home_still_reads(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", b"kept")
        node.disk.read_only = True
        await node.open()
        assert await node.vault.get(b"a") == b"kept"
        with pytest.raises(NoSpace):
            await node.vault.put(b"b", b"no")
    trio.run(main)


def test_the_reserve_is_left_alone(world: Any) -> None:
    async def main() -> None:
        disk = MemoryDisk("home", capacity_bytes=10 << 20)
        node = await world.node("laptop", disk, settings=replace(world.small, reserve_bytes=8 << 20))
        await node.vault.put(b"small", noise(1 << 20))
        with pytest.raises(NoSpace) as caught:
            await node.vault.put(b"large", noise(3 << 20))
        assert caught.value.next_step
    trio.run(main)


@pytest.mark.parametrize("where", ["body", "header", "end"])
def test_a_corrupted_pack_is_set_aside_and_named(world: Any, where: str) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", noise(10_000))
        (name,) = node.vault.core.store.on_disk()
        path = f"vault/packs/{name.hex()[:2]}/{name.hex()}"
        raw = bytearray(node.disk.read(path))
        raw[{"body": 5_000, "header": 20, "end": -1}[where]] ^= 1
        node.disk.write_atomic(path, bytes(raw))
        await node.open()
        report = await node.vault.verify()
        assert not report.ok
        assert name in (*report.damaged, *report.missing)
        assert node.disk.exists(path + ".damaged")
        assert not node.disk.exists(path)
        status = await node.vault.status()
        assert status.missing_packs == 1
        assert "E_PACK_DAMAGED" in {trouble.code for trouble in status.trouble}
        await node.vault.put(b"b", b"goes on")
        assert await node.vault.get(b"b") == b"goes on"
    trio.run(main)


def test_reading_from_a_corrupted_pack_says_so_with_a_next_step(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", noise(10_000))
        (name,) = node.vault.core.store.on_disk()
        path = f"vault/packs/{name.hex()[:2]}/{name.hex()}"
        raw = bytearray(node.disk.read(path))
        raw[200] ^= 1
        node.disk.write_atomic(path, bytes(raw))
        with pytest.raises(IntegrityError) as caught:
            await node.vault.get(b"a")
        assert caught.value.next_step
        assert caught.value.exit_code == 7
        assert node.disk.exists(path + ".damaged")
    trio.run(main)


def test_an_index_that_is_missing_or_damaged_is_made_again(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        node = await world.node("laptop", RealDisk(tmp_path), settings=replace(world.small, index_path=None))
        await node.vault.put(b"a", noise(10_000))
        index = tmp_path / "vault" / "index.sqlite"
        for damage in (b"", b"this is no database" * 100, None):
            await node.vault.close()
            if damage is None:
                index.unlink()
            else:
                index.write_bytes(damage)
            await node.open()
            assert await node.vault.get(b"a") == noise(10_000)
        index.write_bytes(b"overwritten while it is open" * 500)
        assert await node.vault.get(b"a") == noise(10_000)
        await node.vault.close()
    trio.run(main)


def test_an_empty_folder_of_packs_deletes_nothing(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", b"1")
        (name,) = node.vault.core.store.on_disk()
        path = f"vault/packs/{name.hex()[:2]}/{name.hex()}"
        raw = node.disk.read(path)
        node.disk.remove(path)
        await node.open()
        status = await node.vault.status()
        assert (status.head_seq, status.missing_packs, status.files) == (1, 1, 0)
        assert node.disk.list(f"vault/heads/{node.member.public.hex()}") != []
        node.disk.write_atomic(path, raw)
        await node.open()
        assert await node.vault.get(b"a") == b"1"
    trio.run(main)


def test_a_damaged_head_falls_back_on_the_one_before(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", b"1")
        await node.vault.put(b"b", b"2")
        folder = f"vault/heads/{node.member.public.hex()}"
        newest = node.disk.list(folder)[-1]
        node.disk.write_atomic(f"{folder}/{newest}", b"rubbish")
        await node.open()
        assert await node.names() == [b"a"]
        assert f"{newest}.damaged" in node.disk.list(folder)
        with pytest.raises(IntegrityError) as caught:  # a head above the lost one would hide what that brought
            await node.vault.put(b"c", b"3")
        assert caught.value.code == "E_VAULT_DOUBT"
    trio.run(main)


def test_data_of_a_new_epoch_is_not_opened_with_the_old_key(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"old", noise(5_000))
        world.family.epochs[b"2" * 32] = b"K" * 32
        world.family.current = b"2" * 32
        await node.vault.put(b"new", noise(5_000, "new"))
        await node.open()
        assert await node.vault.get(b"old") == noise(5_000)
        assert await node.vault.get(b"new") == noise(5_000, "new")
        node.member.lacks_epochs = {b"2" * 32}
        await node.open()
        with pytest.raises(UsageError):
            await node.vault.get(b"new")
        assert await node.vault.get(b"old") == noise(5_000)
        with pytest.raises(NotAuthorised):
            await node.vault.put(b"x", b"y")
        node.member.lacks_epochs = set()
        await node.vault.keys_changed()
        assert await node.vault.get(b"new") == noise(5_000, "new")
    trio.run(main)
