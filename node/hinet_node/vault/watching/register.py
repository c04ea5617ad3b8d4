"""Which folders are watched: a small private file in the home, `watch/folders`. SPEC.md, 6.5.

Refuses folders that overlap. Leaves running the watches to `service`; works without an agent, under the home's lock.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

from hinet_node.errors import ConflictError, IntegrityError, UsageError
from hinet_node.ports import Disk, Folders, Randomness
from hinet_protocol import canonical
from hinet_protocol.errors import ProtocolError
from hinet_protocol.trees import name_bytes_max

FOLDERS = "watch/folders"
WATCHES_MAX = 64
RESERVED = b".hinet"


@dataclass(frozen=True)
class Watch:
    """One watched folder."""

    root: str
    """Its absolute path."""
    prefix: bytes
    """Where its files are in the vault, ending in `/`."""
    key: bytes
    """32 random bytes: hides names in `taken`, and names that file."""
    device: int
    inode: int
    """Of the root, when it was last known to be the right one."""
    paused: bool = False
    counted: int = field(default=0, compare=False)
    """Files that were taken, as last known."""

    @property
    def taken(self) -> str:
        """The file that remembers what was taken."""
        return f"watch/taken-{self.key[:8].hex()}"


class Register:
    """Reads the file anew at each use: commands and agent hold the home's lock in turn."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def all(self) -> list[Watch]:
        """In the order in which they began. Errors: `IntegrityError` for a damaged file."""
        try:
            raw = self._disk.read(FOLDERS)
        except FileNotFoundError:
            return []
        try:
            kind, version, rows = _listed(canonical.decode(raw))
            if (kind, version) != ("watches", 1) or len(rows) > WATCHES_MAX:
                raise ValueError("of another kind")
            return [_watch(row) for row in rows]
        except (ProtocolError, ValueError, TypeError) as error:
            raise IntegrityError(f"the list of watched folders ({FOLDERS} in the home) is damaged: {error}",
                                 next_step=f"remove {FOLDERS} in the home, then watch the folders again; the vault "
                                           "keeps its files", code="E_WATCH_LIST") from None

    def write(self, watches: list[Watch]) -> None:
        self._disk.write_atomic(FOLDERS, canonical.encode(["watches", 1, [
            [one.root.encode("utf-8", "surrogateescape"), one.prefix, one.key, one.device, one.inode, one.paused]
            for one in watches]]), private=True)

    def change(self, changed: Watch) -> None:
        """Keep one that is there in its new form."""
        self.write([changed if one.key == changed.key else one for one in self.all()])

    def add(self, root: str, under: bytes, folders: Folders, randomness: Randomness) -> Watch:
        """Remember one more. Errors: `UsageError`, `ConflictError` E_WATCH_OVERLAP."""
        place = folders.place(root)
        if place is None:
            raise UsageError(f"{root} is no folder", code="E_NO_SUCH_FILE", next_step="name a folder that is there")
        prefix = b"/".join(part for part in (under.strip(b"/"), root.encode("utf-8", "surrogateescape").rpartition(
            b"/")[2]) if part) + b"/"
        _check_prefix(prefix)
        known = self.all()
        for other in known:
            if _within(other.root, root) or _within(root, other.root):
                what = "is watched already" if other.root == root else f"and {other.root}, which is watched, overlap"
                raise ConflictError(f"{root} {what}", code="E_WATCH_OVERLAP",
                                    next_step=f"see hinet-node vault watch --list; stop it: hinet-node vault watch "
                                              f"--stop {shlex.quote(other.root)}")
            if other.prefix.startswith(prefix) or prefix.startswith(other.prefix):
                raise ConflictError(f"{other.root} keeps its files under {_text(other.prefix)} in the vault already",
                                    next_step="name another place: --under FOLDER", code="E_WATCH_OVERLAP")
        if len(known) >= WATCHES_MAX:
            raise UsageError(f"{WATCHES_MAX} folders are watched already",
                             next_step="watch a folder that holds several of them")
        watch = Watch(root, prefix, randomness.draw(32), place.device, place.inode)
        self.write([*known, watch])
        return watch

    def find(self, root: str) -> Watch:
        """Errors: `UsageError` E_NOT_WATCHED."""
        for one in self.all():
            if one.root == root:
                return one
        raise UsageError(f"{root} is not watched", code="E_NOT_WATCHED",
                         next_step="see which folders are: hinet-node vault watch --list")

    def remove(self, root: str) -> Watch:
        """Forget one; the vault keeps its files. Errors: as `find`."""
        gone = self.find(root)
        self.write([one for one in self.all() if one.key != gone.key])
        self._disk.remove(gone.taken)
        return gone

    def pause(self, root: str, paused: bool) -> Watch:
        """Errors: as `find`."""
        changed = replace(self.find(root), paused=paused)
        self.change(changed)
        return changed


def _within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _check_prefix(prefix: bytes) -> None:
    parts = prefix[:-1].split(b"/")
    if any(part in (b"", b".", b"..") for part in parts) or b"\0" in prefix or len(prefix) >= name_bytes_max // 2:
        raise UsageError(f"{_text(prefix)} can't be a folder of the vault", next_step="for example --under letters")
    if parts[0] == RESERVED:
        raise UsageError("names under .hinet/ are kept for what the household learned", code="E_NAME_RESERVED",
                         next_step="put it elsewhere: --under FOLDER")


def _listed(value: Any) -> tuple[Any, Any, list[Any]]:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        raise ValueError("of another kind")
    return value[0], value[1], value[2]


def _watch(row: Any) -> Watch:
    root, prefix, key, device, inode, paused = row
    if not (isinstance(root, bytes) and isinstance(prefix, bytes) and isinstance(key, bytes) and len(key) == 32
            and type(device) is int and type(inode) is int and type(paused) is bool and root.startswith(b"/")
            and prefix.endswith(b"/")):
        raise ValueError("a row is of another kind")
    _check_prefix(prefix)
    return Watch(root.decode("utf-8", "surrogateescape"), prefix, key, device, inode, paused)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
