"""Whole households of real agents in virtual time, replayed by one seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from hinet_node.errors import NodeError
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World, run_world


async def household(world: World) -> None:
    """Init, two joins by code, and the mesh of sessions."""
    await world.add("cloud", "cloud")
    await world.add("laptop", "laptop")
    await world.add("pocket", "pocket")
    await world.until(lambda: world.meshed("cloud", "laptop", "pocket"))


async def holds(world: World, name: str, file: str, content: bytes) -> bool:
    try:
        return bool((await world.call(name, "vault.get", name=file))["content"] == content)
    except NodeError:
        return False


async def whole_story(world: World) -> None:
    await household(world)
    await world.call("laptop", "vault.put", name="notes/dog.md", content=b"Bello is a beagle.")
    for name in ("cloud", "pocket"):
        await world.until(lambda name=name: holds(world, name, "notes/dog.md", b"Bello is a beagle."))
    await world.call("cloud", "device.revoke", device="pocket", reason="lost")
    await trio.sleep(1)
    assert world.meshed("cloud", "laptop")
    assert not world.agent("pocket").peers.sessions
    await world.call("laptop", "vault.put", name="notes/secret.md", content=b"after the loss")
    await world.until(lambda: holds(world, "cloud", "notes/secret.md", b"after the loss"))
    await trio.sleep(600)
    assert not await holds(world, "pocket", "notes/secret.md", b"after the loss")
    assert world.chains_agree("cloud", "laptop")


def test_three_agents_join_mesh_share_a_file_and_revoke_one() -> None:
    world = run_world(whole_story, seed=1)
    assert [len(machine.log) > 0 for machine in world.machines.values()] == [True] * 3


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    digests = [run_world(household, seed=seed).digest() for seed in (3, 3, 4)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_the_trace_is_the_same_in_another_process_with_another_hash_seed() -> None:
    story = str(Path(__file__).with_name("versions.py"))  # every kind of fault, a training job, a clone
    digests = {
        subprocess.run([sys.executable, story, "--digest"], capture_output=True, text=True, check=True, timeout=300,
                       env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")}
    assert len(digests) == 1


def test_a_partition_delays_and_loses_nothing() -> None:
    async def story(world: World) -> None:
        await household(world)
        world.partition(["cloud"], ["laptop", "pocket"])
        await trio.sleep(60)
        assert not world.meshed("cloud", "laptop")
        await world.call("laptop", "vault.put", name="a", content=b"1" * 300_000)
        await world.call("cloud", "vault.put", name="b", content=b"2" * 300_000)
        await world.until(lambda: holds(world, "pocket", "a", b"1" * 300_000))
        world.heal()
        await world.until(lambda: world.meshed("cloud", "laptop", "pocket"), seconds=120)
        for name in ("cloud", "laptop", "pocket"):
            await world.until(lambda name=name: holds(world, name, "a", b"1" * 300_000))
            await world.until(lambda name=name: holds(world, name, "b", b"2" * 300_000))

    run_world(story, seed=2)


def test_a_revocation_reaches_a_device_that_was_away() -> None:
    async def story(world: World) -> None:
        await household(world)
        await world.kill("laptop")
        await world.call("cloud", "device.revoke", device="pocket", reason="lost")
        await trio.sleep(30)
        await world.restart("laptop")
        await world.until(lambda: world.meshed("cloud", "laptop"))
        await trio.sleep(30)
        assert world.chains_agree("cloud", "laptop")
        assert [session.device.name for session in world.agent("laptop").peers.sessions] == ["cloud"]
        assert not world.agent("pocket").peers.sessions

    run_world(story, seed=3)


@pytest.mark.parametrize("seed", range(4))
def test_power_cuts_at_any_moment_lose_no_acknowledged_byte(seed: int) -> None:
    async def story(world: World) -> None:
        await household(world)
        for number in range(4):
            content = bytes([number]) * 150_000
            await world.call("laptop", "vault.put", name=f"file{number}", content=content)
            await trio.sleep(0.003 * (seed * 4 + number))
            await world.restart("laptop" if number % 2 else "cloud")
        for name in ("cloud", "laptop", "pocket"):
            for number in range(4):
                wanted = bytes([number]) * 150_000
                await world.until(lambda name=name, number=number, wanted=wanted:
                                  holds(world, name, f"file{number}", wanted), seconds=300)

    run_world(story, seed=seed)


def test_a_clock_that_is_a_day_off_disturbs_nobody() -> None:
    async def story(world: World) -> None:
        await world.add("cloud", "cloud")
        await world.join(DeviceSpec("laptop", "home", clock_offset_s=86_400), by="cloud")
        await world.until(lambda: world.meshed("cloud", "laptop"))
        await world.call("laptop", "vault.put", name="a", content=b"x")
        await world.until(lambda: holds(world, "cloud", "a", b"x"))
        warnings = (await world.call("cloud", "status"))["warnings"]
        assert any(warning["code"] == "E_CLOCK" for warning in warnings)

    run_world(story, seed=4)
