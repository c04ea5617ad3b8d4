"""What a device does while its system calls are written down, and what it has acknowledged at each of them.

A scene is a list of steps; after each the shown files are written down as they must be from then on. Leaves cutting the
record to `matrix`, judging to `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio.testing
from trio import _core

from crash.device import SMALL, Disk, Filesystem, households, opened_core
from hinet_node.vault import repack
from hinet_node.vault.choosing import Choice
from hinet_node.vault.collect import Rewrite
from hinet_node.vault.core import VaultCore
from hinet_node.vault.marking import Marks
from hinet_node.vault.packstore import pack_path
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.filesystem.model import Change
from hinet_simnet.randomness import SeededRandomness

Shown = dict[bytes, bytes]


def noise(size: int, seed: str) -> bytes:
    return SeededRandomness(seed).draw(size)


@dataclass
class Recording:
    """One scene, played once."""

    name: str
    world: Any
    member: Any
    filesystem: Filesystem
    index_file: Path
    shown: list[Shown] = field(default_factory=lambda: [{}])
    """What is shown after each step; the first is the empty vault."""
    reached: list[int] = field(default_factory=lambda: [0])
    """How many calls were made when that was acknowledged."""
    heard: list[MemoryDisk] = field(default_factory=list)
    """A sibling's disk after each step: it knows all that was acknowledged until then."""
    indexes: list[tuple[int, bytes]] = field(default_factory=list)
    """The bytes of SQLite's file as they were after so many calls."""

    @property
    def record(self) -> list[Change]:
        return self.filesystem.record

    def steps_at(self, calls: int) -> int:
        """How many steps were acknowledged by then."""
        return sum(reached <= calls for reached in self.reached) - 1

    def note_index(self) -> None:
        data = self.index_file.read_bytes() if self.index_file.exists() else b""
        if not self.indexes or self.indexes[-1][1] != data:
            self.indexes.append((len(self.record), data))

    def acknowledge(self, shown: Shown, core: VaultCore, sibling: VaultCore) -> None:
        """A step is done, and a sibling hears of it at once."""
        self.shown.append(dict(shown))
        self.reached.append(len(self.record))
        hear(sibling, core)
        self.heard.append(sibling.disk.copy())  # type: ignore[attr-defined]


def hear(listener: VaultCore, speaker: VaultCore) -> None:
    """What replication comes to, without sessions: the packs, then the heads."""
    held = listener.store.index.packs()
    for name in sorted(speaker.store.index.packs()):
        if name not in held:
            listener.store.add_whole(name, speaker.disk.read(pack_path(name)))
    listener.accept(speaker.offered_heads())


def started(name: str, folder: Path) -> tuple[Recording, VaultCore, VaultCore]:
    """An empty device, its vault, and the sibling's."""
    world = households().World()
    filesystem = Filesystem()
    recording = Recording(name, world, world.member("laptop"), filesystem, folder / f"{name}.sqlite")
    filesystem.on_sync = recording.note_index
    core = opened_core(world, recording.member, Disk(filesystem), str(recording.index_file))
    sibling = opened_core(world, world.member("cloud"), MemoryDisk("cloud"))
    recording.heard.append(sibling.disk.copy())  # type: ignore[attr-defined]
    return recording, core, sibling


def stored(folder: Path) -> Recording:
    """Files are added, changed, removed, renamed and put back."""
    recording, core, sibling = started("add", folder)
    shown: Shown = {}
    for files in ({b"first": b"1", b"second": noise(9_000, "second")}, {b"large": noise(150_000, "large")},
                  {b"first": b"1 again", b"third": noise(5_000, "third")}, {b"empty": b""}):
        core.put(files, None)
        shown |= files
        recording.acknowledge(shown, core, sibling)
    core.edits.remove({b"third"})
    replaced = core.version(b"large")[0]
    del shown[b"third"]
    recording.acknowledge(shown, core, sibling)
    core.edits.move({b"first": b"renamed"})
    shown[b"renamed"] = shown.pop(b"first")
    recording.acknowledge(shown, core, sibling)
    for number in range(3):
        shown[b"third"] = b"%d" % number
        core.put({b"third": shown[b"third"]}, None)
        recording.acknowledge(shown, core, sibling)
    core.put({b"large": b"shorter"}, None)
    recording.acknowledge(shown := shown | {b"large": b"shorter"}, core, sibling)
    core.edits.put_back({b"large": replaced})
    recording.acknowledge(shown | {b"large": noise(150_000, "large")}, core, sibling)
    recording.note_index()
    core.store.close()
    return recording


