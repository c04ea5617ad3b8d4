"""Sweeps: one scenario with many seeds and many values, on all cores or on a Ray cluster.

Leaves playing to `job`, and which core or machine plays to `pool` and `ray_engine`. The result is the same on either.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hinet_node.errors import UsageError
from hinet_simnet.errors import BadScenario
from hinet_simnet.findings import Outcome
from hinet_simnet.runs.job import Done, Job
from hinet_simnet.runs.parameters import Parameter, combinations, with_values
from hinet_simnet.runs.scenarios import from_text, refuse_level
from hinet_simnet.scenario.model import Scenario

SCHEMA = "hinet.simnet.sweep/1"
ENGINES = ("processes", "ray")
_LINE = re.compile(r"^\d+: ")


@dataclass(frozen=True)
class Row:
    """One run of a sweep."""

    values: dict[str, Any]
    seed: int
    outcome: Outcome
    refused: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Flat, for JSON and CSV; of each measured series its last value."""
        outcome = self.outcome
        found: dict[str, Any] = {
            **self.values, "seed": self.seed, "ok": outcome.ok and not self.refused,
            "findings": len(outcome.findings), "checkers": sorted({found.checker for found in outcome.findings}),
            "events": outcome.events, "messages": outcome.messages, "message_bytes": outcome.message_bytes,
            "virtual_s": outcome.virtual_s, "digest": outcome.digest, "refused": self.refused}
        return found | {f"fact {name}": value for name, value in last_facts(outcome).items()}


def last_facts(outcome: Outcome) -> dict[str, Any]:
    """The last value of each series that the run measured."""
    found: dict[str, Any] = {}
    for name, series in sorted(outcome.facts.items()):
        last = series[-1] if isinstance(series, list) and series else series
        value = last[-1] if isinstance(last, list) and last else last
        if isinstance(value, str | int | float | bool):
            found[name] = value
    return found


def jobs_of(scenario: Scenario, parameters: Sequence[Parameter], seeds: Sequence[int], *, level: str,
            wall_s: float) -> tuple[list[Job], list[dict[str, Any]]]:
    """Every run, and the values that it stands for, in order. Each text is checked before anything starts.

    Errors: `BadScenario`, `NotAtThisLevel`, `UsageError`.
    """
    jobs: list[Job] = []
    values_of: list[dict[str, Any]] = []
    for values, pairs in groupby(combinations(parameters, seeds), key=lambda pair: pair[0]):
        text = with_values(scenario.text, values)
        changed = _changed(scenario, text, values)
        refuse_level(changed, level)
        for _, seed in pairs:
            jobs.append(Job(text, seed, level=level, file=scenario.file, wall_s=wall_s, key=str(len(jobs))))
            values_of.append(values)
    return jobs, values_of


def _changed(scenario: Scenario, text: str, values: dict[str, Any]) -> Scenario:
    """A fault is told with the values that made it: the lines of the changed text are nowhere to be seen."""
    try:
        return from_text(text, file=scenario.file)
    except BadScenario as error:
        given = " ".join(f"--set {path}={value}" for path, value in values.items())
        faults = [_LINE.sub("", fault.removeprefix(f"{scenario.file}:")) for fault in error.what.splitlines()]
        raise BadScenario("\n".join(faults), where=given or scenario.file, next_step=error.next_step) from error


def engine(name: str) -> Callable[..., Generator[Done, None, None]]:
    """`play_all` of an engine. Errors: `UsageError` when there is no such one, or its package is missing."""
    if name == "processes":
        from hinet_simnet.runs.pool import play_all

        return play_all
    if name == "ray":
        from hinet_simnet.runs.ray_engine import play_all_on_ray

        return play_all_on_ray
    raise UsageError(f"there is no engine {name!r}", next_step=f"one of: {', '.join(ENGINES)}")


def sweep(jobs: Sequence[Job], values: Sequence[dict[str, Any]], *, workers: int, engine_name: str = "processes",
          shown: Callable[[int, Done], None] = lambda count, done: None) -> tuple[list[Row], bool]:
    """Play all; the rows in the order of the jobs, and whether Ctrl-C came first (then only what was done)."""
    play = engine(engine_name)
    rows: dict[int, Row] = {}
    interrupted = False
    running = play(jobs, workers=workers)
    try:
        for done in running:
            place = int(done.job.key)
            rows[place] = Row(values[place], done.job.seed, done.outcome, done.refused)
            shown(len(rows), done)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        running.close()
    return [rows[place] for place in sorted(rows)], interrupted


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For each set of values: runs, how many were ok, means of what was counted and measured."""
    found = []
    for _, group in groupby(rows, key=lambda row: json.dumps(row.values, default=str)):
        same = list(group)
        count = len(same)
        facts = [last_facts(row.outcome) for row in same]
        numbers = sorted({name for one in facts for name, value in one.items() if isinstance(value, int | float)})
        found.append({
            "values": same[0].values, "runs": count, "ok": sum(row.outcome.ok and not row.refused for row in same),
            "findings": sum(len(row.outcome.findings) for row in same),
            "events": sum(row.outcome.events for row in same) / count,
            "message_bytes": sum(row.outcome.message_bytes for row in same) / count,
            "virtual_s": sum(row.outcome.virtual_s for row in same) / count,
            "facts": {name: _mean([one[name] for one in facts if name in one]) for name in numbers}})
    return found


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """One line a run. Errors: `OSError`."""
    flat = [row.as_dict() for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        for row in flat:
            writer.writerow({key: ";".join(value) if isinstance(value, list) and key == "checkers" else value
                             for key, value in row.items()})


def _mean(values: Sequence[Any]) -> float:
    return sum(float(value) for value in values) / len(values)
