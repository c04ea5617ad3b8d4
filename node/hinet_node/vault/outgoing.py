"""Many files out of the vault onto a real file system, which may hold less than the vault's names say.

Whether two names are one there (a file system that ignores case, or composes accents) is not guessed: the file system
is asked, by the number of what it shows under a name. The second of them is written beside the first with a visible
ending, never over it. What is there already with the right content is left, so a run that was cut short goes on.
What can't be read or written is reported, and the others are written. Each step is opened from the one before without
following links. Leaves single files, and the words for errors, to `files`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from hinet_node.errors import IntegrityError, NodeError, NoSpace, NotAuthorised, UsageError
from hinet_node.vault import files
from hinet_node.vault.progress import Counter
from hinet_protocol.attributes import read_attributes
from hinet_protocol.trees import Version, split_ending

KEEP, OVERWRITE = "keep", "overwrite"
SHOWN_MAX = 1_000
BESIDE_MAX = 1_000
_READ_BYTES = 1 << 20
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CANT_HOLD = {errno.ENAMETOOLONG: "its name is too long for this file system",
              errno.EINVAL: "this file system can't hold its name",
              errno.EILSEQ: "this file system can't hold its name",
              errno.EFBIG: "it is too large for this file system"}

Content = Callable[[Version], Iterable[bytes]]


@dataclass
class OutReport:
    """What became of the files. Lists hold the first ones, counts say how many there are."""

    files: int = 0
    """Written, or there already."""
    size_bytes: int = 0
    there: int = 0
    """Of these: there already, with the right content."""
    kept: list[str] = field(default_factory=list)
    """Paths of other files in the way, which were left as they are."""
    kept_count: int = 0
    beside: list[tuple[bytes, str]] = field(default_factory=list)
    """Names that are one with another name there, and where their files are instead."""
    beside_count: int = 0
    left_out: list[tuple[bytes, str]] = field(default_factory=list)
    """Names of files that were not written, and why."""
    left_out_count: int = 0

    def keep(self, path: str) -> None:
        self.kept_count += 1
        if len(self.kept) < SHOWN_MAX:
            self.kept.append(path)

    def put_beside(self, name: bytes, path: str) -> None:
        self.beside_count += 1
        if len(self.beside) < SHOWN_MAX:
            self.beside.append((name, path))

    def leave_out(self, name: bytes, why: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < SHOWN_MAX:
            self.left_out.append((name, why))


@dataclass
class _Level:
    """A folder that files are written into: its real name, and what its entries are that this run knows of."""

    part: bytes
    real: bytes
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Number of an entry -> the name in the vault that it was made for."""


def write_out(rows: Mapping[bytes, Version], content: Content, root: Path | str, existing: str,
              count: Counter) -> OutReport:
    """Write versions below `root` by their names. `existing` is what becomes of other files in the way: KEEP leaves
    and reports them, OVERWRITE replaces them.

    Errors: `NoSpace` when the disk fills up: what was written is whole, and the same call goes on there; `UsageError`
    when `root` can't be made.
    """
    with files.reported(Path(root)):
        Path(root).mkdir(parents=True, exist_ok=True)
    out = _Out(Path(root), content, existing == OVERWRITE, count)
    try:
        # In the order of their names, those of one folder stand together, and its level can be forgotten after them.
        for name in sorted(rows):
            try:
                out.file(name, rows[name])
            except NoSpace as error:
                raise NoSpace(f"{error.what.rstrip('.')}; {out.report.files:,} of {len(rows):,} files are there.",
                              next_step="Free some space there, then type the same again: it goes on from here."
                              ) from error
            count.file()
    finally:
        if out.written:
            _sync(out.root)  # one for all: a sync for each of many small files would take most of the time
    count.tell()
    return out.report


