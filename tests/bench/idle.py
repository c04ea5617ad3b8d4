"""What an agent costs while nothing happens: processor and memory, beside Syncthing in the same seconds."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

from bench import household, syncthing
from bench.measure import Bench, busy_s, memory_mib, until

WINDOW_S = 15.0
SETTLE_S = 5.0
FILES = 100


def run(bench: Bench) -> None:
    source = bench.folder / "files"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:03d}").write_bytes(random.Random(number).randbytes(8192))
    with ExitStack() as stack:
        first, second = stack.enter_context(household.pair(bench.folder / "house"))
        first.json("vault", "add", str(source))
        until(lambda: first.packs() and first.packs() <= second.packs())
        watched = {"ours": [first.process_id, second.process_id]}
        if bench.has("syncthing", "syncthing"):
            sender, receiver = stack.enter_context(syncthing.pair(bench.folder / "syncthing"))
            syncthing.share(sender, receiver, "idle", source, bench.folder / "copy", FILES)
            watched["syncthing"] = [sender.process.pid, receiver.process.pid]
        time.sleep(SETTLE_S)
        begun, before = time.perf_counter(), {name: [busy_s(one) for one in ids] for name, ids in watched.items()}
        time.sleep(WINDOW_S)
        passed_s = time.perf_counter() - begun
        percent = {name: [100 * (busy_s(one) - was) / passed_s for one, was in zip(ids, before[name], strict=True)]
                   for name, ids in watched.items()}
        memory = {name: [memory_mib(one) for one in ids] for name, ids in watched.items()}
    bench.row(f"idle agent, {WINDOW_S:.0f} s", "CPU %", percent["ours"], "syncthing",
              percent.get("syncthing", []))
    bench.row("idle agent", "MiB resident", memory["ours"], "syncthing", memory.get("syncthing", []))
