"""Reading what is put into the vault: whole, once, with its hashes, and honest about files that change meanwhile.

A file is read up to the size that it had when it was opened, so that one which grows has an end. What `fstat` says
before and after tells whether it changed in between: then it is read again a few times, and at last taken as it was
read, with a mark that says so. Holes are not read. Leaves finding files to `finding`, storing chunks to `writer`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from hinet_node.errors import UsageError
from hinet_node.vault.finding import Descriptors, Placed
from hinet_protocol.packs import chunk_id

Source = Path | str | bytes | Placed
"""Where content comes from: bytes, the path of a file, or a file that was found."""

_BATCH_BYTES = 1 << 20
_BATCH_PARTS = 256
_TRIES = 3
_READ_AGAIN_BYTES_MAX = 64 << 20
"""A larger file that changes is not read again: it most likely goes on changing."""
_HOLES_BYTES_MIN = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(slots=True)
class End:
    """A source was read to its end, or could not be read."""

    size: int
    digest: bytes
    found: os.stat_result | None = None
    """What `fstat` said before it was read; None for bytes."""
    looked_ns: int = 0
    """By the clock that files' times come from, just before that."""
    changed: bool = False
    error: OSError | None = None


@dataclass(slots=True)
class Part:
    """The next chunk of a source (`data` with its id), or its end, or both. `again` takes back what came before."""

    number: int
    data: bytes | None = None
    chunk: bytes = b""
    end: End | None = None
    again: bool = False


class SourceReader:
    """Reads sources one after the other, in batches of parts. Used by one thread at a time."""

    def __init__(self, sources: Iterable[Source], id_key: bytes, chunk_bytes: int) -> None:
        self._id_key = id_key
        self._chunk_bytes = chunk_bytes
        self._descriptors = Descriptors()
        self._zeros = bytes(chunk_bytes)
        self._zeros_id = chunk_id(id_key, self._zeros)
        self._parts = self._all(sources)

    def batch(self) -> list[Part]:
        """The next parts, about 1 MiB of them; none at the end."""
        found: list[Part] = []
        held = 0
        for part in self._parts:
            found.append(part)
            held += len(part.data or b"")
            if held >= _BATCH_BYTES or len(found) >= _BATCH_PARTS:
                break
        return found

    def close(self) -> None:
        self._parts.close()
        self._descriptors.close()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _all(self, sources: Iterable[Source]) -> Generator[Part, None, None]:
        for number, source in enumerate(sources):
            if isinstance(source, bytes):
                yield from self._bytes(number, source)
                continue
            try:
                descriptor = self._open(source)
            except OSError as error:
                yield Part(number, end=End(0, b"", error=error))
                continue
            try:
                yield from self._file(number, descriptor)
            finally:
                os.close(descriptor)

    def _open(self, source: Path | str | Placed) -> int:
        return self._descriptors.file(source) if isinstance(source, Placed) else os.open(source, _FLAGS)

    def _bytes(self, number: int, content: bytes) -> Iterator[Part]:
        end = End(len(content), blake3(content).digest())
        last = 0
        for at in range(0, len(content), self._chunk_bytes):
            data = content[at:at + self._chunk_bytes]
            last = at + len(data)
            yield Part(number, data, chunk_id(self._id_key, data), end if last == len(content) else None)
        if not content:
            yield Part(number, end=end)

    def _file(self, number: int, descriptor: int) -> Iterator[Part]:
        """The parts of a file; again from the start while it changes and is small enough to hope that it stops."""
        for tries_left in range(_TRIES - 1, -1, -1):
            looked_ns = time.time_ns()  # not the agent's clock: it is held against the times of real files
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(errno.EINVAL, "It is no regular file")
                if found.st_size <= self._chunk_bytes:
                    part = self._small(number, descriptor, found.st_size)
                else:
                    part = yield from self._large(number, descriptor, found)
                assert part.end is not None
                part.end.changed |= _changed(found, os.fstat(descriptor))
            except OSError as error:
                yield Part(number, end=End(0, b"", error=error))
                return
            part.end.found, part.end.looked_ns = found, looked_ns
            if not part.end.changed or not tries_left or found.st_size > _READ_AGAIN_BYTES_MAX:
                yield part
                return
            yield Part(number, again=True)

    def _small(self, number: int, descriptor: int, size: int) -> Part:
        data = os.pread(descriptor, size + 1, 0)
        while len(data) < size and (more := os.pread(descriptor, size + 1 - len(data), len(data))):
            data += more
        changed = len(data) != size
        if len(data) > size:  # it grew, or is one of the kernel's own files, which say nothing of their size
            data = data[:size]
        end = End(len(data), blake3(data).digest(), changed=changed)
        return Part(number, data, chunk_id(self._id_key, data), end) if data else Part(number, end=end)

    def _large(self, number: int, descriptor: int, found: os.stat_result) -> Generator[Part, None, Part]:
        """Returns the last part instead of yielding it: `fstat` comes first."""
        size, step = found.st_size, self._chunk_bytes
        sparse = found.st_blocks * 512 < size and hasattr(os, "SEEK_DATA")
        state, at, data_at = blake3(), 0, 0
        last = Part(number)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while at < size:
            if last.data is not None:
                yield last
            length = min(step, size - at)
            if sparse and data_at <= at:
                data_at = _next_data(descriptor, at, size)
            hole = sparse and data_at >= at + length
            data = self._zeros[:length] if hole else _read(descriptor, length, at)
            if not data:
                break  # it was cut short
            state.update(data)
            name = self._zeros_id if hole and length == step else chunk_id(self._id_key, data)
            last = Part(number, data, name)
            at += len(data)
            if len(data) < length:
                break
        last.end = End(at, state.digest(), changed=at != size)
        return last


def _read(descriptor: int, length: int, at: int) -> bytes:
    data = os.pread(descriptor, length, at)
    if len(data) == length or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < length and (data := os.pread(descriptor, length - done, at + done)):
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def _next_data(descriptor: int, at: int, size: int) -> int:
    """Where the next bytes are that are no hole; `size` when there are none."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return at  # this file system knows no holes


def _changed(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size, after.st_mtime_ns, after.st_ctime_ns)


def room_bytes(found: os.stat_result) -> int:
    """How many bytes a file may take in packs: a hole takes none."""
    if found.st_size <= _HOLES_BYTES_MIN:
        return found.st_size
    return min(found.st_size, found.st_blocks * 512)


def source_stat(source: Path | str) -> os.stat_result:
    """Of a file that the caller names. Errors: `UsageError` for one that can't be read or is no regular file."""
    path = Path(source)
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist.", next_step=_FOLDERS) from None
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is no file.", next_step=_FOLDERS)
    return found


_FOLDERS = "Check the path; folders are added with `hinet-node vault add FOLDER`."


def unreadable(path: Path | str, error: OSError) -> UsageError:
    return UsageError(f"{path} can't be read: {error.strerror or error}.",
                      next_step="Check the path and that this user may read it.")
