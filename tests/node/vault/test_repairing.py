"""Repairing: what is damaged or missing comes back from siblings, and what became of each thing is said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.node.vault.test_checking import DAMAGE, FILES, flipped, holder_of, noise

from hinet_node.real.disk import RealDisk
from hinet_node.vault.packfolder import pack_path
from hinet_node.vault.report import FETCHED, PUT_BACK, REWRITTEN, STILL_MISSING

FAST = 0.05


async def pair(world: Any, tmp_path: Path) -> tuple[Any, Any]:
    """Two members in step, on real disks; the first one's packs are three files' and its trees'."""
    settings = replace(world.small, index_path=None, sync_interval_s=FAST)
    left = await world.node("desk", RealDisk(tmp_path / "desk"), settings=settings)
    right = await world.node("laptop", RealDisk(tmp_path / "laptop"), settings=settings)
    for name, content in FILES.items():
        await left.vault.put(name, content)
    async with world.running(left, right):
        await world.until(lambda: world.in_step(left, right) and len(right.vault.core.shown()) == len(FILES))
    return left, right


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_kind_of_damaged_pack_is_fetched_from_a_sibling(world: Any, tmp_path: Path, kind: str) -> None:
    damage, _ = DAMAGE[kind]

    async def main() -> None:
        left, right = await pair(world, tmp_path)
        pack = holder_of(right, b"large")
        damage(tmp_path / "laptop" / pack_path(pack))
        # What is on this disk under another name needs no sibling, who might be quicker.
        async with world.running(*(() if kind == "another name" else (left,)), right):
            report = await right.vault.repair(timeout_s=10)
            assert report.ok, report
            (item,) = [one for one in report.items if one.outcome in (FETCHED, PUT_BACK)]
            assert item.name == pack
            assert item.outcome == (PUT_BACK if kind == "another name" else FETCHED)
            assert item.source == ("" if kind == "another name" else "desk")
            assert await right.vault.get(b"large") == FILES[b"large"]
            again = await right.vault.repair(timeout_s=10)
            assert again.items == ()
            assert again.ok
        assert (await right.vault.verify(deep=True)).ok
        place = (tmp_path / "laptop" / pack_path(pack)).parent
        left_over = [entry.name for entry in place.iterdir() if entry.name.endswith(".damaged") and entry.is_file()
                     and not entry.is_symlink()]
        assert left_over == []
    trio.run(main)


