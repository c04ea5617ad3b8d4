"""A crash at every call that changes the disk, before it, after it and in the middle; then a restart that must find
everything that was acknowledged. And an error in place of the crash, which must leave the vault usable."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace
from typing import Any

import pytest
import trio

from hinet_node.errors import NoSpace
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness

CHANGING = ("write_atomic", "append", "commit", "remove")


class PowerCut(BaseException):
    """The process is gone. A BaseException, so that no handler for errors can act on it."""


class FailingDisk:
    """A MemoryDisk whose call number `at` fails. `how`: before, after, or torn (half of what is appended)."""

    def __init__(self, inner: MemoryDisk, at: int, how: str, error: BaseException | None) -> None:
        self.inner, self.at, self.how, self.error = inner, at, how, error
        self.calls = 0
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.inner, name)
        if name not in CHANGING:
            return real

        def call(*args: Any, **more: Any) -> Any:
            if self.dead:
                raise PowerCut
            self.calls += 1
            if self.calls != self.at:
                return real(*args, **more)
            if self.how == "torn" and name == "append":
                real(args[0], args[1][:len(args[1]) // 2])
            elif self.how == "after":
                real(*args, **more)
            self.dead = self.error is None
            raise self.error or PowerCut
        return call


def noise(size: int, seed: str) -> bytes:
    return SeededRandomness(seed).draw(size)


PUTS: list[dict[bytes, bytes]] = [
    {b"first": b"1", b"second": noise(9_000, "second")},
    {b"large": noise(150_000, "large")},
    {b"first": b"1 again", b"third": noise(5_000, "third")},
]


STATES: list[dict[bytes, bytes]] = [{}]
for files in PUTS:
    STATES.append(STATES[-1] | files)
STATES.append({name: content for name, content in STATES[-1].items() if name != b"third"})
STATES.append(STATES[-1] | {b"third": b"3"})


async def work(node: Any, done: list[int]) -> None:
    """Go through the states; `done` counts the steps that were acknowledged."""
    for files in PUTS:
        await node.vault.put_many(files)
        done[0] += 1
    await node.vault.remove([b"third"])
    done[0] += 1
    await node.vault.put(b"third", b"3")
    done[0] += 1


async def check(node: Any, steps: int) -> None:
    """The vault is as after the acknowledged steps, or as after one more: never in between."""
    found = {name: await node.vault.get(name) for name in await node.names() if name != b"afterwards"}
    assert found in STATES[steps:steps + 2]
    report = await node.vault.verify(deep=True)
    assert report.ok, report
    assert "E_FORK" not in {trouble.code for trouble in (await node.vault.status()).trouble}
    await node.vault.put(b"afterwards", b"goes on")
    assert await node.vault.get(b"afterwards") == b"goes on"


def count_calls(world: Any) -> int:
    async def main() -> int:
        disk = FailingDisk(MemoryDisk("home"), 0, "before", None)
        node = await world.node("laptop", disk)
        await work(node, [0])
        return disk.calls
    return trio.run(main)


@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_a_crash_at_any_call_loses_nothing_that_was_acknowledged(world: Any, how: str) -> None:
    total = count_calls(world)
    assert total >= 20

    async def main(at: int, keep: Any) -> None:
        inner = MemoryDisk("home")
        disk = FailingDisk(inner, at, how, None)
        done = [0]
        node = await world.node("laptop", disk)
        with pytest.raises(PowerCut):
            await work(node, done)
        inner.crash(keep)
        node.disk = inner
        seqs = [int(entry[:20]) for entry in inner.list(f"vault/heads/{node.member.public.hex()}")]
        await node.open()
        await check(node, done[0])
        assert (await node.vault.status()).head_seq > max(seqs, default=0)
        assert inner.list("vault/parts") == []

    for at in range(1, total + 1):
        for keep in (None, lambda size: size, lambda size: size // 2):
            trio.run(main, at, keep)


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("error", [NoSpace("full"), OSError(errno.EIO, "a bad sector")], ids=["full", "EIO"])
def test_an_error_at_any_call_leaves_the_vault_usable(world: Any, how: str, error: Exception) -> None:
    total = count_calls(world)

    async def main(at: int) -> None:
        disk = FailingDisk(MemoryDisk("home"), at, how, error)
        done = [0]
        node = await world.node("laptop", disk)
        with contextlib.suppress(NoSpace, OSError):
            await work(node, done)
        await check(node, done[0])
        await node.open()
        await check(node, done[0])

    for at in range(1, total + 1):
        trio.run(main, at)


@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_a_crash_at_any_call_of_a_transfer_loses_nothing(world: Any, how: str) -> None:
    settings = replace(world.small, sync_interval_s=0.02)

    async def transfer(at: int) -> int:
        left = await world.node("cloud", settings=settings)
        await left.vault.put_many(PUTS[0] | PUTS[1])
        inner = MemoryDisk("laptop")
        disk = FailingDisk(inner, at, how, None)
        right = await world.node("laptop", disk, settings=settings)
        try:
            async with world.running(left, right):
                await world.until(lambda: bool(right.vault.core.shown()) and right.vault.core.heads.own() is not None)
        except* PowerCut:
            pass
        calls = disk.calls
        if at:
            inner.crash(lambda size: size // 2)
            right.disk = inner
            await right.open()
            await left.open()
            async with world.running(left, right):
                await world.until(lambda: len(right.vault.core.shown()) == 3)
                assert await right.vault.get(b"large") == PUTS[1][b"large"]
                assert (await right.vault.verify(deep=True)).ok
        return calls

    total = trio.run(transfer, 0)
    assert total >= 7
    for at in range(1, total + 1):
        trio.run(transfer, at)
