"""Reading the agent's log file: its last lines, and what is added to it. The file is written by `cli.journal`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

READ_BYTES_MAX = 8 * 1_048_576
POLL_S = 0.2


def last_lines(path: Path, count: int, *, until: int | None = None) -> list[str]:
    """The last lines of the log (its first `until` bytes), of the file before it too when this one is short. None is no
    error."""
    lines: list[str] = []
    for part, end in ((path, until), (path.with_name(path.name + ".old"), None)):
        if len(lines) < count:
            lines = _read(part, end)[len(lines) - count:] + lines
    return lines


def following(path: Path, position: int, *, poll_s: float = POLL_S) -> Iterator[str]:
    """Lines as they are added after `position`, for ever. A file that is begun anew is read from its beginning."""
    place = _identity(path)
    rest = b""
    while True:
        now = _identity(path)
        if now != place or size(path) < position:
            place, position, rest = now, 0, b""
        try:
            with path.open("rb") as stream:
                stream.seek(position)
                added = stream.read(READ_BYTES_MAX)
        except OSError:
            added = b""
        position += len(added)
        *whole, rest = (rest + added).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
        if not added:
            time.sleep(poll_s)


def size(path: Path) -> int:
    """Bytes in the file now; 0 when it is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, until: int | None) -> list[str]:
    end = size(path) if until is None else until
    start = max(0, end - READ_BYTES_MAX)
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            lines = stream.read(end - start).decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    return lines[1 if start else 0:-1] if lines[-1] == "" else lines[1 if start else 0:]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
