"""The local API's verbs of the vault: vault.add, vault.put, vault.status, vault.verify.

Leaves finding, storing and sealing to `hinet_node.vault`; keeps `.hinet/` out of the owner's way and turns values into
what the socket can say. Names are text here (`text_name`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hinet_node.api import Emit, Handler, text_of
from hinet_node.errors import IntegrityError, NodeError, UsageError
from hinet_node.ports import Disk
from hinet_node.vault import AddReport, Household, Item, Progress, Vault
from hinet_node.vault.finding import RESERVED, Finder, Notes

KINDS_TOLD = {"index": "indexes", "seq": "number files"}

Names = Callable[[], Mapping[bytes, str]]
"""Public key -> device name, of every device that ever was in the household."""


def vault_verbs(vault: Vault, disk: Disk, names: Names, household: Household) -> dict[str, Handler]:
    """The handlers, by verb."""

    async def add(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        paths, under = args.get("paths"), text_of(args, "under", "")
        if not isinstance(paths, list) or not paths:
            raise UsageError("name at least one file or folder", next_step="hinet-node vault add PATH")
        if not all(isinstance(path, str) and Path(path).is_absolute() for path in paths):
            raise UsageError("vault.add needs absolute paths: the agent's own folder is not the caller's")
        report = await vault.add_files([Path(path) for path in paths], name_bytes(under),
                                       rescan=args.get("rescan") is True,
                                       on_progress=lambda done: emit(progress_report(done)))
        return added(report)

    async def put(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        name, content = name_bytes(text_of(args, "name")), args.get("content")
        if not isinstance(content, bytes):
            raise UsageError("vault.put needs the content as bytes")
        _refuse_reserved(name)
        return described_item(await vault.put(name, content), names())

    async def status(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return await vault_status(vault, household)

    async def verify(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        report = await vault.verify(deep=args.get("deep") is True, on_progress=lambda done: emit(progress_report(done)))
        return report.as_json()

    return {"vault.add": add, "vault.put": put, "vault.status": status, "vault.verify": verify}


def added(report: AddReport) -> dict[str, Any]:
    """What `vault.add` answers. Errors: `UsageError` when there was no file at all."""
    notes = report.notes
    if not report.files and not notes.left_out_count:
        raise _nothing_to_add()
    return {"files": report.files, "bytes": report.bytes, "unchanged": report.unchanged,
            "skipped": notes.skipped, "skipped_count": notes.skipped_count,
            "left_out": [{"path": path, "why": why} for path, why in notes.left_out],
            "left_out_count": notes.left_out_count,
            "changed": notes.changed, "changed_count": notes.changed_count}


async def vault_status(vault: Vault, household: Household) -> dict[str, Any]:
    """The vault's own status, and whether this device can read it (a keeper can't)."""
    found = (await vault.status()).as_json()
    found.pop("schema", None)
    return {**found, "readable": household.current_epoch() is not None}


def find_files(roots: list[Path], under: bytes) -> tuple[list[tuple[bytes, Path]], list[str]]:
    """Vault names and paths of the files that `vault.add` takes, sorted; and what it skips, as text. Errors:
    `UsageError`."""
    notes = Notes()
    found = sorted((placed.name, Path(os.fsdecode(placed.path())))
                   for batch in Finder(roots, under, notes).files() for placed, _ in batch)
    if not found:
        raise _nothing_to_add()
    return found, sorted(notes.skipped)


def _nothing_to_add() -> NodeError:
    return UsageError("there is no file to add", next_step="check the path; links inside a folder are not followed")


def no_such_file(name: bytes) -> NodeError:
    """The error for a name that the vault does not show."""
    return UsageError(f"the vault holds no file {text_name(name)!r}", code="E_NO_SUCH_FILE",
                      next_step="see what it holds: hinet-node vault ls")


def damage_error(report: Mapping[str, Any]) -> IntegrityError | None:
    """What `vault verify` says when the report is not clean; None when it is."""
    if report["ok"]:
        return None
    counts: dict[tuple[str, str], int] = {}
    for fault in report["faults"]:
        counts[fault["kind"], fault["state"]] = counts.get((fault["kind"], fault["state"]), 0) + 1
    parts = [f"{count} {kind if count == 1 else KINDS_TOLD.get(kind, kind + 's')} {state}"
             for (kind, state), count in counts.items()]
    if report["files_unreadable"]:
        parts.append(f"{len(report['files_unreadable'])} files can't be read whole")
    still = report["files_unreadable"] or any(fault["state"] != "rebuilt" for fault in report["faults"])
    return IntegrityError(
        f"the vault on this device {'is' if still else 'was'} not whole: {', '.join(parts)}", code="E_VAULT_DAMAGED",
        next_step="hinet-node vault repair" if still else "it was put right; look again: hinet-node vault verify")


def _refuse_reserved(name: bytes) -> None:
    if name.startswith(RESERVED) or name == RESERVED.rstrip(b"/"):
        raise UsageError("names under .hinet/ are kept for what the household learned",
                         next_step="put it elsewhere: hinet-node vault add PATH --under FOLDER", code="E_NAME_RESERVED")


def described_item(item: Item, names: Mapping[bytes, str]) -> dict[str, Any]:
    """A file as the socket can say it."""
    return {"name": text_name(item.name), "size": item.size, "digest": item.digest.hex(), "time": item.time,
            "device": names.get(item.device, item.device.hex()[:8]),
            "conflict_of": None if item.conflict_of is None else text_name(item.conflict_of)}


def text_name(name: bytes) -> str:
    """A name as text; bytes that are no UTF-8 become lone surrogates, as Python does for file names."""
    return name.decode("utf-8", "surrogateescape")


def name_bytes(text: str) -> bytes:
    """The name that `text_name` shows."""
    return text.encode("utf-8", "surrogateescape")


def progress_report(done: Progress) -> dict[str, Any]:
    files = f"{done.files_done}/{done.files_total} files" if done.files_total else done.what
    return {"step": done.bytes_done, "total": done.bytes_total or 0, "note": files}
