"""`vault repair`: verify, put right what can be here, fetch the rest from siblings, save what nobody else has.

Resumable and idempotent: what came stays, what was begun goes on, and a second run does what is left. Waiting ends when
every sibling in reach was asked and has none of what is missing, or when nothing came for `timeout_s`. Leaves finding
to `checking`, local work to `mending`, saving from damaged packs to `salvage`, transfers to `replicate`. SPEC.md, 6.7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from hinet_node.vault.checking import missing_packs
from hinet_node.vault.headcheck import aside_heads
from hinet_node.vault.headstore import head_path
from hinet_node.vault.items import OnProgress, Progress
from hinet_node.vault.mending import clear_leftovers, clear_way, mend
from hinet_node.vault.packfolder import pack_path
from hinet_node.vault.report import (
    FETCHED,
    FILE,
    HEAD,
    LEFT,
    MALFORMED,
    PACK,
    REBUILT,
    REWRITTEN,
    SALVAGED,
    STILL_MISSING,
    Fault,
    Mended,
    RepairReport,
)
from hinet_node.vault.salvage import Salvage, Saved, recollect
from hinet_node.vault.touched import Touched

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore
    from hinet_node.vault.vault import Vault

POLL_S = 0.1
FILES_DETAILED = 5
"""Of so many files of a pack it is said how much of them is lost."""


@dataclass(frozen=True)
class Lacking:
    """What should be here and is not: packs, heads as (device, number, hash), and this device's own newest head when
    nothing tells which one it is."""

    packs: tuple[bytes, ...] = ()
    heads: tuple[tuple[bytes, int, bytes], ...] = ()
    own_lost: bool = False

    def __bool__(self) -> bool:
        return bool(self.packs or self.heads or self.own_lost)

    def and_also(self, other: Lacking) -> Lacking:
        return Lacking(tuple(sorted({*self.packs, *other.packs})), tuple(sorted({*self.heads, *other.heads})),
                       self.own_lost or other.own_lost)


class Repairer:
    """One repair. Without a running agent, so without a replicator, only this device's own means are used."""

    def __init__(self, vault: Vault, on_progress: OnProgress | None) -> None:
        self._vault = vault
        self._core = vault.core
        self._replicator = vault.replicator
        self._report = on_progress
        self._items: list[Mended] = []

    async def run(self, *, verify: bool, deep: bool, timeout_s: float) -> RepairReport:
        """Errors: `NoSpace`, `OSError` of a home that can't be written."""
        first, faults = await self._lacking(), 0
        if verify:
            report = await self._vault.verify(deep=deep, on_progress=self._report)
            faults = len(report.faults)
            self._items += [_of_fault(fault) for fault in report.faults
                            if fault.state in (REBUILT, MALFORMED) or fault.kind == FILE]
            # Some of it may have come already: the replicator hears of damage as it is found.
            first = first.and_also(Lacking(report.missing, (await self._lacking()).heads))
        self._items += await self._vault.change(mend)
        lacking = await self._lacking()
        if lacking and self._replicator is not None:
            await self._vault.change(lambda core: clear_way(core, lacking.packs))
            await self._fetch(timeout_s)
            lacking = await self._lacking()
        self._tell_fetched(first, lacking)
        self._items += await self._vault.change(lambda core: self._save(core, lacking))
        self._items += self._heads_left((await self._lacking()).heads)
        self._items += await self._vault.change(clear_leftovers)
        unreadable = await self._vault.change(lambda core: Touched(core).files_lacking())
        self._vault.changed()
        return RepairReport(tuple(self._items), max(faults, len(self._items)), unreadable)

    # ---- what is lacking -----------------------------------------------------------------------------------------

    async def _lacking(self) -> Lacking:
        def work() -> Lacking:
            heads = tuple((device, seq, head_hash) for device, seq, head_hash, _ in aside_heads(self._core.disk)
                          if self._core.heads.misses(device, seq, head_hash))
            return Lacking(missing_packs(self._core), heads, self._core.heads.lost())
        found: Lacking = await self._core.disk.run_blocking(work)
        return found

    # ---- fetching ------------------------------------------------------------------------------------------------

    async def _fetch(self, timeout_s: float) -> None:
        """Have the replicator look, until nothing is lacking or nobody in reach has it."""
        assert self._replicator is not None
        sizes = await self._core.disk.run_blocking(self._sizes)
        left_s = trio.current_time() + timeout_s
        while lacking := await self._lacking():
            compared, came = dict(self._core.compared), self._replicator.pulled_bytes
            online = self._replicator.online()
            self._replicator.nudge()
            while True:
                await trio.sleep(POLL_S)
                if self._replicator.pulled_bytes != came:
                    came = self._replicator.pulled_bytes
                    left_s = trio.current_time() + timeout_s
                    self._tell(sizes)
                now = self._replicator.online()
                done = online and all(self._core.compared.get(one, 0) > compared.get(one, 0) for one in online & now)
                if done or now - online or trio.current_time() >= left_s:
                    break
            if trio.current_time() >= left_s:
                return
            if done and not now - online and await self._lacking() == lacking:
                return  # all were asked, and nobody has any of it

    def _sizes(self) -> dict[bytes, int]:
        """Of the missing packs, as far as it is known what they held."""
        return {name: max((slot.offset + slot.sealed_bytes for slot in self._core.store.notes.slots_aside(name)),
                          default=0) for name in missing_packs(self._core)}

    def _tell(self, sizes: Mapping[bytes, int]) -> None:
        if self._report is not None:
            held, total = self._core.store.index.packs(), sum(sizes.values())
            left = sum(size for name, size in sizes.items() if name not in held)
            begun = sum(size for name, size in self._core.store.incoming().items() if name in sizes)
            self._report(Progress("fetching", max(0, min(total, total - left + begun)), total or None))

    def _tell_fetched(self, first: Lacking, now: Lacking) -> None:
        names, told = self._core.household.names(), {item.name for item in self._items}
        for name in first.packs:
            if name not in now.packs and name not in told:
                source = self._core.arrived_from.get(name, "a sibling")
                self._items.append(Mended(PACK, FETCHED, pack_path(name), f"Pack {name.hex()[:16]} came from {source}.",
                                          name, source))
        for device, seq, head_hash in first.heads:
            if self._core.heads.knows(device, seq, head_hash):
                whose = names.get(device, device.hex()[:8])
                self._items.append(Mended(HEAD, FETCHED, head_path(device, seq, head_hash), f"State {seq} of {whose} "
                                          "came again from a sibling.", head_hash))

    def _heads_left(self, heads: Collection[tuple[bytes, int, bytes]]) -> list[Mended]:
        """Heads that did not come again: the ones before them stand in."""
        names, asked = self._core.household.names(), self._online()
        others = sorted(device for device in self._core.household.members()
                        if device not in asked and device != self._core.household.device_public)
        return [Mended(HEAD, STILL_MISSING, head_path(device, seq, head_hash), f"State {seq} of "
                       f"{names.get(device, device.hex()[:8])} is still missing; the one before it stands in.",
                       head_hash, may_have=tuple(names[one] for one in others))
                for device, seq, head_hash in heads]

    # ---- what nobody in reach has --------------------------------------------------------------------------------

    def _save(self, core: VaultCore, lacking: Lacking) -> list[Mended]:
        """What no sibling in reach has: save what opens, and say what is lost and who may have it."""
        saved, writes = {}, core.may_write()
        if writes and (lacking.packs or lacking.own_lost):
            salvage = Salvage(core)
            saved = {name: salvage.save(name) for name in lacking.packs}
            core.take_up_again()
            done = [one for one in saved.values() if one.replaced]
            names = recollect(core) if lacking.own_lost else 0
            if done or lacking.own_lost or any(one.saved for one in saved.values()):
                self._publish(core, salvage, [one.name for one in done])
            if lacking.own_lost:
                self._items.append(Mended(HEAD, SALVAGED, "", "This device's own record of its vault was lost, and no "
                                          f"sibling had it: {names} names came from the trees that its packs hold, and "
                                          "it goes on from there."))
        elif lacking.own_lost:
            self._items.append(Mended(HEAD, STILL_MISSING, "", "This device's own record of its vault is lost."))
        touched = Touched(core)
        return [self._told(core, name, saved.get(name), touched) for name in lacking.packs]

    def _publish(self, core: VaultCore, salvage: Salvage, replaced: Collection[bytes]) -> None:
        writer = core.publisher.writer_for_repair()
        writer.packs.update(salvage.packs)
        core.publisher.replaced |= frozenset(replaced)
        core.publisher.publish(writer, lambda seq: [])
        for name in replaced:
            core.store.forget_aside(name)
            core.settle("E_PACK_DAMAGED", name)

    def _told(self, core: VaultCore, name: bytes, saved: Saved | None, touched: Touched) -> Mended:
        short = f"Pack {name.hex()[:16]}"
        if saved is not None and saved.replaced:
            return Mended(PACK, SALVAGED, pack_path(name), f"{short} was damaged, and all of its {saved.slots} parts "
                          f"are safe: {saved.saved} were saved from it, {saved.elsewhere} are in other packs.", name)
        what = f"{short} is still missing"
        files = touched.files_of_pack(name)
        if saved is not None and saved.slots:
            what += f"; {saved.saved + saved.elsewhere} of its {saved.slots} parts were saved"
            files = touched.files_with(saved.lost)
            lost = [f"{file.decode('utf-8', 'replace')} lacks {lacks} of {parts} parts"
                    for file, lacks, parts in touched.losses(files[:FILES_DETAILED], saved.lost)]
            what += f": {', '.join(lost)}" if lost else ""
        return Mended(PACK, STILL_MISSING, pack_path(name), f"{what}.", name,
                      may_have=may_have(self._vault, name, self._online()), files=files)

    def _online(self) -> Collection[bytes]:
        return self._replicator.online() if self._replicator is not None else frozenset()


def may_have(vault: Vault, name: bytes, asked: Collection[bytes]) -> tuple[str, ...]:
    """Names of the siblings that may hold a pack: those that said so, then those that were not asked now."""
    core = vault.core
    names, members = core.household.names(), core.household.members()
    sure = [device for device in core.store.notes.holders(name) if device in names and device not in asked]
    others = [device for device in sorted({*members, *core.peers_hold}) if device not in asked and device not in sure
              and device != core.household.device_public]
    return tuple([f"{names[device]} (it had it when it was last met)" for device in sure]
                 + [names.get(device, device.hex()[:8]) for device in others])


def _of_fault(fault: Fault) -> Mended:
    """What verifying put right at once, or what nobody can put right: a faulty device wrote it so."""
    outcome = REWRITTEN if fault.state == REBUILT else LEFT
    return Mended(fault.kind, outcome, fault.path, fault.what, fault.name, files=fault.files)
