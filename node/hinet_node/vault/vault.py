"""The vault's face to the rest of the node: put, get, list, put back, status, verify. SPEC.md, 6.

Leaves the work itself to `core`, `edits` and `history`, counting and checking to `inspect`, files outside the home to
`files`, siblings to `replicate`. This part only lets writers wait for each other and keeps the disk off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio

from hinet_node.errors import IntegrityError
from hinet_node.ports import Clock, Disk, Randomness
from hinet_node.vault import adding, files, inspect
from hinet_node.vault.checking import Checker
from hinet_node.vault.collect import Plan, Rewrite, Swept
from hinet_node.vault.core import VaultCore
from hinet_node.vault.edits import check_name
from hinet_node.vault.items import AddReport, Household, Item, OnProgress, VaultSettings, VaultStatus
from hinet_node.vault.marking import Retention
from hinet_node.vault.outgoing import KEEP, OutReport, write_out
from hinet_node.vault.progress import Counter
from hinet_node.vault.reading_ahead import ahead
from hinet_node.vault.repairing import Repairer
from hinet_node.vault.report import RepairReport, VerifyReport
from hinet_node.vault.sources import Source
from hinet_node.vault.view import item_of
from hinet_protocol.attributes import read_attributes
from hinet_protocol.heads import Head
from hinet_protocol.trees import Version

if TYPE_CHECKING:
    from hinet_node.vault.replicate import Replicator

T = TypeVar("T")


class Vault:
    """One device's replica. Names are bytes and kept as they are. All methods may be called from any task of the
    agent's trio run; writers wait for each other. Made by `open`."""

    def __init__(self, core: VaultCore) -> None:
        self.core = core
        self._disk = core.disk
        self._lock = trio.Lock()
        self._collecting = trio.Lock()
        self._listeners: list[Callable[[], None]] = []
        self.replicator: Replicator | None = None
        """Fetches from siblings, where an agent runs."""

    @classmethod
    async def open(cls, disk: Disk, randomness: Randomness, clock: Clock, household: Household,
                   settings: VaultSettings | None = None) -> Vault:
        """Read what the home holds under `vault/`; an empty home is an empty vault. The index is rebuilt when it is
        missing, damaged or out of step. Works on a full disk. A damaged head or pack is set aside and reported."""
        core: VaultCore = await disk.run_blocking(
            lambda: VaultCore(disk, randomness, clock, household, settings or VaultSettings()))
        return cls(core)

    async def close(self) -> None:
        """Give back the index's file. Nothing needs to be flushed: what was acknowledged is on disk."""
        async with self._lock:
            self.core.store.close()

    # ---- writing -------------------------------------------------------------------------------------------------

    async def put(self, name: bytes, source: Source, *, on_progress: OnProgress | None = None,
                  keep_past: bool = True) -> Item:
        """Store one file; returns once it is durable here (packs, then head). The same content again changes nothing.
        What it replaces stays restorable, unless `keep_past` is false (machine state that is written again and again).

        Errors: `NotAuthorised` without the current epoch's key (a keeper); `NoSpace`; `UsageError` for an empty or
        over-long name (1 to 4096 bytes) or an unreadable source. After an error the vault is as it was before.
        """
        return (await self.put_many({name: source}, on_progress=on_progress, keep_past=keep_past))[0]

    async def put_many(self, sources: Mapping[bytes, Source] | Iterable[tuple[bytes, Source]], *,
                       on_progress: OnProgress | None = None, keep_past: bool = True) -> list[Item]:
        """Store many files under one head: after a crash all of them are there or none. Small ones share packs."""
        wanted = dict(sources)
        for name in wanted:
            check_name(name)
        return await self._change(lambda: self.core.put(wanted, on_progress, keep_past=keep_past))

    async def add_files(self, roots: Sequence[Path], under: bytes = b"", *, rescan: bool = False,
                        on_progress: OnProgress | None = None) -> AddReport:
        """Store the files below folders, and single files, under one head. Those that can't be read are left out and
        reported; one that looks as when it was last read is not read again, unless `rescan`. Links are not followed,
        except for a root.

        Errors: as `put`; `UsageError` for a root that is missing or can't be read, or a name under `.hinet/`.
        """
        return await self._change(lambda: adding.add_files(self.core, roots, under, rescan=rescan,
                                                           on_progress=on_progress))

    async def remove(self, names: Iterable[bytes]) -> int:
        """Take files out of the view (a tombstone replicates; the content stays restorable); how many were there.

        Removing a concurrent edit by its own shown name settles it: the version under the plain name stays.
        """
        wanted = set(names)
        return await self._change(lambda: self.core.edits.remove(wanted)) if wanted else 0

    async def move(self, names: Mapping[bytes, bytes]) -> int:
        """Give files other names, old -> new; how many. Their history goes with them. Errors: `UsageError`
        E_NO_SUCH_FILE; `ConflictError` E_NAME_TAKEN."""
        for name in names.values():
            check_name(name)
        return await self._change(lambda: self.core.edits.move(names))

    async def put_back(self, rows: Mapping[bytes, Version], *, on_progress: OnProgress | None = None) -> list[bytes]:
        """Make past versions the newest of their names; the names that this changed. Errors: `IntegrityError`
        E_VERSION_GONE, and then nothing has changed."""
        return await self._change(lambda: self.core.edits.put_back(rows, on_progress))

    async def settle(self, name: bytes, keep: str) -> list[bytes]:
        """End what concurrent edits compete for; the names that stand then. `keep`: as `Edits.settle`."""
        return await self._change(lambda: self.core.edits.settle(name, keep))

    # ---- reading -------------------------------------------------------------------------------------------------

    async def look(self, work: Callable[[VaultCore], T]) -> T:
        """What `work` finds in the view and the past, while nothing is written. It runs off the event loop and should
        not take long."""
        async with self._lock:
            return await self._read(lambda: work(self.core))

    async def change(self, work: Callable[[VaultCore], T]) -> T:
        """Work that may publish a head, as the only writer, off the event loop."""
        return await self._change(lambda: work(self.core))

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Reading that takes long, off the event loop and beside writers. Errors: those of `work`."""
        return await self._read(work)

    async def write_version(self, version: Version, path: Path | str, *, on_progress: OnProgress | None = None) -> None:
        """Write the content of any version to `path`, as `get_to`."""
        await self._write_file(version, path, Counter(b"", version.size, 1, on_progress))

    async def take_out(self, rows: Mapping[bytes, Version], folder: Path | str, *, existing: str = KEEP,
                       on_progress: OnProgress | None = None) -> OutReport:
        """Write versions below `folder`, by their names; files that are there already with that content are left. What
        can't be read or written is in the report. Errors: `NoSpace`, `UsageError`."""
        count = Counter(b"", sum(version.size for version in rows.values()), len(rows), on_progress)
        report: OutReport = await self._disk.run_blocking(
            lambda: write_out(rows, self.pieces, folder, existing, count))
        if report.left_out_count:
            self.changed()  # a pack may have been set aside: the replicator looks for another copy
        return report

    async def get(self, name: bytes) -> bytes:
        """The whole content, verified. Errors: `UsageError` E_NO_SUCH_FILE; `IntegrityError` when a pack is damaged
        (it is set aside and fetched again from a sibling: try again later); `NotAuthorised` on a keeper."""
        version = self.core.version(name)[0]
        content: bytes = await self._read(lambda: b"".join(self.core.content(version)))
        return content

    async def get_to(self, name: bytes, path: Path | str, *, on_progress: OnProgress | None = None) -> Item:
        """Write the content to `path`, which appears whole or not at all; memory stays bounded. An existing file is
        replaced, a symbolic link at `path` is replaced and not followed. Errors: as `get`; `NoSpace`."""
        version, conflict_of = self.core.version(name)
        await self._write_file(version, path, Counter(name, version.size, 1, on_progress))
        return item_of(name, version, conflict_of)

    async def restore(self, prefix: bytes, folder: Path | str, *, existing: str = KEEP,
                      on_progress: OnProgress | None = None) -> OutReport:
        """Write every file under `prefix` below `folder`, by its whole name. As `take_out`."""
        rows = {name: version for name, (version, _) in self.core.shown().items() if name.startswith(prefix)}
        return await self.take_out(rows, folder, existing=existing, on_progress=on_progress)

    async def _write_file(self, version: Version, path: Path | str, count: Counter) -> None:
        await self._read(lambda: files.write_file(path, self.pieces(version), count.bytes,
                                                  read_attributes(version.attributes)))
        count.tell()

    def pieces(self, version: Version) -> Iterator[bytes]:
        """The content, that of a large file opened ahead."""
        pieces = self.core.content(version)
        return ahead(self._disk, pieces) if version.size > self.core.settings.chunk_bytes else pieces

    async def list(self, prefix: bytes = b"") -> list[Item]:
        """The files whose shown name begins with `prefix`, sorted by name; concurrent edits each have their own."""
        return [item_of(name, *row) for name, row in sorted(self.core.shown().items()) if name.startswith(prefix)]

    async def status(self) -> VaultStatus:
        """Counts, who is behind, copies of each head, and what the owner should know. Cheap."""
        return inspect.status(self.core)

    async def verify(self, *, deep: bool = False, on_progress: OnProgress | None = None) -> VerifyReport:
        """Check everything on disk (a keeper can, without keys); with `deep` also that every chunk and file opens. What
        is damaged is set aside as `….damaged` and fetched again from a sibling by the replicator."""
        checker = Checker(self.core, deep=deep, on_progress=on_progress)
        report: VerifyReport = await self._disk.run_blocking(checker.run)
        if report.files_unreadable:
            async with self._lock:
                report = await self._disk.run_blocking(lambda: checker.settled(report))
        if not report.ok:
            self.changed()
        return report

    async def repair(self, *, verify: bool = True, deep: bool = False, timeout_s: float = 60.0,
                     on_progress: OnProgress | None = None) -> RepairReport:
        """Put right what `verify` finds: from this device's own means and, where an agent runs, from siblings. Without
        `verify` only what is known already. Errors: `NoSpace`, `OSError` of a home that can't be written."""
        return await Repairer(self, on_progress).run(verify=verify, deep=deep, timeout_s=timeout_s)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` (quick, no await) after each change of heads or packs; returns what ends it."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    # ---- collecting ----------------------------------------------------------------------------------------------

    async def plan(self, retention: Retention | None = None, *, rewrite: Rewrite | None = None,
                   pause: Callable[[], None] = lambda: None) -> Plan:
        """Find what this device needs; nothing is given up yet. Edits go on beside it. `pause` is called from the
        working thread and may raise. Errors: as `Collector.plan`."""
        collector = self.core.collector
        async with self._collecting:
            return await self._read(lambda: collector.plan(retention or collector.retention(), pause, rewrite=rewrite))

    async def give_up(self, plan: Plan) -> bool:
        """Publish what a plan found; whether a head was due."""
        return await self._change(lambda: self.core.collector.give_up(plan))

    async def collect(self, retention: Retention | None = None, *, rewrite: Rewrite | None = None,
                      pause: Callable[[], None] = lambda: None) -> Plan:
        """Plan and give up."""
        plan = await self.plan(retention, rewrite=rewrite, pause=pause)
        await self.give_up(plan)
        return plan

    async def sweep(self, *, packs_max: int, waive_age: bool = False, dry_run: bool = False,
                    unneeded: Collection[bytes] | None = None) -> Swept:
        """Delete what everybody has given up, or only count it. `unneeded` are the packs whose holders are counted, by
        default those that this device has given up."""
        return await self._change(lambda: self.core.collector.sweep(
            packs_max=packs_max, waive_age=waive_age, dry_run=dry_run, unneeded=unneeded))

    async def reseal_step(self, on_bytes: Callable[[int], None] = lambda count: None) -> Plan:
        """Move some of what is sealed under earlier epochs, and give up what became empty by it."""
        return await self.collect(rewrite=self.core.reseal.rewrite(on_bytes))

    async def tick(self, passed_s: float) -> None:
        """So much running time has passed."""
        await self._disk.run_blocking(lambda: self.core.collector.tick(passed_s))

    # ---- for the replicator --------------------------------------------------------------------------------------

    async def accept(self, heads: Iterable[Head]) -> Sequence[Head]:
        """Keep heads from siblings that are whole here, take up their trees, and publish that. Those kept."""
        offered = tuple(heads)
        return await self._change(lambda: self.core.accept(offered))

    async def keys_changed(self) -> None:
        """The household has a new epoch, or this device got keys: open what could not be opened before."""
        await self._change(lambda: self.core.accept(()))

    def changed(self) -> None:
        for callback in tuple(self._listeners):
            callback()

    async def _read(self, work: Callable[[], T]) -> T:
        try:
            result: T = await self._disk.run_blocking(work)
        except IntegrityError:
            self.changed()  # a pack may have been set aside: the replicator looks for another copy
            raise
        return result

    async def _change(self, work: Callable[[], T]) -> T:
        async with self._lock:
            before = self.core.head_hashes()
            result: T = await self._disk.run_blocking(work)
        if before != self.core.head_hashes():
            self.changed()
        return result
