"""Files outside the home: writing what is taken out of the vault, never through a link.

Paths here are the owner's own words on the command line. What comes from the vault (names) may have been written by
another device, so a name never decides on its own where something is written. Leaves content to `reader`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hinet_node.errors import NoSpace, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def plain_parts(name: bytes) -> tuple[bytes, ...]:
    """The parts of a name that stays inside a folder. Errors: `UsageError` E_NAME_ESCAPES for an absolute name, `..`,
    empty parts, NUL."""
    parts = tuple(name.split(b"/"))
    if b"\0" in name or any(part in (b"", b".", b"..") for part in parts):
        raise UsageError(f"The name {name.decode('utf-8', 'backslashreplace')!r} does not stay inside a folder, so it "
                         "was not written.", code="E_NAME_ESCAPES",
                         next_step="Write it to a place of your own with `hinet-node vault get NAME --to PATH`.")
    return parts


def write_file(path: Path | str, pieces: Iterable[bytes], on_bytes: Callable[[int], None]) -> None:
    """Write `path` whole or not at all: temp file beside it, fsync, rename. Errors: `NoSpace`, `UsageError`."""
    target = Path(path)
    if target.is_dir() and not target.is_symlink():
        raise UsageError(f"{target} is a folder.", next_step=f"Name the file to write, such as {target / 'NAME'}.")
    with _reported(target):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _write_in(folder, os.fsencode(target.name), pieces, on_bytes)
        finally:
            os.close(folder)


def write_below(root: Path | str, parts: tuple[bytes, ...], pieces: Iterable[bytes],
                on_bytes: Callable[[int], None]) -> None:
    """Write a file below `root`, making folders (0700) as needed. Each step is opened from the one before without
    following links, so a link inside `root` can't lead out of it. Errors: `UsageError` E_NAME_ESCAPES, `NoSpace`."""
    place = Path(root, *map(os.fsdecode, parts))
    with _reported(place):
        Path(root).mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                inner = _step(folder, part, place)
                os.close(folder)
                folder = inner
            _write_in(folder, parts[-1], pieces, on_bytes)
        finally:
            os.close(folder)


def _step(folder: int, part: bytes, place: Path) -> int:
    try:
        os.mkdir(part, 0o700, dir_fd=folder)
    except FileExistsError:
        pass  # opened below, whatever it is
    try:
        return os.open(part, _FOLDER_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise UsageError(f"{place} was not written: {os.fsdecode(part)!r} on the way is a link or a file, no folder.",
                         code="E_NAME_ESCAPES", next_step="Move it away, or restore into another folder.") from error


def _write_in(folder: int, last: bytes, pieces: Iterable[bytes], on_bytes: Callable[[int], None]) -> None:
    temporary = b".hinet-restore-%d" % os.getpid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest):]
                on_bytes(len(piece))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


@contextmanager
def _reported(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpace(f"{place} was not written: the disk is full.",
                          next_step="Free some space there, or name another place.") from error
        if error.errno in _NOT_WRITABLE:
            raise NoSpace(f"{place} was not written: this user may not write there, or the disk is read-only.",
                          next_step="Name a place that can be written.") from error
        raise UsageError(f"{place} was not written: {error.strerror or error}.",
                         next_step="Name another place.") from error
