"""A look at a folder, or at parts of it: which files are there, and of which nothing can be said. Blocks on the disk.

Links, devices and sockets, other file systems mounted inside, homes of nodes and what the rules ignore are left out.
What can't be read is *unknown*: never taken for gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hinet_node.home import DEVICE_KEY, DEVICE_KEY_NEXT
from hinet_node.ports import FolderChanges, FolderEntry, Folders
from hinet_node.vault.watching.ignoring import IGNORE_BYTES_MAX, IGNORE_FILE, Ignored, rules
from hinet_node.vault.watching.tracking import Tracked
from hinet_protocol.trees import name_bytes_max

KEY_MAGIC = b"hinet-device-key-"
_KEYS = (DEVICE_KEY.encode(), DEVICE_KEY_NEXT.encode())
FILES_MAX = 1_000_000
LEFT_OUT_MAX = 32


@dataclass
class Survey:
    """What a look found. Names are below the root."""

    files: dict[bytes, FolderEntry] = field(default_factory=dict)
    folders: dict[bytes, set[bytes]] = field(default_factory=dict)
    """Each folder that was read: the names of the folders in it, those that are left out included."""
    ignored: set[bytes] = field(default_factory=set)
    """Files that are there and left out by the rules."""
    unknown: list[bytes] = field(default_factory=list)
    """Folders of which nothing can be said."""
    left_out: dict[bytes, str] = field(default_factory=dict)
    """Some of what is not taken, and why; links and ignored files are not listed."""
    deaf: bool = False
    """Changes in some folder will not be told."""
    whole: bool = False
    """Everything was looked at."""

    def gone(self, tracked: Tracked) -> list[bytes]:
        """The tracked files that were there and are not any more."""
        found = []
        for folder, files in tracked.folders.items():
            if folder in self.folders:
                above = folder + b"/" if folder else b""
                found += [above + part for part in files
                          if above + part not in self.files and above + part not in self.ignored]
            elif self._lost(folder):
                found += [(folder + b"/" if folder else b"") + part for part in files]
        return sorted(found)

    def _lost(self, folder: bytes) -> bool:
        """Whether one of the folders that were read should have this one in it, or what it lies in, and has not."""
        above, _, part = folder.rpartition(b"/")
        while part:
            if above in self.folders:
                return part not in self.folders[above]
            above, _, part = above.rpartition(b"/")
        return False


class Looker:
    """Looks at one root. `home` is this node's own home, whatever it holds. Used by one thread at a time."""

    def __init__(self, folders: Folders, root: str, home: tuple[int, int] | None) -> None:
        self._folders, self._root, self._home = folders, root, home

    def everything(self, changes: FolderChanges, device: int) -> Survey:
        """Errors: `OSError` when the root itself can't be read."""
        survey = Survey(whole=True)
        self._walk([b""], survey, changes, device, lambda folder: True)
        return survey

    def parts(self, wanted: Iterable[bytes], changes: FolderChanges, device: int, tracked: Tracked) -> Survey:
        """These folders, and below them those that were not there before. Errors: `OSError` as above."""
        survey = Survey()
        start = []
        for folder in wanted:
            while folder and self._missing(folder):
                folder = folder.rpartition(b"/")[0]
            start.append(folder)
        known = tracked.above()
        self._walk(sorted(set(start)), survey, changes, device, lambda folder: folder not in known)
        return survey

    # ---- inside --------------------------------------------------------------------------------------------------

    def _missing(self, folder: bytes) -> bool:
        try:
            self._folders.entries(self._root, folder)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False  # it is there, and can't be read
        return False

    def _walk(self, waiting: list[bytes], survey: Survey, changes: FolderChanges, device: int,
              deeper: Callable[[bytes], bool]) -> None:
        ignored = self._rules()
        while waiting:
            folder = waiting.pop()
            if folder in survey.folders:
                continue
            # First followed, then read: what comes in between is told.
            survey.deaf |= not changes.follow(folder)
            try:
                entries = self._folders.entries(self._root, folder)
            except OSError as error:
                if not folder:
                    raise
                self._leave_out(survey, folder, (error.strerror or "it can't be read").lower(), unknown=True)
                continue
            if self._is_home(folder, entries):
                self._leave_out(survey, folder, "it is the home of a node", unknown=True)
                continue
            inner = self._take(folder, entries, survey, device, ignored)
            waiting += [one for one in inner if deeper(one)]

    def _take(self, folder: bytes, entries: list[FolderEntry], survey: Survey, device: int,
              ignored: Ignored) -> list[bytes]:
        above = folder + b"/" if folder else b""
        inner: list[bytes] = []
        survey.folders[folder] = {entry.part for entry in entries if entry.kind == "folder"}
        for entry in entries:
            name = above + entry.part
            if entry.kind == "other":
                continue
            if len(name) > name_bytes_max:
                self._leave_out(survey, name, f"its name has more than {name_bytes_max} bytes")
            elif ignored(name, entry.kind == "folder"):
                if entry.kind == "file":
                    survey.ignored.add(name)
            elif entry.kind == "folder":
                if entry.device != device:
                    self._leave_out(survey, name, "another file system is mounted there", unknown=True)
                elif self._home == (entry.device, entry.inode):
                    self._leave_out(survey, name, "it is this node's home", unknown=True)
                else:
                    inner.append(name)
            elif len(survey.files) >= FILES_MAX:
                self._leave_out(survey, name, f"there are more than {FILES_MAX:,} files")
            else:
                survey.files[name] = entry
        return inner

    def _leave_out(self, survey: Survey, name: bytes, why: str, *, unknown: bool = False) -> None:
        if unknown:
            survey.unknown.append(name)
        if len(survey.left_out) < LEFT_OUT_MAX:
            survey.left_out[name] = why

    def _is_home(self, folder: bytes, entries: list[FolderEntry]) -> bool:
        """Whether this folder holds a node's key: nobody means to hand that to all the others."""
        for entry in entries:
            if entry.part in _KEYS and entry.kind == "file":
                with suppress(OSError):
                    name = folder + b"/" + entry.part if folder else entry.part
                    return self._folders.read(self._root, name, len(KEY_MAGIC)) == KEY_MAGIC
        return False

    def _rules(self) -> Ignored:
        try:
            return rules(self._folders.read(self._root, IGNORE_FILE, IGNORE_BYTES_MAX))
        except OSError:
            return rules(b"")
