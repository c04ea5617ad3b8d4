"""The crash matrix: every call of a scene is a crash point, and at each there are many states that it may leave.

States that leave the same files are looked at once. Leaves what must hold to `checks`.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from crash.checks import check
from crash.scenes import Recording
from hinet_simnet.filesystem.crash import History, Outcome, State, outcomes

REORDERINGS = 32
_PAGE_BYTES = 4096


@dataclass
class Report:
    """What a run of the matrix came to."""

    scene: str
    points: int = 0
    states: int = 0
    """States made, those included that leave the same files as one before."""
    checked: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CrashState:
    """One state to look at."""

    calls: int
    outcome: Outcome
    state: State
    index: bytes | None
    number: int


def states(recording: Recording, dice: Random, report: Report) -> Iterator[CrashState]:
    """The states of all crash points that differ from those before."""
    history, seen = History(recording.record), set()
    for calls in range(len(recording.record) + 1):
        report.points += 1
        for outcome in outcomes(history, calls, dice, REORDERINGS):
            report.states += 1
            state = history.state(calls, outcome)
            key = (recording.steps_at(calls), frozenset(state.tree().items()))
            if key not in seen:
                seen.add(key)
                yield CrashState(calls, outcome, state, _index(recording, calls, dice), report.states)


def _index(recording: Recording, calls: int, dice: Random) -> bytes | None:
    """What may be left of SQLite's file, which nobody synced: nothing, an old one, the newest, pages or sectors of
    both, a beginning, another file's bytes. None is for none at all, in memory."""
    past = [data for reached, data in recording.indexes if reached <= calls]
    kind = dice.choice(("memory", "none", "old", "newest", "pages", "sectors", "cut", "strange"))
    if kind in ("memory", "none") or not past or not past[-1]:
        return None if kind == "memory" else b""
    if kind == "strange":
        return bytes(100) + past[-1][100:] if dice.random() < 0.5 else b"SQLite format 3\0" + dice.randbytes(5_000)
    newest, old = past[-1], dice.choice(past[-4:])
    if kind == "cut":
        return newest[:dice.randrange(len(newest))]
    if kind in ("old", "newest"):
        return old if kind == "old" else newest
    unit = _PAGE_BYTES if kind == "pages" else 512
    return b"".join((newest if dice.random() < 0.5 else old or newest)[at:at + unit]
                    for at in range(0, len(newest), unit))


def run(recording: Recording, scratch: Path, *, seed: int, share: float = 1.0, siblings: float = 1.0,
        failures_max: int = 5) -> Report:
    """Look at a share of the states, drawn by `seed`; at the given share of these a sibling comes by as well."""
    report, dice, chooses = Report(recording.name), Random(f"{seed} {recording.name}"), Random(seed)
    for one in states(recording, dice, report):
        sibling = chooses.random() < siblings
        if chooses.random() >= share:
            continue
        report.checked += 1
        try:
            check(recording, one.state.filesystem(), one.calls, one.index, scratch, sibling=sibling)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            report.failures.append(
                f"{recording.name}: a crash after {one.calls} calls ({recording.record[one.calls - 1]!r:.150}), "
                f"{one.outcome.what} (state {one.number}, seed {seed}, index "
                f"{'in memory' if one.index is None else len(one.index)}): {type(error).__name__}: {error} "
                f"[{Path(where.filename).name}:{where.lineno}]")
            if len(report.failures) >= failures_max:
                break
    return report
