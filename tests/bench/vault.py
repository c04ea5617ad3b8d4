"""The vault: storing files durably, and a second device holding every pack, both over real sockets and disks."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from bench import household, syncthing
from bench.household import Node
from bench.measure import Bench, command, cpu_s, until

SETS = {"256 MiB in 4 files": (4, 64 << 20, 64 << 20), "1,000 files of 4 to 20 KiB": (1000, 4096, 20_480)}
Figures = dict[str, list[float]]


def run(bench: Bench) -> None:
    """Fresh random files for each repeat, since every tool here keeps equal content once."""
    figures: dict[str, Figures] = {name: {} for name in SETS}
    with ExitStack() as stack:
        first, second = stack.enter_context(household.pair(bench.folder / "house"))
        peers = None
        if bench.has("syncthing", "syncthing"):
            peers = stack.enter_context(syncthing.pair(bench.folder / "syncthing"))
        restic = _restic(bench.folder) if bench.has("restic", "restic") else []
        for repeat in range(bench.repeats):
            for at, name in enumerate(SETS):
                source = bench.folder / f"set-{repeat}-{at}"
                make(source, *SETS[name], seed=repeat)
                found = figures[name]
                _ours(found, first, second, source, SETS[name][0])
                _backup(found, restic, source, bench.folder / "copy")
                if peers is not None:
                    _syncthing(found, peers, source, bench.folder / f"target-{repeat}-{at}", SETS[name][0])
                shutil.rmtree(source)
    for name, found in figures.items():
        _rows(bench, name, found)


def _rows(bench: Bench, name: str, found: Figures) -> None:
    def row(what: str, unit: str, ours: str, peer: str, theirs: str) -> None:
        bench.row(f"{what}: {name}", unit, found[ours], peer, found.get(theirs, []))

    row("put", "s", "put", "restic backup", "restic")
    row("put", "CPU s", "put cpu", "restic backup", "restic cpu")
    row("put", "s", "put", "cp -r and sync", "copy")
    row("put until durable on the other", "s", "whole", "syncthing: scan + transfer", "syncthing")
    row("after the put until durable on the other", "s", "transfer", "syncthing: transfer", "syncthing transfer")
    row("put and transfer, both devices", "CPU s", "cpu", "syncthing", "syncthing cpu")


def _ours(found: Figures, first: Node, second: Node, source: Path, files: int) -> None:
    """The command line's own start is part of the put; durable means under a pack's final name."""
    os.sync()
    before = cpu_s(first.process_id), cpu_s(second.process_id)
    begun = time.perf_counter()
    adding = command(first.line("vault", "add", str(source)), environment=household.environment())
    added = time.perf_counter()
    put_cpu_s = cpu_s(first.process_id) - before[0] + adding.cpu_s
    packs = first.packs()
    done = until(lambda: packs <= second.packs())
    until(lambda: len(second.json("vault", "ls", "-R", source.name + "/")["items"]) == files, every_s=0.2)
    both = cpu_s(first.process_id) - before[0] + cpu_s(second.process_id) - before[1] + adding.cpu_s
    _add(found, {"put": added - begun, "put cpu": put_cpu_s, "whole": done - begun, "transfer": done - added,
                 "cpu": both})


def _backup(found: Figures, restic: list[str], source: Path, copy: Path) -> None:
    if restic:
        used = command([*restic, "backup", str(source)], environment={**os.environ, "RESTIC_PASSWORD": "bench"})
        _add(found, {"restic": used.wall_s, "restic cpu": used.cpu_s})
    begun = time.perf_counter()
    shutil.copytree(source, copy)
    subprocess.run(["sync", "-f", str(copy)], check=True)
    _add(found, {"copy": time.perf_counter() - begun})
    shutil.rmtree(copy)


def _syncthing(found: Figures, peers: tuple[syncthing.Instance, syncthing.Instance], source: Path, target: Path,
               files: int) -> None:
    before = sum(cpu_s(peer.process.pid) for peer in peers)
    scan_s, transfer_s = syncthing.share(*peers, source.name, source, target, files)
    _add(found, {"syncthing": scan_s + transfer_s, "syncthing transfer": transfer_s,
                 "syncthing cpu": sum(cpu_s(peer.process.pid) for peer in peers) - before})
    for peer in peers:
        peer.api("DELETE", f"config/folders/{source.name}")
    shutil.rmtree(target)


def _restic(folder: Path) -> list[str]:
    """The command's beginning, its repository made (with its slow key, once)."""
    line = ["restic", "--quiet", "--no-cache", "--repo", str(folder / "restic")]
    subprocess.run([*line, "init"], check=True, capture_output=True, env={**os.environ, "RESTIC_PASSWORD": "bench"})
    return line


def make(folder: Path, count: int, least: int, most: int, *, seed: int) -> None:
    """Files of random bytes, a hundred in each folder."""
    source = random.Random(f"{folder.name} {seed}")
    for number in range(count):
        place = folder / f"{number // 100:02d}"
        place.mkdir(parents=True, exist_ok=True)
        with (place / f"{number:04d}.bin").open("wb") as file:
            left = source.randint(least, most)
            while left:
                file.write(source.randbytes(min(left, 4 << 20)))
                left -= min(left, 4 << 20)


def _add(found: Figures, values: dict[str, float]) -> None:
    for name, value in values.items():
        found.setdefault(name, []).append(value)
