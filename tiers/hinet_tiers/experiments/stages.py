"""A long experiment as stages: each is done once, its result kept beside it, so a run that was stopped goes on.

A folder belongs to one plan (what is run, at which size and seed); another plan is refused. Progress is one count over
all stages by their expected share, with a line said for each stage that is through.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hinet_tiers.backend import Progress
from hinet_tiers.errors import TierError

PLAN = "plan.json"
UNITS = 10_000


class OtherPlan(TierError):
    """The folder holds another experiment, or other things."""

    code = "E_EXPERIMENT_OTHER"
    exit_code = 6


class Stages:
    """Runs stages in a folder. `weights` are what each is expected to cost, in any unit."""

    def __init__(self, folder: Path, plan: Mapping[str, Any], weights: Mapping[str, float], progress: Progress) -> None:
        self.folder, self._weights, self._progress = folder, dict(weights), progress
        self._done = 0.0
        self.said: list[str] = []
        self.cpu_s = self.wall_s = 0.0
        _claim(folder, plan)

    def run(self, name: str, do: Callable[[Progress], dict[str, Any]], say: Callable[[dict[str, Any]], str]) -> Any:
        """The result of a stage: read where it was done before, else made and kept. `say` words its line."""
        path = self.folder / "stages" / f"{name}.json"
        weight = self._weights.get(name, 0.0)
        if path.is_file():
            kept = json.loads(path.read_bytes())
            told = f"{say(kept['result'])} (kept from before)"
        else:
            wall, cpu = time.perf_counter(), time.process_time()
            result = do(self._within(name, weight))
            kept = {"result": result, "cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
            write_json(path, kept)
            told = f"{say(result)} [{kept['cpu_s']:.0f} CPU s]"
        self.cpu_s += kept["cpu_s"]
        self.wall_s += kept["wall_s"]
        self._done += weight
        self.said.append(f"{name}: {told}")
        self._report(0.0, name)
        return kept["result"]

    def _within(self, name: str, weight: float) -> Progress:
        def progress(step: int, total: int, note: str = "", **more: Any) -> None:
            self._report(weight * min(1.0, step / max(1, total)), f"{name}: {note}" if note else name)

        return progress

    def finish(self) -> None:
        """Say that all stages are through."""
        self._progress(UNITS, UNITS, "done", said=self.said[-50:], said_count=len(self.said))

    def _report(self, part: float, note: str) -> None:
        whole = max(sum(self._weights.values()), 1e-9)
        self._progress(min(UNITS - 1, int(UNITS * (self._done + part) / whole)), UNITS, note, said=self.said[-50:],
                       said_count=len(self.said))  # fmt: skip


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _claim(folder: Path, plan: Mapping[str, Any]) -> None:
    path = folder / PLAN
    if path.is_file():
        try:
            found = json.loads(path.read_bytes())
        except ValueError as error:
            raise OtherPlan(f"{path} is damaged ({error}): give a new folder with --out.") from error
        if found != dict(plan):
            raise OtherPlan(f"{folder} holds another run (other size, seed or settings): give a new folder with --out.")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OtherPlan(f"{folder} is there already and holds something else: give a new folder with --out.")
    write_json(path, dict(plan))
