"""What checking and repairing found and did: values only, with their words for the owner. SPEC.md, 6.7.

Leaves finding to `checking` and doing to `mending`, `salvage` and `repairing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FILES_TOLD_MAX = 1_000
"""Names of files in one row of an answer; how many there are is told beside them."""
FAULTS_TOLD_MAX = 10_000

PACK, LIST, HEAD, SEQ, INDEX, FOLDER, FILE = "pack", "list", "head", "seq", "index", "folder", "file"
"""Kinds of thing that may be at fault."""
DAMAGED, MISSING, UNREADABLE, MISPLACED, MALFORMED, REBUILT = (
    "damaged", "missing", "unreadable", "misplaced", "malformed", "rebuilt")
"""What is the matter with it. `rebuilt` was put right at once."""


@dataclass(frozen=True)
class Fault:
    """One thing that is not as it should be, and what to do about it."""

    kind: str
    state: str
    path: str
    """Where in the home; for a file of the vault its name as text."""
    what: str
    next_step: str
    name: bytes = b""
    """Of a pack or pack list: its name; of a head: its hash; of a file: its name."""
    device: bytes = b""
    """Of a head: whose."""
    files: tuple[bytes, ...] = ()
    """The files that can't be read whole because of it, where that is known (not on a keeper)."""

    @property
    def open(self) -> bool:
        """Whether something is still to be done."""
        return self.state != REBUILT

    def as_json(self) -> dict[str, object]:
        return {"kind": self.kind, "state": self.state, "path": self.path, "name": self.name.hex(),
                "device": self.device.hex(), "what": self.what, "next": self.next_step, **_files(self.files)}


@dataclass(frozen=True)
class VerifyReport:
    """What `Vault.verify` found."""

    packs: int
    packs_bytes: int
    damaged: tuple[bytes, ...]
    """Names of packs that did not match their name; they were set aside and will be fetched again from a sibling."""
    missing: tuple[bytes, ...]
    """Names of packs that a head needs and that are not held here, damaged ones included."""
    files_unreadable: tuple[bytes, ...] = field(default=())
    """Names of files that can't be read whole: a part of them is not held, or (found with deep checking) is wrong."""
    deep: bool = False
    chunks: int = 0
    """With deep checking: how many chunks were opened."""
    heads: int = 0
    faults: tuple[Fault, ...] = ()
    """Everything that is or was wrong, one by one."""

    @property
    def ok(self) -> bool:
        return not (self.damaged or self.missing or self.files_unreadable or self.faults)

    def as_json(self) -> dict[str, object]:
        return {"schema": "hinet.vault-verify/1", "ok": self.ok, "packs": self.packs, "packs_bytes": self.packs_bytes,
                "damaged": [name.hex() for name in self.damaged[:FAULTS_TOLD_MAX]],
                "missing": [name.hex() for name in self.missing[:FAULTS_TOLD_MAX]],
                "files_unreadable": _texts(self.files_unreadable[:FAULTS_TOLD_MAX]),
                "deep": self.deep, "chunks": self.chunks, "heads": self.heads,
                "faults": [fault.as_json() for fault in self.faults[:FAULTS_TOLD_MAX]],
                "faults_count": len(self.faults)}


PUT_BACK, REWRITTEN, FETCHED, SALVAGED, CLEARED, STILL_MISSING, STILL_CLOSED, LEFT = (
    "put back", "rewritten", "fetched", "salvaged", "cleared", "still missing", "still closed", "left as it is")
"""What became of a thing."""


@dataclass(frozen=True)
class Mended:
    """What became of one thing that was damaged or missing."""

    kind: str
    outcome: str
    path: str
    what: str
    name: bytes = b""
    source: str = ""
    """Name of the sibling that it came from."""
    may_have: tuple[str, ...] = ()
    """Of a thing that is still missing: names of the siblings that may have it."""
    files: tuple[bytes, ...] = ()
    """Of a thing that is not whole again: the files that lack something."""

    @property
    def whole(self) -> bool:
        return self.outcome not in (STILL_MISSING, STILL_CLOSED, LEFT) and not self.files

    def as_json(self) -> dict[str, object]:
        return {"kind": self.kind, "outcome": self.outcome, "path": self.path, "name": self.name.hex(),
                "what": self.what, "whole": self.whole, "from": self.source, "may_have": list(self.may_have),
                **_files(self.files)}


@dataclass(frozen=True)
class RepairReport:
    """What `vault repair` did."""

    items: tuple[Mended, ...]
    found: int
    """How many faults there were before."""
    files_unreadable: tuple[bytes, ...] = ()
    """Files that can't be read whole afterwards."""

    @property
    def ok(self) -> bool:
        return not self.files_unreadable and all(item.whole for item in self.items)

    def as_json(self) -> dict[str, object]:
        return {"schema": "hinet.vault-repair/1", "ok": self.ok, "found": self.found,
                "items": [item.as_json() for item in self.items[:FAULTS_TOLD_MAX]],
                "files_unreadable": _texts(self.files_unreadable[:FAULTS_TOLD_MAX])}


def _files(names: Sequence[bytes]) -> dict[str, object]:
    return {"files": _texts(names[:FILES_TOLD_MAX]), "files_count": len(names)}


def _texts(names: Sequence[bytes]) -> list[str]:
    return [name.decode("utf-8", "replace") for name in names]
