"""One run as a value that another process, or another machine, can play: plain JSON in, plain JSON out.

`work` plays a job where it is called; `main` is the program of a worker process, which plays one job after the other,
one line each. Leaves who calls it to `pool` (processes on this machine) and `ray_engine` (a cluster).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hinet_node.errors import NodeError
from hinet_simnet.errors import SimnetError
from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.runs import guard
from hinet_simnet.runs.tracefile import finite, outcome_of

LINE_BYTES_MAX = 1 << 26


@dataclass(frozen=True)
class Job:
    """What to play: a scenario's text. `trace`: where the trace goes, "" for nowhere. `key` is the caller's."""

    text: str
    seed: int
    level: str = "world"
    file: str = ""
    wall_s: float = 300.0
    trace: str = ""
    key: str = ""


@dataclass(frozen=True)
class Done:
    """How a job went. `refused` when the scenario could not be played at all."""

    job: Job
    outcome: Outcome
    refused: str = ""
    short: str = ""


def work(given: Mapping[str, Any]) -> dict[str, Any]:
    """Play a job; never raises for what is wrong with the run."""
    from hinet_simnet.runs.record import record
    from hinet_simnet.runs.scenarios import from_text

    job = Job(**given)
    try:
        scenario = from_text(job.text, file=job.file)
        recorded = record(scenario, level=job.level, seed=job.seed, path=Path(job.trace) if job.trace else None,
                          wall_s=job.wall_s)
    except (SimnetError, OSError) as error:
        return {"refused": error.what if isinstance(error, NodeError) else str(error)}
    return {"outcome": finite(recorded.outcome.as_dict()), "short": recorded.short}


def done_of(job: Job, answer: Mapping[str, Any]) -> Done:
    """A worker's answer as a value; what it should not be is a finding."""
    if "refused" in answer:
        return Done(job, Outcome("", job.level, job.seed), refused=str(answer["refused"]))
    try:
        return Done(job, outcome_of(answer["outcome"]), short=str(answer.get("short", "")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return lost(job, "crash", f"the worker answered something else ({error})")


def lost(job: Job, checker: str, message: str) -> Done:
    """The worker did not come back with an outcome: that is the finding."""
    outcome = Outcome("", job.level, job.seed, findings=[Finding(checker, message, 0.0)])
    return Done(job, outcome)


def limit_s(job: Job) -> float:
    """When a worker that has not answered is given up: later than its own watch would end the run."""
    return job.wall_s + 2 * guard.GRACE_S + 20.0


def main() -> int:
    """A worker process: a job a line on stdin, an answer a line on stdout. Ends with stdin."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a run prints must not look like an answer
    for line in sys.stdin:
        answers.write(json.dumps(work(json.loads(line))) + "\n")
        answers.flush()
    return 0


def line_of(job: Job) -> bytes:
    """A job as a worker process reads it."""
    return json.dumps(asdict(job)).encode("ascii") + b"\n"


if __name__ == "__main__":
    sys.exit(main())