class _Out:
    def __init__(self, root: Path, content: Content, overwrite: bool, count: Counter) -> None:
        self.report = OutReport()
        self.written = 0
        self.root, self._content, self._overwrite, self._count = root, content, overwrite, count
        self._levels = [_Level(b"", b"")]

    def file(self, name: bytes, version: Version) -> None:
        place = Path(self.root, os.fsdecode(name.replace(b"\0", b"?")))
        try:
            *folders, last = files.plain_parts(name)
            with self._folder(folders) as folder:
                self._place(folder, name, last, version)
        except UsageError:
            self.report.leave_out(name, "its name does not stay inside a folder")
        except (_Blocked, IntegrityError, NotAuthorised) as error:
            self.report.leave_out(name, error.what)
        except OSError as error:
            if error.errno in files.FULL or error.errno == errno.EROFS:
                with files.reported(place):
                    raise
            self.report.leave_out(name, _CANT_HOLD.get(error.errno or 0, (error.strerror or str(error)).lower()))

    # ---- folders -------------------------------------------------------------------------------------------------

    def _folder(self, parts: list[bytes]) -> _Opened:
        """The folder, made as needed. Errors: `OSError`, `_Blocked`."""
        same = 0
        while same < min(len(parts), len(self._levels) - 1) and self._levels[same + 1].part == parts[same]:
            same += 1
        del self._levels[same + 1:]
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, part in enumerate(parts):
                if depth < same:
                    inner = os.open(self._levels[depth + 1].real, files.FOLDER_FLAGS, dir_fd=descriptor)
                else:
                    real, inner = self._step(descriptor, self._levels[depth], part)
                    self._levels.append(_Level(part, real))
                os.close(descriptor)
                descriptor = inner
        except BaseException:
            os.close(descriptor)
            raise
        return _Opened(descriptor)

    def _step(self, above: int, level: _Level, part: bytes) -> tuple[bytes, int]:
        """Enter a folder; one that is another name's there gets a name of its own."""
        for real in _names(part):
            with suppress(FileExistsError):
                os.mkdir(real, 0o700, dir_fd=above)
            try:
                descriptor = os.open(real, files.FOLDER_FLAGS, dir_fd=above)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                found = os.stat(real, dir_fd=above, follow_symlinks=False)
                if (found.st_dev, found.st_ino) in level.entries:
                    continue  # a file that this run wrote: the vault has both
                raise _Blocked(f"{os.fsdecode(real)!r} on the way is a link or a file, no folder") from None
            found = os.fstat(descriptor)
            made_for = level.entries.setdefault((found.st_dev, found.st_ino), part)
            if made_for == part:
                return real, descriptor
            os.close(descriptor)
        raise _Blocked("too many names are one there")

    # ---- files ---------------------------------------------------------------------------------------------------

    def _place(self, folder: int, name: bytes, last: bytes, version: Version) -> None:
        level = self._levels[-1]
        for real in _names(last):
            found = _look(folder, real)
            if found is not None:
                number = (found.st_dev, found.st_ino)
                if level.entries.get(number, last) != last and not _linked(folder, real, found):
                    continue  # another name's file, or folder
                if self._has(folder, real, found, version):
                    level.entries[number] = last
                    self._done(name, version, real, last)
                    self.report.there += 1
                    self._count.bytes(version.size)
                    return
                if stat.S_ISDIR(found.st_mode) or not self._overwrite:
                    self.report.keep(self._path(real))
                    self._count.bytes(version.size)
                    return
            temporary = files.write_temporary(folder, self._content(version), self._count.bytes,
                                              read_attributes(version.attributes))
            try:
                made = os.stat(temporary, dir_fd=folder, follow_symlinks=False)
                os.replace(temporary, real, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            level.entries[made.st_dev, made.st_ino] = last
            self.written += 1
            self._done(name, version, real, last)
            return
        raise _Blocked("too many names are one there")

    def _done(self, name: bytes, version: Version, real: bytes, last: bytes) -> None:
        self.report.files += 1
        self.report.size_bytes += version.size
        if real != last or any(level.part != level.real for level in self._levels):
            self.report.put_beside(name, self._path(real))

    def _has(self, folder: int, real: bytes, found: os.stat_result, version: Version) -> bool:
        """Whether the file that is there is the version, by its bytes."""
        if not stat.S_ISREG(found.st_mode) or found.st_size != version.size:
            return False
        try:
            descriptor = os.open(real, _FILE_FLAGS, dir_fd=folder)
        except OSError:
            return False
        state = blake3()
        try:
            while piece := os.read(descriptor, _READ_BYTES):
                state.update(piece)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return state.digest() == version.digest

    def _path(self, real: bytes) -> str:
        return str(Path(self.root, *(os.fsdecode(level.real) for level in self._levels[1:]), os.fsdecode(real)))


class _Blocked(NodeError):
    """This file has no place there; the message says why."""


class _Opened:
    """A descriptor that is closed at the end of a `with`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *reason: object) -> None:
        os.close(self._descriptor)


def _sync(root: Path) -> None:
    """Have the file system write down what was written; where it can't be asked alone, all of them."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        done = getattr(ctypes.CDLL(None), "syncfs", lambda number: -1)(descriptor) == 0
    finally:
        os.close(descriptor)
    if not done:
        os.sync()


def _look(folder: int, part: bytes) -> os.stat_result | None:
    try:
        return os.stat(part, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _linked(folder: int, part: bytes, found: os.stat_result) -> bool:
    """Whether this is a second name of a file (a hard link), and not a second spelling of one name."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and os.fsdecode(part) in os.listdir(folder)


def _names(part: bytes) -> Iterator[bytes]:
    """The name, then those beside it."""
    yield part
    for number in range(2, BESIDE_MAX):
        yield _beside(part, number)


def _beside(part: bytes, number: int) -> bytes:
    stem, ending = split_ending(part)
    return stem + b".same-name-%d" % number + ending
