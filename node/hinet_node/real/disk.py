"""The real Disk: a home folder, with crash-safe writes and no way out through links.

Leaves to others: what is stored where (`hinet_node.home`, `hinet_node.vault`), the home's lock, the system calls
themselves (`disk_calls`), and the in-memory twin (`hinet_simnet.disk`), which passes the same tests. Order of a write:
temp file in the same folder, write, fsync, rename, fsync folder (DESIGN section 5).

Every path is walked part by part from a descriptor of the home with O_NOFOLLOW, so a link that was put into the home
can't make the node read or write outside it.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.real.disk_calls import SystemCalls, sync
from hinet_node.real.disk_direct import (
    ALIGNED_BYTES,
    DIRECT_FLAG,
    DirectWriter,
    may_go_direct,
    read_direct,
    refused_direct,
)
from hinet_node.real.disk_names import TEMPORARY_PREFIX, split_folder, split_name
from hinet_node.real.lanes import AtOnceLane, ThreadLane

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_BYTES_MAX = 1 << 24
_FOLDERS_DEEP_MAX = 32
_WRITE_ERRORS = {
    errno.ENOSPC: ("the disk is full", "Free some space there (`df -h` shows how much is left), then try again."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space there or raise the quota, then try again."),
    errno.EROFS: ("it is on a read-only disk", "Remount it writable, or set HINET_HOME to a folder that is."),
    errno.EACCES: ("this user may not write there", "Give this user the folder, or set HINET_HOME to another one."),
    errno.EPERM: ("this user may not write there", "Give this user the folder, or set HINET_HOME to another one."),
}


class RealDisk:
    """The home folder `root`, made (0700) on the first write. One value may be used from several threads. `calls` is
    what stands for the operating system: `os`, or a file system of a test's own."""

    def __init__(self, root: str | Path, calls: SystemCalls = os) -> None:
        self._root = Path(os.path.realpath(root)) if calls is os else Path(root)
        self._calls = calls
        self._temporary = itertools.count()
        self._making = threading.Lock()
        self._direct = DirectWriter() if calls is os else None
        self._unsynced: set[tuple[str, ...]] = set()
        """Folders from which a file was removed that a power cut may bring back."""
        self._unsure: set[str] = set()
        """Folders that were made and could not be synced."""

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        pieces: list[bytes] = []
        with self._opened(name) as descriptor:
            length = self._calls.fstat(descriptor).st_size + 1
            while piece := self._calls.read(descriptor, max(1, min(length, _READ_BYTES_MAX))):
                pieces.append(piece)
                length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise ValueError("Offset and length can't be negative.")
        pieces: list[bytes] = []
        with self._opened(name) as descriptor:
            while length and (piece := self._calls.pread(descriptor, min(length, _READ_BYTES_MAX), offset)):
                pieces.append(piece)
                offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        if self._calls is os and offset % ALIGNED_BYTES == 0 and may_go_direct(buffer):
            with self._opened(name) as descriptor:
                count = read_direct(descriptor, offset, buffer)
            if count is not None:
                return count
        data = self.read_at(name, offset, len(buffer))
        buffer[:len(data)] = data
        return len(data)

    def size(self, name: str) -> int:
        with self._opened(name) as descriptor:
            return self._calls.fstat(descriptor).st_size

    def exists(self, name: str) -> bool:
        *folders, last = split_name(name)
        try:
            with self._folder(folders) as folder:
                self._calls.stat(last, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, folder: str) -> list[str]:
        try:
            with self._folder(split_folder(folder)) as descriptor:
                names = self._calls.listdir(descriptor)
                return sorted(name for name in names if not name.startswith(TEMPORARY_PREFIX))
        except FileNotFoundError:
            return []

    def free_bytes(self) -> int:
        place = self._root
        while not self._is_there(place) and place != place.parent:
            place = place.parent
        figures = self._calls.statvfs(str(place))
        return figures.f_bavail * figures.f_frsize

    def path(self, name: str) -> str:
        """The real path. Nothing is checked but the name: the file need not exist yet."""
        return str(self._root.joinpath(*split_folder(name)))

    # ---- writing -------------------------------------------------------------------------------------------------

    def write_atomic(self, name: str, data: bytes, *, private: bool = False) -> None:
        *folders, last = split_name(name)
        calls = self._calls
        with self._writing(name), self._folder(folders, make=True) as folder:
            self._refuse_folder(folder, last)
            temporary = f"{TEMPORARY_PREFIX}{os.getpid()}-{next(self._temporary)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = calls.open(temporary, flags, 0o600 if private else 0o644, dir_fd=folder)
            try:
                try:
                    self._write_all(descriptor, data)
                    sync(calls, descriptor)
                finally:
                    calls.close(descriptor)
                calls.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                self._unlink_quietly(temporary, folder)
                raise
            sync(calls, folder)

    def append(self, name: str, data: bytes | memoryview) -> None:
        """As the port says; a failed append leaves the file as it was, so that a resumed download stays whole."""
        *folders, last = split_name(name)
        with self._writing(name), self._folder(folders, make=True) as folder:
            if may_go_direct(data):
                try:
                    self._append_to(last, folder, data, DIRECT_FLAG)
                    return
                except OSError as error:
                    if not refused_direct(error):
                        raise
            self._append_to(last, folder, data, 0)

    def _append_to(self, last: str, folder: int, data: bytes | memoryview, more_flags: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | more_flags
        descriptor = self._calls.open(last, flags, 0o644, dir_fd=folder)
        try:
            size = self._calls.fstat(descriptor).st_size
            try:
                copying = None if more_flags else self._direct
                done = copying.write(descriptor, data, size) if copying else 0
                self._write_all(descriptor, memoryview(data)[done:])
            except BaseException:
                with suppress(OSError):  # why the write failed says more, and a torn part is found by its hash
                    self._calls.ftruncate(descriptor, size)
                raise
        finally:
            self._calls.close(descriptor)

    def commit(self, part: str, name: str) -> None:
        """As the port says. A part that can't be synced is removed: after a failed fsync nobody knows which of its
        bytes are on the disk, and the next fsync would not tell."""
        *folders, last = split_name(part)
        with self._writing(name), self._folder(folders) as source:
            descriptor = self._calls.open(last, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            try:
                sync(self._calls, descriptor)
            except OSError:
                self._unlink_quietly(last, source)
                raise
            finally:
                self._calls.close(descriptor)
            self._move(source, folders, last, name)

    def move(self, name: str, target: str) -> None:
        *folders, last = split_name(name)
        with self._writing(target), self._folder(folders) as source:
            self._move(source, folders, last, target)

    def _move(self, source: int, folders: Sequence[str], last: str, target_name: str) -> None:
        *target_folders, target_last = split_name(target_name)
        with self._folder(target_folders, make=True) as target:
            self._calls.replace(last, target_last, src_dir_fd=source, dst_dir_fd=target)
            sync(self._calls, target)
        if target_folders != folders:
            sync(self._calls, source)

    def remove(self, name: str) -> None:
        *folders, last = split_name(name)
        try:
            with self._writing(name), self._folder(folders) as folder:
                self._refuse_folder(folder, last)
                try:
                    self._calls.unlink(last, dir_fd=folder)
                    self._unsynced.add(tuple(folders))
                finally:
                    if tuple(folders) in self._unsynced:
                        sync(self._calls, folder)
                        self._unsynced.discard(tuple(folders))
        except FileNotFoundError:
            return

    def remove_leftovers(self) -> int:
        """Finish what a process that was killed left to do: remove the temp files of its writes, and sync every folder,
        for what it renamed and did not sync is seen now and may still be lost. Returns how many files were removed.
        Only the holder of the home's lock may call this: it would take away another process's unfinished write."""
        try:
            with self._folder(()) as root:
                return self._tidy(root, _FOLDERS_DEEP_MAX)
        except FileNotFoundError:
            return 0

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        """In a thread. Cancelling waits for the thread to end, so that no write goes on behind the caller's back."""
        import trio  # only here: commands that read the home without an agent start in half the time

        return await trio.to_thread.run_sync(work)

    def lane(self) -> ThreadLane | AtOnceLane:
        return ThreadLane() if self._calls is os else AtOnceLane()  # a test's own file system sees one order of calls

    # ---- walking -------------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder inside the home, reached without following any link."""
        with self._making if make else nullcontext():  # nobody may use a folder that another thread has yet to sync
            descriptor = self._walk(parts, make)
        try:
            yield descriptor
        finally:
            self._calls.close(descriptor)

    def _walk(self, parts: Sequence[str], make: bool) -> int:
        if make and ("" in self._unsure or not self._is_there(self._root)):
            self._make_root()
        descriptor = self._calls.open(str(self._root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        place = ""
        for part in parts:
            place = f"{place}/{part}"
            try:
                following = self._step(descriptor, part, place, make)
            finally:
                self._calls.close(descriptor)
            descriptor = following
        return descriptor

    def _step(self, parent: int, part: str, place: str, make: bool) -> int:
        if not make or place not in self._unsure:
            try:
                return self._calls.open(part, _FOLDER_FLAGS, dir_fd=parent)
            except FileNotFoundError:
                if not make:
                    raise
            except OSError as error:
                self._raise_link(part, parent, error)
        self._make_folder(part, place, parent)
        return self._calls.open(part, _FOLDER_FLAGS, dir_fd=parent)

    def _make_folder(self, part: str, place: str, parent: int) -> None:
        """Make a folder and sync its name. One whose name can't be synced is taken away, at the next write if not now,
        and made again: what is written into it could be gone after a power cut."""
        if place in self._unsure:
            with suppress(OSError):  # it is not empty: another process used it
                self._calls.rmdir(part, dir_fd=parent)
        self._unsure.add(place)
        try:
            self._calls.mkdir(part, 0o700, dir_fd=parent)
        except FileExistsError:
            pass  # another process made it in between: it is opened like any other
        try:
            sync(self._calls, parent)
        except OSError:
            with suppress(OSError):
                self._calls.rmdir(part, dir_fd=parent)
            raise
        self._unsure.discard(place)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        *folders, last = split_name(name)
        with self._folder(folders) as folder:
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = self._calls.open(last, flags, dir_fd=folder)
            except OSError as error:
                self._raise_link(last, folder, error)
            try:
                if stat.S_ISDIR(self._calls.fstat(descriptor).st_mode):
                    raise IsADirectoryError(errno.EISDIR, "Is a folder", name)
                yield descriptor
            finally:
                self._calls.close(descriptor)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = _WRITE_ERRORS.get(error.errno or 0)
            if reason is None:
                raise
            raise NoSpace(f"{self._root / name} was not written: {reason[0]}.", next_step=reason[1]) from error

    def _is_there(self, place: Path) -> bool:
        try:
            self._calls.stat(str(place))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _make_root(self) -> None:
        """Make the home and its missing parents, each durable in its own parent."""
        self._unsure.add("")
        for place in (*reversed(self._root.parents), self._root):
            if str(place) in self._unsure or not self._is_there(place):
                parent = self._calls.open(str(place.parent), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    self._make_folder(place.name, str(place), parent)
                finally:
                    self._calls.close(parent)
        self._unsure.discard("")

    def _raise_link(self, part: str, parent: int, error: OSError) -> NoReturn:
        """Say it plainly when an open failed because of a link; else raise the error as it is."""
        try:
            is_link = stat.S_ISLNK(self._calls.stat(part, dir_fd=parent, follow_symlinks=False).st_mode)
        except OSError:
            is_link = False
        if not is_link:
            raise error
        raise IntegrityError(
            f"{part!r} inside the home is a symbolic link, and links are not followed there.",
            next_step="Replace the link by the real file or folder (a bind mount works too).") from error

    def _refuse_folder(self, folder: int, last: str) -> None:
        try:
            found = self._calls.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a folder", last)

    def _tidy(self, folder: int, depth: int) -> int:
        removed = 0
        for name in sorted(self._calls.listdir(folder)):
            if name.startswith(TEMPORARY_PREFIX):
                with self._writing(name):
                    self._calls.unlink(name, dir_fd=folder)
                removed += 1
            elif depth:
                try:
                    inner = self._calls.open(name, _FOLDER_FLAGS | os.O_NONBLOCK, dir_fd=folder)
                except OSError:
                    continue  # a file, a link, or a folder that is not ours to look into
                try:
                    removed += self._tidy(inner, depth - 1)
                finally:
                    self._calls.close(inner)
        with suppress(OSError):  # a disk that fails is told of by the first write, and reading goes on meanwhile
            sync(self._calls, folder)
        return removed

    def _write_all(self, descriptor: int, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._calls.write(descriptor, rest):]

    def _unlink_quietly(self, name: str, folder: int) -> None:
        try:
            self._calls.unlink(name, dir_fd=folder)
        except OSError:
            pass  # the error that brought us here says more; remove_leftovers takes it at the next start
