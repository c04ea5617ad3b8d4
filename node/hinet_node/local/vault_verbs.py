"""The local API's verbs of the vault: vault.add, vault.put, vault.ls, vault.get, vault.status, vault.verify.

Leaves storing and sealing to `hinet_node.vault`; finds the files of a folder, keeps `.hinet/` out of the owner's way
and turns values into what the socket can say. Names are text here (`text_name`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hinet_node.api import Emit, Handler, text_of, whole_number_of
from hinet_node.errors import IntegrityError, NodeError, UsageError
from hinet_node.home import DEVICE_KEY, DEVICE_KEY_NEXT
from hinet_node.ports import Disk
from hinet_node.vault import Household, Item, Progress, Vault

RESERVED = b".hinet/"
FILES_MAX = 100_000
LIST_MAX = 5_000
KEY_MAGIC = b"hinet-device-key-"
CONTENT_BYTES_MAX = 4 * 1_048_576

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
        found, skipped = await disk.run_blocking(lambda: find_files([Path(path) for path in paths], name_bytes(under)))
        items = await vault.put_many(found, on_progress=lambda done: emit(progress_report(done)))
        return {"files": len(items), "bytes": sum(item.size for item in items), "skipped": skipped}

    async def put(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        name, content = name_bytes(text_of(args, "name")), args.get("content")
        if not isinstance(content, bytes):
            raise UsageError("vault.put needs the content as bytes")
        _refuse_reserved(name)
        return _shown(await vault.put(name, content), names())

    async def ls(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        prefix, after = name_bytes(text_of(args, "prefix", "")), name_bytes(text_of(args, "after", ""))
        limit = min(whole_number_of(args, "limit", LIST_MAX), LIST_MAX)
        items = [item for item in await vault.list(prefix)
                 if item.name > after and (args.get("all") is True or not item.name.startswith(RESERVED))]
        known = names()
        return {"items": [_shown(item, known) for item in items[:limit]], "more": len(items) > limit}

    async def get(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        # A file goes to the path `to`, a folder below `into`, where its files keep their whole names.
        name, to = name_bytes(text_of(args, "name")), text_of(args, "to", "")
        if not to:
            return {"content": await _content(vault, name)}
        exact = [item for item in await vault.list(name) if item.name == name]
        if exact:
            item = await vault.get_to(name, Path(to), on_progress=lambda done: emit(progress_report(done)))
            return {"files": 1, "bytes": item.size, "to": to}
        folder = name.rstrip(b"/") + b"/" if name else b""
        into = text_of(args, "into", to)
        if not await vault.list(folder):
            raise no_such_file(name)
        items = await vault.restore(folder, Path(into), on_progress=lambda done: emit(progress_report(done)))
        return {"files": len(items), "bytes": sum(item.size for item in items),
                "to": str(Path(into, text_name(folder)))}

    async def status(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return await vault_status(vault, household)

    async def verify(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        report = await vault.verify(deep=args.get("deep") is True, on_progress=lambda done: emit(progress_report(done)))
        return report.as_json()

    return {"vault.add": add, "vault.put": put, "vault.ls": ls, "vault.get": get, "vault.status": status,
            "vault.verify": verify}


async def vault_status(vault: Vault, household: Household) -> dict[str, Any]:
    """The vault's own status, and whether this device can read it (a keeper can't)."""
    found = (await vault.status()).as_json()
    found.pop("schema", None)
    return {**found, "readable": household.current_epoch() is not None}


def find_files(roots: list[Path], under: bytes) -> tuple[list[tuple[bytes, Path]], list[str]]:
    """Vault names and paths of the files below `roots`, sorted; and what was skipped (links, devices, the homes and
    keys of nodes), as text.

    A folder `a/notes` gives names `notes/…`, a file its own name; `under` is put in front. Links are never followed.
    Errors: `UsageError` for a missing path, a reserved name, two files of one name, or too many files.
    """
    found: dict[bytes, Path] = {}
    skipped: list[str] = []
    prefix = under.strip(b"/") + b"/" if under.strip(b"/") else b""
    if any(part in (b"", b".", b"..") for part in prefix.split(b"/")[:-1]) or b"\0" in prefix:
        raise UsageError(f"{text_name(under)!r} is not a folder of the vault", next_step="for example --under letters")

    def take(path: Path, name: bytes) -> list[tuple[Path, bytes]]:
        """Take a file, or give back what is in a folder."""
        kind = path.lstat().st_mode
        if _holds_key(path / "device.key" if stat.S_ISDIR(kind) else path):
            # Whoever adds the folder around a home does not mean to hand this machine's key to all the others.
            skipped.append(str(path))
        elif stat.S_ISDIR(kind):
            return [(entry, os.fsencode(entry.name) if not name else name + b"/" + os.fsencode(entry.name))
                    for entry in path.iterdir()]
        elif stat.S_ISREG(kind):
            full = prefix + name
            _refuse_reserved(full)
            if full in found:
                raise UsageError(f"two files would have the name {text_name(full)!r} in the vault",
                                 next_step="add them one after the other, with --under FOLDER")
            found[full] = path
            if len(found) > FILES_MAX:
                raise UsageError(f"more than {FILES_MAX} files at once", next_step="add the folders one by one")
        else:
            skipped.append(str(path))
        return []

    for root in roots:
        waiting = [(root, os.fsencode(root.resolve().name if root.name in ("", "..") else root.name))]
        try:
            while waiting:
                waiting += take(*waiting.pop())
        except FileNotFoundError as missing:
            raise UsageError(f"there is no file or folder {missing.filename or root}", next_step="check the path",
                             code="E_NO_SUCH_FILE") from None
        except PermissionError as closed:
            raise UsageError(f"{closed.filename or root} can't be read: permission denied",
                             next_step="check who owns it: ls -l PATH", code="E_PERMISSION") from None
        except OSError as broken:
            raise UsageError(f"{broken.filename or root} can't be read: {broken.strerror}",
                             next_step="leave it out: add what is beside it") from None
    if not found:
        raise UsageError("there is no file to add", next_step="check the path; links are not followed")
    return sorted(found.items()), sorted(skipped)


def _holds_key(path: Path) -> bool:
    """Whether this is the key file of a node."""
    if path.name not in (DEVICE_KEY, DEVICE_KEY_NEXT):
        return False
    try:
        return stat.S_ISREG(path.lstat().st_mode) and path.read_bytes().startswith(KEY_MAGIC)
    except OSError:
        return False


def no_such_file(name: bytes) -> NodeError:
    """The error for a name that the vault does not show."""
    return UsageError(f"the vault holds no file {text_name(name)!r}", code="E_NO_SUCH_FILE",
                      next_step="see what it holds: hinet-node vault ls")


def damage_error(report: Mapping[str, Any]) -> IntegrityError | None:
    """What `vault verify` says when the report is not clean; None when it is."""
    if report["ok"]:
        return None
    parts = [f"{len(report[key])} {text}" for key, text in (
        ("damaged", "damaged packs were set aside"), ("missing", "packs are missing"),
        ("files_unreadable", "files can't be read whole")) if report[key]]
    return IntegrityError(f"the vault on this device is not whole: {', '.join(parts)}",
                          next_step="keep the agent running next to a sibling, it fetches them again; "
                                    "then: hinet-node vault verify", code="E_VAULT_DAMAGED")


async def _content(vault: Vault, name: bytes) -> bytes:
    item = next((item for item in await vault.list(name) if item.name == name), None)
    if item is None:
        raise no_such_file(name)
    if item.size > CONTENT_BYTES_MAX:
        raise UsageError(f"{text_name(name)!r} is too long to print ({item.size} bytes)",
                         next_step="write it to a file: hinet-node vault get NAME --out PATH")
    return await vault.get(name)


def _refuse_reserved(name: bytes) -> None:
    if name.startswith(RESERVED) or name == RESERVED.rstrip(b"/"):
        raise UsageError("names under .hinet/ are kept for what the household learned",
                         next_step="put it elsewhere: hinet-node vault add PATH --under FOLDER", code="E_NAME_RESERVED")


def _shown(item: Item, names: Mapping[bytes, str]) -> dict[str, Any]:
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
