"""Files outside the home: writing what is taken out of the vault, never through a link.

Paths here are the owner's own words on the command line. What comes from the vault (names) may have been written by
another device, so a name never decides on its own where something is written. Leaves content to `reader`, many files
at once to `outgoing`.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hinet_node.errors import NoSpace, UsageError
from hinet_protocol.attributes import Attributes

_HOLE_BYTES = 65_536
"""Zeros from here on, in whole blocks of this size, become holes."""
_ZEROS = bytes(_HOLE_BYTES)
_NOTHING_KNOWN = Attributes()
_number = itertools.count()
FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def plain_parts(name: bytes) -> tuple[bytes, ...]:
    """The parts of a name that stays inside a folder. Errors: `UsageError` E_NAME_ESCAPES for an absolute name, `..`,
    empty parts, NUL."""
    parts = tuple(name.split(b"/"))
    if b"\0" in name or any(part in (b"", b".", b"..") for part in parts):
        raise UsageError(f"The name {name.decode('utf-8', 'backslashreplace')!r} does not stay inside a folder, so it "
                         "was not written.", code="E_NAME_ESCAPES",
                         next_step="Write it to a place of your own with `hinet-node vault get NAME --out PATH`.")
    return parts


def write_file(path: Path | str, pieces: Iterable[bytes], on_bytes: Callable[[int], None],
               attributes: Attributes = _NOTHING_KNOWN) -> None:
    """Write `path` whole or not at all: temp file beside it, fsync, rename. Errors: `NoSpace`, `UsageError`."""
    target = Path(path)
    if target.is_dir() and not target.is_symlink():
        raise UsageError(f"{target} is a folder.", next_step=f"Name the file to write, such as {target / 'NAME'}.")
    with reported(target):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            temporary = write_temporary(folder, pieces, on_bytes, attributes)
            try:
                sync_file(temporary, folder)
                os.replace(temporary, os.fsencode(target.name), src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)
        finally:
            os.close(folder)


def write_temporary(folder: int, pieces: Iterable[bytes], on_bytes: Callable[[int], None],
                    attributes: Attributes) -> bytes:
    """Write a new file beside its place; its name. It is not synced, and gone after an error. Runs of zeros become
    holes; the mode is what the version says as far as this user's umask allows, else 0600."""
    temporary = b".hinet-restore-%d-%d" % (os.getpid(), next(_number))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o600 if attributes.mode is None else attributes.mode
    descriptor = os.open(temporary, flags, mode, dir_fd=folder)
    try:
        try:
            hole = False
            for piece in pieces:
                hole = _write(descriptor, piece)
                on_bytes(len(piece))
            if hole:
                os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
            if attributes.mtime_ns is not None:
                with suppress(OSError, OverflowError):  # not every file system knows every time
                    os.utime(descriptor, ns=(attributes.mtime_ns, attributes.mtime_ns))
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    return temporary


def _write(descriptor: int, piece: bytes) -> bool:
    """Write a piece at the present place, leaving out whole blocks of zeros; whether it ended with such a hole."""
    at = begun = 0
    while len(piece) - at >= _HOLE_BYTES:
        if not piece.startswith(_ZEROS, at):
            at += _HOLE_BYTES
            continue
        _write_all(descriptor, memoryview(piece)[begun:at])
        begun = at
        while piece.startswith(_ZEROS, at):
            at += _HOLE_BYTES
        os.lseek(descriptor, at - begun, os.SEEK_CUR)
        begun = at
    _write_all(descriptor, memoryview(piece)[begun:])
    return begun == len(piece) > 0


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data):]


def sync_file(name: bytes, folder: int) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def reported(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise NoSpace(f"{place} was not written: the disk is full.",
                          next_step="Free some space there, or name another place.") from error
        if error.errno in _NOT_WRITABLE:
            raise NoSpace(f"{place} was not written: this user may not write there, or the disk is read-only.",
                          next_step="Name a place that can be written.") from error
        raise UsageError(f"{place} was not written: {error.strerror or error}.",
                         next_step="Name another place.") from error
