"""What no sibling has: saved from the damaged pack chunk by chunk, and what is lost is said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.node.vault.test_checking import FILES, holder_of

from hinet_node.real.disk import RealDisk
from hinet_node.vault.packfolder import aside_path, pack_path
from hinet_node.vault.report import SALVAGED, STILL_MISSING
from hinet_simnet.disk import MemoryDisk


async def alone(world: Any) -> Any:
    node = await world.node("laptop")
    for name, content in FILES.items():
        await node.vault.put(name, content)
    return node


def flip(disk: Any, path: str, at: int) -> None:
    raw = bytearray(disk.read(path))
    raw[at] ^= 0x10
    disk.write_atomic(path, bytes(raw))


@pytest.mark.parametrize("where", ["trailer", "footer", "padding", "salt", "epoch", "magic"])
def test_a_pack_whose_chunks_all_open_is_saved_whole_and_not_needed_any_more(world: Any, where: str) -> None:
    async def main() -> None:
        node = await alone(world)
        pack = holder_of(node, b"twin")
        size = node.disk.size(pack_path(pack))
        at = {"trailer": size - 1, "footer": size - 60, "padding": size - 20_000, "salt": 50, "epoch": 10, "magic": 0}
        flip(node.disk, pack_path(pack), at[where])
        report = await node.vault.repair(timeout_s=0)
        assert report.ok, report
        (item,) = report.items
        assert (item.name, item.outcome) == (pack, SALVAGED)
        assert not node.disk.exists(aside_path(pack))
        await node.open()
        assert (await node.vault.verify(deep=True)).ok
        assert (await node.vault.repair(timeout_s=0)).items == ()
        for name, content in FILES.items():
            assert await node.vault.get(name) == content
        pocket = await world.node("pocket")
        async with world.running(node, pocket):  # nobody waits for the pack that is gone
            await world.until(lambda: world.in_step(node, pocket) and len(pocket.vault.core.shown()) == len(FILES))
            assert await pocket.vault.get(b"twin") == FILES[b"twin"]
    trio.run(main)


def test_a_damaged_chunk_costs_that_chunk_and_the_files_that_need_it_are_named(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        pack = holder_of(node, b"large")
        slots = node.vault.core.store.index.slots_in(pack)
        flip(node.disk, pack_path(pack), slots[3].offset + 10)
        report = await node.vault.repair(timeout_s=0)
        assert not report.ok
        (item,) = report.items
        assert (item.outcome, item.files) == (STILL_MISSING, (b"large",))
        assert f"{len(slots) - 1} of its {len(slots)} parts were saved" in item.what
        assert "large lacks 1 of 37 parts" in item.what
        assert node.disk.exists(aside_path(pack)), "a sibling may yet have it, and the owner may want to look"
        assert report.files_unreadable == (b"large",)
        for slot in slots:
            assert (node.vault.core.store.index.pack_of(slot.chunk_id) is None) == (slot == slots[3])
        packs = (await node.vault.status()).packs
        again = await node.vault.repair(timeout_s=0)
        assert again.items == (again.items[0],)
        assert (await node.vault.status()).packs == packs, "what was saved once is not saved again"
        assert await node.vault.get(b"twin") == FILES[b"twin"]
        await node.vault.put(b"new", b"goes on")
    trio.run(main)


def test_what_was_lost_comes_back_whole_when_a_sibling_has_it_after_all(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        other = await world.node("desk")
        async with world.running(node, other):
            await world.until(lambda: world.in_step(node, other) and len(other.vault.core.shown()) == len(FILES))
        pack = holder_of(node, b"large")
        flip(node.disk, pack_path(pack), 5_000)
        report = await node.vault.repair(timeout_s=0)
        assert not report.ok
        await node.open()
        await other.open()
        async with world.running(node, other):
            report = await node.vault.repair(timeout_s=10)
            assert report.ok, report
        assert not node.disk.exists(aside_path(pack))
        assert await node.vault.get(b"large") == FILES[b"large"]
        assert (await node.vault.verify(deep=True)).ok
    trio.run(main)


def test_chunks_under_a_key_of_before_are_saved_with_their_ids(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        pack = holder_of(node, b"twin")
        world.family.epochs[b"2" * 32] = b"K" * 32
        world.family.current = b"2" * 32
        await node.vault.keys_changed()
        flip(node.disk, pack_path(pack), -1)
        report = await node.vault.repair(timeout_s=0)
        assert report.ok, report
        await node.open()
        assert await node.vault.get(b"twin") == FILES[b"twin"]
        assert (await node.vault.verify(deep=True)).ok
    trio.run(main)


def test_a_cut_pack_gives_what_is_left_of_it(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        pack = holder_of(node, b"large")
        slots = node.vault.core.store.index.slots_in(pack)
        raw = node.disk.read(pack_path(pack))
        node.disk.write_atomic(pack_path(pack), raw[:slots[9].offset + 5])
        (item,) = (await node.vault.repair(timeout_s=0)).items
        assert f"9 of its {len(slots)} parts were saved" in item.what
        assert [node.vault.core.store.index.pack_of(slot.chunk_id) is not None for slot in slots] == (
            [number < 9 for number in range(len(slots))])
    trio.run(main)


@pytest.mark.parametrize("gone", ["newest record", "heads", "heads and number", "heads, number and one pack"])
def test_a_device_that_is_alone_and_lost_its_heads_saves_its_trees_and_uses_no_number_again(
        world: Any, tmp_path: Path, gone: str) -> None:
    async def main() -> None:
        settings = replace(world.small, index_path=None)
        node = await world.node("laptop", RealDisk(tmp_path / "home"), settings=settings)
        for name, content in FILES.items():
            await node.vault.put(name, content)
        await node.vault.put(b"removed", b"stays removed")
        await node.vault.remove([b"removed"])
        before = node.vault.core.heads.own().seq
        twin = holder_of(node, b"twin")
        await node.vault.close()
        heads = tmp_path / "home/vault/heads"
        if gone == "newest record":
            newest = max((heads / node.member.public.hex()).iterdir())
            newest.write_bytes(b"rubbish")
        else:
            shutil.rmtree(heads)
        if "number" in gone:
            (tmp_path / "home/vault/seq").unlink()
        if "pack" in gone:
            (tmp_path / "home" / pack_path(twin)).unlink()
        await node.open()
        with pytest.raises(Exception, match="nothing is written over it") as refused:
            await node.vault.put(b"new", b"x")
        assert "vault repair" in refused.value.next_step
        assert refused.value.exit_code == 7
        report = await node.vault.repair(timeout_s=0)
        assert any(item.outcome == SALVAGED for item in report.items)
        assert await node.names() == sorted(FILES)
        await node.vault.put(b"new", b"x")
        assert node.vault.core.heads.own().seq > before
        await node.vault.close()
        await node.open()
        assert await node.names() == sorted([*FILES, b"new"])
        assert await node.vault.get(b"large") == FILES[b"large"]
        if "pack" in gone:
            assert report.files_unreadable == (b"twin",)
        else:
            assert (await node.vault.verify(deep=True)).ok
        await node.vault.close()
    trio.run(main)


def test_a_keeper_saves_nothing_and_says_so(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        keeper = await world.node("nas", MemoryDisk("nas"), keeper=True)
        async with world.running(node, keeper):
            await world.until(lambda: world.in_step(node, keeper))
        pack = holder_of(node, b"twin")
        flip(keeper.disk, pack_path(pack), -1)
        await keeper.open()
        report = await keeper.vault.repair(timeout_s=0)
        (item,) = report.items
        assert (item.outcome, item.files) == (STILL_MISSING, ())
        assert item.may_have == ("laptop (it had it when it was last met)",) or item.may_have == ("laptop",)
        assert keeper.disk.exists(aside_path(pack))
    trio.run(main)
