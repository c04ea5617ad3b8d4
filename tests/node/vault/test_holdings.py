"""How many copies there are, and who is behind: by what siblings really said, also after a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
from tests.node.vault.test_checking import holder_of, noise
from tests.node.vault.test_salvage import alone, flip

from hinet_node.real.disk import RealDisk
from hinet_node.vault import VaultStatus
from hinet_node.vault.packfolder import pack_path


def state(status: VaultStatus, node: Any) -> Any:
    (found,) = [one for one in status.devices if one.device == node.member.public]
    return found


def test_data_on_one_device_only_is_counted_until_a_sibling_has_it(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        status = await node.vault.status()
        assert (status.copies_least, status.single_packs, status.other_devices) == (1, status.packs, 0)
        nas = await world.node("nas", keeper=True)
        status = await node.vault.status()
        assert (status.copies_least, status.other_devices) == (1, 1)
        assert state(status, nas).behind is None
        async with world.running(node, nas):
            await world.until(lambda: world.in_step(node, nas))
            await world.until(lambda: nas.member.public in node.vault.core.peers_hold)
        status = await node.vault.status()
        assert (status.copies_least, status.single_packs, status.single_bytes) == (2, 0, 0)
        await node.vault.put(b"more", noise(70_000, "more"))
        status = await node.vault.status()
        sizes = node.vault.core.store.index.packs()
        said = node.vault.core.store.notes.holdings(nas.member.public)
        fresh = [size for name, size in sizes.items() if name not in said]
        assert (status.copies_least, status.single_packs, status.single_bytes) == (1, len(fresh), sum(fresh))
        lacks = state(status, nas)
        assert (lacks.behind_packs, lacks.behind_bytes) == (len(fresh), sum(fresh))
        assert (lacks.exact, lacks.keeper) == (True, True)
        assert lacks.behind_since == int(node.clock.now)
    trio.run(main)


def test_what_a_keeper_said_is_known_after_a_restart(world: Any, tmp_path: Any) -> None:
    async def main() -> None:
        settings = replace(world.small, index_path=None)
        node = await world.node("laptop", RealDisk(tmp_path / "h"), settings=settings)
        nas = await world.node("nas", keeper=True)
        await node.vault.put(b"a", noise(9_000))
        async with world.running(node, nas):
            await world.until(lambda: world.in_step(node, nas))
            await world.until(lambda: nas.member.public in node.vault.core.peers_hold)
        await node.open()  # as after a kill
        status = await node.vault.status()
        assert status.copies_least == 2
        assert state(status, nas).in_step
        assert state(status, nas).said == int(node.clock.now)
        assert status.copies[node.member.public] == 2
    trio.run(main)


def test_a_sibling_that_lost_a_pack_says_so_and_the_copy_does_not_count(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        nas = await world.node("nas", keeper=True)
        async with world.running(node, nas):
            await world.until(lambda: world.in_step(node, nas))
            await world.until(lambda: nas.member.public in node.vault.core.peers_hold)
        pack = holder_of(node, b"large")
        nas.disk.remove(pack_path(pack))
        nas.member.family.revoked.add(node.member.public)  # so that it does not fetch it at once
        await nas.open()
        await nas.vault.verify()
        node.vault.core.met(nas.member.public, list(nas.vault.core.store.index.packs()))
        status = await node.vault.status()
        assert (status.copies_least, status.single_packs) == (1, 1)
    trio.run(main)


def test_a_revoked_device_is_no_copy(world: Any) -> None:
    async def main() -> None:
        node, desk = await alone(world), await world.node("desk")
        async with world.running(node, desk):
            await world.until(lambda: world.in_step(node, desk) and desk.vault.core.heads.own() is not None)
        assert (await node.vault.status()).copies_least == 2
        world.family.revoked.add(desk.member.public)
        status = await node.vault.status()
        assert (status.copies_least, status.other_devices) == (1, 0)
        assert status.copies[node.member.public] == 1
    trio.run(main)


def test_how_far_a_member_is_behind_is_exact_when_it_said_what_it_holds(world: Any) -> None:
    """It may have fetched some packs already, which its last head can't tell."""
    async def main() -> None:
        node, desk = await alone(world), await world.node("desk")
        async with world.running(node, desk):
            await world.until(lambda: world.in_step(node, desk) and desk.vault.core.heads.own() is not None)
        for number in range(4):
            await node.vault.put(b"n%d" % number, noise(60_000, str(number)))
        held = node.vault.core.store.index.packs()
        behind = state(await node.vault.status(), desk)
        assert behind.behind
        some = sorted(set(held) - set(desk.vault.core.store.index.packs()))
        assert behind.behind_packs == len(some)
        node.vault.core.met(desk.member.public, [*desk.vault.core.store.index.packs(), *some[:-1]])
        behind = state(await node.vault.status(), desk)
        assert (behind.behind_packs, behind.behind_bytes, behind.exact) == (1, held[some[-1]], True)
    trio.run(main)


@pytest.mark.parametrize("keeper", [False, True])
def test_what_is_damaged_is_told_after_a_restart_too(world: Any, keeper: bool) -> None:
    async def main() -> None:
        left = await alone(world)
        node = await world.node("other", keeper=keeper)
        async with world.running(left, node):
            await world.until(lambda: world.in_step(left, node))
        pack = next(iter(node.vault.core.store.on_disk()))
        flip(node.disk, pack_path(pack), 400)
        await node.vault.verify()
        await node.open()
        status = await node.vault.status()
        assert (status.missing_packs, status.damaged_packs) == (1, 1)
        (trouble,) = [one for one in status.trouble if one.code == "E_PACK_DAMAGED"]
        assert "repair" in trouble.next_step
    trio.run(main)


def test_a_vault_that_lost_its_own_record_says_so(world: Any) -> None:
    async def main() -> None:
        node = await alone(world)
        folder = f"vault/heads/{node.member.public.hex()}"
        flip(node.disk, f"{folder}/{node.disk.list(folder)[-1]}", 30)
        await node.open()
        assert "E_VAULT_DOUBT" in {one.code for one in (await node.vault.status()).trouble}
        await node.vault.repair(timeout_s=0)
        assert {one.code for one in (await node.vault.status()).trouble} == set()
    trio.run(main)
