"""One watched folder: looks, waits, and keeps the vault in step. See the package for the parts.

The folder decides what it holds, and the household what it holds of its own: a file that another device wrote last is
neither removed nor renamed in the vault because of what happened to the copy here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import trio

from hinet_node.errors import ConflictError, NodeError, NoSpace, NotAuthorised, UsageError
from hinet_node.ports import FolderChanges, FolderEntry, Ports
from hinet_node.vault.finding import Folder, Placed
from hinet_node.vault.items import Trouble
from hinet_node.vault.sources import Source
from hinet_node.vault.vault import Vault
from hinet_node.vault.watching import tracking
from hinet_node.vault.watching.looking import Looker, Survey
from hinet_node.vault.watching.planning import Plan, Planner
from hinet_node.vault.watching.register import Register, Watch

FOLDERS_DIRTY_MAX = 4_096
"""Beyond so many the next look is at everything."""


@dataclass(frozen=True)
class WatchSettings:
    """Times and sizes of a watch. The defaults are those of `docs/vault.md`; tests use shorter ones."""

    still_s: float = 2.0
    busy_s: float = 300.0
    gather_s: float = 0.5
    """Words that come so close together are one."""
    rest_share: float = 10.0
    """After a look, rest for so many times as long as it took: a folder that never rests costs a tenth of a core."""
    rest_s_max: float = 10.0
    """But no longer than so, unless the look itself took longer."""
    rescan_s: float = 600.0
    deaf_rescan_s: float = 30.0
    """How often to look where changes are not told."""
    held_s: float = 5.0
    """How often to see whether a folder that is gone, or another one, is back."""
    retry_s: float = 60.0
    batch_files: int = 4_096
    batch_bytes: int = 1 << 30


class Watcher:
    """Keeps one folder in the vault until cancelled."""

    def __init__(self, watch: Watch, vault: Vault, ports: Ports, settings: WatchSettings, log: Callable[[str], None],
                 home: tuple[int, int] | None) -> None:
        self.watch = watch
        self.state = "starting"
        self.trouble: Trouble | None = None
        self.survey = Survey()
        """The last look at everything, its names left out."""
        self._vault, self._ports, self._settings, self._log = vault, ports, settings, log
        self._planner = Planner(settings.still_s, settings.busy_s)
        self._looker = Looker(ports.folders, watch.root, home)
        self._before: Mapping[bytes, bytes] = {}
        self._dirty: set[bytes] = set()
        self._all = True
        self._confirmed = False
        self._unsaved = False
        self._looked_s = self._took_s = 0.0
        self._held_for = (0, 0)
        """Device and inode of the folder that stands in the place of the right one."""
        self._wake = trio.Event()

    @property
    def files(self) -> int:
        return self._planner.tracked.count

    def describe(self) -> dict[str, Any]:
        """For `vault watch --list` and `vault status`."""
        return {"waiting": self._planner.waiting, "files": self.files, "state": self.state,
                "told": not self.survey.deaf,
                "trouble": None if self.trouble is None else {
                    "code": self.trouble.code, "what": self.trouble.what, "next": self.trouble.next_step},
                "left_out": {name.decode("utf-8", "surrogateescape"): why
                             for name, why in self.survey.left_out.items()}}

    def changed(self, watch: Watch, *, confirmed: bool = False) -> None:
        """The owner paused, resumed or confirmed."""
        self.watch = watch
        self._confirmed |= confirmed
        self._all = True
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        await self._load()
        try:
            with self._ports.folders.changes(self.watch.root) as changes:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, changes)
                    while True:
                        await self._rest(await self._turn(changes))
        finally:
            with suppress(NodeError, OSError):
                self._save()
            self._release()

    async def _listen(self, changes: FolderChanges) -> None:
        while True:
            told = await changes.wait()
            if told is None or len(self._dirty) > FOLDERS_DIRTY_MAX:
                self._all = True
            else:
                self._dirty |= told
            self._wake.set()

    async def _rest(self, longest_s: float) -> None:
        with trio.move_on_after(longest_s):
            await self._wake.wait()
        rest_s = min(self._took_s * self._settings.rest_share, max(self._settings.rest_s_max, self._took_s))
        await trio.sleep(max(self._settings.gather_s, rest_s))
        self._wake = trio.Event()

    # ---- one turn ------------------------------------------------------------------------------------------------

    async def _turn(self, changes: FolderChanges) -> float:
        """Look and act; how long until the next look when nothing is told."""
        if self.watch.paused:
            self._release()
            self.state = "paused"
            return float("inf")
        try:
            return await self._look_and_act(changes)
        except (NoSpace, NotAuthorised) as error:
            self._hold(Trouble(error.code, f"{self.watch.root!r} is not kept in the vault now: {error.what}",
                               error.next_step or ""))
        except NodeError as error:
            self._hold(Trouble("E_WATCH_FAILED", f"{self.watch.root!r} is not kept in the vault now: {error.what}",
                               error.next_step or "it is tried again every minute"))
        self._all = True
        return self._settings.retry_s

    async def _look_and_act(self, changes: FolderChanges) -> float:
        began_s, confirmed = self._ports.clock.monotonic_s(), self._confirmed
        place = await self._blocking(lambda: self._ports.folders.place(self.watch.root))
        if place is None:
            self._hold(Trouble("E_WATCH_GONE", f"the watched folder {self.watch.root!r} is not there: its disk is not "
                               "mounted, or it was moved away. The vault keeps its files",
                               f"bring it back, or: hinet-node vault watch --stop {shlex.quote(self.watch.root)}"))
            self._all = True
            return self._settings.held_s
        replaced = (place.device, place.inode) != (self.watch.device, self.watch.inode)
        if (replaced and not confirmed and self._held_for == (place.device, place.inode) and self.trouble is not None
                and began_s - self._looked_s < self._settings.deaf_rescan_s):
            return self._settings.held_s
        self._held_for = (0, 0)
        whole = (self._all or replaced or confirmed or self.trouble is not None
                 or began_s - self._looked_s >= self._every_s())
        wanted = self._dirty | self._planner.folders_waiting()
        self._dirty, self._all, self._confirmed = set(), False, False
        try:
            survey, plan = await self._blocking(lambda: self._look(changes, place, wanted, whole, replaced, confirmed))
        except OSError as error:
            self._hold(Trouble("E_WATCH_UNREADABLE", f"the watched folder {self.watch.root!r} can't be read: "
                               f"{error.strerror or error}. The vault keeps its files", "check its disk and its mode"))
            self._all = True
            return self._settings.deaf_rescan_s
        self._took_s = self._ports.clock.monotonic_s() - began_s
        if whole:
            self._looked_s = began_s
            self.survey = replace(survey, files={}, folders={}, ignored=set())
        return await self._act(place, plan, replaced=replaced)

    def _look(self, changes: FolderChanges, place: FolderEntry, wanted: set[bytes], whole: bool, replaced: bool,
              confirmed: bool) -> tuple[Survey, Plan]:
        """Blocks."""
        planner, clock = self._planner, self._ports.clock
        if whole:
            survey = self._looker.everything(changes, place.device)
        else:
            survey = self._looker.parts(wanted, changes, place.device, planner.tracked)
        if replaced and not confirmed and not planner.same_folder(survey):
            return survey, Plan(replaced=True)
        plan = planner.plan(survey, clock.monotonic_s(), clock.now_unix_s(), confirmed=confirmed,
                            known_before=self._known_before)
        if whole:
            self._before = {}  # every file that is there has been compared
        return survey, plan

    def _known_before(self, name: bytes, mark: bytes) -> bool:
        return bool(self._before) and self._before.get(tracking.hidden(self.watch.key, name)) == mark

    async def _act(self, place: FolderEntry, plan: Plan, *, replaced: bool) -> float:
        root, settings = self.watch.root, self._settings
        if plan.replaced:
            self._held_for = (place.device, place.inode)
            self._hold(Trouble("E_WATCH_REPLACED", f"another folder stands at {root!r} than the one that was watched: "
                               f"of its {self.files:,} files fewer than half are there. The vault keeps them",
                               f"hinet-node vault watch --confirm {shlex.quote(root)}   if it is the right one"))
            return settings.held_s
        if replaced:
            self._keep_place(place)
        await self._put(plan.puts)
        await self._move(plan.moves)
        await self._remove(plan.removals)
        if plan.asked:
            self._hold(Trouble("E_WATCH_LOSS", f"{plan.asked:,} of {self.files:,} files in {root!r} are gone. The "
                               "vault keeps them until you say that they are to go there too",
                               f"hinet-node vault watch --confirm {shlex.quote(root)}"))
        else:
            self._release()
            self.state = "watching"
        self._save()
        if self._planner.waiting and not plan.asked:
            return settings.still_s
        return max(0.0, self._looked_s + self._every_s() - self._ports.clock.monotonic_s())

    def _every_s(self) -> float:
        return self._settings.deaf_rescan_s if self.survey.deaf or self.trouble else self._settings.rescan_s

    # ---- the vault -----------------------------------------------------------------------------------------------

    async def _put(self, puts: Mapping[bytes, bytes]) -> None:
        names = list(puts)
        while names:
            size, count = 0, 0
            for name in names[:self._settings.batch_files]:
                size += int.from_bytes(puts[name][:8], "big")
                count += 1
                if size >= self._settings.batch_bytes:
                    break
            batch, names = names[:count], names[count:]
            self._vault.core.check_room(size)
            await self._put_batch({name: puts[name] for name in batch})
            self._unsaved = True

    async def _put_batch(self, batch: Mapping[bytes, bytes]) -> None:
        """A file that can't be read does not keep the others out: it is tried again at the next look."""
        try:
            await self._vault.put_many(self._sources(batch))
        except (UsageError, OSError) as error:
            if len(batch) > 1:
                names = list(batch)
                for half in (names[:len(names) // 2], names[len(names) // 2:]):
                    await self._put_batch({name: batch[name] for name in half})
                return
            why = error.what if isinstance(error, UsageError) else error.strerror or str(error)
            (name,) = batch
            self.survey.left_out[name] = why
            return
        for name, mark in batch.items():
            self._planner.taken(name, mark)
        self._log(f"watch {self.watch.root!r}: {_files(len(batch))} taken")

    def _sources(self, names: Iterable[bytes]) -> dict[bytes, Source]:
        """Errors: `OSError` for content that can't be had."""
        found: dict[bytes, Source] = {}
        folders: dict[tuple[bytes, ...], Folder] = {}
        for name in names:
            steps = self._ports.folders.source(self.watch.root, name)
            if isinstance(steps, bytes):
                found[self.watch.prefix + name] = steps
                continue
            above: Folder | None = None
            for depth in range(1, len(steps)):
                made = folders.get(steps[:depth])
                above = made if made is not None else folders.setdefault(
                    steps[:depth], Folder(above, steps[depth - 1], b""))
            assert above is not None, "a file is in a folder"
            found[self.watch.prefix + name] = Placed(above, steps[-1], self.watch.prefix + name)
        return found

    async def _move(self, moves: Mapping[bytes, tuple[bytes, bytes]]) -> None:
        if not moves:
            return
        ours = await self._ours(moves)
        wanted = {self.watch.prefix + old: self.watch.prefix + moves[old][0] for old in ours}
        try:
            await self._vault.move(wanted)
        except (UsageError, ConflictError):
            ours = set()  # the vault holds something else there: the file is taken anew
        else:
            for old in ours:
                self._planner.moved(old, *moves[old])
            self._log(f"watch {self.watch.root!r}: {_files(len(ours))} renamed")
        await self._put({new: mark for old, (new, mark) in moves.items() if old not in ours})
        await self._remove([old for old in moves if old not in ours])
        self._unsaved = True

    async def _remove(self, names: list[bytes]) -> None:
        if not names:
            return
        ours = await self._ours(names)
        await self._vault.remove(self.watch.prefix + name for name in ours)
        self._planner.removed(names, self._ports.clock.monotonic_s())
        self._unsaved = True
        kept = f", {_files(len(names) - len(ours))} left as other devices wrote them" if len(ours) < len(names) else ""
        self._log(f"watch {self.watch.root!r}: {_files(len(ours))} removed{kept}")

    async def _ours(self, names: Any) -> set[bytes]:
        """Those that this device wrote last."""
        wanted = list(names)

        def work(core: Any) -> set[bytes]:
            found = set()
            for name in wanted:
                row = core.view.lookup(self.watch.prefix + name)
                if row is not None and row[0].device == core.household.device_public:
                    found.add(name)
            return found

        result: set[bytes] = await self._vault.look(work)
        return result

    # ---- memory --------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        try:
            raw = self._ports.disk.read(self.watch.taken)
        except OSError:
            return
        self._before = tracking.decode(self.watch.key, raw)
        for item in await self._vault.list(self.watch.prefix) if self._before else ():
            name = item.name[len(self.watch.prefix):]
            mark = self._before.get(tracking.hidden(self.watch.key, name))
            if mark is not None:
                self._planner.tracked.put(name, mark)

    def _save(self) -> None:
        if self._unsaved:
            self._ports.disk.write_atomic(self.watch.taken, tracking.encode(self.watch.key, self._planner.tracked),
                                          private=True)
            self._unsaved = False

    def _keep_place(self, place: FolderEntry) -> None:
        self.watch = replace(self.watch, device=place.device, inode=place.inode)
        Register(self._ports.disk).change(self.watch)

    def _hold(self, trouble: Trouble) -> None:
        if self.trouble is None or self.trouble.code != trouble.code:
            self._release()
            self._log(trouble.what)
        self.trouble, self.state = trouble, "held"
        self._vault.core.note(trouble, self.watch.key)

    def _release(self) -> None:
        if self.trouble is not None:
            self._vault.core.settle(self.trouble.code, self.watch.key)
            self.trouble = None

    async def _blocking(self, work: Callable[[], Any]) -> Any:
        return await self._ports.disk.run_blocking(work)


def _files(count: int) -> str:
    return f"{count:,} {'file' if count == 1 else 'files'}"
