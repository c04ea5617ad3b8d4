"""The error matrix: at every system call that changes the disk, an error in its place, once or from then on.

The vault must say what is wrong, stay usable, hold in memory what a new start would find, lose nothing that it
acknowledged, also by a power cut later, and go on when the disk does. Leaves the errors themselves to
`hinet_simnet.filesystem.faults`.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from crash.checks import AFTERWARDS, Broken, content, require, verify
from crash.device import Disk, Filesystem, households, opened_core
from crash.matrix import Report
from crash.scenes import Shown, noise
from hinet_node.errors import NodeError, NoSpace
from hinet_node.vault.core import VaultCore
from hinet_simnet.filesystem import FailingCalls, History, Outcome, outcomes
from hinet_simnet.filesystem.faults import CHANGING, NEEDING_ROOM, READING

Step = tuple[Callable[[VaultCore], Any], Callable[[Shown], Shown]]
"""What is done, and what it makes of the files that are shown."""


def _put(**files: bytes) -> Step:
    named = {name.encode(): data for name, data in files.items()}
    return lambda core: core.put(named, None), lambda shown: shown | named


def _remove(name: bytes) -> Step:
    return lambda core: core.edits.remove({name}), lambda shown: {key: shown[key] for key in shown if key != name}


def _collect(core: VaultCore) -> None:
    core.collector.give_up(core.collector.plan(core.collector.retention(0, 0)))
    core.collector.confirm()
    core.collector.sweep(packs_max=1_000, waive_age=True)


def steps() -> list[Step]:
    """A short life."""
    return [_put(first=b"1", second=noise(9_000, "second")), _put(large=noise(100_000, "large")),
            _put(first=b"1 again"), _remove(b"second"), _put(second=b"2"), _put(third=noise(3_000, "third")),
            (_collect, lambda shown: shown)]


@dataclass(frozen=True)
class Fault:
    """What goes wrong."""

    at: int
    number: int
    sticky: bool
    after: bool = False
    short: bool = False
    reading: bool = False

    def __str__(self) -> str:
        what = "a short write" if self.short else errno.errorcode[self.number]
        kind = "reading call" if self.reading else "call"
        return f"{what} {'from' if self.sticky else 'at'} {kind} {self.at}{' after its work' if self.after else ''}"

    def calls(self, filesystem: Filesystem) -> FailingCalls:
        among = NEEDING_ROOM if self.number in (errno.ENOSPC, errno.EDQUOT) else READING if self.reading else CHANGING
        return FailingCalls(filesystem, at=self.at, number=self.number, sticky=self.sticky, after=self.after,
                            short=self.short, among=among)


def _counted(among: tuple[str, ...]) -> int:
    calls = FailingCalls(Filesystem(), among=among)
    world = households().World()
    core = opened_core(world, world.member("laptop"), Disk(calls))
    for work, _ in steps():
        work(core)
    content(core)
    return calls.count


def faults(every: bool) -> Iterator[Fault]:
    """All of them, or with each call one error of each manner, the errors taking turns. A read that fails once is a
    disk that failed for a moment: nothing may be set aside for it."""
    numbers = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
    for at in range(1, _counted(READING) + 1, 1 if every else 4):
        yield Fault(at, errno.EIO, False, reading=True)
    for at in range(1, _counted(CHANGING) + 1):
        chosen = numbers if every else (numbers[at % 4], errno.EIO)
        for number, sticky in itertools.product(chosen, (False, True)):
            yield Fault(at, number, sticky)
        yield Fault(at, errno.EIO, False, after=True)
        yield Fault(at, errno.EIO, False, short=True)


def run(*, seed: int, share: float = 1.0, every: bool = False, failures_max: int = 5) -> Report:
    """Live through each fault."""
    report, chooses = Report("errors"), Random(seed)
    for fault in faults(every):
        report.points += 1
        report.states += 1
        if chooses.random() >= share:
            continue
        report.checked += 1
        try:
            live_through(fault, Random(f"{seed} {fault}"))
        except Exception as error:
            report.failures.append(f"{fault}: {type(error).__name__}: {error}")
            if len(report.failures) >= failures_max:
                break
    return report


def live_through(fault: Fault, dice: Random) -> None:
    """One life with one fault. Raises `Broken`."""
    world = households().World()
    member, filesystem = world.member("laptop"), Filesystem()
    calls = fault.calls(filesystem)
    core, shown, in_doubt = opened_core(world, member, Disk(calls)), Shown(), list[Shown]()
    for work, makes in steps():
        failed = calls.failed
        try:
            work(core)
        except (NodeError, OSError) as error:
            require(calls.failed > failed, f"an error without a cause: {error!r}")
            _check_words(fault, error)
            calls_then = calls.at
            calls.mend()
            # A head that is there and neither synced nor taken back is in doubt until the disk works again.
            in_doubt += [makes(shown)] if fault.sticky else []
            _check_same(world, member, filesystem, [shown, *in_doubt], "right after the error")
            calls.at = calls_then
        else:
            shown = makes(shown)
        require(content(core) == shown, f"memory shows {sorted(content(core))}, not {sorted(shown)}")
    calls.mend()
    core.put({AFTERWARDS: b"goes on"}, None)
    shown[AFTERWARDS] = b"goes on"
    require(content(core) == shown, "what was stored after the error is not what is shown")
    verify(core)
    _check_same(world, member, filesystem, [shown], "at the end")
    require(filesystem.open_descriptors() == 0, "descriptors were left open")
    history, end = History(filesystem.record), len(filesystem.record)
    drawn: list[Outcome] = list(outcomes(history, end, dice, 4))
    for outcome in (drawn[0], *drawn[-5:]):
        _check_same(world, member, history.state(end, outcome).filesystem(), [shown], f"after a cut ({outcome.what})")


def _check_words(fault: Fault, error: Exception) -> None:
    if fault.number == errno.EIO:
        require(isinstance(error, NodeError) or getattr(error, "errno", None) == errno.EIO, f"{error!r}")
        return
    require(isinstance(error, NoSpace), f"{fault} is told as {error!r}")
    assert isinstance(error, NoSpace)
    require(bool(error.next_step), f"no next step: {error}")


def _check_same(world: Any, member: Any, filesystem: Any, possible: list[Shown], when: str) -> None:
    """A new start finds what this one has in memory."""
    record = list(filesystem.record)
    again = opened_core(world, member, Disk(filesystem))
    found = content(again)
    require(found in possible, f"{when} a new start shows {sorted(found)}, this one {sorted(possible[0])}")
    require(not again.heads.forks(), f"{when}: a fork")
    try:
        verify(again)
    except Broken as error:
        raise Broken(f"{when} {error}") from None
    aside = [path for path in filesystem.files() if path.endswith(".damaged")]
    require(not aside, f"{when}: set aside {aside}")
    filesystem.record[:] = record
