"""Watched folders, in virtual time over the in-memory port: what changes is taken, what is gone goes, and what looks
like a loss asks first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from hinet_node.errors import ConflictError, IntegrityError, NotAuthorised, UsageError
from hinet_node.ports import Ports
from hinet_node.vault.watching import Register, Watching, tracking
from hinet_node.vault.watching.ignoring import rules
from hinet_node.vault.watching.losses import Losses
from hinet_node.vault.watching.register import FOLDERS
from hinet_node.vault.watching.settling import Settling
from hinet_simnet.clock import VirtualClock
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.folders import MemoryFolders
from hinet_simnet.randomness import SeededRandomness

ROOT = "/home/me/notes"
OTHER = "/home/me/other"


class Setting:
    """One device, its folders, and its watches, which can be stopped and started."""

    def __init__(self, node: Any) -> None:
        self.node, self.vault = node, node.vault
        self.clock = VirtualClock()
        self.folders = MemoryFolders(self.clock.now_unix_s)
        self.log: list[str] = []
        self.ports = Ports(clock=self.clock, randomness=SeededRandomness(1, "watch"), network=None,  # type: ignore
                           discovery=None, disk=node.disk, compute=None, folders=self.folders)  # type: ignore
        self.watching: Watching

    @asynccontextmanager
    async def running(self) -> Any:
        async with trio.open_nursery() as nursery:
            self.watching = Watching(self.vault, self.ports, self.log.append)
            await nursery.start(self.watching.run)
            yield self.watching
            nursery.cancel_scope.cancel()

    async def names(self) -> list[str]:
        return [item.name.decode() for item in await self.vault.list()]

    async def content(self, name: str) -> bytes:
        found: bytes = await self.vault.get(name.encode())
        return found

    def one(self) -> dict[str, Any]:
        return self.watching.describe()[0]

    def write(self, name: str, content: bytes = b"x") -> None:
        self.folders.write(f"{ROOT}/{name}", content)


Test = Callable[[Setting], Awaitable[None]]


@pytest.fixture
def on(world: Any) -> Callable[[Test], None]:
    """Run a test with one device in virtual time."""

    def run(test: Test) -> None:
        async def main() -> None:
            setting = Setting(await world.node("first", MemoryDisk()))
            setting.folders.make(ROOT)
            await test(setting)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def test_new_changed_renamed_and_removed_files_are_kept_up(on: Any) -> None:
    async def test(at: Setting) -> None:
        for number in range(20):
            at.write(f"deep/{number}")
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            assert len(await at.names()) == 20
            at.write("dog.md", b"Bello")
            at.write("deep/1", b"changed")
            await trio.sleep(10)
            assert await at.content("notes/dog.md") == b"Bello"
            assert await at.content("notes/deep/1") == b"changed"
            at.folders.move(f"{ROOT}/dog.md", f"{ROOT}/cat/dog.md")
            at.folders.remove(f"{ROOT}/deep/2")
            await trio.sleep(10)
            assert "notes/cat/dog.md" in await at.names()
            assert "notes/dog.md" not in await at.names()
            assert "notes/deep/2" not in await at.names()
            history = await at.vault.look(lambda core: list(core.history.of_file(b"notes/cat/dog.md")))
            assert history[0].came_from == b"notes/dog.md", "the past goes with a rename"
            assert at.one()["state"] == "watching"
            assert at.one()["files"] == 20

    on(test)


def test_a_folder_that_was_renamed_with_all_its_files_moves_them(on: Any) -> None:
    async def test(at: Setting) -> None:
        for number in range(30):
            at.write(f"letters/2026/{number}")
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            packs = len(at.vault.core.store.index.packs())
            at.folders.move(f"{ROOT}/letters", f"{ROOT}/post")
            await trio.sleep(10)
            assert all(name.startswith("notes/post/2026/") for name in await at.names())
            assert len(await at.names()) == 30
            assert any("30 files renamed" in line for line in at.log)
            assert len(at.vault.core.store.index.packs()) <= packs + 1, "no content was read again"

    on(test)


def test_a_file_is_taken_when_it_was_still_and_one_that_never_is_now_and_then(on: Any) -> None:
    async def test(at: Setting) -> None:
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(5)
            for second in range(280):
                at.write("log", b"%d" % second)
                await trio.sleep(1)
                assert await at.names() == []
            for second in range(400):
                at.write("log", b"more %d" % second)
                await trio.sleep(1)
            assert await at.names() == ["notes/log"]
            taken = sum("taken" in line for line in at.log)
            assert 1 <= taken <= 3, at.log
            await trio.sleep(10)
            assert await at.content("notes/log") == b"more 399"

    on(test)


def test_lost_words_are_made_up_for_by_a_look_at_everything(on: Any) -> None:
    async def test(at: Setting) -> None:
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(5)
            at.folders.mute = True
            at.write("quiet/x")
            await trio.sleep(60)
            assert await at.names() == []
            await trio.sleep(600)
            assert await at.names() == ["notes/quiet/x"]

    on(test)


def test_where_the_system_tells_of_no_changes_it_is_looked_often_and_said(on: Any) -> None:
    async def test(at: Setting) -> None:
        at.folders.follow_max = 0
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(5)
            assert at.one()["told"] is False
            at.write("x")
            await trio.sleep(35)
            assert await at.names() == ["notes/x"]

    on(test)


@pytest.mark.parametrize("loss", ["emptied", "missing", "replaced", "a third", "slowly"])
def test_a_loss_asks_first_and_removes_nothing(on: Any, loss: str) -> None:
    async def test(at: Setting) -> None:
        for number in range(60):
            at.write(f"{number % 3}/{number}")
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            if loss == "emptied":
                for part in "012":
                    at.folders.remove(f"{ROOT}/{part}")
            elif loss == "missing":
                at.folders.move(ROOT, "/home/me/away")
            elif loss == "replaced":
                at.folders.move(ROOT, "/home/me/away")
                at.folders.make(ROOT, device=7)
                at.write("stranger")
            elif loss == "a third":
                at.folders.remove(f"{ROOT}/1")
            else:
                for number in range(0, 60, 3):
                    at.folders.remove(f"{ROOT}/0/{number}")
                    await trio.sleep(20)
            await trio.sleep(700)
            names = await at.names()
            assert at.one()["state"] == "held"
            assert len(names) >= (60 - 16 if loss == "slowly" else 60)
            assert any(trouble.code.startswith("E_WATCH_") for trouble in (await at.vault.status()).trouble)
            assert at.one()["trouble"]["next"].startswith(("hinet-node vault watch --confirm", "bring it back"))
            if loss == "missing":
                at.folders.move("/home/me/away", ROOT)
            else:
                watching.confirm(ROOT)
            await trio.sleep(60)
            assert at.one()["state"] == "watching"
            assert (await at.vault.status()).trouble == ()
            assert len(await at.names()) == {"emptied": 0, "missing": 60, "replaced": 1, "a third": 40,
                                             "slowly": 40}[loss]

    on(test)


def test_files_that_come_back_before_anyone_confirms_end_the_question(on: Any) -> None:
    async def test(at: Setting) -> None:
        for number in range(40):
            at.write(f"all/{number}")
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            at.folders.move(f"{ROOT}/all", "/elsewhere")
            await trio.sleep(60)
            assert at.one()["state"] == "held"
            at.folders.move("/elsewhere", f"{ROOT}/all")
            await trio.sleep(60)
            assert at.one()["state"] == "watching"
            assert len(await at.names()) == 40

    on(test)


def test_a_folder_that_cant_be_read_or_is_mounted_elsewhere_loses_nothing(on: Any) -> None:
    async def test(at: Setting) -> None:
        for number in range(4):
            at.write(f"keep/{number}")
            at.write(f"disk/{number}")
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            at.folders.unreadable.add(f"{ROOT}/keep".encode())
            at.folders.move(f"{ROOT}/disk", "/elsewhere")
            at.folders.make(f"{ROOT}/disk", device=2)
            at.write("more")
            await trio.sleep(700)
            assert len(await at.names()) == 9
            assert at.one()["left_out"] == {"keep": "input/output error",
                                            "disk": "another file system is mounted there"}

    on(test)


def test_after_a_restart_nothing_is_read_again_and_what_happened_meanwhile_is_made_up(on: Any) -> None:
    async def test(at: Setting) -> None:
        for number in range(20):
            at.write(str(number))
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
        log = len(at.log)
        async with at.running():
            await trio.sleep(30)
        assert at.log[log:] == []
        at.folders.remove(f"{ROOT}/1")
        at.folders.move(f"{ROOT}/2", f"{ROOT}/two")
        at.write("3", b"changed")
        async with at.running():
            await trio.sleep(30)
        names = await at.names()
        assert "notes/1" not in names
        assert "notes/2" not in names
        assert await at.content("notes/two") == b"x"
        assert await at.content("notes/3") == b"changed"
        assert not [name for name in at.node.disk.list("watch") if b"notes" in at.node.disk.read(f"watch/{name}")
                    and name != "folders"], "the record of what was taken shows no names"

    on(test)


def test_a_lost_record_removes_nothing_and_writes_no_new_versions(on: Any) -> None:
    async def test(at: Setting) -> None:
        for number in range(20):
            at.write(str(number))
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
        record = at.watching.register.all()[0].taken
        at.node.disk.write_atomic(record, at.node.disk.read(record)[:-1] + b"?")
        at.folders.remove(f"{ROOT}/1")
        seq = (await at.vault.status()).head_seq
        async with at.running():
            await trio.sleep(30)
        assert len(await at.names()) == 20
        assert (await at.vault.status()).head_seq == seq

    on(test)


def test_what_another_device_wrote_last_is_neither_removed_nor_renamed(on: Any, world: Any) -> None:
    async def test(at: Setting) -> None:
        second = await world.node("second", MemoryDisk())
        for name in ("a", "b", "c"):
            at.write(name)
        async with world.running(at.node, second), at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(20)
            await second.vault.put(b"notes/a", b"edited there")
            await second.vault.put(b"notes/b", b"edited there too")
            await trio.sleep(20)
            assert await at.content("notes/a") == b"edited there"
            at.folders.remove(f"{ROOT}/a")
            at.folders.move(f"{ROOT}/b", f"{ROOT}/z")
            await trio.sleep(20)
            assert await at.names() == ["notes/a", "notes/b", "notes/c", "notes/z"]
            assert await at.content("notes/a") == b"edited there"
            assert await at.content("notes/z") == b"x"

    on(test)


def test_a_file_that_cant_be_read_does_not_keep_the_others_out(on: Any) -> None:
    async def test(at: Setting) -> None:
        for number in range(9):
            at.write(str(number))
        at.folders.unreadable.add(f"{ROOT}/4".encode())
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            assert len(await at.names()) == 8
            at.folders.unreadable.clear()
            await trio.sleep(700)
            assert len(await at.names()) == 9

    on(test)


def test_a_full_disk_is_said_and_made_up_for(on: Any) -> None:
    async def test(at: Setting) -> None:
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            at.node.disk.full = True
            at.write("x")
            await trio.sleep(10)
            assert at.one()["trouble"]["code"] == "E_NO_SPACE"
            at.node.disk.full = False
            await trio.sleep(70)
            assert await at.names() == ["notes/x"]
            assert at.one()["trouble"] is None

    on(test)


def test_links_leftovers_and_what_the_owner_names_are_left_out(on: Any) -> None:
    async def test(at: Setting) -> None:
        for name in ("a.md", "a.md~", ".a.md.swp", "build/x", "keep/build", "b.tmp", "keep.tmp"):
            at.write(name)
        at.folders.link(f"{ROOT}/link")
        at.write(".hinetignore", b"# not these\nbuild/\n!keep.tmp\n")
        at.folders.make(f"{ROOT}/node")
        at.write("node/device.key", b"hinet-device-key-1\nsecret")
        at.write("node/config.toml")
        at.write("device.key", b"no key at all")
        async with at.running() as watching:
            watching.add(ROOT, b"letters/")
            await trio.sleep(10)
            assert await at.names() == [f"letters/notes/{name}" for name in
                                        (".hinetignore", "a.md", "device.key", "keep.tmp", "keep/build")]
            assert at.one()["left_out"] == {"node": "it is the home of a node"}

    on(test)


def test_a_paused_watch_rests_and_one_that_is_stopped_keeps_the_files_in_the_vault(on: Any) -> None:
    async def test(at: Setting) -> None:
        at.write("a")
        async with at.running() as watching:
            watching.add(ROOT, b"")
            await trio.sleep(10)
            watching.pause(ROOT, True)
            at.write("b")
            at.folders.remove(f"{ROOT}/a")
            await trio.sleep(700)
            assert await at.names() == ["notes/a"]
            assert at.one()["state"] == "paused"
        async with at.running() as watching:
            await trio.sleep(700)
            assert at.one()["state"] == "paused", "over a restart too"
            watching.pause(ROOT, False)
            await trio.sleep(30)
            assert await at.names() == ["notes/b"]
            watching.stop(ROOT)
            at.folders.remove(f"{ROOT}/b")
            await trio.sleep(700)
            assert await at.names() == ["notes/b"]
        assert at.node.disk.list("watch") == ["folders"]

    on(test)


def test_overlaps_strangers_and_keepers_are_refused(on: Any, world: Any) -> None:
    async def test(at: Setting) -> None:
        at.folders.make(OTHER + "/inner/notes")
        async with at.running() as watching:
            watching.add(ROOT, b"")
            for root, under in ((ROOT, b"x"), ("/home/me", b""), (ROOT + "/a", b"")):
                at.folders.make(root)
                with pytest.raises(ConflictError, match="watch"):
                    watching.add(root, under)
            with pytest.raises(ConflictError, match="already"):
                watching.add(OTHER + "/inner/notes", b"")
            watching.add(OTHER + "/inner/notes", b"mine")
            with pytest.raises(UsageError, match="no folder"):
                watching.add("/nowhere", b"")
            with pytest.raises(UsageError, match="kept for"):
                watching.add(OTHER, b".hinet")
            with pytest.raises(UsageError, match="not watched"):
                watching.stop("/nowhere")
        keeper = Setting(await world.node("keeper", MemoryDisk(), keeper=True))
        keeper.folders.make(ROOT)
        async with keeper.running() as watching:
            with pytest.raises(NotAuthorised):
                watching.add(ROOT, b"")

    on(test)


def test_a_damaged_list_is_said_and_never_taken_for_an_empty_one() -> None:
    disk = MemoryDisk()
    for raw in (b"", b"nonsense", tracking.encode(b"k" * 32, tracking.Tracked())):
        disk.write_atomic(FOLDERS, raw)
        with pytest.raises(IntegrityError):
            Register(disk).all()


# ---- the pure parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "name", "folder", "out"), [
    (b"", b"a/notes.md", False, False),
    (b"", b"a/notes.md~", False, True),
    (b"", b"a/4913", False, True),
    (b"*.log", b"deep/er/x.log", False, True),
    (b"/x.log", b"deep/x.log", False, False),
    (b"/x.log", b"x.log", False, True),
    (b"build/", b"build", False, False),
    (b"build/", b"a/build", True, True),
    (b"a/*.md", b"a/x.md", False, True),
    (b"a/*.md", b"b/a/x.md", False, False),
    (b"*\n!keep", b"keep", False, False),
    (b"!keep\n*", b"keep", False, True),
    (b"# *\n\n   \n", b"x", False, False),
    (b"caf\xc3\xa9", b"caf\xc3\xa9", False, True),
    (b"\xff?", b"\xffz", False, True),
    (b"[", b"[", False, True),
])
def test_ignore_lines_mean_what_they_say(lines: bytes, name: bytes, folder: bool, out: bool) -> None:
    assert rules(lines)(name, folder) is out


def test_stillness_needs_two_looks_unless_the_file_is_old() -> None:
    settling = Settling(2.0, 300.0)
    assert settling.look(b"old", b"s", 100.0, 0.0)
    assert not settling.look(b"new", b"s", 0.1, 0.0)
    assert not settling.look(b"new", b"s", 1.9, 1.9)
    assert settling.look(b"new", b"s", 2.0, 2.0)
    assert not settling.look(b"future", b"s", -5000.0, 0.0)
    assert settling.look(b"future", b"s", -5000.0, 2.0), "a clock that is wrong keeps nothing out"


@pytest.mark.parametrize(("gone", "tracked", "asks"), [
    (0, 0, False), (1, 1, True), (1, 2, False), (9, 10, False), (10, 10, True), (10, 39, True), (10, 41, False),
    (2500, 10_000, False), (2501, 10_000, True)])
def test_losses_ask_beyond_the_stated_share(gone: int, tracked: int, asks: bool) -> None:
    assert Losses().too_many(gone, tracked, 0.0) is asks


def test_losses_add_up_within_their_window_and_are_forgotten_after_it() -> None:
    losses = Losses()
    losses.removed(20, 0.0)
    assert losses.too_many(10, 80, 599.0)
    assert not losses.too_many(10, 80, 601.0)
    losses.removed(20, 700.0)
    losses.forgive()
    assert not losses.too_many(10, 80, 701.0)


def test_the_record_of_what_was_taken_reads_back_and_a_damaged_one_is_empty() -> None:
    tracked = tracking.Tracked()
    for number in range(50):
        tracked.put(b"a/%d" % number, bytes([number]) * tracking.STAMP_BYTES)
    raw = tracking.encode(b"k" * 32, tracked)
    found = tracking.decode(b"k" * 32, raw)
    assert found == {tracking.hidden(b"k" * 32, name): mark for name, mark in tracked.names()}
    assert tracking.decode(b"j" * 32, raw) == {}
    for at in range(0, len(raw), 97):
        assert tracking.decode(b"k" * 32, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:]) == {}
    assert tracking.decode(b"k" * 32, raw[:-1]) == {}
