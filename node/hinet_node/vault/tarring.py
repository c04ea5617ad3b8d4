"""Files of the vault as one pax archive, as a stream: names byte for byte, times to the nanosecond, the right to run.

A file's content is known to be whole before the first byte of it goes out: a small one is held in memory, a large one
is read twice. Leaves which files, and where to, to the verbs.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.vault.outgoing import OutReport
from hinet_node.vault.progress import Counter
from hinet_protocol.attributes import mode_plain, read_attributes
from hinet_protocol.trees import Version

HELD_BYTES_MAX = 16 << 20


def write_tar(rows: Mapping[bytes, Version], content: Callable[[Version], Iterable[bytes]], stream: IO[bytes],
              count: Counter) -> OutReport:
    """Write the archive. Files that can't be read are left out and reported. Errors: `OSError` of the stream;
    `IntegrityError` when a large file fails at its second reading: the archive is no good then."""
    report = OutReport()
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8",
                      errors="surrogateescape", bufsize=1 << 20) as archive:
        for name in sorted(rows):
            version = rows[name]
            try:
                body = _whole(version, content, count)
            except (IntegrityError, NotAuthorised) as error:
                report.leave_out(name, error.what)
                continue
            archive.addfile(_entry(name, version), body)  # type: ignore[arg-type]
            report.files += 1
            report.size_bytes += version.size
            count.file()
    count.tell()
    return report


def _whole(version: Version, content: Callable[[Version], Iterable[bytes]], count: Counter) -> IO[bytes] | _Pieces:
    """The content, to be read once; it has been checked."""
    if version.size <= HELD_BYTES_MAX:
        held = b"".join(content(version))
        count.bytes(len(held))
        return io.BytesIO(held)
    for _ in content(version):
        pass
    return _Pieces(iter(content(version)), count)


class _Pieces:
    """A file to read from, made of pieces."""

    def __init__(self, pieces: Iterator[bytes], count: Counter) -> None:
        self._pieces, self._count = pieces, count
        self._held = b""

    def read(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            if not self._held:
                self._held = next(self._pieces, b"")
                self._count.bytes(len(self._held))
                if not self._held:
                    break
            parts.append(self._held[:left])
            self._held = self._held[left:]
            left -= len(parts[-1])
        return b"".join(parts)


def _entry(name: bytes, version: Version) -> tarfile.TarInfo:
    known = read_attributes(version.attributes)
    entry = tarfile.TarInfo(os.fsdecode(name))
    entry.size, entry.mode, entry.type = version.size, known.mode or mode_plain, tarfile.REGTYPE
    if known.mtime_ns is None:
        entry.mtime = version.time
    else:
        seconds, rest = divmod(known.mtime_ns, 10**9)
        entry.mtime = seconds
        if rest:
            sign, whole = ("-", -known.mtime_ns) if known.mtime_ns < 0 else ("", known.mtime_ns)
            entry.pax_headers = {"mtime": f"{sign}{whole // 10**9}.{whole % 10**9:09d}"}
    return entry
