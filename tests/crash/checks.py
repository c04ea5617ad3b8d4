"""What must hold when a device starts again after a crash: nothing acknowledged is missing, nothing is half there, no
number is used twice, no fork, the vault goes on, and a sibling that had heard of things is still in step.

Leaves making the states to `matrix`.
"""

from __future__ import annotations

import re
from pathlib import Path

from crash import collecting
from crash.device import HOME, Disk, opened_core
from crash.scenes import Recording, Shown, hear
from hinet_node.real.disk_names import TEMPORARY_PREFIX
from hinet_node.vault.checking import Checker
from hinet_node.vault.core import VaultCore
from hinet_simnet.filesystem import ModelFilesystem
from hinet_simnet.filesystem.model import Link, Rename

_HEAD = re.compile(r"(\d{20})-([0-9a-f]{64})")
AFTERWARDS = b"afterwards"


class Broken(AssertionError):
    """A promise that a crash state breaks."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def verify(core: VaultCore) -> None:
    """Verify deeply, and find nothing."""
    report = Checker(core, deep=True, on_progress=None).run()
    require(report.ok, f"verify finds {[fault.as_json() for fault in report.faults]}")


def content(core: VaultCore) -> Shown:
    """Everything that is shown, read and verified."""
    return {name: b"".join(core.content(version)) for name, (version, _) in core.shown().items()}


def numbers_used(recording: Recording, calls: int) -> dict[int, set[str]]:
    """Number -> hashes of this device's heads that got their name before that call."""
    found: dict[int, set[str]] = {}
    own = {change.number for change in recording.record
           if isinstance(change, Link) and change.name == recording.member.public.hex()}
    for change in recording.record[:calls]:
        match = _HEAD.fullmatch(change.target_name) if isinstance(change, Rename) else None
        if match and isinstance(change, Rename) and change.target in own:
            found.setdefault(int(match[1]), set()).add(match[2])
    return found


def check(recording: Recording, filesystem: ModelFilesystem, calls: int, index: bytes | None, scratch: Path,
          *, sibling: bool) -> None:
    """Start again on what the crash left after so many calls. `index` is what is left of SQLite's file; None for an
    index in memory."""
    disk = Disk(filesystem)
    disk.remove_leftovers()
    index_path = ":memory:"
    if index is not None:
        index_path = str(scratch / "index.sqlite")
        for stray in scratch.glob("index.sqlite*"):
            stray.unlink()
        if index:
            Path(index_path).write_bytes(index)
    core = opened_core(recording.world, recording.member, disk, index_path, later_s=600)
    try:
        _check_opened(recording, filesystem, core, calls)
        if sibling:
            _check_sibling(recording, core, calls)
        require(filesystem.open_descriptors() == 0, "descriptors were left open")
    finally:
        core.store.close()


def _check_opened(recording: Recording, filesystem: ModelFilesystem, core: VaultCore, calls: int) -> None:
    steps = recording.steps_at(calls)
    allowed = recording.shown[steps:steps + 2]
    found = content(core)
    require(found in allowed, f"after {steps} steps the vault shows {_names(found)}, not {_names(allowed[0])}")
    verify(core)
    aside = [path for path in filesystem.files() if path.endswith(".damaged")]
    require(not aside, f"set aside: {aside}")
    require(not core.heads.forks(), "a fork")
    left = [path for path in filesystem.files()
            if TEMPORARY_PREFIX in path or path.startswith(f"{HOME}/vault/parts/out")]
    require(not left, f"left behind: {left}")
    core.put({AFTERWARDS: b"goes on"}, None)
    require(content(core) == found | {AFTERWARDS: b"goes on"}, "what was stored afterwards is not what is shown")
    if recording.name == "collect":
        collecting.give_up(core, core.reseal.rewrite() if core.reseal.due() else collecting.rewrite_dead(core))
        collecting.delete(core)
        require(content(core) == found | {AFTERWARDS: b"goes on"}, "collecting after the crash took what is needed")
        verify(core)
    own = core.heads.own()
    require(own is not None, "no head after storing")
    assert own is not None
    used = numbers_used(recording, calls)
    require(own.seq not in used or own.hash.hex() in used[own.seq], f"the number {own.seq} is used again")


def _check_sibling(recording: Recording, core: VaultCore, calls: int) -> None:
    """A sibling that heard all that was acknowledged, and nothing else, meets this device."""
    disk = recording.heard[recording.steps_at(calls)].copy()
    other = opened_core(recording.world, recording.world.member("cloud"), disk)
    try:
        for _ in range(3):
            hear(other, core)
            hear(core, other)
        for side in (core, other):
            require(not side.heads.forks(), "a fork between the two")
        require(core.digest() == other.digest(), "the two are not in step")
        require(content(core) == content(other), "the two show different files")
        require(content(other)[AFTERWARDS] == b"goes on", "what was stored after the crash did not reach the sibling")
    finally:
        other.store.close()


def _names(shown: Shown) -> dict[str, int]:
    return {name.decode(): len(data) for name, data in sorted(shown.items())}

