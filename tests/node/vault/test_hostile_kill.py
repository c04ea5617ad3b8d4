"""A process that is killed (SIGKILL, real files) at random instants of storing: what it acknowledged is whole."""

from __future__ import annotations

import os
import random
import select
import signal
from pathlib import Path
from typing import Any

import trio

from hinet_node.real.disk import RealDisk
from hinet_simnet.randomness import SeededRandomness


def content(number: int) -> bytes:
    return SeededRandomness(number, "content").draw(random.Random(number).choice([0, 10, 5_000, 200_000]))


def store_until_killed(world: Any, home: Path, first: int, said: int) -> None:
    """The child: stores files and says the number of each that was acknowledged."""
    async def main() -> None:
        node = await world.node("victim", RealDisk(home))
        for number in range(first, first + 1_000):
            await node.vault.put_many({b"a%d" % number: content(number), b"b%d" % number: content(number + 7)})
            os.write(said, b"%d\n" % number)
    try:
        trio.run(main)
    finally:
        os._exit(1)


def test_a_kill_at_any_instant_loses_nothing_that_was_acknowledged(world: Any, tmp_path: Path) -> None:
    dice, home, done = random.Random(5), tmp_path / "home", -1
    for _ in range(4):
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            store_until_killed(world, home, done + 1, said)
        os.close(said)
        assert select.select([heard], [], [], 60)[0], "nothing was ever stored"
        select.select([], [], [], dice.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(heard, "rb") as acknowledged:
            done = max([done, *(int(line) for line in acknowledged if line.endswith(b"\n"))])

        async def look(done: int = done) -> int:
            node = await world.node("victim", RealDisk(home))
            report = await node.vault.verify(deep=True)
            assert report.ok
            names = await node.names()
            for number in range(done + 1):
                assert await node.vault.get(b"a%d" % number) == content(number)
                assert await node.vault.get(b"b%d" % number) == content(number + 7)
            assert len(names) % 2 == 0, "half of what was stored at once is there"
            return len(names) // 2 - 1
        done = max(done, trio.run(look))
    assert done >= 3
    assert home.stat().st_mode & 0o777 == 0o700
