"""Finding the files below folders, step by step from descriptors: never through a link, at any depth, in small batches.

A path that the owner names is taken as it is, also when it is a link. What is found below it is only ever reached from
its folder's descriptor with O_NOFOLLOW, so that nothing swapped in meanwhile leads out of the tree, and no path is too
long for the system. Leaves reading to `sources`, and what is added to `adding`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hinet_node.errors import UsageError
from hinet_node.home import DEVICE_KEY, DEVICE_KEY_NEXT
from hinet_protocol.trees import name_bytes_max, names_max

RESERVED = b".hinet/"
"""Names below it are the machine's own: their past is not kept, and commands leave them alone."""
KEY_MAGIC = b"hinet-device-key-"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BATCH = 1_024
_OPEN_MAX = 64
"""So many folders above the present one are kept open; the others are opened again on the way back."""
_SHOWN_MAX = 200


@dataclass(slots=True, eq=False)
class Folder:
    """A folder that is read: its own name, or for a root its whole path; and its name in the vault."""

    parent: Folder | None
    part: bytes
    name: bytes

    def path(self) -> bytes:
        parts = [folder.part for folder in self.chain()]
        return b"/".join([parts[0].rstrip(b"/"), *parts[1:]]) or b"/"

    def chain(self) -> list[Folder]:
        """The root first, this one last."""
        found, at = [], self
        while True:
            found.append(at)
            if at.parent is None:
                return found[::-1]
            at = at.parent


@dataclass(slots=True, eq=False)
class Placed:
    """A file in a folder that is read. `given` is its name in the vault where that is not made of these: the owner may
    name a file by a link of another name."""

    folder: Folder
    part: bytes
    given: bytes = b""

    @property
    def name(self) -> bytes:
        return self.given or (self.folder.name + b"/" + self.part if self.folder.name else self.part)

    def path(self) -> bytes:
        return self.folder.path().rstrip(b"/") + b"/" + self.part


File = tuple[Placed, os.stat_result]


class Descriptors:
    """Opens folders and files, step by step. One value serves one thread."""

    def __init__(self) -> None:
        self._held: list[tuple[Folder, int | None]] = []

    def folder(self, folder: Folder) -> int:
        """A descriptor that stays open until the next call. Errors: `OSError`."""
        chain = folder.chain()
        same = 0
        while same < min(len(self._held), len(chain)) and self._held[same][0] is chain[same]:
            same += 1
        while len(self._held) > same:
            self._let_go(self._held.pop()[1])
        while self._held and self._held[-1][1] is None:  # closed on the way down: its own folder opens it again
            self._held.pop()
        for one in chain[len(self._held):]:
            above = self._held[-1][1] if self._held else None
            self._held.append((one, os.open(one.part, _FOLDER_FLAGS, dir_fd=above)))
            far = len(self._held) - _OPEN_MAX
            if far > 0:
                self._let_go(self._held[far][1])
                self._held[far] = (self._held[far][0], None)
        found = self._held[-1][1]
        assert found is not None
        return found

    def file(self, placed: Placed) -> int:
        """The caller closes it. Errors: `OSError`."""
        return os.open(placed.part, _FILE_FLAGS, dir_fd=self.folder(placed.folder))

    def close(self) -> None:
        while self._held:
            self._let_go(self._held.pop()[1])

    def _let_go(self, descriptor: int | None) -> None:
        if descriptor is not None:
            os.close(descriptor)


