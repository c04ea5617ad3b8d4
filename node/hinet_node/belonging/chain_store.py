"""The chain on disk: segments that are written once, and a head that names what they must hold.

`chain/<number>.entries` are canonical lists of raw entries; `chain/head` is written after them and names height and
heads, so a chain that was cut short is noticed. What entries mean is the chain's; when they are taken in is
`membership`'s. SPEC section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from hinet_node.errors import IntegrityError, NotInitialised
from hinet_node.home import CHAIN, CHAIN_HEAD
from hinet_node.ports import Disk
from hinet_protocol import canonical, limits
from hinet_protocol.chain import Chain
from hinet_protocol.errors import ProtocolError

SEGMENTS_MAX = 64
"""With more segments than this, they are written into one."""


def write_new(disk: Disk, chain: Chain) -> None:
    """A whole chain into a home that has none; the caller removes it with `remove_new` after a failure."""
    _write_segment(disk, 0, chain.raws())
    _write_head(disk, chain)


def remove_new(disk: Disk) -> None:
    """Undo `write_new`, the head first."""
    for name in (CHAIN_HEAD, _segment_name(0)):
        disk.remove(name)


def append(disk: Disk, chain: Chain, added: Sequence[bytes]) -> None:
    """Make the entries of these names durable; `chain` holds them already. Errors: `NoSpace`."""
    raws = [entry.raw for name in added if (entry := chain.entry(name)) is not None]
    numbers = [int(name.partition(".")[0]) for name in _segments(disk)]
    _write_segment(disk, max(numbers, default=-1) + 1, raws)
    _write_head(disk, chain)
    if len(numbers) >= SEGMENTS_MAX:
        _write_segment(disk, 0, chain.raws())
        for number in [*numbers[1:], max(numbers) + 1]:
            disk.remove(_segment_name(number))


def read(disk: Disk) -> Chain:
    """The chain in this home, verified.

    Errors: `NotInitialised`; `IntegrityError` when it is damaged or was cut short.
    """
    if not disk.exists(CHAIN_HEAD):
        raise NotInitialised("this machine belongs to no household yet",
                             next_step="hinet-node init   or:  hinet-node join CODE")
    try:
        height, heads = _read_head(disk)
        chain = Chain.from_entries([raw for name in _segments(disk) for raw in _read_segment(disk, name)])
    except (ProtocolError, FileNotFoundError) as error:
        raise IntegrityError(f"the home's chain is damaged: {error}", code="E_HOME_DAMAGED",
                             next_step="restore the home from a backup, or join again with a new --home") from error
    if chain.missing(heads) or chain.height < height:
        raise IntegrityError(f"the chain in this home was cut short: it had height {height}, now {chain.height}",
                             next_step="restore the folder `chain`, or join again with a new --home",
                             code="E_CHAIN_CUT")
    return chain


def _segment_name(number: int) -> str:
    return f"{CHAIN}/{number:06d}.entries"


def _segments(disk: Disk) -> list[str]:
    return [name for name in disk.list(CHAIN) if name.endswith(".entries")]


def _write_segment(disk: Disk, number: int, raws: Sequence[bytes]) -> None:
    disk.write_atomic(_segment_name(number), canonical.encode(list(raws)))


def _read_segment(disk: Disk, name: str) -> list[bytes]:
    found = canonical.decode(disk.read(f"{CHAIN}/{name}"), limits.chain_bytes_max)
    if not isinstance(found, list) or not all(isinstance(raw, bytes) for raw in found):
        raise IntegrityError(f"{CHAIN}/{name} is no list of chain entries", code="E_HOME_DAMAGED")
    return found


def _write_head(disk: Disk, chain: Chain) -> None:
    disk.write_atomic(CHAIN_HEAD, canonical.encode({"v": 1, "height": chain.height, "heads": list(chain.heads)}))


def _read_head(disk: Disk) -> tuple[int, list[bytes]]:
    found = canonical.decode(disk.read(CHAIN_HEAD))
    height, heads = (found.get("height"), found.get("heads")) if isinstance(found, dict) else (None, None)
    if not isinstance(height, int) or not isinstance(heads, list):
        raise IntegrityError(f"{CHAIN_HEAD} is damaged", code="E_HOME_DAMAGED",
                             next_step="restore it from a backup, or join again with a new --home")
    return height, [name for name in heads if isinstance(name, bytes)]
