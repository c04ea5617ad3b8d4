"""What a watch has taken: for each file the stamp that it had. In memory by folder; on disk under keyed hashes of the
names, so that the file tells nobody what they are. SPEC.md, 6.5.

Losing the file costs a second reading, and nothing is removed from the vault for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from blake3 import blake3

from hinet_node.ports import FolderEntry

_STAMP = struct.Struct(">QqQq")
_MAGIC = b"hinet-taken-1\n"
_NAME_BYTES = 16
_SUM_BYTES = 16
STAMP_BYTES = _STAMP.size


def stamp(entry: FolderEntry) -> bytes:
    """What changes when a file's content does: size, times, inode."""
    return _STAMP.pack(entry.size, _bounded(entry.mtime_ns), entry.inode & (2**64 - 1), _bounded(entry.ctime_ns))


def same_content(one: bytes, other: bytes) -> bool:
    """Whether size and time of writing are equal: what a copy that kept its times, or a disk that was mounted anew,
    shows."""
    return one[:16] == other[:16]


def _bounded(time_ns: int) -> int:
    return max(-(2**63), min(2**63 - 1, time_ns))


class Tracked:
    """Files that were taken, by folder."""

    def __init__(self) -> None:
        self.folders: dict[bytes, dict[bytes, bytes]] = {}
        self.count = 0

    def get(self, name: bytes) -> bytes | None:
        folder, _, part = name.rpartition(b"/")
        return self.folders.get(folder, {}).get(part)

    def put(self, name: bytes, value: bytes) -> None:
        folder, _, part = name.rpartition(b"/")
        files = self.folders.setdefault(folder, {})
        self.count += part not in files
        files[part] = value

    def drop(self, name: bytes) -> None:
        folder, _, part = name.rpartition(b"/")
        files = self.folders.get(folder, {})
        if files.pop(part, None) is not None:
            self.count -= 1
        if not files:
            self.folders.pop(folder, None)

    def names(self) -> Iterator[tuple[bytes, bytes]]:
        for folder, files in self.folders.items():
            for part, value in files.items():
                yield (folder + b"/" + part if folder else part), value

    def above(self) -> set[bytes]:
        """The folders that hold tracked files, at any depth."""
        found: set[bytes] = set()
        for folder in self.folders:
            while folder not in found:
                found.add(folder)
                folder = folder.rpartition(b"/")[0]
        return found


def hidden(key: bytes, name: bytes) -> bytes:
    """The name as it stands in the file."""
    return blake3(name, key=key).digest(_NAME_BYTES)


def encode(key: bytes, tracked: Tracked) -> bytes:
    """The file."""
    rows = sorted(hidden(key, name) + value for name, value in tracked.names())
    body = _MAGIC + b"".join(rows)
    return body + blake3(body, key=key).digest(_SUM_BYTES)


def decode(key: bytes, raw: bytes) -> Mapping[bytes, bytes]:
    """Hidden name -> stamp; nothing for a file that is damaged or another watch's."""
    body, found_sum = raw[:-_SUM_BYTES], raw[-_SUM_BYTES:]
    width = _NAME_BYTES + STAMP_BYTES
    if (not body.startswith(_MAGIC) or blake3(body, key=key).digest(_SUM_BYTES) != found_sum
            or (len(body) - len(_MAGIC)) % width):
        return {}
    return {body[at:at + _NAME_BYTES]: body[at + _NAME_BYTES:at + width]
            for at in range(len(_MAGIC), len(body), width)}
