"""Adding folders: what is taken, under which names, what is left out and said, and what is not read a second time."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from blake3 import blake3

from hinet_node.errors import UsageError
from hinet_node.real.disk import RealDisk
from hinet_node.vault import VaultSettings
from hinet_node.vault.looks import is_settled
from hinet_node.vault.packstore import pack_path
from hinet_protocol.attributes import read_attributes
from hinet_protocol.trees import name_bytes_max
from hinet_simnet.disk import MemoryDisk

FAR_NS = 4_000_000_000_000_000_000
PAUSE_S = 0.15
"""Longer than a file must have been left alone for a look at it to count."""
WHOLE = VaultSettings(reserve_bytes=0, index_path=":memory:")


def tree(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def run(world: Any, work: Callable[[Any], Any], **options: Any) -> None:
    async def main() -> None:
        await work(await world.node("laptop", **options))
    trio.run(main)


def test_names_are_kept_byte_for_byte(world: Any, tmp_path: Path) -> None:
    folder = os.fsencode(tree(tmp_path / "t"))
    names = sorted([b"a", b"A", "e\u0301".encode(), "\u00e9".encode(), b"\xff\xfe", b"new\nline", b" ", b"x" * 255])
    for name in names:
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(name)

    async def work(node: Any) -> None:
        report = await node.vault.add_files([tmp_path / "t"], b"under/")
        assert (report.files, report.whole) == (len(names), True)
        assert await node.names() == [b"under/t/" + name for name in names]
        for name in names:
            assert await node.vault.get(b"under/t/" + name) == name
    run(world, work)


def test_what_is_no_file_is_never_opened(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", file=b"1")
    os.mkfifo(folder / "pipe")  # opening it for reading would wait for ever
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    (folder / "loop").symlink_to(".")
    (folder / "out").symlink_to("/etc")
    (tmp_path / "way-in").symlink_to(folder)

    async def work(node: Any) -> None:
        report = await node.vault.add_files([folder, tmp_path / "way-in"])
        assert await node.names() == [b"t/file", b"way-in/file"]  # the link that the owner named was followed
        assert (report.notes.skipped_count, report.whole) == (8, True)
    run(world, work)
    server.close()


def test_a_name_too_long_for_the_vault_is_left_out_and_said_and_the_rest_is_stored(world: Any, tmp_path: Path) -> None:
    """Deeper than any path that the system takes."""
    folder, depth, part = tree(tmp_path / "t"), 30, "d" * 200
    at = os.open(folder, os.O_RDONLY)
    for number in range(depth):
        os.mkdir(part, dir_fd=at)
        inner = os.open(part, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
        os.close(os.open(f"f{number}", os.O_WRONLY | os.O_CREAT, dir_fd=at))
    os.close(at)
    fit = sum(len(f"t/{'/'.join([part] * (number + 1))}/f{number}") <= name_bytes_max for number in range(depth))

    async def work(node: Any) -> None:
        report = await node.vault.add_files([folder])
        assert report.files == fit < depth
        assert len(await node.names()) == fit
        ((path, why),) = report.notes.left_out
        assert part in path
        assert "4096 bytes" in why
        assert not report.whole
    run(world, work)


def test_what_changes_kind_or_vanishes_before_it_is_read_is_left_out_and_never_followed(world: Any,
                                                                                        tmp_path: Path) -> None:
    outside = tree(tmp_path / "outside", treasure=b"of somebody else", inner=b"secret")
    folder = tree(tmp_path / "t", gone=b"1", link=b"2", pipe=b"3", stays=b"4")
    tree(folder / "sub", inner=b"5")

    def change(done: Any) -> None:
        """After all was found, before the first was read."""
        if not (folder / "gone").exists():
            return
        for name in ("gone", "link", "pipe", "sub/inner"):
            (folder / name).unlink()
        (folder / "link").symlink_to(outside / "treasure")
        os.mkfifo(folder / "pipe")
        (folder / "sub").rmdir()
        (folder / "sub").symlink_to(outside)

    async def work(node: Any) -> None:
        report = await node.vault.add_files([folder], on_progress=change)
        assert await node.names() == [b"t/stays"]
        assert sorted(Path(path).name for path, _ in report.notes.left_out) == ["gone", "inner", "link", "pipe"]
        assert (report.files, report.bytes, report.notes.left_out_count) == (1, 1, 4)
    run(world, work)


def test_what_may_not_be_read_is_left_out_and_said(world: Any) -> None:
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    folder = tree(place / "t", mine=b"1", closed=b"2")
    tree(folder / "shut", inside=b"3")
    (folder / "closed").chmod(0)
    (folder / "shut").chmod(0)
    former = os.geteuid()

    async def work(node: Any) -> None:
        if former == 0:
            os.seteuid(65_534)
        try:
            report = await node.vault.add_files([folder])
            with pytest.raises(UsageError) as caught:
                await node.vault.add_files([folder / "shut"])
        finally:
            os.seteuid(former)
        assert caught.value.code == "E_PERMISSION"
        assert await node.names() == [b"t/mine"]
        assert sorted((Path(path).name, why) for path, why in report.notes.left_out) == [
            ("closed", "permission denied"), ("shut", "permission denied")]
    run(world, work)
    (folder / "shut").chmod(0o700)


def test_two_files_of_one_name_are_refused_and_one_place_named_twice_is_not(world: Any, tmp_path: Path) -> None:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        tree(tmp_path / side / "t", same=b"1", **{side: b"2"})

    async def work(node: Any) -> None:
        with pytest.raises(UsageError, match="t/same"):
            await node.vault.add_files([tmp_path / "left" / "t", tmp_path / "right" / "t"])
        assert await node.names() == []
        assert (await node.vault.status()).packs == 0
        await node.vault.add_files([tmp_path / "left" / "t", tmp_path / "left" / ".." / "left" / "t"])
        assert await node.names() == [b"t/left", b"t/same"]
    run(world, work)


def test_hard_links_are_two_files_and_one_content(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", a=os.urandom(200_000))
    os.link(folder / "a", folder / "b")

    async def work(node: Any) -> None:
        assert (await node.vault.add_files([folder])).bytes == 400_000
        assert await node.names() == [b"t/a", b"t/b"]
        assert (await node.vault.status()).packs_bytes < 350_000
    run(world, work, settings=WHOLE)


def test_totals_are_told_before_anything_is_read(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", **{f"f{number}": bytes([number]) * 50_000 for number in range(40)})

    async def work(node: Any) -> None:
        told: list[Any] = []
        await node.vault.add_files([folder], on_progress=told.append)
        assert (told[0].bytes_done, told[0].files_done) == (0, 0)
        assert {(done.bytes_total, done.files_total) for done in told} == {(2_000_000, 40)}
        assert (told[-1].bytes_done, told[-1].files_done) == (2_000_000, 40)
    run(world, work)


# --- holes -----------------------------------------------------------------------------------------------------------


def test_a_sparse_file_takes_the_room_of_its_data_and_comes_back_sparse(world: Any, tmp_path: Path) -> None:
    size = 600 << 20
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(123_456_789)
        file.write(b"an island")
    digest = blake3()
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            digest.update(piece)

    async def work(node: Any) -> None:
        await node.vault.add_files([path])
        (item,) = await node.vault.list()
        assert (item.size, item.digest) == (size, digest.digest())
        assert (await node.vault.status()).packs_bytes < 1 << 20
        await node.vault.get_to(b"sparse", tmp_path / "back")
        assert (tmp_path / "back").stat().st_blocks * 512 < 8 << 20
        with (tmp_path / "back").open("rb") as file:
            file.seek(123_456_789 - 4)
            assert file.read(20) == b"\0\0\0\0an island" + bytes(7)
    run(world, work, settings=WHOLE, disk=MemoryDisk(capacity_bytes=64 << 20))


# --- looks -----------------------------------------------------------------------------------------------------------


def test_what_looks_unchanged_is_not_read_again_unless_asked(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", a=b"1", b=os.urandom(30_000), empty=b"")
    time.sleep(PAUSE_S)

    async def work(node: Any) -> None:
        first = await node.vault.add_files([folder])
        head = node.vault.core.head_hashes()
        again = await node.vault.add_files([folder])
        assert (first.unchanged, first.new_versions) == (0, 3)
        assert (again.files, again.bytes, again.unchanged, again.new_versions) == (3, 30_001, 3, 0)
        assert (await node.vault.add_files([folder], rescan=True)).unchanged == 0
        assert (await node.vault.add_files([folder], b"elsewhere")).new_versions == 3
        assert len(head) == 1
        (folder / "a").write_bytes(b"2")
        changed = await node.vault.add_files([folder])
        assert (changed.unchanged, changed.new_versions) == (2, 1)
        assert await node.vault.get(b"t/a") == b"2"
    run(world, work)


@pytest.mark.parametrize("how", ["in place", "replaced", "by a copy with its times", "longer", "by an older one"])
def test_a_change_that_hides_its_time_is_noticed(world: Any, tmp_path: Path, how: str) -> None:
    folder = tree(tmp_path / "t", a=b"before")
    path = folder / "a"
    time.sleep(PAUSE_S)

    async def work(node: Any) -> None:
        await node.vault.add_files([folder])
        assert (await node.vault.add_files([folder])).unchanged == 1
        times = path.stat()
        if how == "replaced":
            (folder / "b").write_bytes(b"behind")
            (folder / "b").replace(path)
        elif how == "by a copy with its times":
            (tmp_path / "other").write_bytes(b"behind")
            os.utime(tmp_path / "other", ns=(times.st_atime_ns, times.st_mtime_ns))
            (tmp_path / "other").replace(path)
        elif how == "longer":
            path.write_bytes(b"behind it")
        else:
            path.write_bytes(b"behind")
        if how == "by an older one":
            os.utime(path, ns=(1, 1))
        elif how != "by a copy with its times":
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        report = await node.vault.add_files([folder])
        assert (report.unchanged, report.new_versions) == (0, 1)
        assert (await node.vault.get(b"t/a")).startswith(b"behind")
    run(world, work)


def test_a_file_that_may_be_run_now_is_a_new_version(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", a=b"#!/bin/sh")

    async def work(node: Any) -> None:
        await node.vault.add_files([folder])
        (folder / "a").chmod(0o755)
        assert (await node.vault.add_files([folder])).new_versions == 1
        (folder / "a").touch()
        assert (await node.vault.add_files([folder])).new_versions == 0
        version, _ = node.vault.core.version(b"t/a")
        assert read_attributes(version.attributes).mode == 0o755
    run(world, work)


def test_a_removed_file_and_a_lost_pack_come_back_although_the_file_looks_unchanged(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", a=os.urandom(50_000))
    time.sleep(PAUSE_S)

    async def work(node: Any) -> None:
        await node.vault.add_files([folder])
        await node.vault.remove([b"t/a"])
        assert (await node.vault.add_files([folder])).new_versions == 1
        content = (folder / "a").read_bytes()
        for name in list(node.vault.core.store.on_disk()):
            raw = bytearray(node.disk.read(pack_path(name)))
            raw[100] ^= 1
            node.disk.write_atomic(pack_path(name), bytes(raw))
        await node.vault.verify()
        assert (await node.vault.add_files([folder])).unchanged == 0
        assert await node.vault.get(b"t/a") == content
    run(world, work)


def test_a_lost_pack_of_a_very_long_file_comes_back_too(world: Any, tmp_path: Path) -> None:
    """Its version names lists of chunks, which may be here while the chunks are not."""
    folder = tree(tmp_path / "t", a=os.urandom(5_000_000))
    time.sleep(PAUSE_S)

    async def work(node: Any) -> None:
        await node.vault.add_files([folder])
        assert node.vault.core.version(b"t/a")[0].indirect
        assert (await node.vault.add_files([folder])).unchanged == 1
        lost = node.vault.core.store.index.pack_of(next(
            chunk for chunk in node.vault.core.edits.chunk_ids(node.vault.core.version(b"t/a")[0])
            if chunk not in set(node.vault.core.version(b"t/a")[0].chunk_ids())))
        node.disk.remove(pack_path(lost))
        await node.vault.verify()
        assert (await node.vault.add_files([folder])).unchanged == 0
        assert await node.vault.get(b"t/a") == (folder / "a").read_bytes()
    run(world, work)


def looked(mtime_ns: int, ctime_ns: int) -> os.stat_result:
    return os.stat_result((0o100644, 1, 1, 1, 0, 0, 0, 0, 0, 0), {"st_mtime_ns": mtime_ns, "st_ctime_ns": ctime_ns})


@pytest.mark.parametrize(("mtime_ns", "ctime_ns", "settled"), [
    (-200_000_001, -200_000_001, True), (-1, -1, False), (-5_000_000_001, -1, False), (-1, -5_000_000_001, False),
    (1, -5_000_000_001, False), (FAR_NS, -5_000_000_001, False), (-1_000_000_000, -1_000_000_000, False),
    (-3_000_000_000, -3_000_000_000, True), (-1_000_000_000, -1_000_000_001, True), (0, 0, False),
])
def test_a_look_at_a_file_as_young_as_itself_does_not_count(mtime_ns: int, ctime_ns: int, settled: bool) -> None:
    now_ns = 1_800_000_000_000_000_000
    assert is_settled(looked(now_ns + mtime_ns, now_ns + ctime_ns), now_ns) is settled


def test_a_file_of_the_future_is_read_each_time(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "t", a=b"1")
    os.utime(folder / "a", ns=(FAR_NS, FAR_NS))
    time.sleep(PAUSE_S)

    async def work(node: Any) -> None:
        for _ in range(2):
            assert (await node.vault.add_files([folder])).unchanged == 0
    run(world, work)


def test_the_index_tells_neither_names_nor_contents(world: Any, tmp_path: Path) -> None:
    folder = tree(tmp_path / "very-telling-folder", **{"very-telling-name": b"very telling content"})
    time.sleep(PAUSE_S)
    home = tmp_path / "home"

    async def work(node: Any) -> None:
        await node.vault.add_files([folder])
        assert (await node.vault.add_files([folder])).unchanged == 1
        await node.vault.close()
        raw = (home / "vault" / "index.sqlite").read_bytes()
        assert len(raw) > 1_000
        for told in (b"telling", blake3(b"very telling content").digest(), os.fsencode(tmp_path)):
            assert told not in raw
        await node.open()
        assert (await node.vault.add_files([folder])).unchanged == 1  # a look outlives the agent
    run(world, work, disk=RealDisk(home), settings=VaultSettings(reserve_bytes=0))