def joined(folder: Path) -> Recording:
    """A sibling's heads and packs come in by themselves, and this device answers with its own."""
    recording, core, sibling = started("head", folder)
    shown: Shown = {}
    for turn in range(4):
        theirs = {b"cloud %d" % turn: noise(30_000 * turn + 5, f"cloud {turn}"), b"both": b"cloud %d" % turn}
        sibling.put(theirs, None)
        hear(core, sibling)
        recording.acknowledge(shown := shown | theirs, core, sibling)
        ours = {b"laptop %d" % turn: noise(2_000, f"laptop {turn}"), b"both": b"laptop %d" % turn}
        core.put(ours, None)
        recording.acknowledge(shown := shown | ours, core, sibling)
    recording.note_index()
    core.store.close()
    return recording


def replicated(folder: Path) -> Recording:
    """The real replicator fetches packs over a session; the session is cut in the middle once."""
    recording, core, sibling = started("replicate", folder)
    core.store.close()

    async def main() -> None:
        world, shown = recording.world, {}
        laptop = await nodes(world, "laptop", Disk(recording.filesystem))
        cloud = await nodes(world, "cloud", MemoryDisk("cloud"))
        for turn in range(3):
            files = {b"small %d" % turn: noise(700, f"small {turn}"), b"large %d" % turn: noise(140_000, f"l {turn}")}
            await cloud.vault.put_many(files)
            async with world.running(laptop, cloud) as nursery:
                while files.keys() - set(await laptop.names()) or not world.in_step(laptop, cloud):
                    if turn == 1 and recording.record[-1].number % 2:  # type: ignore[union-attr]
                        nursery.cancel_scope.cancel()
                    await trio.sleep(0.01)
            recording.acknowledge(shown := shown | files, laptop.vault.core, sibling)
    run_alike(main)
    return recording


async def nodes(world: Any, name: str, disk: Any) -> Any:
    return await world.node(name, disk, settings=SMALL)


def collected(folder: Path) -> Recording:
    """What was removed is given up and deleted, what is left is rewritten, and all of it moved under a new key."""
    recording, core, sibling = started("collect", folder)
    shown: Shown = {b"%d" % at: noise(9_000, f"file {at}") for at in range(6)}
    core.put(shown, None)
    recording.acknowledge(shown, core, sibling)
    core.edits.remove({b"1", b"2", b"3", b"5"})
    shown = {name: content for name, content in shown.items() if name in (b"0", b"4")}
    recording.acknowledge(shown, core, sibling)

    def rewrite(marks: Marks, choice: Choice) -> repack.Mover:
        return repack.move(core, marks, repack.mostly_dead(choice), 1 << 30)

    def collect(work: Rewrite | None) -> None:
        for side, its_work in ((core, work), (sibling, None)):
            side.collector.give_up(side.collector.plan(side.collector.retention(0, 0), rewrite=its_work))
            recording.acknowledge(shown, core, sibling)
            hear(core, sibling)
        for side in (core, sibling):
            side.collector.confirm()
        recording.acknowledge(shown, core, sibling)
        hear(core, sibling)
        assert core.collector.sweep(packs_max=1_000, waive_age=True).packs > 0
        recording.acknowledge(shown, core, sibling)
    collect(rewrite)
    family = recording.world.family
    family.epochs[b"2" * 32] = b"n" * 32
    family.current = b"2" * 32
    core.reseal.start()
    while core.reseal.due():
        core.collector.give_up(core.collector.plan(core.collector.retention(0, 0), rewrite=core.reseal.rewrite()))
        recording.acknowledge(shown, core, sibling)
    collect(None)
    recording.note_index()
    core.store.close()
    return recording


def run_alike(main: Callable[[], Any]) -> None:
    """Run it on a clock that jumps, tasks in the same order each time."""
    with _same_order():
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@contextmanager
def _same_order() -> Iterator[None]:
    before = _core._run._ALLOW_DETERMINISTIC_SCHEDULING
    _core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _core._run._r.seed(1)
    try:
        yield
    finally:
        _core._run._ALLOW_DETERMINISTIC_SCHEDULING = before


SCENES: dict[str, Callable[[Path], Recording]] = {
    "add": stored, "head": joined, "replicate": replicated, "collect": collected}