@dataclass(slots=True)
class Notes:
    """What was not taken: the first of each kind by name, and how many there are."""

    skipped: list[str] = field(default_factory=list)
    """Links, devices, pipes, sockets, the homes and keys of nodes."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason of what could not be read or kept."""
    changed: list[str] = field(default_factory=list)
    """Files that changed while they were read."""
    skipped_count: int = 0
    left_out_count: int = 0
    changed_count: int = 0

    def skip(self, path: bytes) -> None:
        self.skipped_count += 1
        if len(self.skipped) < _SHOWN_MAX:
            self.skipped.append(os.fsdecode(path))

    def leave_out(self, path: bytes, why: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < _SHOWN_MAX:
            self.left_out.append((os.fsdecode(path), why))

    def change(self, path: bytes) -> None:
        self.changed_count += 1
        if len(self.changed) < _SHOWN_MAX:
            self.changed.append(os.fsdecode(path))


class Finder:
    """Walks over roots. A folder `a/notes` gives names `notes/…`, a file its own name; `under` is put in front."""

    def __init__(self, roots: Iterable[Path], under: bytes, notes: Notes) -> None:
        """Errors: `UsageError` for a name that can't be used, or a root that is missing or can't be read."""
        prefix = under.strip(b"/")
        if prefix and (any(part in (b"", b".", b"..") for part in prefix.split(b"/")) or b"\0" in prefix):
            raise UsageError(f"{under.decode('utf-8', 'surrogateescape')!r} is not a folder of the vault",
                             next_step="for example --under letters")
        self.notes = notes
        self._roots: list[Folder | Placed] = []
        self._several: set[bytes] = set()
        """Names of folders that more than one root brings: their files are held against each other."""
        self._seen: set[bytes] = set()
        places: dict[bytes, set[bytes]] = {}
        for path in roots:
            root = _root(path, prefix)
            known = places.setdefault(root.name, set())
            if root.path() in known:
                continue  # named twice
            if known:
                self._several.add(root.name)
            known.add(root.path())
            self._roots.append(root)

    def files(self) -> Iterator[list[File]]:
        """The files, with what `lstat` says of each, in batches of one folder. Errors: `UsageError` for two files of
        one name, or too many."""
        descriptors, count = Descriptors(), 0
        try:
            for root in self._roots:
                for batch in self._below(root, descriptors):
                    count += len(batch)
                    if count > names_max:
                        raise UsageError(f"more than {names_max} files at once", next_step="add the folders one by one")
                    if root.name in self._several:
                        self._refuse_twice(batch)
                    yield batch
        finally:
            descriptors.close()

    def _refuse_twice(self, batch: list[File]) -> None:
        for placed, _ in batch:
            if placed.name in self._seen:
                raise UsageError(f"two files would have the name {os.fsdecode(placed.name)!r} in the vault",
                                 next_step="add them one after the other, with --under FOLDER")
            self._seen.add(placed.name)

    def _below(self, root: Folder | Placed, descriptors: Descriptors) -> Iterator[list[File]]:
        if isinstance(root, Placed):
            found = self._file(root, descriptors)
            if found is not None:
                yield [found]
            return
        waiting = [root]
        while waiting:
            folder = waiting.pop()
            inner: list[Folder] = []
            try:
                descriptor = descriptors.folder(folder)
                if _holds_key(descriptor):
                    # Whoever adds the folder around a home does not mean to hand this machine's key to all the others.
                    self.notes.skip(folder.path())
                    continue
                yield from self._entries(folder, descriptor, inner)
            except OSError as error:
                if folder.parent is None:
                    raise _refused(folder.path(), error) from None
                self.notes.leave_out(folder.path(), reason(error))
            waiting += sorted(inner, key=lambda one: one.part, reverse=True)

    def _file(self, placed: Placed, descriptors: Descriptors) -> File | None:
        """A file that the owner named."""
        try:
            folder = descriptors.folder(placed.folder)
            found = os.stat(placed.part, dir_fd=folder, follow_symlinks=False)
            if _is_key(folder, placed.part) or not stat.S_ISREG(found.st_mode):
                self.notes.skip(placed.path())
                return None
        except OSError as error:
            raise _refused(placed.path(), error) from None
        return placed, found

    def _entries(self, folder: Folder, descriptor: int, inner: list[Folder]) -> Iterator[list[File]]:
        batch: list[File] = []
        with os.scandir(descriptor) as entries:
            for entry in self._listed(folder, entries):
                placed = Placed(folder, os.fsencode(entry.name))
                try:
                    if not self._fits(placed, entry, descriptor):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(Folder(folder, placed.part, placed.name))
                    else:
                        batch.append((placed, entry.stat(follow_symlinks=False)))
                except OSError as error:
                    self.notes.leave_out(placed.path(), reason(error))
                if len(batch) == _BATCH:
                    yield sorted(batch, key=_part)
                    batch = []
        if batch:
            yield sorted(batch, key=_part)

    def _listed(self, folder: Folder, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        """The entries as far as the folder can be read."""
        try:
            yield from entries
        except OSError as error:
            self.notes.leave_out(folder.path(), reason(error))

    def _fits(self, placed: Placed, entry: os.DirEntry[str], descriptor: int) -> bool:
        """Whether this is a folder or a file that can be kept; notes why not."""
        if entry.is_dir(follow_symlinks=False) or (
                entry.is_file(follow_symlinks=False) and not _is_key(descriptor, placed.part)):
            if len(placed.folder.name) + 1 + len(placed.part) <= name_bytes_max:
                return True
            self.notes.leave_out(placed.path(), f"its name in the vault would have more than {name_bytes_max} bytes")
        else:
            self.notes.skip(placed.path())
        return False


def _part(file: File) -> bytes:
    return file[0].part


def _root(path: Path, prefix: bytes) -> Folder | Placed:
    """What the owner named. A link is followed here and nowhere else: it was named on purpose."""
    given = os.fsencode(path)
    try:
        real = os.path.realpath(given, strict=True)
        kind = path.stat().st_mode
    except OSError as error:
        raise _refused(given, error) from None
    last = real.rpartition(b"/")[2] if path.name in ("", "..") else os.fsencode(path.name)
    name = prefix + b"/" + last if prefix and last else prefix or last
    if name == RESERVED.rstrip(b"/") or name.startswith(RESERVED):
        raise UsageError("names under .hinet/ are kept for what the household learned",
                         next_step="put it elsewhere: hinet-node vault add PATH --under FOLDER", code="E_NAME_RESERVED")
    if len(name) > name_bytes_max:
        raise UsageError(f"its name in the vault would have {len(name)} bytes; {name_bytes_max} are the most",
                         next_step="take a shorter --under FOLDER")
    if stat.S_ISDIR(kind):
        return Folder(None, real, name)
    above, _, part = real.rpartition(b"/")
    return Placed(Folder(None, above or b"/", prefix), part, name)


_KEYS = (os.fsencode(DEVICE_KEY), os.fsencode(DEVICE_KEY_NEXT))


def _holds_key(folder: int) -> bool:
    return any(_is_key(folder, part) for part in _KEYS)


def _is_key(folder: int, part: bytes) -> bool:
    """Whether this is the key file of a node."""
    if part not in _KEYS:
        return False
    with suppress(OSError):
        if not stat.S_ISREG(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
            return False
        descriptor = os.open(part, _FILE_FLAGS, dir_fd=folder)
        try:
            return os.read(descriptor, len(KEY_MAGIC)) == KEY_MAGIC
        finally:
            os.close(descriptor)
    return False


def reason(error: OSError) -> str:
    """Why something was left out, in words."""
    if error.errno == errno.ENOENT:
        return "it vanished before it was read"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it became a link or another kind of file"
    return (error.strerror or str(error)).lower()


def _refused(path: bytes, error: OSError) -> UsageError:
    shown = os.fsdecode(path)
    if isinstance(error, FileNotFoundError):
        return UsageError(f"there is no file or folder {shown}", next_step="check the path", code="E_NO_SUCH_FILE")
    if isinstance(error, PermissionError):
        return UsageError(f"{shown} can't be read: permission denied", next_step="check who owns it: ls -l PATH",
                          code="E_PERMISSION")
    return UsageError(f"{shown} can't be read: {error.strerror}", next_step="leave it out: add what is beside it")
