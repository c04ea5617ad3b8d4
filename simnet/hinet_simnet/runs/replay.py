"""Plays a trace's scenario again and compares event by event. Leaves the file to `tracefile`, playing to `guard`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hinet_simnet import levels
from hinet_simnet.errors import BadTrace
from hinet_simnet.findings import Outcome
from hinet_simnet.levels import Progress
from hinet_simnet.runs import guard
from hinet_simnet.runs.program import differences
from hinet_simnet.runs.scenarios import from_text
from hinet_simnet.runs.tracefile import Header, TraceReader

SCHEMA = "hinet.simnet.replay/1"
COMPARED_LEVELS = ("world",)
"""Where the same seed gives the same events. Elsewhere real time has its say."""
BEFORE, AFTER = 5, 3
"""Events that are shown around the first one that differs."""
NO_MORE = "(no more events)"
NOT_IN_FILE = "(beyond what the file holds; the digest of all events differs)"


@dataclass
class Difference:
    """The first event (counted from 1) that differs, with what came before and what follows on each side."""

    event: int
    recorded: str
    played: str
    before: list[str] = field(default_factory=list)
    recorded_after: list[str] = field(default_factory=list)
    played_after: list[str] = field(default_factory=list)


@dataclass
class Recording:
    """What a trace file holds, once it has been read through. `events`: those that a replay must give again; `whole`:
    there were no others, the run came to its own end."""

    header: Header
    outcome: Outcome | None
    events: int
    whole: bool
    cut: bool


@dataclass
class Replayed:
    """How a replay went. `compared` is 0 where the level's events don't repeat."""

    recording: Recording
    outcome: Outcome
    comparable: bool
    compared: int = 0
    difference: Difference | None = None

    @property
    def interrupted(self) -> bool:
        """Ctrl-C came before all was compared."""
        return self.difference is None and self.outcome.interrupted and (
            not self.comparable or self.compared < self.recording.events)

    @property
    def same(self) -> bool:
        return self.difference is None and not self.interrupted

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"ok": self.same, "scenario": self.recording.header.scenario, "seed": self.recording.header.seed,
                "level": self.recording.header.level, "comparable": self.comparable, "compared": self.compared,
                "events": self.recording.events, "whole": self.recording.whole, "cut": self.recording.cut,
                "interrupted": self.interrupted, "outcome": self.outcome.as_dict(),
                "difference": None if self.difference is None else asdict(self.difference)}


class Comparison:
    """Holds each event that is played against the recorded one; the trace's sink while replaying."""

    def __init__(self, recorded: Iterator[str], recording: Recording) -> None:
        self._recorded = recorded
        self._recording = recording
        self._before: deque[str] = deque(maxlen=BEFORE)
        self.compared = 0
        self.difference: Difference | None = None

    def line(self, line: str) -> None:
        found = self.difference
        if found is not None:
            if len(found.played_after) < AFTER:
                found.played_after.append(line)
        elif self.compared < self._recording.events:
            wanted = next(self._recorded)
            if wanted == line:
                self._before.append(line)
                self.compared += 1
            else:
                self._differs(wanted, line)
        elif self._recording.whole and not self._recording.cut:
            self._differs(NO_MORE, line)

    def enough(self) -> bool:
        """Whether nothing more will be learned from playing on."""
        if self.difference is not None:
            return len(self.difference.played_after) >= AFTER
        return self.compared >= self._recording.events and not self._recording.whole

    def ended(self, outcome: Outcome) -> None:
        """The replayed run has ended by itself: then the recorded one must have, at the same event."""
        if self.difference is not None or self.enough() or outcome.interrupted:
            return
        recorded = self._recording.outcome
        if self.compared < self._recording.events:
            self._differs(next(self._recorded), NO_MORE)
        elif recorded is not None and recorded.digest and recorded.digest != outcome.digest:
            self._differs(NOT_IN_FILE, NOT_IN_FILE)

    def _differs(self, recorded: str, played: str) -> None:
        following: list[str] = []
        while len(following) < AFTER and self.compared + 1 + len(following) < self._recording.events:
            following.append(next(self._recorded))
        self.difference = Difference(self.compared + 1, recorded, played, list(self._before), following)


def read_through(path: Path) -> Recording:
    """Read a trace file to its end, so that damage is known before anything starts. Errors: `BadTrace`, `OSError`."""
    with TraceReader(path) as reader:
        for _ in reader.lines():
            pass
        outcome, footer = reader.outcome(), reader.footer
        events, whole = reader.events, outcome is not None
        if footer is not None and outcome is not None:
            stopped_at = footer["asked_to_stop_at"]
            hung = any(finding.checker == "hang" for finding in outcome.findings)
            whole = stopped_at is None and not hung and not outcome.interrupted
            events = events if stopped_at is None else min(events, stopped_at)
        return Recording(reader.header, outcome, events, whole, reader.cut)


def refuse_other_program(path: Path, header: Header) -> None:
    """Errors: `BadTrace` when another program made this trace."""
    found = differences(header.program)
    if found:
        raise BadTrace(f"{path}: it was made by another hinet-node ({'; '.join(found)}), so its run need not repeat",
                       next_step="install the program that made it, or add --anyway to play and compare all the same")


def replay(path: Path, *, anyway: bool = False, wall_s: float = guard.WALL_S,
           progress: Progress = lambda facts: None, run: guard.Play = levels.play) -> Replayed:
    """Play a trace file's scenario and compare. Errors: `BadTrace`, `BadScenario`, before anything starts."""
    recording = read_through(path)
    header = recording.header
    if not anyway:
        refuse_other_program(path, header)
    scenario = from_text(header.text, file=header.file)
    if header.level not in COMPARED_LEVELS:
        watched = guard.play(scenario, level=header.level, seed=header.seed, wall_s=wall_s, progress=progress, run=run)
        assert watched.outcome is not None
        return Replayed(recording, watched.outcome, False)
    with TraceReader(path) as reader:
        comparison = Comparison(reader.lines(), recording)
        watched = guard.play(scenario, level=header.level, seed=header.seed, wall_s=wall_s, progress=progress, run=run,
                             sink=comparison.line, enough=comparison.enough)
        assert watched.outcome is not None
        comparison.ended(watched.outcome)
    return Replayed(recording, watched.outcome, True, comparison.compared, comparison.difference)
