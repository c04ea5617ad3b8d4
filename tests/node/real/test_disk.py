"""The Disk port: the real home folder and its in-memory twin pass the same tests; then what only the real one has."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.ports import Disk
from hinet_node.real import disk_direct
from hinet_node.real.disk import RealDisk
from hinet_node.real.disk_names import TEMPORARY_PREFIX
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.filesystem import FailingCalls, History, Killed, ModelFilesystem, outcomes


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "home") if request.param == "real" else MemoryDisk()


def test_what_is_written_is_read_back(disk: Disk) -> None:
    disk.write_atomic("chain/entries/a", b"first")
    disk.write_atomic("chain/entries/a", b"second one")
    assert disk.read("chain/entries/a") == b"second one"
    assert disk.size("chain/entries/a") == 10
    assert disk.read_at("chain/entries/a", 7, 100) == b"one"
    assert disk.read_at("chain/entries/a", 1, 2) == b"ec"
    assert disk.read_at("chain/entries/a", 50, 2) == b""
    disk.write_atomic("empty", b"")
    assert disk.read("empty") == b""


def test_a_big_file_comes_back_whole(disk: Disk) -> None:
    data = os.urandom(1 << 20) * 40
    disk.write_atomic("big", data)
    assert disk.read("big") == data


def test_a_missing_name_is_file_not_found(disk: Disk) -> None:
    for call in (disk.read, disk.size):
        with pytest.raises(FileNotFoundError):
            call("nothing/here")
    with pytest.raises(FileNotFoundError):
        disk.commit("nothing.part", "nothing")
    assert not disk.exists("nothing/here")
    assert disk.list("nothing") == []
    assert disk.list("") == []
    disk.remove("nothing/here")


def test_listing_is_sorted_and_shows_files_and_folders(disk: Disk) -> None:
    for name in ("b", "a/y", "a/x", "a/z/deep"):
        disk.write_atomic(name, b".")
    assert disk.list("") == ["a", "b"]
    assert disk.list("a") == ["x", "y", "z"]
    assert disk.exists("a")
    assert disk.exists("a/z/deep")


def test_appended_parts_become_a_file_by_commit(disk: Disk) -> None:
    disk.append("in/pack.part", b"abc")
    disk.append("in/pack.part", b"def")
    assert disk.size("in/pack.part") == 6
    disk.commit("in/pack.part", "packs/pack")
    assert disk.read("packs/pack") == b"abcdef"
    assert not disk.exists("in/pack.part")


def test_a_file_or_a_whole_folder_takes_another_name(disk: Disk) -> None:
    disk.write_atomic("a/x", b"1")
    disk.write_atomic("a/deep/y", b"2")
    disk.write_atomic("b", b"old")
    disk.move("a/x", "b")
    assert (disk.read("b"), disk.list("a")) == (b"1", ["deep"])
    disk.move("a", "c/a.damaged")
    assert disk.read("c/a.damaged/deep/y") == b"2"
    assert disk.list("") == ["b", "c"]
    assert disk.list("c") == ["a.damaged"]
    disk.write_atomic("c/a.damaged/z", b"3")
    with pytest.raises(FileNotFoundError):
        disk.move("a/x", "d")
    with pytest.raises(IsADirectoryError):
        disk.move("b", "c")
    disk.write_atomic("e/1", b"")
    with pytest.raises(OSError):
        disk.move("e", "c")
    assert disk.read("c/a.damaged/z") == b"3"


def test_removing_a_file_removes_only_it(disk: Disk) -> None:
    disk.write_atomic("a/x", b"1")
    disk.write_atomic("a/y", b"2")
    disk.remove("a/x")
    assert disk.list("a") == ["y"]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", "a\\b", "a\0b", "a/",
                                  f"a/{TEMPORARY_PREFIX}1", "x" * 256, "/".join(["x" * 200] * 6)])
def test_a_name_that_could_leave_the_home_is_refused(disk: Disk, name: str) -> None:
    with pytest.raises(ValueError):
        disk.write_atomic(name, b"x")
    with pytest.raises(ValueError):
        disk.read(name)


def test_a_folder_is_not_a_file_and_a_file_is_not_a_folder(disk: Disk) -> None:
    disk.write_atomic("a/x", b"1")
    with pytest.raises(IsADirectoryError):
        disk.read("a")
    with pytest.raises(IsADirectoryError):
        disk.write_atomic("a", b"2")
    with pytest.raises(IsADirectoryError):
        disk.remove("a")
    with pytest.raises(NotADirectoryError):
        disk.write_atomic("a/x/y", b"2")
    with pytest.raises(NotADirectoryError):
        disk.list("a/x")
    assert disk.read("a/x") == b"1"


async def _run_blocking(disk: Disk) -> int:
    return int(await disk.run_blocking(lambda: 6 * 7))


def test_blocking_work_gives_its_result(disk: Disk) -> None:
    assert trio.run(_run_blocking, disk) == 42


def test_free_bytes_is_positive_before_the_home_exists(disk: Disk) -> None:
    assert disk.free_bytes() > 0


def test_real_folders_and_private_files_are_the_owners_only(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "new" / "home")
    disk.write_atomic("keys/device.key", b"seed", private=True)
    for place in (tmp_path / "new", tmp_path / "new/home", tmp_path / "new/home/keys"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new/home/keys/device.key").stat().st_mode) == 0o600
    assert disk.path("keys/device.key") == str(tmp_path / "new/home/keys/device.key")


def test_a_link_in_the_home_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    disk = RealDisk(tmp_path / "home")
    disk.write_atomic("there", b"x")
    (tmp_path / "home/folder").symlink_to(outside)
    (tmp_path / "home/file").symlink_to(outside / "secret")
    with pytest.raises(IntegrityError, match="symbolic link"):
        disk.read("folder/secret")
    with pytest.raises(IntegrityError, match="symbolic link"):
        disk.write_atomic("folder/new", b"x")
    with pytest.raises(IntegrityError, match="symbolic link"):
        disk.read("file")
    disk.write_atomic("file", b"own bytes")
    assert (outside / "secret").read_bytes() == b"secret"
    assert disk.read("file") == b"own bytes"
    assert sorted(place.name for place in (outside).iterdir()) == ["secret"]


def test_moving_a_link_moves_the_link_and_an_unreadable_file_need_not_be_opened(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "home")
    disk.write_atomic("a/x", b"1")
    (tmp_path / "home/a/link").symlink_to(tmp_path / "outside")
    (tmp_path / "home/a/x").chmod(0)
    disk.move("a/link", "a/link.damaged")
    disk.move("a/x", "a/x.damaged")
    assert (tmp_path / "home/a/link.damaged").is_symlink()
    assert disk.list("a") == ["link.damaged", "x.damaged"]


def test_a_home_that_is_itself_a_link_works(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    RealDisk(tmp_path / "home").write_atomic("a", b"1")
    assert (tmp_path / "disk/a").read_bytes() == b"1"


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "full"), (errno.EDQUOT, "quota"),
                                               (errno.EROFS, "read-only"), (errno.EACCES, "may not write")])
def test_a_disk_that_refuses_the_write_is_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int,
                                                   words: str) -> None:
    disk = RealDisk(tmp_path / "home")
    disk.write_atomic("a", b"old")
    disk.append("part", b"abc")
    written = os.write

    def refuse(descriptor: int, data: memoryview) -> int:
        if len(data) > 4:
            return written(descriptor, data[:2])
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(NoSpace, match=words) as caught:
        disk.write_atomic("a", b"new bytes")
    assert caught.value.exit_code == 8
    assert caught.value.next_step
    with pytest.raises(NoSpace):
        disk.append("part", b"defghi")
    monkeypatch.undo()
    assert disk.read("a") == b"old"
    assert disk.read("part") == b"abc"
    assert sorted(place.name for place in (tmp_path / "home").iterdir()) == ["a", "part"]


def test_leftovers_of_a_cut_write_are_hidden_and_removed(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "home")
    assert disk.remove_leftovers() == 0
    disk.write_atomic("a/x", b"1")
    (tmp_path / "home/a" / f"{TEMPORARY_PREFIX}77-0").write_bytes(b"half")
    assert disk.list("a") == ["x"]
    assert disk.remove_leftovers() == 1
    assert [place.name for place in (tmp_path / "home/a").iterdir()] == ["x"]


def test_threads_may_write_the_same_folders_at_once(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "home")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                disk.write_atomic(f"f{turn}/g/{number}", bytes([number]))
                disk.write_atomic("shared", bytes([number]) * 1000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(disk.read("shared"))) == 1
    assert disk.list("f19/g") == ["0", "1", "2", "3"]


def test_a_full_or_read_only_memory_disk_refuses_writes_and_still_removes() -> None:
    disk = MemoryDisk()
    disk.write_atomic("a", b"12345")
    disk.full = True
    with pytest.raises(NoSpace):
        disk.write_atomic("b", b"1")
    with pytest.raises(NoSpace):
        disk.append("a", b"1")
    assert disk.free_bytes() == 0
    disk.remove("a")
    assert not disk.exists("a")
    disk.full = False
    disk.capacity_bytes = 8
    disk.write_atomic("a", b"12345")
    with pytest.raises(NoSpace):
        disk.write_atomic("b", b"12345")
    disk.read_only = True
    for call in (lambda: disk.write_atomic("c", b""), lambda: disk.append("c", b""), lambda: disk.remove("a"),
                 lambda: disk.commit("a", "c")):
        with pytest.raises(NoSpace, match="read-only"):
            call()
    assert disk.read("a") == b"12345"


def test_a_crash_keeps_what_was_committed_and_loses_what_was_only_appended() -> None:
    disk = MemoryDisk()
    disk.write_atomic("a", b"whole")
    disk.append("a.part", b"abc")
    disk.append("b.part", b"abc")
    disk.commit("b.part", "b")
    disk.append("b", b"more")
    disk.append("c.part", b"12345")
    disk.crash(keep=lambda lost: 2 if lost == 5 else 0)
    assert disk.list("") == ["a", "b", "c.part"]
    assert disk.read("b") == b"abc"
    assert disk.read("c.part") == b"12"


def test_a_file_that_is_moved_keeps_its_bytes_and_takes_the_place_of_another(disk: Disk) -> None:
    disk.write_atomic("packs/ab/pack", b"damaged")
    disk.write_atomic("packs/ab/pack.damaged", b"an older one")
    disk.move("packs/ab/pack", "packs/ab/pack.damaged")
    assert disk.list("packs/ab") == ["pack.damaged"]
    disk.move("packs/ab/pack.damaged", "aside/pack")
    assert disk.list("packs/ab") == []
    assert disk.read("aside/pack") == b"damaged"
    with pytest.raises(FileNotFoundError):
        disk.move("packs/ab/pack", "anywhere")


def test_a_part_that_can_not_be_synced_is_not_used_again() -> None:
    filesystem = ModelFilesystem()
    calls = FailingCalls(filesystem, at=1, number=errno.EIO, among=("fsync",))
    disk = RealDisk("/home", filesystem)
    disk.append("in", b"abc")
    failing = RealDisk("/home", calls)
    with pytest.raises(OSError, match="Input/output error"):
        failing.commit("in", "pack")
    assert disk.list("") == [], "its bytes may be lost, and a later fsync would not say so"


def test_a_folder_that_can_not_be_synced_is_not_taken_for_durable() -> None:
    filesystem = ModelFilesystem()
    RealDisk("/home", filesystem).write_atomic("first", b"1")
    calls = FailingCalls(filesystem, at=1, number=errno.EIO, among=("fsync",))
    with pytest.raises(OSError, match="Input/output error"):
        RealDisk("/home", calls).write_atomic("folder/file", b"1")
    disk = RealDisk("/home", filesystem)
    assert not disk.exists("folder")
    disk.write_atomic("folder/file", b"2")
    history = History(filesystem.record)
    end = len(filesystem.record)
    for outcome in outcomes(history, end, Random(1), 32):
        assert history.state(end, outcome).tree()["/home/folder/file"] == b"2", outcome


def test_what_a_killed_process_renamed_is_durable_once_the_next_one_has_tidied_up() -> None:
    filesystem = ModelFilesystem()
    RealDisk("/home", filesystem).write_atomic("a/b", b"old")
    with pytest.raises(Killed):
        RealDisk("/home", FailingCalls(filesystem, at=5, number=0)).write_atomic("a/b", b"new")
    disk = RealDisk("/home", filesystem)
    assert disk.read("a/b") == b"new"
    history, seen = History(filesystem.record), set()
    for outcome in outcomes(history, len(filesystem.record), Random(1), 32):
        seen.add(history.state(len(filesystem.record), outcome).tree()["/home/a/b"])
    assert seen == {b"old", b"new"}, "it was read, and is not on the disk yet"
    assert disk.remove_leftovers() == 0
    history, end = History(filesystem.record), len(filesystem.record)
    for outcome in outcomes(history, end, Random(1), 32):
        assert history.state(end, outcome).tree()["/home/a/b"] == b"new"


def pages(content: bytes) -> memoryview:
    """The content in memory of its own, as a bulk connection's buffer is."""
    held = mmap.mmap(-1, max(1, len(content)))
    held.write(content)
    return memoryview(held)[:len(content)]


