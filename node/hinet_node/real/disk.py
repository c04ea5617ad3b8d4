"""The real Disk: a home folder, with crash-safe writes and no way out through links.

Leaves to others: what is stored where (`hinet_node.home`, `hinet_node.vault`), the home's lock, and the in-memory twin
(`hinet_simnet.disk`), which passes the same tests. Order of a write: temp file in the same folder, write, fsync,
rename, fsync folder (DESIGN section 5).

Every path is walked part by part from a descriptor of the home with O_NOFOLLOW, so a link that was put into the home
can't make the node read or write outside it.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.real.disk_names import TEMPORARY_PREFIX, split_folder, split_name
from hinet_node.real.lanes import ThreadLane

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE_ERRORS = {
    errno.ENOSPC: ("the disk is full", "Free some space there (`df -h` shows how much is left), then try again."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space there or raise the quota, then try again."),
    errno.EROFS: ("it is on a read-only disk", "Remount it writable, or set HINET_HOME to a folder that is."),
    errno.EACCES: ("this user may not write there", "Give this user the folder, or set HINET_HOME to another one."),
    errno.EPERM: ("this user may not write there", "Give this user the folder, or set HINET_HOME to another one."),
}


class RealDisk:
    """The home folder `root`, made (0700) on the first write. One value may be used from several threads."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._temporary = itertools.count()

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        with self._opened(name) as descriptor:
            return _read_exactly(descriptor, os.fstat(descriptor).st_size + 1, until_end=True)

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise ValueError("Offset and length can't be negative.")
        with self._opened(name) as descriptor:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return _read_exactly(descriptor, length, until_end=False)

    def size(self, name: str) -> int:
        with self._opened(name) as descriptor:
            return os.fstat(descriptor).st_size

    def exists(self, name: str) -> bool:
        *folders, last = split_name(name)
        try:
            with self._folder(folders) as folder:
                os.stat(last, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, folder: str) -> list[str]:
        try:
            with self._folder(split_folder(folder)) as descriptor:
                names = os.listdir(descriptor)  # noqa: PTH208 - a descriptor, which no Path can be made of
                return sorted(name for name in names if not name.startswith(TEMPORARY_PREFIX))
        except FileNotFoundError:
            return []

    def free_bytes(self) -> int:
        place = self._root
        while not place.exists() and place != place.parent:
            place = place.parent
        figures = os.statvfs(place)
        return figures.f_bavail * figures.f_frsize

    def path(self, name: str) -> str:
        """The real path. Nothing is checked but the name: the file need not exist yet."""
        return str(self._root.joinpath(*split_folder(name)))

    # ---- writing -------------------------------------------------------------------------------------------------

    def write_atomic(self, name: str, data: bytes, *, private: bool = False) -> None:
        *folders, last = split_name(name)
        with self._writing(name), self._folder(folders, make=True) as folder:
            _refuse_folder(folder, last)
            temporary = f"{TEMPORARY_PREFIX}{os.getpid()}-{next(self._temporary)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600 if private else 0o644, dir_fd=folder)
            try:
                try:
                    _write_all(descriptor, data)
                    _fsync(descriptor)
                finally:
                    os.close(descriptor)
                os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _unlink(temporary, folder)
                raise
            _fsync(folder)

    def append(self, name: str, data: bytes | memoryview) -> None:
        """As the port says; a failed append leaves the file as it was, so that a resumed download stays whole."""
        *folders, last = split_name(name)
        with self._writing(name), self._folder(folders, make=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(last, flags, 0o644, dir_fd=folder)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    _write_all(descriptor, data)
                except BaseException:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)

    def commit(self, part: str, name: str) -> None:
        *part_folders, part_last = split_name(part)
        *folders, last = split_name(name)
        with self._writing(name), self._folder(part_folders) as source:
            descriptor = os.open(part_last, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            try:
                _fsync(descriptor)
            finally:
                os.close(descriptor)
            with self._folder(folders, make=True) as target:
                os.replace(part_last, last, src_dir_fd=source, dst_dir_fd=target)
                _fsync(target)
            if part_folders != folders:
                _fsync(source)

    def remove(self, name: str) -> None:
        *folders, last = split_name(name)
        try:
            with self._writing(name), self._folder(folders) as folder:
                _refuse_folder(folder, last)
                os.unlink(last, dir_fd=folder)
                _fsync(folder)
        except FileNotFoundError:
            return

    def remove_leftovers(self) -> int:
        """Remove the temp files of writes that a crash cut short; returns how many. Only the holder of the home's lock
        may call this: it would take away another process's unfinished write."""
        removed = 0
        if not self._root.is_dir():
            return 0
        for place, _folders, names in os.walk(self._root):
            for name in names:
                if name.startswith(TEMPORARY_PREFIX):
                    with self._writing(name):
                        Path(place, name).unlink(missing_ok=True)
                    removed += 1
        return removed

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        """In a thread. Cancelling waits for the thread to end, so that no write goes on behind the caller's back."""
        import trio  # only here: commands that read the home without an agent start in half the time

        return await trio.to_thread.run_sync(work)

    def lane(self) -> ThreadLane:
        return ThreadLane()

    # ---- walking -------------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder inside the home, reached without following any link."""
        if make and not self._root.is_dir():
            _make_root(self._root)
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                following = self._step(descriptor, part, make)
                os.close(descriptor)
                descriptor = following
            yield descriptor
        finally:
            os.close(descriptor)

    def _step(self, parent: int, part: str, make: bool) -> int:
        try:
            return os.open(part, _FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            _raise_link(part, parent, error)
        try:
            os.mkdir(part, 0o700, dir_fd=parent)
            _fsync(parent)
        except FileExistsError:
            pass  # another thread made it in between: it is opened below like any other
        return os.open(part, _FOLDER_FLAGS, dir_fd=parent)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        *folders, last = split_name(name)
        with self._folder(folders) as folder:
            try:
                descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            except OSError as error:
                _raise_link(last, folder, error)
            try:
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    raise IsADirectoryError(errno.EISDIR, "Is a folder", name)
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = _WRITE_ERRORS.get(error.errno or 0)
            if reason is None:
                raise
            raise NoSpace(f"{self._root / name} was not written: {reason[0]}.", next_step=reason[1]) from error


def _raise_link(part: str, parent: int, error: OSError) -> NoReturn:
    """Say it plainly when an open failed because of a link; else raise the error as it is."""
    try:
        is_link = stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        is_link = False
    if not is_link:
        raise error
    raise IntegrityError(
        f"{part!r} inside the home is a symbolic link, and links are not followed there.",
        next_step="Replace the link by the real file or folder (a bind mount works too).") from error


def _refuse_folder(folder: int, last: str) -> None:
    try:
        found = os.stat(last, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a folder", last)


def _make_root(root: Path) -> None:
    """Make the home and its missing parents, each durable in its own parent."""
    missing = [place for place in (root, *root.parents) if not place.exists()]
    for place in reversed(missing):
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            continue
        descriptor = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_exactly(descriptor: int, length: int, *, until_end: bool) -> bytes:
    pieces: list[bytes] = []
    while length > 0 or until_end:
        piece = os.read(descriptor, max(1, min(length, 1 << 24)))
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest):]


def _fsync(descriptor: int) -> None:
    """To the platter: on macOS plain fsync stops at the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError:
            pass  # network file systems lack it; plain fsync below is what they have
        else:
            return
    os.fsync(descriptor)


def _unlink(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass  # the error that brought us here says more; remove_leftovers takes it at the next start
