"""Soaks: random scenarios, seed after seed, until a checker fires or the time is over.

Leaves what a random scenario is to `scenario.generate`, playing to `pool`, the total to `ledger`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hinet_simnet.runs.job import Done, Job
from hinet_simnet.runs.pool import play_all
from hinet_simnet.runs.scenarios import generate

SCHEMA = "hinet.simnet.soak/1"


@dataclass
class Soaked:
    """What a soak has come to. `found`: the runs with findings (the first one, unless it was to go on)."""

    first_seed: int
    next_seed: int
    runs: int = 0
    events: int = 0
    messages: int = 0
    message_bytes: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    interrupted: bool = False
    refused: list[str] = field(default_factory=list)
    found: list[Done] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"ok": not self.found and not self.refused and not self.interrupted, "first_seed": self.first_seed,
                "next_seed": self.next_seed, "runs": self.runs, "events": self.events, "messages": self.messages,
                "message_bytes": self.message_bytes, "virtual_s": self.virtual_s, "wall_s": self.wall_s,
                "interrupted": self.interrupted, "refused": self.refused,
                "found": [{"seed": done.job.seed, **done.outcome.as_dict()} for done in self.found]}


def soak(*, seconds: float, first_seed: int, workers: int, wall_s: float = 300.0, keep_going: bool = False,
         make: Callable[[int], str] | None = None, shown: Callable[[Soaked], None] = lambda soaked: None) -> Soaked:
    """Play scenario after scenario. `make`: a scenario's TOML from a seed."""
    begun_s = time.monotonic()
    soaked = Soaked(first_seed, first_seed)
    text_of = make or (lambda seed: generate(seed).text)
    finished: set[int] = set()

    def jobs() -> Iterator[Job]:
        seed = first_seed
        while time.monotonic() - begun_s < seconds and (keep_going or not soaked.found):
            yield Job(text_of(seed), seed, file=f"random-{seed}", wall_s=wall_s)
            seed += 1

    running = play_all(jobs(), workers=workers, over=lambda: time.monotonic() - begun_s > seconds)
    try:
        for done in running:
            _count(soaked, done, finished)
            soaked.wall_s = time.monotonic() - begun_s
            shown(soaked)
            if (soaked.found and not keep_going) or soaked.wall_s > seconds:
                break
    except KeyboardInterrupt:
        soaked.interrupted = True
    finally:
        running.close()
    soaked.wall_s = time.monotonic() - begun_s
    return soaked


def _count(soaked: Soaked, done: Done, finished: set[int]) -> None:
    """Add one run. The next seed is the first one that was not played to its end: nothing is passed over."""
    finished.add(done.job.seed)
    while soaked.next_seed in finished:
        finished.discard(soaked.next_seed)
        soaked.next_seed += 1
    if done.refused:
        soaked.refused.append(f"seed {done.job.seed}: {done.refused}")
        return
    outcome = done.outcome
    soaked.runs += 1
    soaked.events += outcome.events
    soaked.messages += outcome.messages
    soaked.message_bytes += outcome.message_bytes
    soaked.virtual_s += outcome.virtual_s
    if outcome.findings:
        soaked.found.append(done)