def test_pieces_that_may_go_past_the_page_cache_come_back_as_they_were(disk: Disk) -> None:
    content = Random(5).randbytes(300_000)
    for begin, end in ((0, 8_192), (8_192, 139_264), (139_264, 139_265), (139_265, 204_801), (204_801, 300_000)):
        disk.append("vault/parts/in-a", pages(content[begin:end]))
        assert disk.size("vault/parts/in-a") == end
    disk.commit("vault/parts/in-a", "vault/packs/a")
    assert disk.read("vault/packs/a") == content


def test_a_file_system_that_takes_nothing_directly_gets_it_through_its_cache(tmp_path: Path) -> None:
    tried = []

    class Strict:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def open(self, path: str, flags: int, *rest: Any, **more: Any) -> int:
            if flags & disk_direct.DIRECT_FLAG and not flags & os.O_DIRECTORY:
                tried.append(path)
                raise OSError(errno.EINVAL, "Invalid argument")
            return os.open(path, flags, *rest, **more)

    disk = RealDisk(tmp_path / "home", calls=Strict())
    content = Random(6).randbytes(8_192)
    disk.append("part", pages(content))
    assert disk.read("part") == content
    assert tried == (["part"] if disk_direct.DIRECT_FLAG else [])


def test_pieces_are_read_into_the_callers_memory_wherever_they_begin(disk: Disk) -> None:
    content = Random(7).randbytes(300_001)
    disk.write_atomic("pack", content)
    for offset, length in ((0, 65_536), (65_536, 131_072), (5, 4_096), (294_912, 65_536), (300_001, 4_096), (0, 10)):
        buffer = pages(bytes(length))
        assert disk.read_into("pack", offset, buffer) == len(content[offset:offset + length])
        assert bytes(buffer) == content[offset:offset + length].ljust(length, b"\0")
    with pytest.raises(FileNotFoundError):
        disk.read_into("nothing", 0, pages(bytes(4_096)))
