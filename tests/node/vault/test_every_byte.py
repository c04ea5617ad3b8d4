"""Bit rot anywhere: a changed byte in each file of a small vault is found, named and repaired from a sibling."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from tests.node.vault.test_checking import noise

from hinet_simnet.disk import MemoryDisk

FLIPS_PER_FILE = 6
KINDS = {"packs": {"pack", "list"}, "heads": {"head"}, "seq": {"seq"}}


def files_of(disk: MemoryDisk) -> list[str]:
    """Every file of the home, but the caches, which are in memory here."""
    def below(folder: str) -> list[str]:
        found = []
        for entry in disk.list(folder):
            path = f"{folder}/{entry}" if folder else entry
            try:
                disk.read(path)
                found.append(path)
            except IsADirectoryError:
                found += below(path)
        return found
    return below("")


def flips(disk: MemoryDisk) -> list[tuple[str, int, int]]:
    """(path, where, which bit): the first and the last byte of each file, and some between."""
    dice, found = random.Random(7), []
    for path in files_of(disk):
        size = disk.size(path)
        places = {0, size - 1, *(dice.randrange(size) for _ in range(FLIPS_PER_FILE - 2))}
        found += [(path, at, dice.randrange(8)) for at in sorted(places)]
    return found


@pytest.mark.parametrize("role", ["member", "keeper"])
def test_a_changed_byte_in_any_file_is_found_named_and_repaired_from_a_sibling(world: Any, role: str) -> None:
    async def main() -> None:
        left = await world.node("desk")
        right = await world.node("laptop", keeper=role == "keeper")
        for number in range(3):
            await left.vault.put(b"n%d" % number, noise(20_000, str(number)))
        async with world.running(left, right):
            await world.until(lambda: world.in_step(left, right))
        if role == "member":
            await right.vault.put(b"own", b"words of the laptop")
            await left.open()
            await right.open()
            async with world.running(left, right):
                await world.until(lambda: world.in_step(left, right) and b"own" in left.vault.core.shown())
        good, opened = right.disk.copy(), 10
        for path, at, bit in flips(good):
            if path == "device.wrote":
                continue  # it is written again when the heads are there, and asked for only when they are not
            opened += 1
            right.disk, right.opened = good.copy(), opened * 100
            raw = bytearray(good.read(path))
            raw[at] ^= 1 << bit
            right.disk.write_atomic(path, bytes(raw))
            await left.open()
            await right.open()
            where = f"{path} at {at}, bit {bit}"
            kinds = {fault.kind for fault in (await right.vault.verify()).faults}
            assert kinds, f"not found: {where}"
            assert kinds <= KINDS[path.split("/")[1]], f"named as {kinds}: {where}"
            async with world.running(left, right):
                report = await right.vault.repair(timeout_s=10)
                assert report.ok, f"not repaired: {where}: {report}"
            assert (await right.vault.verify(deep=True)).ok, where
            whole = set(files_of(right.disk))
            assert {one for one in files_of(good) if not one.startswith("vault/heads")} <= whole, where
            assert not [one for one in whole if one.endswith(".damaged")], where
            if role == "member":
                assert await right.names() == [b"n0", b"n1", b"n2", b"own"], where
                assert await right.vault.get(b"own") == b"words of the laptop"
                assert right.vault.core.heads.own().seq >= max(
                    head.seq for head in left.vault.core.heads.current() if head.device == right.member.public), where
    trio.run(main)
