"""Play a scenario and keep its trace. Leaves playing to `guard` and the file's form to `tracefile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hinet_simnet import levels
from hinet_simnet.findings import Outcome
from hinet_simnet.levels import Progress
from hinet_simnet.runs import guard
from hinet_simnet.runs.program import program
from hinet_simnet.runs.tracefile import FILE_BYTES_MAX, TraceWriter, header_of
from hinet_simnet.scenario.model import Scenario


@dataclass(frozen=True)
class Recorded:
    """A run and its trace file (None when none was wanted). `short` says why the file lacks events, when it does."""

    outcome: Outcome
    path: Path | None = None
    short: str = ""


def record(scenario: Scenario, *, level: str, seed: int, path: Path | None = None, wall_s: float = guard.WALL_S,
           bytes_max: int = FILE_BYTES_MAX, progress: Progress = lambda facts: None,
           run: guard.Play = levels.play) -> Recorded:
    """Play it, with its trace in `path`. Errors: `SimnetError` when refused (then no file is left), `OSError`."""
    if path is None:
        return Recorded(guard.play(scenario, level=level, seed=seed, wall_s=wall_s, progress=progress,
                                   run=run).outcome or _never())
    header = header_of(scenario=scenario.name, text=scenario.text, file=scenario.file, seed=seed, level=level,
                       program=program())
    writer = TraceWriter(path, header, bytes_max=bytes_max)
    try:
        watched = guard.play(scenario, level=level, seed=seed, sink=writer.line, wall_s=wall_s, progress=progress,
                             run=run)
    except BaseException:
        writer.close()
        path.unlink(missing_ok=True)
        raise
    outcome = watched.outcome or _never()
    writer.end(outcome, asked_to_stop_at=watched.asked_to_stop_at)
    short = writer.problem
    if writer.cut and not short:
        short = f"{path} holds the first {writer.recorded:,} of {writer.events:,} events (its limit is reached)"
    return Recorded(outcome, path, short)


def _never() -> Outcome:
    raise AssertionError("a watched run always has an outcome")
