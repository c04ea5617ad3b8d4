"""When each sibling was last met: a courtesy for `status`, kept in `run/seen`. Losing it costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from hinet_node.errors import NoSpace
from hinet_node.ports import Disk
from hinet_protocol import canonical
from hinet_protocol.errors import ProtocolError

SEEN = "run/seen"


def read(disk: Disk) -> dict[bytes, int]:
    """Device public key -> unix seconds by this machine's clock; empty when there is no such file or it is damaged."""
    try:
        rows = canonical.decode(disk.read(SEEN))
        return {public: time_s for public, time_s in rows if isinstance(public, bytes) and isinstance(time_s, int)}
    except (FileNotFoundError, ProtocolError, TypeError, ValueError):
        return {}


def write(disk: Disk, seen: Mapping[bytes, int]) -> None:
    """Keep it. A full disk keeps the old file: this is not worth an error."""
    with suppress(NoSpace):
        disk.write_atomic(SEEN, canonical.encode([[public, seen[public]] for public in sorted(seen)]))
