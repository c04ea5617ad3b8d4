"""A soak's ledger: how many events were played over all soaks of a release, and which seed is next.

One small JSON file, changed under a lock and replaced in one step: several soaks may share it.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hinet_simnet.errors import SimnetError

SCHEMA = "hinet.simnet.ledger/1"
GOAL_EVENTS = 10 ** 9
FILE_BYTES_MAX = 1 << 20


@dataclass
class Total:
    """What was played under one version of the program."""

    events: int = 0
    runs: int = 0
    findings: int = 0
    virtual_s: float = 0.0
    next_seed: int = 1


class Ledger:
    """The totals by version. Errors: `SimnetError` for a file that is something else, `OSError`."""

    def __init__(self, path: Path, version: str) -> None:
        self.path = path
        self.version = version

    def read(self) -> Total:
        """The total of this version so far."""
        return self._all().get(self.version, Total())

    def add(self, *, events: int, runs: int, findings: int, virtual_s: float, next_seed: int) -> Total:
        """Add what was played; returns the new total."""
        with self.path.with_name(self.path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            totals = self._all()
            total = totals.setdefault(self.version, Total())
            total.events += events
            total.runs += runs
            total.findings += findings
            total.virtual_s += virtual_s
            total.next_seed = max(total.next_seed, next_seed)
            new = self.path.with_name(self.path.name + ".new")
            new.write_text(json.dumps({"schema": SCHEMA, "versions": {name: asdict(one) for name, one in
                                                                      totals.items()}}, indent=1) + "\n")
            new.replace(self.path)
        return total

    def _all(self) -> dict[str, Total]:
        if not self.path.exists():
            return {}
        try:
            if self.path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError("too large")
            found = json.loads(self.path.read_text())
            if found["schema"] != SCHEMA:
                raise ValueError(f"its schema is {found['schema']!r}")
            return {str(name): Total(**one) for name, one in found["versions"].items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SimnetError(f"{self.path} is no ledger of soaks ({error})", code="E_LEDGER",
                              next_step="choose another file with --ledger") from error
