"""The pieces of a large file, the next ones opened while the last one is written. Leaves writing to the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hinet_node.ports import Disk, Pending

_AHEAD = 3


def ahead(disk: Disk, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, the next ones made in a lane of the disk while the caller works on one."""
    lane = disk.lane()
    waiting: deque[Pending[bytes | None]] = deque()
    try:
        while True:
            while len(waiting) < _AHEAD:
                waiting.append(lane.do(lambda: next(pieces, None)))
            piece = waiting.popleft().result()
            if piece is None:
                return
            yield piece
    finally:
        lane.close()
