"""Two devices that hold 100 GB in packs compare: nothing new, and one new file. Packs and index are made up.

The simulator runs both agents in this process, so the seconds are those of all the work of both sides; the bytes are
all that passed between them.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from bench.measure import Bench

PACKS, PACK_BYTES = 3_200, 33_554_432
MORE_PACKS = 32_000


def run(bench: Bench) -> None:
    none: dict[str, list[float]] = {"s": [], "kB": []}
    one: dict[str, list[float]] = {"s": [], "kB": []}
    far: dict[str, list[float]] = {"s": [], "kB": []}
    for repeat in range(bench.repeats):
        _measure(PACKS, repeat, none, one)
        _measure(MORE_PACKS, repeat, {"s": [], "kB": []}, far)
    for what, found in (("nothing new, 100 GB in 3,200 packs", none), ("one new small file, 100 GB", one),
                        ("one new small file, 1 TB in 32,000 packs", far)):
        bench.row(f"both compare: {what}", "s", found["s"], "none")
        bench.row(f"both compare: {what}", "kB", found["kB"], "none")


def _measure(packs: int, repeat: int, none: dict[str, list[float]], one: dict[str, list[float]]) -> None:
    from hinet_simnet.house import household

    with household("cloud", "laptop", seed=repeat, checkers=()) as house:
        passed: Counter[str] = Counter()
        house.look(lambda world: world.internet.taps.append(
            lambda source, target, label, data: passed.update({label: len(data)})))
        house.until_meshed()
        house.put("cloud", "first", b"first")
        house.until(lambda: house.holds("laptop", "first"))
        house.look(lambda world: _pretend(world, packs))
        house.sleep(60)
        passed.clear()
        begun = time.perf_counter()
        house.look(lambda world: [world.agent(name).replicator.nudge() for name in ("cloud", "laptop")])
        house.sleep(2)
        none["s"].append(time.perf_counter() - begun)
        none["kB"].append(passed.total() / 1000)
        passed.clear()
        begun = time.perf_counter()
        house.put("cloud", "second", b"a new file")
        house.until(lambda: house.holds("laptop", "second"), every_s=0.05)
        one["s"].append(time.perf_counter() - begun)
        one["kB"].append(passed.total() / 1000)


def _pretend(world: Any, packs: int) -> None:
    """Both devices hold so many packs, and the newest head of the first one needs them."""
    from blake3 import blake3

    from hinet_protocol.heads import encode_pack_list, make_head
    from hinet_protocol.packs import pack_name

    names = sorted(blake3(number.to_bytes(8, "big")).digest() for number in range(packs))
    raw = encode_pack_list(names)
    cores = [world.agent(name).vault.core for name in ("cloud", "laptop")]
    writer = cores[0]
    own = writer.heads.own()
    seq = writer.heads.reserve()
    head = make_head(
        writer.household.sign, identity=own.identity, device=own.device, seq=seq, prev=own.hash, epoch=own.epoch,
        tree_chunk=own.tree_chunk, tree_pack=own.tree_pack, packs=own.packs, lists=[pack_name(raw)],
        vector=tuple(sorted({**dict(own.vector), own.device: seq}.items())), time=own.time)
    for core in cores:
        core.store.add_whole(pack_name(raw), raw)
        for name in names:
            core.store.index.add_pack(name, PACK_BYTES, ())
        core.accept([head])
