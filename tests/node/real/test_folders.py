"""The Folders port: the owner's real folders and their in-memory twin pass the same tests; then what only the real one
has: links, inotify's limits, names that are no UTF-8."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.ports import FolderChanges, Folders
from hinet_node.real.folders import Inotify, RealFolders, Silence
from hinet_simnet.folders import MemoryFolders


class RealOwner:
    """What a person does with files."""

    def make(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, content: bytes) -> None:
        self.make(str(Path(path).parent))
        Path(path).write_bytes(content)

    def move(self, old: str, new: str) -> None:
        Path(old).rename(new)

    def link(self, path: str) -> None:
        Path(path).symlink_to("/")

    def remove(self, path: str) -> None:
        Path(path).unlink()


class Setting:
    def __init__(self, folders: Folders, owner: Any, root: str) -> None:
        self.folders, self.owner, self.root = folders, owner, root
        owner.make(root)

    def names(self, folder: bytes = b"") -> list[tuple[bytes, str]]:
        return [(one.part, one.kind) for one in self.folders.entries(self.root, folder)]


@pytest.fixture(params=["real", "memory"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    if request.param == "real":
        return Setting(RealFolders(), RealOwner(), str(tmp_path / "notes"))
    memory = MemoryFolders(lambda: 1_800_000_000.0)
    return Setting(memory, memory, "/home/me/notes")


def told(at: Setting, follow: list[bytes], act: Any) -> frozenset[bytes] | None:
    """What is told after `act`."""
    found: list[frozenset[bytes] | None] = []

    async def main() -> None:
        with at.folders.changes(at.root) as changes:
            assert all(changes.follow(folder) for folder in follow)
            act()
            with trio.fail_after(10):
                found.append(await changes.wait())

    trio.run(main)
    return found[0]


def test_a_folder_is_listed_by_name_with_kinds_sizes_and_inodes(at: Setting) -> None:
    at.owner.write(f"{at.root}/b", b"12345")
    at.owner.write(f"{at.root}/a/x", b"1")
    at.owner.link(f"{at.root}/c")
    assert at.names() == [(b"a", "folder"), (b"b", "file"), (b"c", "other")]
    assert at.names(b"a") == [(b"x", "file")]
    b = at.folders.entries(at.root, b"")[1]
    assert b.size == 5
    assert b.mtime_ns > 0
    at.owner.move(f"{at.root}/b", f"{at.root}/a/y")
    y = at.folders.entries(at.root, b"a")[1]
    assert (y.inode, y.size, y.mtime_ns) == (b.inode, b.size, b.mtime_ns)


def test_what_is_missing_or_of_another_kind_is_an_os_error(at: Setting) -> None:
    at.owner.write(f"{at.root}/b", b"12345")
    at.owner.link(f"{at.root}/c")
    for folder in (b"nothing", b"b", b"c"):
        with pytest.raises(OSError):
            at.folders.entries(at.root, folder)
    for name in (b"nothing", b"c"):
        with pytest.raises(OSError):
            at.folders.read(at.root, name, 10)
    assert at.folders.read(at.root, b"b", 3) == b"123"
    assert at.folders.place(at.root + "/b") is None
    assert at.folders.place(at.root + "/nothing") is None
    assert at.folders.place(at.root) == at.folders.place(at.root)


def test_changes_in_followed_folders_are_told_and_no_others(at: Setting) -> None:
    at.owner.make(f"{at.root}/a/deep")
    at.owner.make(f"{at.root}/b")
    assert told(at, [b"", b"a"], lambda: at.owner.write(f"{at.root}/a/x", b"1")) == frozenset([b"a"])
    assert told(at, [b"", b"a"], lambda: at.owner.remove(f"{at.root}/a/x")) == frozenset([b"a"])

    def quiet_then_loud() -> None:
        at.owner.write(f"{at.root}/b/x", b"1")
        at.owner.write(f"{at.root}/x", b"1")

    assert told(at, [b"", b"a"], quiet_then_loud) == frozenset([b""])


def test_a_folder_that_was_renamed_is_told_of_by_its_new_name_once_it_is_followed_again(at: Setting) -> None:
    at.owner.make(f"{at.root}/a")

    async def main() -> None:
        with at.folders.changes(at.root) as changes:
            assert changes.follow(b"")
            assert changes.follow(b"a")
            at.owner.move(f"{at.root}/a", f"{at.root}/z")
            with trio.fail_after(10):
                while b"" not in (await changes.wait() or ()):
                    pass
                assert changes.follow(b"z")
                at.owner.write(f"{at.root}/z/x", b"1")
                while b"z" not in (await changes.wait() or ()):
                    pass

    trio.run(main)


# ---- only the real one -----------------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Setting:
    return Setting(RealFolders(), RealOwner(), str(tmp_path / "notes"))


def test_a_link_on_the_way_is_not_followed(real: Setting, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"s")
    Path(real.root, "way").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        real.folders.entries(real.root, b"way")
    with pytest.raises(OSError):
        real.folders.read(real.root, b"way/secret", 10)
    Path(real.root, "file").symlink_to(tmp_path / "elsewhere" / "secret")
    with pytest.raises(OSError):
        real.folders.read(real.root, b"file", 10)


def test_names_that_are_no_utf_8_are_listed_and_told_of(real: Setting) -> None:
    odd = os.fsencode(real.root) + b"/\xff\xfe"
    Path(os.fsdecode(odd)).mkdir()
    Path(os.fsdecode(odd), "x").write_bytes(b"1")
    assert real.names() == [(b"\xff\xfe", "folder")]
    assert told(real, [b"\xff\xfe"], lambda: Path(os.fsdecode(odd), "y").write_bytes(b"1")) == frozenset([b"\xff\xfe"])


def test_sockets_pipes_and_links_are_other(real: Setting) -> None:
    os.mkfifo(f"{real.root}/pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(f"{real.root}/s"))
        Path(real.root, "dangling").symlink_to("nowhere")
        assert {kind for _, kind in real.names()} == {"other"}
    with pytest.raises(OSError):
        real.folders.read(real.root, b"pipe", 1)  # and does not wait for a writer


class FullLibrary:
    """The C library of a system whose limit of inotify watches is reached."""

    def inotify_add_watch(self, *arguments: Any) -> int:
        return -1


def test_the_system_s_limit_of_watches_is_no_error_but_said(real: Setting) -> None:
    changes = Inotify(real.root)
    try:
        changes._library = FullLibrary()
        assert changes.follow(b"") is False
    finally:
        changes.close()


def test_where_the_user_has_no_inotify_left_nothing_is_told(real: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Inotify, root: str) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Inotify, "__init__", refuse)
    with real.folders.changes(real.root) as changes:
        assert isinstance(changes, Silence)
        assert changes.follow(b"") is False


def test_an_overflow_of_the_kernels_queue_means_look_everywhere(real: Setting) -> None:
    changes = Inotify(real.root)
    try:
        changes.follow(b"")
        overflow = (-1).to_bytes(4, "little", signed=True) + (0x4000).to_bytes(4, "little") + bytes(8)
        assert changes._told(overflow) is None
    finally:
        changes.close()


def test_the_twin_can_lose_words_and_run_out_of_watches() -> None:
    memory = MemoryFolders(lambda: 1.0, follow_max=1)
    memory.make("/n/a")

    def follows(changes: FolderChanges) -> list[bool]:
        return [changes.follow(b""), changes.follow(b"a"), changes.follow(b"")]

    with memory.changes("/n") as changes:
        assert follows(changes) == [True, False, True]