def test_without_a_sibling_it_says_what_is_missing_who_may_have_it_and_which_files_it_touches(
        world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        left, right = await pair(world, tmp_path)
        pack = holder_of(right, b"large")
        (tmp_path / "laptop" / pack_path(pack)).unlink()
        await right.vault.close()
        await right.open()
        async with world.running(right):
            with trio.fail_after(10):
                report = await right.vault.repair(timeout_s=0)
        assert not report.ok
        (item,) = report.items
        assert (item.name, item.outcome) == (pack, STILL_MISSING)
        assert item.files == (b"large",)
        assert item.may_have == ("desk (it had it when it was last met)",)
        assert report.files_unreadable == (b"large",)
        assert report.as_json()["ok"] is False
        assert left.vault.core.store.holds(pack)
    trio.run(main)


def test_a_sibling_that_has_it_not_ends_the_waiting_at_once(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        left, right = await pair(world, tmp_path)
        pack = holder_of(right, b"large")
        for home in ("desk", "laptop"):
            (tmp_path / home / pack_path(pack)).unlink()
        for node in (left, right):
            await node.vault.close()
            await node.open()
        async with world.running(left, right):
            with trio.fail_after(20):
                report = await right.vault.repair(timeout_s=3_600)
        (item,) = report.items
        assert item.outcome == STILL_MISSING
        assert item.may_have == ()
    trio.run(main)


def test_waiting_ends_when_a_sibling_comes_that_has_it(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        left, right = await pair(world, tmp_path)
        flipped(tmp_path / "laptop" / pack_path(holder_of(right, b"large")))
        for node in (left, right):
            await node.vault.close()
            await node.open()
        async with world.running(right) as nursery:
            await nursery.start(left.replicator.run)
            reports: list[Any] = []

            async def repair() -> None:
                reports.append(await right.vault.repair(timeout_s=60))
            async with trio.open_nursery() as inner:
                inner.start_soon(repair)
                await trio.sleep(0.5)
                assert reports == []
                world.connect(left, right)
            assert reports[0].ok
        assert await right.vault.get(b"large") == FILES[b"large"]
    trio.run(main)


def test_two_packs_whose_files_were_swapped_are_put_back_without_a_sibling(world: Any, tmp_path: Path) -> None:
    async def main() -> None:
        _, right = await pair(world, tmp_path)
        one, two = (tmp_path / "laptop" / pack_path(holder_of(right, name)) for name in (b"large", b"twin"))
        one.rename(tmp_path / "x")
        two.rename(one)
        (tmp_path / "x").rename(two)
        await right.vault.close()
        await right.open()
        report = await right.vault.repair(timeout_s=0)
        assert report.ok, report
        assert sorted(item.outcome for item in report.items) == [PUT_BACK, PUT_BACK]
        assert (await right.vault.verify(deep=True)).ok
        assert await right.vault.get(b"large") == FILES[b"large"]
    trio.run(main)


@pytest.mark.parametrize("what", ["newest head", "all heads", "heads and number", "sibling's head", "all of vault"])
def test_heads_come_back_from_a_sibling_and_no_number_is_used_twice(world: Any, tmp_path: Path, what: str) -> None:
    """A device that does not know its own past may not write: it would hide what it wrote, or fork."""
    async def main() -> None:
        left, right = await pair(world, tmp_path)
        await right.vault.put(b"mine", noise(3_000, "mine"))
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right) and b"mine" in left.vault.core.shown())
        used = {head.seq for head in left.vault.core.heads.current()} | set(
            left.vault.core.heads._known[right.member.public])
        heads = tmp_path / "laptop/vault/heads"
        own = heads / right.member.public.hex()
        if what == "newest head":
            flipped(max(own.iterdir()))
        elif what == "sibling's head":
            flipped(max((heads / left.member.public.hex()).iterdir()))
        elif what == "all of vault":
            await right.vault.close()
            shutil.rmtree(tmp_path / "laptop/vault")
        else:
            shutil.rmtree(heads)
            if what == "heads and number":
                (tmp_path / "laptop/vault/seq").unlink()
        await right.open()
        if what != "sibling's head":
            with pytest.raises(Exception, match="nothing is written over it"):
                await right.vault.put(b"hides", b"x")
        async with world.running(left, right):
            report = await right.vault.repair(timeout_s=10)
            assert report.ok, report
            assert (await right.vault.verify(deep=True)).ok
            await right.vault.put(b"after", b"x")
            await world.until(lambda: world.in_step(left, right) and b"after" in left.vault.core.shown())
        assert right.vault.core.heads.own().seq > max(
            seq for seq in left.vault.core.heads._known[right.member.public] if seq != right.vault.core.heads.own().seq)
        assert right.vault.core.heads.own().seq not in used
        for node in (left, right):
            assert sorted(await node.names()) == sorted([*FILES, b"after", b"mine"])
            assert await node.vault.get(b"mine") == noise(3_000, "mine")
            assert "E_FORK" not in {trouble.code for trouble in (await node.vault.status()).trouble}
    trio.run(main)


def test_a_disk_that_failed_for_a_moment_costs_nothing(world: Any) -> None:
    """What was set aside may be whole after all: it is looked at again before anybody is asked."""
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"large", FILES[b"large"])
        pack = holder_of(node, b"large")
        node.disk.move(pack_path(pack), pack_path(pack) + ".damaged")
        await node.open()
        assert (await node.vault.verify()).missing == (pack,)
        report = await node.vault.repair(timeout_s=0)
        assert report.ok
        assert [item.outcome for item in report.items] == [PUT_BACK]
        assert await node.vault.get(b"large") == FILES[b"large"]
        node.disk.bad_reads = 1
        assert (await node.vault.verify()).ok
    trio.run(main)


def test_what_was_set_aside_stays_while_it_is_not_known_which_packs_are_needed(world: Any) -> None:
    """With the heads gone nothing seems to be needed, and a damaged pack would be thrown away before it was saved."""
    async def main() -> None:
        node = await world.node("nas", keeper=True)
        left = await world.node("laptop")
        await left.vault.put(b"large", FILES[b"large"])
        async with world.running(left, node):
            await world.until(lambda: world.in_step(left, node))
        pack = next(iter(node.vault.core.store.on_disk()))
        raw = bytearray(node.disk.read(pack_path(pack)))
        raw[100] ^= 1
        node.disk.write_atomic(pack_path(pack), bytes(raw))
        await node.vault.verify()
        node.disk.move("vault/heads", "heads-elsewhere")
        await node.open()
        await node.vault.repair(timeout_s=0)
        assert node.disk.exists(pack_path(pack) + ".damaged")
        async with world.running(left, node):
            assert (await node.vault.repair(timeout_s=10)).ok
            await world.until(lambda: world.in_step(left, node))
        assert (await node.vault.verify()).ok
    trio.run(main)


def test_a_damaged_head_that_nobody_sends_is_told_with_who_may_have_it(world: Any) -> None:
    async def main() -> None:
        left, right = await world.node("desk"), await world.node("laptop")
        await left.vault.put(b"a", b"1")
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right))
        folder = f"vault/heads/{left.member.public.hex()}"
        right.disk.write_atomic(f"{folder}/{right.disk.list(folder)[-1]}", b"rubbish")
        await right.open()
        report = await right.vault.repair(timeout_s=0)
        (item,) = [one for one in report.items if one.kind == "head"]
        assert (item.outcome, item.may_have) == (STILL_MISSING, ("desk",))
        assert not report.ok
        assert await right.vault.get(b"a") == b"1", "its own tree has it"
    trio.run(main)


def test_what_is_put_right_at_once_is_in_the_report_too(world: Any) -> None:
    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put(b"a", b"1")
        node.disk.write_atomic("vault/seq", b"rubbish")
        report = await node.vault.repair(timeout_s=0)
        assert [(item.kind, item.outcome) for item in report.items] == [("seq", REWRITTEN)]
        assert report.ok
        assert (await node.vault.repair(timeout_s=0)).items == ()
    trio.run(main)
