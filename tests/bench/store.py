"""The vault as a store: adding, adding again, checking deeply and getting back, beside restic and borg."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench import household
from bench.measure import Bench, Used, command, cpu_s, memory_mib
from bench.random_files import make

SMALL_SETS = {"128 MiB in 4 files": (4, 32 << 20, 32 << 20), "1,000 files of 4 to 20 KiB": (1000, 4096, 20_480)}
FULL_SETS = {"1 GiB in 16 files": (16, 64 << 20, 64 << 20), "5,000 files of 4 to 20 KiB": (5000, 4096, 20_480)}
STEPS = {"first add": ("restic backup", "borg create"), "second add, nothing changed": ("restic backup", "borg create"),
         "verify --deep": ("restic check --read-data", "borg check --verify-data"),
         "get": ("restic restore", "borg extract")}
Runs = dict[tuple[str, str], list[Used]]
"""(program, step) -> what each repeat took."""


def run(bench: Bench) -> None:
    """A fresh home and fresh repositories for each repeat; `HINET_BENCH_STORE=full` takes the large sets."""
    sets = FULL_SETS if os.environ.get("HINET_BENCH_STORE") == "full" else SMALL_SETS
    peers = [name for name, package in (("restic", "restic"), ("borg", "borgbackup")) if bench.has(name, package)]
    for name, (files, least, most) in sets.items():
        runs: Runs = {}
        for repeat in range(bench.repeats):
            source = bench.folder / f"set-{repeat}"
            make(source, files, least, most, seed=repeat)
            for program in ("ours", *peers):
                place = bench.folder / program
                place.mkdir()
                _LINES[program](runs, source, place)
                shutil.rmtree(place)
            shutil.rmtree(source)
        _rows(bench, name, runs, peers)


def _rows(bench: Bench, name: str, runs: Runs, peers: list[str]) -> None:
    for step, words in STEPS.items():
        for peer, word in zip(("restic", "borg"), words, strict=True):
            if peer not in peers and peers:
                continue
            ours, theirs = runs["ours", step], runs.get((peer, step), [])
            bench.row(f"{step}: {name}", "s", [one.wall_s for one in ours], word, [one.wall_s for one in theirs])
            bench.row(f"{step}: {name}", "CPU s", [one.cpu_s for one in ours], word, [one.cpu_s for one in theirs])
    for peer in peers or ["restic"]:
        bench.row(f"peak memory over all steps: {name}", "MiB", _peak(runs, "ours"), peer, _peak(runs, peer))


def _peak(runs: Runs, program: str) -> list[float]:
    return [max((one.peak_mib for (who, _), found in runs.items() if who == program for one in found), default=0.0)]


def _ours(runs: Runs, source: Path, place: Path) -> None:
    """The command's start is part of each step; CPU and memory are those of command and agent together."""
    with household.house(place, ["only"]) as (node,):
        for step, arguments in (("first add", ("vault", "add", str(source))),
                                ("second add, nothing changed", ("vault", "add", str(source))),
                                ("verify --deep", ("vault", "verify", "--deep")),
                                ("get", ("vault", "get", source.name, "--out", str(place / "back")))):
            os.sync()
            before_s = cpu_s(node.process_id)
            used = command(node.line(*arguments), environment=household.environment())
            runs.setdefault(("ours", step), []).append(Used(
                used.wall_s, used.cpu_s + cpu_s(node.process_id) - before_s,
                used.peak_mib + memory_mib(node.process_id, "VmHWM")))


def _restic(runs: Runs, source: Path, place: Path) -> None:
    line = ["restic", "--quiet", "--cache-dir", str(place / "cache"), "--repo", str(place / "repository")]
    _peer("restic", runs, {"RESTIC_PASSWORD": "bench"}, [*line, "init"], (
        [*line, "backup", str(source)], [*line, "backup", str(source)], [*line, "check", "--read-data"],
        [*line, "restore", "latest", "--target", str(place / "back")]))


def _borg(runs: Runs, source: Path, place: Path) -> None:
    repository, back = str(place / "repository"), place / "back"
    back.mkdir()
    _peer("borg", runs, {"BORG_PASSPHRASE": "bench", "BORG_BASE_DIR": str(place)},
          ["borg", "init", "--encryption", "repokey-blake2", repository], (
        ["borg", "create", f"{repository}::first", str(source)],
        ["borg", "create", f"{repository}::second", str(source)],
        ["borg", "check", "--verify-data", repository],
        ["env", "-C", str(back), "borg", "extract", f"{repository}::first"]))


def _peer(name: str, runs: Runs, words: dict[str, str], init: list[str], lines: tuple[list[str], ...]) -> None:
    environment = {**os.environ, **words}
    subprocess.run(init, check=True, capture_output=True, env=environment)
    for step, line in zip(STEPS, lines, strict=True):
        os.sync()
        runs.setdefault((name, step), []).append(command(line, environment=environment))


_LINES = {"ours": _ours, "restic": _restic, "borg": _borg}
