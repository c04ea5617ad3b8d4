"""What every bench needs: rows with ours and a peer's figures, measured commands, what a process tree has used."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 120.0


@dataclass
class Row:
    """One measured thing. `theirs` is empty where the peer is missing; `less` says which way is better."""

    what: str
    unit: str
    ours: list[float]
    peer: str
    theirs: list[float] = field(default_factory=list)
    less: bool = True
    bar: float | None = None
    """What our median has to reach, at most or at least as `less` says."""
    ratio_bar: float | None = None
    """What the ratio has to reach."""

    @property
    def passes(self) -> bool | None:
        """Whether every bar there is is reached; None without a bar, and where the peer to compare with is missing."""
        figures = [(self.bar, statistics.median(self.ours) if self.ours else None), (self.ratio_bar, self.ratio)]
        told = [figure <= bar if self.less else figure >= bar
                for bar, figure in figures if bar is not None and figure is not None]
        return all(told) if told else None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's, medians."""
        if not self.theirs or not self.ours or not statistics.median(self.theirs):
            return None
        return statistics.median(self.ours) / statistics.median(self.theirs)

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "unit": self.unit, "ours": spread(self.ours), "peer": self.peer,
                "theirs": spread(self.theirs), "ratio": self.ratio, "better": "less" if self.less else "more",
                "bar": self.bar, "ratio_bar": self.ratio_bar, "passes": self.passes}


@dataclass
class Bench:
    """One bench's run: how often, where it may write, and what it found."""

    name: str
    repeats: int
    folder: Path
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, what: str, unit: str, ours: Sequence[float], peer: str, theirs: Sequence[float] = (), *,
            less: bool = True, bar: float | None = None, ratio_bar: float | None = None) -> None:
        self.rows.append(Row(what, unit, list(ours), peer, list(theirs), less, bar, ratio_bar))

    def has(self, program: str, package: str) -> bool:
        """Whether a peer is installed; notes the package when it isn't."""
        if shutil.which(program):
            return True
        self.notes.append(f"{program} is not installed, so its column is empty: Debian's package is {package}.")
        return False


@dataclass
class Used:
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mib: float = 0.0
    """Of its largest process."""


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, smallest, largest, count."""
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def command(line: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Used:
    """Run a command to its end, its output thrown away."""
    begun = time.perf_counter()
    process = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begun
    process.stderr.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        words = said.decode("utf-8", "replace")[-500:]
        raise RuntimeError(f"{' '.join(line[:4])} ended with {process.returncode}: {words}")
    return Used(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def family(process_id: int) -> list[int]:
    """A process and all that descend from it (Linux)."""
    found, waiting = [], [process_id]
    while waiting:
        found.append(waiting.pop())
        for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            waiting += [int(child) for child in _read(task).split()]
    return found


def cpu_s(process_id: int) -> float:
    """User and system seconds of a process tree so far, with those of children that have ended."""
    total = 0
    for member in family(process_id):
        fields = _read(Path(f"/proc/{member}/stat")).rpartition(")")[2].split()
        total += sum(int(value) for value in fields[11:15])
    return total / TICKS_PER_S


def busy_s(process_id: int) -> float:
    """Like `cpu_s` to the nanosecond, without threads and processes that have ended: for trees where none do."""
    tasks = [task for member in family(process_id) for task in Path(f"/proc/{member}/task").glob("*/schedstat")]
    return sum(int((_read(task) or "0").split()[0]) for task in tasks) / 1e9


def wakeups(process_id: int) -> int:
    """How often the threads of a process tree went to sleep of their own accord, without threads that have ended."""
    texts = [_read(status) for member in family(process_id)
             for status in Path(f"/proc/{member}/task").glob("*/status")]
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines()
               if line.startswith("voluntary_ctxt_switches"))


def memory_mib(process_id: int, key: str = "VmRSS") -> float:
    """Memory of a process tree by a key of /proc/PID/status; `VmHWM` is the peak."""
    total = 0
    for member in family(process_id):
        for line in _read(Path(f"/proc/{member}/status")).splitlines():
            if line.startswith(f"{key}:"):
                total += int(line.split()[1])
    return total / 1024


def until(condition: Callable[[], object], *, every_s: float = 0.02, patience_s: float = PATIENCE_S) -> float:
    """Wait for a condition; returns when it was seen (`time.perf_counter`)."""
    deadline = time.perf_counter() + patience_s
    while not condition():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"it did not happen within {patience_s:.0f} s")
        time.sleep(every_s)
    return time.perf_counter()


@contextmanager
def timed(into: list[float], cpu_into: list[float] | None = None) -> Iterator[None]:
    """Append the seconds of a block, and its processor seconds (all threads)."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    yield
    into.append(time.perf_counter() - begun)
    if cpu_into is not None:
        cpu_into.append(time.process_time() - begun_cpu)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has just ended
        return ""
