"""Looking for damage in the records of heads and the number file; putting right what memory still knows. SPEC.md, 6.7.

What is set aside stays on disk until the head came again. Leaves packs to `checking`, fetching to `repairing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hinet_node.errors import NoSpace
from hinet_node.ports import Disk
from hinet_node.vault.headstore import HEADS, HeadStore, head_path
from hinet_node.vault.packfolder import ASIDE, entries
from hinet_node.vault.report import DAMAGED, FOLDER, HEAD, MISSING, REBUILT, SEQ, UNREADABLE, Fault
from hinet_node.vault.seqfile import SEQ_FILE

_ASIDE = re.compile(r"(\d{20})-([0-9a-f]{64})\.damaged")
FETCH = "`hinet-node vault repair` fetches it from a sibling."


def check_heads(disk: Disk, heads: HeadStore, names: dict[bytes, str]) -> tuple[int, list[Fault]]:
    """Every record against its hash and signature: how many were looked at, and what is wrong. A damaged or missing one
    that memory still has is written again at once."""
    faults = []
    known = heads.records()
    for device, seq, head_hash in known:
        if heads.record(device, seq, head_hash) is not None or not heads.knows(device, seq, head_hash):
            continue  # fine, or gone meanwhile because newer ones came
        path = head_path(device, seq, head_hash)
        state, said = (DAMAGED, "is damaged") if disk.exists(path) else (MISSING, "is gone")
        what = f"The record of state {seq} of {names.get(device, device.hex()[:16])} {said}"
        if _rewritten(heads, device, seq, head_hash):
            faults.append(Fault(HEAD, REBUILT, path, f"{what}; it was written again from memory.", "Nothing is to do.",
                                head_hash, device))
            continue
        heads.lose(device, seq, head_hash)
        faults.append(Fault(HEAD, state, path, f"{what}.", FETCH, head_hash, device))
    told = {fault.path for fault in faults}
    faults += [Fault(HEAD, DAMAGED, path, f"The record of state {seq} of {names.get(device, device.hex()[:16])} was "
                     "damaged and is set aside.", FETCH, head_hash, device)
               for device, seq, head_hash, path in aside_heads(disk)
               if path.removesuffix(ASIDE) not in told and heads.misses(device, seq, head_hash)]
    faults += [Fault(FOLDER, UNREADABLE, path, f"{path} can't be read: {why}.", open_again(disk, path))
               for path, why in sorted(closed_folders(disk).items())]
    return len(known), faults


def check_seq(heads: HeadStore) -> list[Fault]:
    """The number file; a damaged one is written again, with numbers left out that may have been used."""
    why = heads.seq_fault or heads.seq_changed()
    if not why:
        return []
    what = f"The file of the number that this device may use next is of no use: {why}"
    try:
        heads.rewrite_seq()
    except (NoSpace, OSError) as error:
        return [Fault(SEQ, DAMAGED, SEQ_FILE, f"{what}. It could not be written again: {error}", "Make the home "
                      "writable, then: hinet-node vault verify")]
    return [Fault(SEQ, REBUILT, SEQ_FILE, f"{what}; it was written again.", "Nothing is to do.")]


def aside_heads(disk: Disk) -> Iterator[tuple[bytes, int, bytes, str]]:
    """(device, number, hash, path) of the records that were set aside."""
    for folder in entries(disk, HEADS, {}):
        if len(folder) != 64:
            continue
        for entry in entries(disk, f"{HEADS}/{folder}", {}):
            match = _ASIDE.fullmatch(entry)
            if match:
                yield bytes.fromhex(folder), int(match[1]), bytes.fromhex(match[2]), f"{HEADS}/{folder}/{entry}"


def closed_folders(disk: Disk) -> dict[str, str]:
    """Folders of heads that can't be listed -> why."""
    closed: dict[str, str] = {}
    for folder in entries(disk, HEADS, closed):
        if len(folder) == 64:
            entries(disk, f"{HEADS}/{folder}", closed)
    return closed


def open_again(disk: Disk, path: str) -> str:
    """What to type for something in the home that this user may not read, or that is not what it should be."""
    return f"See what it is: ls -ld {disk.path(path)}   Make it readable or move it away, then: hinet-node vault repair"


def _rewritten(heads: HeadStore, device: bytes, seq: int, head_hash: bytes) -> bool:
    head = next((one for one in heads.current() if (one.device, one.seq, one.hash) == (device, seq, head_hash)), None)
    if head is None:
        return False
    try:
        heads.write(head)
    except (NoSpace, OSError):
        return False
    return heads.record(device, seq, head_hash) is not None
