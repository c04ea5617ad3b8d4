"""The local API's verbs for what was there and for what is contested: vault.rm, vault.mv, vault.history, vault.restore,
vault.conflicts, vault.settle.

Leaves the past itself to `hinet_node.vault.history`, edits to `hinet_node.vault.edits`; finds what a name means (a
file, a removed file, a folder) and turns values into what the socket can say.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hinet_node.api import Emit, Handler, text_of, whole_number_of
from hinet_node.errors import IntegrityError, UsageError
from hinet_node.local.vault_out_verbs import described
from hinet_node.local.vault_verbs import Names, name_bytes, no_such_file, progress_report, text_name
from hinet_node.vault import Household, Progress, Vault
from hinet_node.vault.core import VaultCore
from hinet_node.vault.finding import RESERVED
from hinet_node.vault.history import Change, no_history
from hinet_node.vault.outgoing import KEEP, OVERWRITE
from hinet_protocol.past import moved_to
from hinet_protocol.trees import Version, version_hash

CHANGES_MAX = 1_000
"""Rows of one answer of `vault.history`."""
LEFT_OUT_MAX = 500
ROWS_BYTES_MAX = 4 << 20
DAY_S = 86_400


def vault_past_verbs(vault: Vault, names: Names, household: Household) -> dict[str, Handler]:
    """The handlers, by verb."""
    verbs = _Verbs(vault, names, household)
    return {"vault.rm": verbs.rm, "vault.mv": verbs.mv, "vault.history": verbs.history,
            "vault.restore": verbs.restore, "vault.conflicts": verbs.conflicts, "vault.settle": verbs.settle}


class _Verbs:
    def __init__(self, vault: Vault, names: Names, household: Household) -> None:
        self._vault = vault
        self._names = names
        self._household = household

    async def rm(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        wanted = args.get("names")
        if not isinstance(wanted, list) or not wanted or not all(isinstance(name, str) for name in wanted):
            raise UsageError("name at least one file or folder", next_step="hinet-node vault rm NAME")
        found: dict[bytes, int] = {}
        folders = []
        for text in wanted:
            rows, folder = await _meant(self._vault, name_bytes(text))
            found.update(rows)
            folders += [text_name(folder)] if folder is not None else []
        dry, core = args.get("dry") is True, self._vault.core
        if not dry:
            await self._vault.remove(found)
        days = core.settings.keep_days
        return {"files": len(found), "bytes": sum(found.values()), "folders": folders, "keep_days": days,
                "still_there": [] if dry else await self._still_there(found),
                "names": [text_name(name) for name in sorted(found)][:LEFT_OUT_MAX],
                "restorable_until": core.publisher.now() + days * DAY_S, "dry": dry}

    async def mv(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        old, new = name_bytes(text_of(args, "old")), name_bytes(text_of(args, "new"))
        rows, folder = await _meant(self._vault, old)
        target = _target(old, new)
        if folder is None:
            moves = {old: target}
        else:
            target = target.rstrip(b"/") + b"/"
            if target.startswith(folder):
                raise UsageError("a folder can't be put into itself", next_step="name another place")
            moves = {name: target + name[len(folder):] for name in rows}
        for name in moves.values():
            _refuse_odd(name)
        await self._vault.move(moves)
        return {"files": len(moves), "old": text_name(old), "new": text_name(target),
                "still_there": await self._still_there(moves.keys() - set(moves.values()))}

    async def _still_there(self, names: Iterable[bytes]) -> list[str]:
        """Of names that were removed, those that another version stands under now: they were contested."""
        wanted = sorted(names)
        found = await self._vault.look(lambda core: [name for name in wanted if core.view.lookup(name) is not None])
        return [text_name(name) for name in found[:LEFT_OUT_MAX]]

    async def history(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        name = name_bytes(text_of(args, "name", ""))
        limit = max(1, min(whole_number_of(args, "limit", CHANGES_MAX), CHANGES_MAX))
        known = self._names()

        def work(core: VaultCore) -> tuple[str, list[tuple[Change, bool]]]:
            is_file = bool(name) and core.history.holds(name)
            prefix = name.strip(b"/") + b"/" if name.strip(b"/") else b""
            if not is_file and prefix and not any(one.startswith(prefix) for one in core.view.tree):
                raise no_history(name)
            found = core.history.of_file(name) if is_file else core.history.of_folder(prefix)
            return ("file" if is_file else "folder"), [
                (change, not change.version.deleted and core.edits.held(change.version))
                for change in islice(found, limit + 1)]

        kind, rows = await self._vault.look(work)
        shown = _fitting([_change(change, held, known) for change, held in rows[:limit]])
        return {"kind": kind, "name": text_name(name), "more": len(rows) > len(shown), "versions": shown}

    async def restore(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return await _restore(self._vault, args, emit)

    async def conflicts(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        known, after = self._names(), name_bytes(text_of(args, "after", ""))
        found = [one for one in await self._vault.look(lambda core: core.edits.contested())
                 if not one.name.startswith(RESERVED) and one.name > after]
        shown = _fitting([{"name": text_name(one.name), "versions": [
            _contender(version, shown_as, one.versions[0][0], known, self._household.device_public)
            for version, shown_as in one.versions]} for one in found[:CHANGES_MAX]])
        return {"conflicts": shown, "more": len(found) > len(shown)}

    async def settle(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        name, keep = name_bytes(text_of(args, "name")), text_of(args, "keep")
        _refuse_reserved(name)
        return {"name": text_name(name), "names": [text_name(one) for one in await self._vault.settle(name, keep)]}


# ---- what a name means -----------------------------------------------------------------------------------------------


async def _meant(vault: Vault, name: bytes) -> tuple[dict[bytes, int], bytes | None]:
    """The files that a name stands for, with their sizes, and the folder if it is one. Errors: `UsageError`
    E_NO_SUCH_FILE, E_NAME_RESERVED."""
    _refuse_reserved(name)
    items = {item.name: item.size for item in await vault.list(name)}
    if name in items:
        return {name: items[name]}, None
    folder = name.rstrip(b"/") + b"/"
    below = {one: size for one, size in items.items() if one.startswith(folder)}
    if not below or folder == b"/":
        raise no_such_file(name)
    return below, folder


def _target(old: bytes, new: bytes) -> bytes:
    """`mv a b/` puts a into the folder b."""
    return new + old.rstrip(b"/").rpartition(b"/")[2] if new.endswith(b"/") else new


def _refuse_odd(name: bytes) -> None:
    """A new name that no disk could take back would be a trap."""
    _refuse_reserved(name)
    if b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/")):
        raise UsageError(f"{text_name(name)!r} is no name for a file of the vault",
                         next_step="for example hinet-node vault mv note.md letters/note.md")


def _refuse_reserved(name: bytes) -> None:
    if name.startswith(RESERVED) or name == RESERVED.rstrip(b"/"):
        raise UsageError("names under .hinet/ are kept for what the household learned, and commands leave them alone",
                         next_step="see the files of your own: hinet-node vault ls", code="E_NAME_RESERVED")


# ---- putting back ----------------------------------------------------------------------------------------------------


async def _restore(vault: Vault, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    name, version = name_bytes(text_of(args, "name")), text_of(args, "version", "")
    before = args.get("before")
    if before is not None and type(before) is not int:
        raise UsageError("vault.restore needs `before` as unix seconds")
    if version and before is not None:
        raise UsageError("--version and --before do not go together", next_step="give one of the two")
    _refuse_reserved(name)
    to = text_of(args, "to", "")
    chosen = await vault.look(lambda core: _chosen(core, name, version, before, bool(to)))
    rows = chosen.rows

    def report(done: Progress) -> None:
        emit(progress_report(done))

    result = {"files": len(rows), "bytes": sum(one.size for one in rows.values()),
              "left": [text_name(one) for one in chosen.left[:LEFT_OUT_MAX]], "to": to,
              "removed_before": chosen.removed_before}
    if to and chosen.is_file:
        (only,) = rows.values()
        await vault.write_version(only, Path(to), on_progress=report)
    elif to:
        out = await vault.take_out(rows, Path(to), existing=OVERWRITE if args.get("overwrite") is True else KEEP,
                                   on_progress=report)
        result |= described(out)
    else:
        changed = await vault.put_back(rows, on_progress=report)
        result |= {"files": len(changed), "bytes": sum(rows[one].size for one in changed),
                   "names": [text_name(one) for one in changed[:LEFT_OUT_MAX]]}
    return result


@dataclass(frozen=True)
class _Chosen:
    """What is to be put back. `left` are names whose past is gone."""

    rows: dict[bytes, Version]
    left: tuple[bytes, ...] = ()
    is_file: bool = True
    removed_before: int = 0


def _chosen(core: VaultCore, name: bytes, version: str, before: int | None, to_path: bool) -> _Chosen:
    core.refuse_keeper()
    row = core.view.lookup(name)
    if row is not None and row[1] is not None and not version:
        return _Chosen({name: row[0]})
    name = row[1] if row is not None and row[1] is not None else name
    if core.history.holds(name):
        if version:
            found = core.history.find(name, version)
        elif before is not None:
            at_time = core.history.before(name, before)
            if at_time is None:
                raise UsageError(f"{text_name(name)!r} was not there at that time", code="E_NO_SUCH_VERSION",
                                 next_step=f"see when it was: hinet-node vault history {shlex.quote(text_name(name))}")
            found = at_time
        else:
            found = row[0] if row is not None and to_path else core.history.last_content(name)
        return _Chosen({name: found})
    folder = name.strip(b"/") + b"/" if name.strip(b"/") else b""
    if version:
        raise UsageError(f"{text_name(name)!r} is no file; a folder goes back to a time",
                         next_step="hinet-node vault restore FOLDER --before TIME")
    chosen = _folder(core, folder, before)
    if not chosen.rows and not chosen.left:
        raise UsageError(f"nothing under {text_name(name)!r} is to be put back", code="E_NO_SUCH_FILE",
                         next_step="see what changed: hinet-node vault history")
    return chosen


def _folder(core: VaultCore, folder: bytes, before: int | None) -> _Chosen:
    """The files of a folder as they were at a time, or what was last removed from it."""
    rows: dict[bytes, Version] = {}
    left, others = [], 0
    if before is None:
        wanted, others = core.history.last_removed(folder)
    else:
        wanted = sorted(name for name in core.view.tree if name.startswith(folder) and not name.startswith(RESERVED))
    for name in wanted:
        try:
            found = core.history.last_content(name) if before is None else core.history.before(name, before)
        except IntegrityError:
            left.append(name)
            continue
        if found is not None:
            rows[name] = found
    return _Chosen(rows, tuple(left), False, others)


def _fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many of the first rows as fit into an answer, one at least. Names may have 4,096 bytes."""
    left = ROWS_BYTES_MAX
    for at, row in enumerate(rows):
        left -= len(repr(row))
        if left < 0:
            return rows[:max(1, at)]
    return rows


# ---- as the socket can say it ----------------------------------------------------------------------------------------


def _change(change: Change, held: bool, names: Mapping[bytes, str]) -> dict[str, Any]:
    return {**_version(change.version, names), "name": text_name(change.name), "what": change.what,
            "time": change.time, "came_from": None if change.came_from is None else text_name(change.came_from),
            "stands": change.stands, "restorable": held, "older_collected": change.ends,
            "moved_to": None if (moved := moved_to(change.version)) is None else text_name(moved)}


def _contender(version: Version, shown_as: bytes | None, first: Version, names: Mapping[bytes, str],
               me: bytes) -> dict[str, Any]:
    return {**_version(version, names), "shown_as": None if shown_as is None else text_name(shown_as),
            "mine": version.device == me, "size_difference": version.size - first.size,
            "time_difference_s": version.time - first.time}


def _version(version: Version, names: Mapping[bytes, str]) -> dict[str, Any]:
    return {"id": version_hash(version).hex(), "size": version.size, "digest": version.digest.hex(),
            "deleted": version.deleted, "time": version.time,
            "device": names.get(version.device, version.device.hex()[:8])}
