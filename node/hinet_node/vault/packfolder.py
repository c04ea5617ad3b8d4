"""What really lies in the folders of the packs, whatever somebody or something did to them. SPEC.md, 6.5.

Looks only: opens no pack and changes nothing. A folder that can't be listed is named with the reason and is not taken
for an empty one. Leaves what is to be done about it to `checking` and `mending`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hinet_node.errors import IntegrityError
from hinet_node.ports import Disk

PACKS = "vault/packs"
ASIDE = ".damaged"
_PACK_FILE = re.compile(r"[0-9a-f]{64}")
_ASIDE_FILE = re.compile(r"([0-9a-f]{64})\.damaged")
_FOLDER = re.compile(r"[0-9a-f]{2}")


def pack_path(name: bytes) -> str:
    text = name.hex()
    return f"{PACKS}/{text[:2]}/{text}"


def aside_path(name: bytes) -> str:
    """Where a damaged pack is kept until a whole copy is there."""
    return pack_path(name) + ASIDE


@dataclass
class Found:
    """The entries of the folders."""

    packs: list[bytes] = field(default_factory=list)
    """Names of what lies where a pack of that name belongs: a file, or anything else."""
    aside: list[bytes] = field(default_factory=list)
    """Names of packs that were set aside."""
    strays: list[str] = field(default_factory=list)
    """Paths of entries in the folders that have no pack's name, or one that belongs elsewhere."""
    closed: dict[str, str] = field(default_factory=dict)
    """Path of a folder that can't be listed -> why."""


def look(disk: Disk) -> Found:
    """See `Found`. Errors: none but our own bugs."""
    found = Found()
    for folder in entries(disk, PACKS, found.closed):
        if not _FOLDER.fullmatch(folder):
            continue
        place = f"{PACKS}/{folder}"
        for entry in entries(disk, place, found.closed):
            aside = _ASIDE_FILE.fullmatch(entry)
            if _PACK_FILE.fullmatch(entry) and entry.startswith(folder):
                found.packs.append(bytes.fromhex(entry))
            elif aside and entry.startswith(folder):
                found.aside.append(bytes.fromhex(aside[1]))
            else:
                found.strays.append(f"{place}/{entry}")
    return found


def entries(disk: Disk, folder: str, closed: dict[str, str]) -> list[str]:
    """The names in a folder; why it can't be listed goes into `closed`."""
    try:
        return disk.list(folder)
    except (OSError, IntegrityError) as error:
        closed[folder] = reason(error)
        return []


def reason(error: OSError | IntegrityError) -> str:
    """Why a file or folder can't be read, in a few words for the middle of a sentence."""
    if isinstance(error, IntegrityError):
        return "it is a symbolic link, and links are not followed in a home"
    if isinstance(error, PermissionError):
        return "this user may not read it"
    if isinstance(error, IsADirectoryError):
        return "a folder is in its place"
    if isinstance(error, NotADirectoryError):
        return "a file is in the place of its folder"
    if isinstance(error, FileNotFoundError):
        return "it is gone"
    return f"the disk fails there ({error.strerror or error})"
