"""Many files onto real file systems: resumed, never over another file, never out of the folder; and names that are one
there. The file system that ignores case and composes accents is a twin of the calls, made over a real folder."""

from __future__ import annotations

import errno
import os
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from blake3 import blake3

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.vault import files, outgoing
from hinet_node.vault.outgoing import KEEP, OVERWRITE, OutReport, write_out
from hinet_node.vault.progress import Counter
from hinet_protocol.attributes import make_attributes
from hinet_protocol.trees import Version


def version(content: bytes, *, mode: int | None = None, mtime_ns: int | None = None) -> Version:
    return Version(b"d" * 32, 1, (), (), 0, 0, False, len(content), blake3(content).digest(), False, b"",
                   make_attributes(mode, mtime_ns))


class Store:
    """Contents by name, and what is written of them."""

    def __init__(self, contents: Mapping[bytes, bytes]) -> None:
        self.rows = {name: version(content) for name, content in contents.items()}
        self.by_digest = {blake3(content).digest(): content for content in contents.values()}
        self.broken: set[bytes] = set()
        self.read = 0

    def content(self, one: Version) -> Iterator[bytes]:
        content = self.by_digest[one.digest]
        self.read += 1
        for at in range(0, len(content), 4):
            yield content[at:at + 4]
        if content in self.broken:
            raise IntegrityError("it is damaged")

    def out(self, root: Path, existing: str = KEEP) -> OutReport:
        count = Counter(b"", 0, len(self.rows), None)
        return write_out(self.rows, self.content, root, existing, count)


