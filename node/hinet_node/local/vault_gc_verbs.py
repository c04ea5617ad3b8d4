"""The local API's verbs of collecting: vault.gc and vault.reseal.

Leaves the work to `hinet_node.vault`; here is what an owner asks for in one go, in which order, and what is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hinet_node.api import Emit, Handler, whole_number_of
from hinet_node.errors import NoSpace, UsageError
from hinet_node.local.vault_verbs import Names, text_name
from hinet_node.vault import Household, Vault, repack
from hinet_node.vault.choosing import Choice, PackUse
from hinet_node.vault.collect import Plan, Swept
from hinet_node.vault.marking import Lost, Marks, Retention

PACKS_AT_ONCE = 64
DAYS_MAX = 36_500
VERSIONS_MAX = 1_000_000
_NAMES_TOLD_MAX = 20


def vault_gc_verbs(vault: Vault, names: Names, household: Household) -> dict[str, Handler]:
    """The handlers, by verb."""
    verbs = _Verbs(vault, names, household)
    return {"vault.gc": verbs.gc, "vault.reseal": verbs.reseal}


class _Moving:
    """Tells how many bytes have moved."""

    def __init__(self, emit: Emit, total: int = 0) -> None:
        self._emit = emit
        self.total = total
        self.done = 0

    def looked(self) -> None:
        self._emit({"step": self.done, "total": self.total, "note": "finding what is needed"})

    def moved(self, count: int) -> None:
        self.done += count
        self._emit({"step": min(self.done, self.total), "total": self.total, "note": "moving what is needed"})


class _Verbs:
    def __init__(self, vault: Vault, names: Names, household: Household) -> None:
        self._vault = vault
        self._core = vault.core
        self._names = names
        self._household = household

    # ---- vault.gc ------------------------------------------------------------------------------------------------

    async def gc(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """A dry run unless `apply`; `now` waives the age."""
        days, versions = _bounded(args, "keep_days", DAYS_MAX), _bounded(args, "keep_versions", VERSIONS_MAX)
        retention = self._core.collector.retention(days, versions)
        reads = bool(self._household.epoch_keys())
        if not reads and (days is not None or versions is not None):
            raise UsageError("a keeper holds the vault without its key and can't tell versions apart",
                             next_step="say what to keep on a member: hinet-node vault gc --help")
        if args.get("apply") is True:
            return await self._apply(retention, emit, reads=reads, now=args.get("now") is True)
        moving = _Moving(emit)
        rewritten, emptied = [0], list[PackUse]()
        plan = None
        if reads:
            def only_count(marks: Marks, choice: Choice) -> None:
                emptied.extend(_worth_rewriting(choice))
                rewritten[0] = repack.bytes_to_move(choice, emptied)
            plan = await self._vault.plan(retention, rewrite=only_count, pause=moving.looked)
            plan = replace(plan, unneeded=plan.unneeded.union(use.name for use in emptied))
        swept = await self._vault.sweep(packs_max=1 << 30, dry_run=True, waive_age=args.get("now") is True,
                                        unneeded=plan.unneeded if plan is not None else None)
        swept.retained_by.pop(self._household.device_public, None)  # it says so when the collection is applied
        return self._report(plan, swept, applied=False, rewritten=rewritten[0])

    async def _apply(self, retention: Retention, emit: Emit, *, reads: bool, now: bool) -> dict[str, Any]:
        # What may go already goes first: on a full disk the new head needs a little room.
        swept = await self._sweep(now=False)
        plan, moving, note = None, _Moving(emit), ""
        if reads:
            def rewrite(marks: Marks, choice: Choice) -> repack.Mover | None:
                picked = _worth_rewriting(choice)
                moving.total = repack.bytes_to_move(choice, picked)
                self._core.check_room(moving.total)
                return repack.move(self._core, marks, picked, 1 << 62, moving.moved) if picked else None
            try:
                plan = await self._vault.collect(retention, rewrite=rewrite, pause=moving.looked)
            except NoSpace:
                note = "the disk is too full to rewrite packs that are partly needed; they stay as they are"
                plan = await self._vault.collect(retention, pause=moving.looked)
            if now:
                await self._vault.change(lambda core: core.collector.confirm())
        more = await self._sweep(now=now)
        more.packs, more.size_bytes = more.packs + swept.packs, more.size_bytes + swept.size_bytes
        return {**self._report(plan, more, applied=True, rewritten=moving.done), "note": note}

    async def _sweep(self, *, now: bool) -> Swept:
        packs = size_bytes = 0
        while True:
            swept = await self._vault.sweep(packs_max=PACKS_AT_ONCE, waive_age=now)
            packs, size_bytes = packs + swept.packs, size_bytes + swept.size_bytes
            if swept.packs < PACKS_AT_ONCE:
                swept.packs, swept.size_bytes = packs, size_bytes
                return swept

    def _report(self, plan: Plan | None, swept: Swept, *, applied: bool, rewritten: int) -> dict[str, Any]:
        known, lost = self._names(), plan.lost if plan is not None else Lost()
        held = self._core.store.index.packs()
        unneeded = [held[name] for name in (plan.unneeded if plan is not None else ()) if name in held]
        return {
            "applied": applied, "keeper": plan is None, "unneeded_packs": len(unneeded),
            "unneeded_bytes": sum(unneeded),
            "due_packs": swept.packs, "due_bytes": swept.size_bytes, "rewritten_bytes": rewritten,
            "lost_versions": lost.versions, "lost_files": lost.deleted_files,
            "lost": [{"name": text_name(name), "versions": count}
                     for name, count in sorted(lost.names.items())[:_NAMES_TOLD_MAX]],
            "lost_file_names": [text_name(name) for name in sorted(lost.deleted_names)[:_NAMES_TOLD_MAX]],
            "retained_by": [{"device": known.get(device, device.hex()[:8]), "bytes": count}
                            for device, count in sorted(swept.retained_by.items())],
            "younger_packs": swept.younger, "younger_bytes": swept.younger_bytes, "left_s": int(swept.left_s),
            "pinned_packs": swept.pinned, "last_copies": swept.last_copies, "blocked": swept.blocked, "note": "",
        }

    # ---- vault.reseal --------------------------------------------------------------------------------------------

    async def reseal(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """`do` is `status`, `stop`, or `start`: ask for it and work until it is done. If this call is cut, the agent
        goes on; without an agent the next `start` does."""
        reseal, do = self._core.reseal, args.get("do", "status")
        if do == "stop":
            return reseal.stop().as_json()
        if do != "start":
            return reseal.status().as_json()
        found = await self._vault.change(lambda core: reseal.start())
        moving = _Moving(emit, found.left_bytes)
        while args.get("wait") is not False and reseal.due():
            before = reseal.status()
            await self._vault.reseal_step(moving.moved)
            after = reseal.status()
            if after.left_packs >= before.left_packs:
                break
        return reseal.status().as_json()


def _worth_rewriting(choice: Choice) -> list[PackUse]:
    dead = repack.mostly_dead(choice)
    return [*dead, *(use for use in repack.too_many_small(choice, mine_only=False) if use not in dead)]


def _bounded(args: Mapping[str, Any], name: str, most: int) -> int | None:
    if args.get(name) is None:
        return None
    number = whole_number_of(args, name)
    if not 0 <= number <= most:
        raise UsageError(f"{name.replace('_', '-')} goes from 0 to {most}")
    return number
