"""Replication: packs from one agent to another until they are durable there, real processes on loopback."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench import household, replication_compare, syncthing
from bench.household import Node
from bench.measure import Bench, command, cpu_s, memory_mib, until
from bench.random_files import make

SETS = {"1 GiB in 16 files": (16, 64 << 20, 64 << 20), "5,000 files of 4 to 20 KiB": (5_000, 4_096, 20_480)}
PEERS = {"syncthing": "syncthing, plain", "encrypted": "syncthing, to an encrypted device"}
Figures = dict[str, list[float]]


def run(bench: Bench) -> None:
    """Fresh random files for each repeat; ours and both ways of the peer in turn."""
    figures: dict[str, Figures] = {name: {} for name in SETS}
    with ExitStack() as stack:
        first, second = stack.enter_context(household.pair(bench.folder / "house"))
        peers = None
        if bench.has("syncthing", "syncthing"):
            peers = stack.enter_context(syncthing.pair(bench.folder / "syncthing"))
        for repeat in range(bench.repeats):
            for at, (name, (files, least, most)) in enumerate(SETS.items()):
                source = bench.folder / f"set-{repeat}-{at}"
                make(source, files, least, most, seed=repeat)
                size = sum(path.stat().st_size for path in source.rglob("*.bin"))
                _add(figures[name], "", _ours(first, second, source, files, size))
                for way in PEERS if peers is not None else ():
                    _add(figures[name], way, _theirs(peers, way, source, bench.folder / "target", files, size))
                shutil.rmtree(source)
    for name, found in figures.items():
        rate = "files / s" if "KiB" in name else "MB / s"
        for way, peer in PEERS.items():
            bench.row(f"after the add until durable on the other: {name}", rate, found[rate], peer,
                      found.get(way + rate, []), less=False)
        for what in ("CPU s of the sender", "CPU s of the receiver", "CPU s of both", "MiB of the sender at its peak",
                     "MiB of the receiver at its peak"):
            for way, peer in PEERS.items():
                bench.row(f"{name}", what, found[what], peer, found.get(way + what, []))
    replication_compare.run(bench)


def _ours(first: Node, second: Node, source: Path, files: int, size: int) -> Mapping[str, float]:
    """From the end of the add, which is not counted, to every pack under its final name on the other device."""
    os.sync()
    command(first.line("vault", "add", str(source)), environment=household.environment())
    begun, packs = time.perf_counter(), first.packs()
    before = cpu_s(first.process_id), cpu_s(second.process_id)
    done = until(lambda: packs <= second.packs(), every_s=0.005)
    until(lambda: len(second.json("vault", "ls", source.name + "/")["items"]) > 0, every_s=0.1)
    used = cpu_s(first.process_id) - before[0], cpu_s(second.process_id) - before[1]
    return _figures(done - begun, files, size, used, (first.process_id, second.process_id))


def _theirs(peers: tuple[syncthing.Instance, syncthing.Instance], way: str, source: Path, target: Path, files: int,
            size: int) -> Mapping[str, float]:
    """From the moment that the receiver knows the index to every file there: scanning, redialling are not counted."""
    processes = tuple(peer.process.pid for peer in peers)
    used: list[float] = []

    def scanned() -> None:
        os.sync()
        used.extend(cpu_s(process) for process in processes)

    name = f"{source.name}-{way}"  # a folder's name that was used before brings its old index along
    _, transfer_s = syncthing.share(*peers, name, source, target, files,
                                    password="bench-secret" if way == "encrypted" else "", scanned=scanned)
    spent = cpu_s(processes[0]) - used[0], cpu_s(processes[1]) - used[1]
    for peer in peers:
        peer.api("DELETE", f"config/folders/{name}")
    shutil.rmtree(target)
    return _figures(transfer_s, files, size, spent, processes)


def _figures(took_s: float, files: int, size: int, used: tuple[float, float], processes: tuple[int, ...],
             ) -> Mapping[str, float]:
    return {"MB / s": size / 1e6 / took_s, "files / s": files / took_s, "CPU s of the sender": used[0],
            "CPU s of the receiver": used[1], "CPU s of both": sum(used),
            "MiB of the sender at its peak": memory_mib(processes[0], "VmHWM"),
            "MiB of the receiver at its peak": memory_mib(processes[1], "VmHWM")}


def _add(found: Figures, way: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        found.setdefault(way + name, []).append(value)
