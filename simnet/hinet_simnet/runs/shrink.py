"""Finds the smallest scenario that still fails, by leaving out and playing again. Same seed, same checker.

Leaves what may be left out to `reductions`, playing to a worker process of `pool`. At the world level the result
repeats (unless the time limit ended it); elsewhere a failure that comes and goes may end it early.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hinet_simnet.errors import BadScenario, SimnetError
from hinet_simnet.findings import Outcome
from hinet_simnet.runs import reductions
from hinet_simnet.runs.job import Done, Job
from hinet_simnet.runs.scenarios import as_toml, from_text
from hinet_simnet.scenario.model import Scenario

SCHEMA = "hinet.simnet.shrink/1"
TRY_WALL_S_MIN = 20.0
TRY_WALL_TIMES = 3.0
"""A try may take so many times as long as the whole scenario did."""
TRIES_MAX = 5_000

PlayJob = Callable[[Job], Done]


class NotFailing(SimnetError):
    """What should be shrunk does not fail."""

    code = "E_NOT_FAILING"


@dataclass
class Shrunk:
    """What was reached. `complete`: nothing more could be left out (else time or Ctrl-C ended it)."""

    first: Scenario
    best: Scenario
    checker: str
    outcome: Outcome
    tries: int = 0
    complete: bool = False
    interrupted: bool = False
    wall_s: float = 0.0
    _known: dict[str, bool] = field(default_factory=dict, repr=False)

    def sizes(self) -> list[tuple[str, float, float]]:
        """(what, before, after), for people."""
        return [(what, _size(self.first)[what], _size(self.best)[what]) for what in _size(self.best)]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"ok": True, "checker": self.checker, "tries": self.tries, "complete": self.complete,
                "interrupted": self.interrupted, "wall_s": self.wall_s, "scenario": self.best.text,
                "before": _size(self.first), "after": _size(self.best), "outcome": self.outcome.as_dict()}


class _Enough(Exception):
    """The time or the number of tries is over."""


def shrink(scenario: Scenario, *, seed: int, level: str, play: PlayJob, checker: str = "", limit_s: float = 600.0,
           wall_s: float = 300.0, shown: Callable[[Shrunk], None] = lambda shrunk: None) -> Shrunk:
    """The smallest scenario found. Errors: `NotFailing`, `BadScenario` when the text can't be played."""
    begun_s = time.monotonic()
    first = play(Job(scenario.text, seed, level=level, file=scenario.file, wall_s=wall_s))
    if first.refused:
        raise BadScenario(first.refused)
    checkers = [finding.checker for finding in first.outcome.findings]
    if not checkers or (checker and checker not in checkers):
        raise NotFailing(f"{scenario.name} with seed {seed} plays through without a finding"
                         f"{f' of {checker!r}' if checker else ''}{_others(checkers)}",
                         next_step="play it again with this program: hinet-node simnet run SCENARIO --seed SEED")
    shrunk = Shrunk(scenario, scenario, checker or checkers[0], first.outcome)
    try_s = max(TRY_WALL_S_MIN, TRY_WALL_TIMES * (time.monotonic() - begun_s))
    if shrunk.checker == "hang":
        try_s = min(try_s, wall_s)

    def fails(candidate: Scenario) -> bool:
        return _fails(shrunk, candidate, seed, level, play, try_s, shown, begun_s + limit_s)

    try:
        _reduce(shrunk, fails)
        shrunk.complete = True
    except _Enough:
        pass
    except KeyboardInterrupt:
        shrunk.interrupted = True
    shrunk.wall_s = time.monotonic() - begun_s
    return shrunk


def _reduce(shrunk: Shrunk, fails: reductions.Fails) -> None:
    """Round after round over all that may be left out, until a round leaves nothing out."""
    before = ""
    while before != shrunk.best.text:
        before = shrunk.best.text
        until_s = next(finding.at_s for finding in shrunk.outcome.findings if finding.checker == shrunk.checker)
        reductions.shorter(shrunk.best, fails, until_s=until_s)
        reductions.without_some(shrunk.best, list(shrunk.best.households()), reductions.with_households, fails)
        reductions.without_some(shrunk.best, shrunk.best.steps, reductions.with_steps, fails)
        reductions.without_some(shrunk.best, shrunk.best.devices, reductions.with_devices, fails)
        reductions.without_some(shrunk.best, shrunk.best.links, reductions.with_links, fails)
        reductions.plainer(shrunk.best, fails)


def _fails(shrunk: Shrunk, candidate: Scenario, seed: int, level: str, play: PlayJob, try_s: float,
           shown: Callable[[Shrunk], None], deadline_s: float) -> bool:
    """Play a candidate (once for each text) and keep it when the same checker fires."""
    whole = _as_read(replace(candidate, seed=seed))
    if whole is None or whole.text == shrunk.best.text:
        return False
    if whole.text in shrunk._known:
        return shrunk._known[whole.text]
    if time.monotonic() > deadline_s or shrunk.tries >= TRIES_MAX:
        raise _Enough
    shrunk.tries += 1
    done = play(Job(whole.text, seed, level=level, file=whole.file, wall_s=try_s))
    failed = any(finding.checker == shrunk.checker for finding in done.outcome.findings)
    shrunk._known[whole.text] = failed
    if failed:
        shrunk.best, shrunk.outcome = whole, done.outcome
    shown(shrunk)
    return failed


def _as_read(candidate: Scenario) -> Scenario | None:
    """The candidate as it would be read from its file; None when that is no scenario."""
    if not candidate.devices:
        return None
    try:
        return from_text(as_toml(candidate), file=f"{candidate.name}.toml")
    except BadScenario:
        return None


def _size(scenario: Scenario) -> dict[str, float]:
    return {"devices": len(scenario.devices), "households": len(scenario.households()), "steps": len(scenario.steps),
            "links": len(scenario.links), "duration_s": scenario.duration_s, "settle_s": scenario.settle_s}


def _others(checkers: list[str]) -> str:
    return f" (but with one of: {', '.join(sorted(set(checkers)))})" if checkers else ""
