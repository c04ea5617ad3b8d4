"""What an agent with two siblings costs while nothing happens: processor and memory, beside Syncthing at once."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack

from bench import household, syncthing
from bench.measure import Bench, busy_s, memory_mib, until, wakeups

WINDOW_S = float(os.environ.get("HINET_BENCH_IDLE_S", "300"))
SETTLE_S = 20.0
FILES = 100
NAMES = ("first", "second", "third")


def run(bench: Bench) -> None:
    """Three agents, found over discovery on this machine, hold the same files. Syncthing has two instances."""
    source = bench.folder / "files"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:03d}").write_bytes(random.Random(number).randbytes(8192))
    with ExitStack() as stack:
        house = stack.enter_context(household.house(bench.folder / "house", NAMES, discover=True))
        house[0].json("vault", "add", str(source))
        until(lambda: house[0].packs() and all(house[0].packs() <= node.packs() for node in house))
        watched = {"ours": [node.process_id for node in house]}
        if bench.has("syncthing", "syncthing"):
            sender, receiver = stack.enter_context(syncthing.pair(bench.folder / "syncthing"))
            syncthing.share(sender, receiver, "idle", source, bench.folder / "copy", FILES)
            watched["syncthing"] = [sender.process.pid, receiver.process.pid]
        time.sleep(SETTLE_S)
        begun = time.perf_counter()
        busy = {name: [busy_s(one) for one in ids] for name, ids in watched.items()}
        woken = {name: [wakeups(one) for one in ids] for name, ids in watched.items()}
        time.sleep(WINDOW_S)
        passed_s = time.perf_counter() - begun
        percent = {name: [100 * (busy_s(one) - was) / passed_s for one, was in zip(ids, busy[name], strict=True)]
                   for name, ids in watched.items()}
        often = {name: [(wakeups(one) - was) / passed_s for one, was in zip(ids, woken[name], strict=True)]
                 for name, ids in watched.items()}
        for node in house:
            if node.connected() != len(NAMES) - 1:
                raise RuntimeError(f"{node.name} lost a sibling meanwhile")
        for what, unit, figures in (
                (f"idle agent, two siblings, {WINDOW_S:.0f} s", "CPU %", percent),
                ("idle agent", "wake-ups / s", often),
                ("idle agent", "MB resident", _memory(watched, "VmRSS")),
                ("idle agent, at its peak", "MB resident", _memory(watched, "VmHWM"))):
            bench.row(what, unit, figures["ours"], "syncthing", figures.get("syncthing", []))


def _memory(watched: dict[str, list[int]], key: str) -> dict[str, list[float]]:
    return {name: [memory_mib(one, key) * 1.048576 for one in ids] for name, ids in watched.items()}