def found(root: Path) -> dict[bytes, bytes]:
    below = len(os.fsencode(root)) + 1
    return {os.fsencode(path)[below:]: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_every_file_is_written_by_its_name_with_its_time_and_its_right_to_run(tmp_path: Path) -> None:
    contents = {b"notes/dog.md": b"Bo", b"notes/deep/er/cat.md": b"", b"notes/\xff\xfe": b"bytes", b"run": b"#!/bin/sh"}
    store = Store(contents)
    store.rows[b"run"] = version(b"#!/bin/sh", mode=0o755, mtime_ns=1_234_567_890_123_456_789)
    umask = os.umask(0o022)
    os.umask(umask)
    report = store.out(tmp_path / "out")
    assert found(tmp_path / "out") == contents
    assert (report.files, report.size_bytes, report.there) == (4, 16, 0)
    run = (tmp_path / "out" / "run").stat()
    assert (run.st_mode & 0o777, run.st_mtime_ns) == (0o755 & ~umask, 1_234_567_890_123_456_789)
    assert (tmp_path / "out" / "notes" / "dog.md").stat().st_mode & 0o777 == 0o600, "nothing is known of it"


def test_what_is_there_already_is_not_written_again_and_what_was_cut_short_goes_on(tmp_path: Path) -> None:
    store = Store({b"%d/%d" % (number % 3, number): b"%d" % number * 9 for number in range(30)})
    store.out(tmp_path)
    (tmp_path / "1" / "1").unlink()
    store.read = 0
    report = store.out(tmp_path)
    assert (report.files, report.there, store.read) == (30, 29, 1)


def test_other_files_in_the_way_are_kept_and_named_or_replaced_on_request(tmp_path: Path) -> None:
    store = Store({b"a": b"ours", b"b": b"ours too", b"c": b"same"})
    (tmp_path / "a").write_bytes(b"mine")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "c").write_bytes(b"same")
    report = store.out(tmp_path)
    assert (report.files, report.kept) == (1, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert (tmp_path / "a").read_bytes() == b"mine"
    report = store.out(tmp_path, OVERWRITE)
    assert (report.files, report.kept_count) == (3, 0)
    assert found(tmp_path) == {b"a": b"ours", b"b": b"ours too", b"c": b"same"}
    assert not (tmp_path / "b").is_symlink()


def test_a_folder_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    report = Store({b"a": b"ours"}).out(tmp_path, OVERWRITE)
    assert report.kept == [str(tmp_path / "a")]
    assert (tmp_path / "a").is_dir()


def test_links_inside_the_folder_lead_nowhere(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (folder / "notes").symlink_to(outside)
    (folder / "loop").symlink_to(folder / "loop")
    store = Store({b"notes/dog.md": b"x", b"loop/dog.md": b"x", b"notes/deep/er": b"x", b"fine": b"x"})
    report = store.out(folder, OVERWRITE)
    assert report.left_out_count == 3
    assert all("link" in why for _, why in report.left_out)
    assert list(outside.iterdir()) == []
    assert (folder / "fine").exists()


@pytest.mark.parametrize("name", [b"../out", b"/etc/x", b"a/../../x", b"a//b", b"a/", b".", b"a/./b", b"nul\\0",
                                  b"n" * 256, b"d" * 256 + b"/x"])
def test_a_name_that_can_have_no_place_there_is_named_and_the_others_are_written(tmp_path: Path, name: bytes) -> None:
    name = name.replace(b"\\0", b"\0")
    report = Store({name: b"1", b"z": b"2"}).out(tmp_path / "out")
    assert [one for one, _ in report.left_out] == [name]
    assert found(tmp_path / "out") == {b"z": b"2"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_turns_out_damaged_at_its_end_leaves_nothing_and_is_named(tmp_path: Path) -> None:
    store = Store({b"a": b"good", b"b": b"bad, bad", b"c": b"fine"})
    store.broken.add(b"bad, bad")
    report = store.out(tmp_path)
    assert report.left_out == [(b"b", "it is damaged")]
    assert found(tmp_path) == {b"a": b"good", b"c": b"fine"}


def test_a_file_and_a_folder_of_one_name_both_come_out(tmp_path: Path) -> None:
    store = Store({b"a": b"a file", b"a/x": b"in a folder", b"a/y": b"too"})
    for there in (0, 3):
        report = store.out(tmp_path)
        assert report.there == there
        assert found(tmp_path) == {b"a": b"a file", b"a.same-name-2/x": b"in a folder", b"a.same-name-2/y": b"too"}
        assert report.beside == [(b"a/x", str(tmp_path / "a.same-name-2" / "x")),
                                 (b"a/y", str(tmp_path / "a.same-name-2" / "y"))]


def test_hard_links_are_not_taken_for_one_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    report = Store({b"a": b"same", b"b": b"same"}).out(tmp_path)
    assert (report.there, report.beside_count) == (2, 0)


class Folding:
    """The system calls that are used, on a file system that ignores case and composes accents: each name is looked up
    among those that are there."""

    def __init__(self) -> None:
        self._real = os

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _there(self, part: Any, dir_fd: int | None) -> Any:
        if dir_fd is None or not isinstance(part, bytes):
            return part
        for other in os.listdir(dir_fd):  # noqa: PTH208 - a descriptor
            if _folded(os.fsencode(other)) == _folded(part):
                return os.fsencode(other)
        return part

    def open(self, part: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return os.open(self._there(part, dir_fd), flags, mode, dir_fd=dir_fd)

    def mkdir(self, part: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        os.mkdir(self._there(part, dir_fd), mode, dir_fd=dir_fd)

    def stat(self, part: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._there(part, dir_fd), dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    def replace(self, old: Any, new: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        os.replace(old, self._there(new, dst_dir_fd), src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def unlink(self, part: Any, *, dir_fd: int) -> None:
        os.unlink(self._there(part, dir_fd), dir_fd=dir_fd)


def _folded(part: bytes) -> str:
    return unicodedata.normalize("NFC", part.decode("utf-8", "surrogateescape")).casefold()


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "os", Folding())
    monkeypatch.setattr(files, "os", Folding())


@pytest.mark.usefixtures("folding")
def test_names_that_are_one_there_are_written_beside_each_other(tmp_path: Path) -> None:
    composed, apart = "café.md".encode(), unicodedata.normalize("NFD", "café.md").encode()
    store = Store({b"TESTFILE.txt": b"1", b"testfile.txt": b"2", b"Testfile.txt": b"3", composed: b"4", apart: b"5",
                   b"Notes/x": b"6", b"notes/x": b"7", b"notes/y": b"8", b"other": b"9"})
    for there in (0, 9):
        report = store.out(tmp_path)
        assert (report.files, report.there) == (9, there), "also when it is done again"
        assert sorted(found(tmp_path).values()) == [b"%d" % number for number in range(1, 10)]
        assert report.beside_count == 5
        for name, path in report.beside:
            assert Path(path).read_bytes() == store.by_digest[store.rows[name].digest]
            assert ".same-name-" in path
    assert (tmp_path / "TESTFILE.txt").read_bytes() == b"1"
    assert (tmp_path / "notes.same-name-2" / "y").read_bytes() == b"8"


@pytest.mark.usefixtures("folding")
def test_what_is_not_ours_is_not_replaced_by_a_name_that_is_one_with_it(tmp_path: Path) -> None:
    (tmp_path / "readme").write_bytes(b"mine")
    report = Store({b"README": b"theirs"}).out(tmp_path)
    assert found(tmp_path) == {b"readme": b"mine"}
    assert report.kept_count == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_keeps_what_is_whole_and_the_same_call_goes_on(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    store = Store({b"%02d" % name: b"content %d" % name for name in range(20)})
    room = [60]

    def write(descriptor: int, data: Any) -> int:
        if room[0] < len(data):
            raise OSError(number, "No space left on device")
        room[0] -= len(data)
        return os.write(descriptor, data)

    full = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    full.write = write
    monkeypatch.setattr(files, "os", full)
    with pytest.raises(NoSpace, match="6 of 20 files") as caught:
        store.out(tmp_path)
    assert "goes on" in (caught.value.next_step or "")
    assert set(found(tmp_path)) == {b"%02d" % name for name in range(6)}
    room[0] = 10_000
    report = store.out(tmp_path)
    assert (report.files, report.there) == (20, 6)


def test_a_vault_s_folder_comes_out_and_progress_ends_at_the_total(world: Any, tmp_path: Path) -> None:
    contents = {b"notes/dog.md": b"Bo", b"notes/deep/er/cat.md": b"", b"notes/\xff\xfe": b"bytes", b"other": b"no"}

    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many(contents)
        progress: list[Any] = []
        report = await node.vault.restore(b"notes/", tmp_path / "out", on_progress=progress.append)
        assert report.files == 3
        assert found(tmp_path / "out") == {name: contents[name] for name in sorted(contents)[:3]}
        assert (progress[-1].files_done, progress[-1].files_total) == (3, 3)
        assert progress[-1].bytes_done == progress[-1].bytes_total == 7
    trio.run(main)


