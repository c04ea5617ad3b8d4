"""What each sibling said and how it was reached when it was last met: for `status` and `devices`, kept in `run/seen`.

A courtesy: losing the file costs nothing but a memory. What it holds came from other machines, so it is bounded before
it is written and checked when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from hinet_node.errors import NoSpace
from hinet_node.ports import Disk
from hinet_protocol import canonical
from hinet_protocol.errors import ProtocolError

if TYPE_CHECKING:
    from hinet_node.sessions.session import Session  # which needs trio: commands without an agent do without

SEEN = "run/seen"
BASES_KEPT_MAX = 8
HEADS_KEPT_MAX = 8
"""Of more heads than these the device is taken to know less than it does, never more."""


@dataclass(frozen=True)
class Sighting:
    """A device when it was last met: what its session had, at unix second `time_s` by this machine's clock.

    `heads` are the heads of the chain that it last said it holds: what it knows of who belongs.
    """

    time_s: int
    address: str = ""
    relayed: bool = False
    version: str = ""
    backends: tuple[str, ...] = ()
    memory_bytes: int = 0
    bases: tuple[bytes, ...] = ()
    heads: tuple[bytes, ...] = ()


def sighting(session: Session, now_s: float) -> Sighting:
    """What there is to remember of the device at the other end of an open session."""
    hello = session.hello
    return Sighting(int(now_s), session.address, session.relayed, hello.agent, tuple(hello.backends),
                    hello.memory_bytes, tuple(hello.bases[:BASES_KEPT_MAX]), tuple(session.heads[:HEADS_KEPT_MAX]))


def read(disk: Disk) -> dict[bytes, Sighting]:
    """By device key; empty when there is no such file or it is damaged. Rows of an older form have a time only."""
    try:
        rows = canonical.decode(disk.read(SEEN))
        return {public: _sighting(row) for public, row in rows if isinstance(public, bytes)}
    except (FileNotFoundError, ProtocolError, TypeError, ValueError):
        return {}


def write(disk: Disk, seen: Mapping[bytes, Sighting]) -> None:
    """Keep it. A full disk keeps the old file: this is not worth an error."""
    with suppress(NoSpace, ProtocolError):
        disk.write_atomic(SEEN, canonical.encode([[public, asdict(seen[public])] for public in sorted(seen)]))


def _sighting(row: Any) -> Sighting:
    """Errors: `TypeError`, `ValueError` for what no `Sighting` has."""
    if isinstance(row, int) and not isinstance(row, bool):
        return Sighting(row)
    values: dict[str, Any] = {field.name: row[field.name] for field in fields(Sighting) if field.name in row}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    found = Sighting(**values)
    whole = (found.time_s, found.address, found.relayed, found.version, found.memory_bytes)
    lists = ((found.backends, str), (found.bases, bytes), (found.heads, bytes))
    if [type(value) for value in whole] != [int, str, bool, str, int] or not all(
            isinstance(values, tuple) and all(isinstance(value, kind) for value in values) for values, kind in lists):
        raise ValueError("a value of another kind")
    return found
