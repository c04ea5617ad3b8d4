"""Averaging a vector of a million floats over 100 nodes, ten rounds, beside Flower's simulation of the same.

Flower is no dependency: HINET_BENCH_FLOWER names the Python of an environment with `flwr[simulation]`. Without it, the
figures stand beside those recorded once, which were taken in another run.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.measure import TICKS_PER_S, Bench, family

HERE = Path(__file__).parent
SHARES = (1.0, 0.1)
RECORDED = {1.0: (41.7, 1908.0), 0.1: (10.7, 1090.0)}
"""CPU s and MiB (PSS), medians of three: flwr 1.42.0, ray 2.55.1, 2 virtual CPUs, Python 3.11, 2026-12-01."""
SUBREAPER = 36
PATIENCE_S = 300.0


def run(bench: Bench) -> None:
    flower = os.environ.get("HINET_BENCH_FLOWER")
    for share in SHARES:
        ours, theirs = [], []
        for _ in range(bench.repeats):
            ours.append(_ours(share))
            if flower:
                theirs.append(_flower(flower, share, bench.folder))
        if len({(one["model"], one["trace"]) for one in ours}) != 1:
            raise RuntimeError("two runs with one seed gave different bits")
        peer = "Flower's simulation" if flower else "Flower's simulation, RECORDED 2026-12-01"
        cpu_s = [one["cpu_s"] for one in theirs] or [RECORDED[share][0]]
        memory = [one["peak_mib"] for one in theirs] or [RECORDED[share][1]]
        name = f"100 nodes, 10 rounds, 1M floats, {share:.0%} take part"
        bench.row(name, "CPU s", [one["cpu_s"] for one in ours], peer, cpu_s)
        bench.row(name, "MiB at the peak", [one["peak_mib"] for one in ours], peer, memory)
        bench.notes.append(f"{share:.0%}: {len(ours)} runs, all with the model {ours[0]['model'][:16]} and the trace "
                           f"{ours[0]['trace'][:16]}.")
    if not flower:
        bench.notes.append("Flower's column is from another run (flwr 1.42.0, ray 2.55.1; 2 virtual CPUs): "
                           "HINET_BENCH_FLOWER=PYTHON, one with flwr[simulation] installed, measures it beside ours.")


def _ours(share: float) -> dict[str, Any]:
    line = [sys.executable, str(HERE / "averaging_run.py"), str(share)]
    path = os.pathsep.join(place for place in sys.path if place)
    done = subprocess.run(line, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _flower(python: str, share: float, folder: Path) -> dict[str, float]:
    """CPU seconds of all its processes and the largest sum of their PSS, sampled."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # what it leaves behind stays below us
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(HOME=str(folder), FLWR_HOME=str(folder / "flwr"), FLWR_TELEMETRY_ENABLED="0",
                       FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
    log = folder / "flower.log"
    before = set(family(os.getpid()))
    deadline = time.monotonic() + PATIENCE_S
    with log.open("wb") as out:
        process = subprocess.Popen([python, str(HERE / "flower_run.py"), str(share)], env=environment, cwd=folder,
                                   stdout=out, stderr=subprocess.STDOUT)
        cpu_s: dict[int, float] = {}
        peak = 0.0
        while process.poll() is None and time.monotonic() < deadline:
            members = [member for member in family(os.getpid()) if member not in before]
            cpu_s.update({member: max(_own_cpu_s(member), cpu_s.get(member, 0.0)) for member in members})
            peak = max(peak, sum(_pss_mib(member) for member in members))
            time.sleep(0.2)
    if process.poll() is None:
        process.kill()
        process.wait()
    said = log.read_text(errors="replace")
    if process.returncode or not re.search(r"MEAN 0\.10000", said):
        raise RuntimeError(f"Flower ended with {process.returncode}: {said[-500:]}")
    return {"cpu_s": sum(cpu_s.values()), "peak_mib": peak}


def _own_cpu_s(process_id: int) -> float:
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _pss_mib(process_id: int) -> float:
    try:
        lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
