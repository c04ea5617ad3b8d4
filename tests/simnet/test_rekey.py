"""A copied home: both copies are held off until one has keys of its own; then all three belong."""

from __future__ import annotations

import pytest

from hinet_node import home
from hinet_node.belonging import chain_store, exchange
from hinet_node.belonging.device_keys import prepare_next
from hinet_node.belonging.join import Wanted, join_household
from hinet_node.belonging.membership import Membership
from hinet_node.errors import ConflictError, IntegrityError
from hinet_protocol.chain import make_device_add
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.invitations import parse_code
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World, run_world


async def cloned(world: World) -> None:
    """cloud (admin) and laptop (member, with a file), and a copy of laptop that was stopped once it was noticed."""
    await world.add("cloud", "cloud")
    await world.add("laptop", "laptop")
    await world.until(lambda: world.meshed("cloud", "laptop"))
    await world.call("laptop", "vault.put", name="a", content=b"x")
    await world.clone("laptop", "copy")
    await world.until(lambda: bool(world.running_agent("cloud").clones))
    await world.stop("copy")


async def rekey(world: World, by: str = "cloud", name: str = "laptop-2") -> Membership:
    """`invite` on one machine, `init --rekey CODE` on the copy."""
    shown = await world.call(by, "invite", role="member", accept=True, wait=False)
    ports = world.ports("copy")
    chain = chain_store.read(ports.disk)
    keys = prepare_next(ports.disk, ports.randomness, chain)
    place = exchange.RekeyedHome(ports.disk, ports.randomness, ports.clock, chain)
    return await join_household(ports, keys, Wanted(parse_code(shown["code"]), name, "laptop"), place=place)


async def holds(world: World, name: str, file: str) -> bool:
    return file in {item["name"] for item in (await world.call(name, "vault.ls"))["items"]}


def test_a_copy_that_gets_its_own_key_by_a_code_keeps_its_vault_and_all_meet() -> None:
    async def story(world: World) -> None:
        await cloned(world)
        membership = await rekey(world)
        assert membership.name == "laptop-2"
        await world.start("copy")
        await world.until(lambda: {session.device.name for session in world.running_agent("cloud").peers.sessions} == {
            "laptop", "laptop-2"}, seconds=300)
        assert await holds(world, "copy", "a")
        await world.call("copy", "vault.put", name="b", content=b"y")
        for name in ("cloud", "laptop"):
            await world.until(lambda name=name: holds(world, name, "b"), seconds=300)
        assert world.chains_agree("cloud", "laptop", "copy")
        assert not world.crashes

    run_world(story, seed=1)


def test_a_home_whose_key_file_is_lost_comes_back_by_a_code() -> None:
    async def story(world: World) -> None:
        await cloned(world)
        disk = world.machines["copy"].disk
        disk.remove(home.DEVICE_KEY)
        with pytest.raises(IntegrityError, match="keys are damaged"):
            Membership.load(disk, world.ports("copy").randomness, world.machines["copy"].clock)
        await rekey(world)
        await world.start("copy")
        await world.until(lambda: holds(world, "copy", "a"))

    run_world(story, seed=2)


def test_a_key_that_was_removed_before_it_arrived_is_drawn_anew_and_the_old_one_stays() -> None:
    """A first try was certified and revoked, unknown here; the home's own key is never touched."""
    async def story(world: World) -> None:
        await cloned(world)
        disk = world.machines["copy"].disk
        old, chain = disk.read(home.DEVICE_KEY), chain_store.read(disk)
        keys = prepare_next(disk, world.ports("copy").randomness, chain)
        cloud = world.running_agent("cloud").membership
        cloud.take_in([make_device_add(cloud.chain(), cloud.keys, name="lost", public=keys.public,
                                       box_public=keys.box_public, role="keeper", tier="laptop", time_s=1)])
        cloud.revoke(keys.public, "never arrived")
        assert disk.read(home.DEVICE_KEY) == old
        membership = await rekey(world)
        assert membership.name == "laptop-2"
        assert membership.device_public != keys.public
        assert DeviceKeys.from_bytes(disk.read(home.DEVICE_KEY)).public == membership.device_public

    run_world(story, seed=3)


def test_a_code_of_another_household_leaves_the_copy_what_it_was() -> None:
    async def story(world: World) -> None:
        await cloned(world)
        disk = world.machines["copy"].disk
        await world.found(DeviceSpec("neighbour", "home", "cloud"))
        before = disk.read(home.DEVICE_KEY), chain_store.read(disk)
        with pytest.raises(ConflictError, match="another one"):
            await rekey(world, by="neighbour")
        assert (disk.read(home.DEVICE_KEY), chain_store.read(disk)) == before

    run_world(story, seed=4)
