"""Whole households of real agents through libp2p's Noise and yamux, over simulated links in virtual time."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import trio

from hinet_node.errors import NodeError
from hinet_simnet.scenario.model import Delay, DeviceSpec, LinkSpec
from hinet_simnet.stack.stage import run_stack
from hinet_simnet.world import World, run_world

PLAIN = b"Bello is a beagle and nobody else may know it. "


async def household(world: World) -> None:
    for name in ("cloud", "laptop", "pocket"):
        await world.add(name, name)
    await world.until(lambda: world.meshed("cloud", "laptop", "pocket"))


async def holds(world: World, name: str, file: str, content: bytes) -> bool:
    try:
        return bool((await world.call(name, "vault.get", name=file))["content"] == content)
    except NodeError:
        return False


async def whole_story(world: World) -> None:
    await household(world)
    await world.call("laptop", "vault.put", name="dog", content=PLAIN * 5000)
    for name in ("cloud", "pocket"):
        await world.until(lambda name=name: holds(world, name, "dog", PLAIN * 5000))
    await world.call("cloud", "device.revoke", device="pocket", reason="lost")
    await trio.sleep(2)
    assert world.meshed("cloud", "laptop")
    assert not world.running_agent("pocket").peers.sessions
    await world.call("laptop", "vault.put", name="secret", content=b"after the loss")
    await world.until(lambda: holds(world, "cloud", "secret", b"after the loss"))
    await trio.sleep(300)
    assert not await holds(world, "pocket", "secret", b"after the loss")
    assert world.chains_agree("cloud", "laptop")


def test_three_agents_join_mesh_share_a_file_and_revoke_one() -> None:
    assert run_stack(whole_story, seed=1).crashes == []


def test_a_partition_delays_and_loses_nothing() -> None:
    async def story(world: World) -> None:
        await household(world)
        world.partition(["cloud"], ["laptop", "pocket"])
        await trio.sleep(90)
        assert not world.meshed("cloud", "laptop")
        await world.call("laptop", "vault.put", name="a", content=b"1" * 300_000)
        await world.call("cloud", "vault.put", name="b", content=b"2" * 300_000)
        await world.until(lambda: holds(world, "pocket", "a", b"1" * 300_000))
        assert not await holds(world, "cloud", "a", b"1" * 300_000)
        world.heal()
        await world.until(lambda: world.meshed("cloud", "laptop", "pocket"))
        for name in ("cloud", "laptop", "pocket"):
            await world.until(lambda name=name: holds(world, name, "a", b"1" * 300_000))
            await world.until(lambda name=name: holds(world, name, "b", b"2" * 300_000))

    assert run_stack(story, seed=2).crashes == []


def test_a_one_way_cut_and_a_frozen_device_end_sessions_which_come_back() -> None:
    async def story(world: World) -> None:
        await household(world)
        world.cut("cloud", "laptop")
        await trio.sleep(120)
        assert not world.meshed("cloud", "laptop")
        world.heal()
        await world.until(lambda: world.meshed("cloud", "laptop", "pocket"))
        await world.freeze("pocket")
        await trio.sleep(120)
        assert not world.meshed("cloud", "pocket")
        await world.thaw("pocket")
        await world.until(lambda: world.meshed("cloud", "laptop", "pocket"))

    assert run_stack(story, seed=3).crashes == []


@pytest.mark.parametrize("seed", range(3))
def test_power_cuts_at_any_moment_lose_no_acknowledged_byte(seed: int) -> None:
    async def story(world: World) -> None:
        await household(world)
        for number in range(4):
            await world.call("laptop", "vault.put", name=f"file{number}", content=bytes([number]) * 150_000)
            await trio.sleep(0.003 * (seed * 4 + number))
            await world.restart("laptop" if number % 2 else "cloud")
        await world.stop("pocket")
        await world.start("pocket")
        for name in ("cloud", "laptop", "pocket"):
            for number in range(4):
                wanted = bytes([number]) * 150_000
                await world.until(lambda name=name, number=number, wanted=wanted:
                                  holds(world, name, f"file{number}", wanted), seconds=300)

    assert run_stack(story, seed=seed).crashes == []


def test_a_slow_lossy_link_carries_everything_late() -> None:
    def took_s(link: LinkSpec) -> float:
        found: list[float] = []

        async def story(world: World) -> None:
            await household(world)
            world.set_link(link)
            await world.call("laptop", "vault.put", name="a", content=os.urandom(200_000))
            begun_s = world.now_s()
            await world.until(lambda: has(world, "cloud", "a"), seconds=600)
            found.append(world.now_s() - begun_s)

        run_stack(story, seed=4)
        return found[0]

    async def has(world: World, name: str, file: str) -> bool:
        try:
            return len((await world.call(name, "vault.get", name=file))["content"]) == 200_000
        except NodeError:
            return False

    slow_s = took_s(LinkSpec(delay=Delay("constant", 0.05), loss=0.01, rate_bytes_s=20_000))
    assert slow_s >= 10 > took_s(LinkSpec())


def test_what_crosses_the_links_is_ciphertext_and_in_the_world_it_is_not() -> None:
    def seen(run: Any) -> bytes:
        found: list[bytes] = []

        async def story(world: World) -> None:
            world.internet.taps.append(lambda source, target, label, data: found.append(bytes(data)))
            await household(world)
            await world.call("laptop", "vault.put", name="dog", content=PLAIN * 100)
            await world.until(lambda: holds(world, "cloud", "dog", PLAIN * 100))

        run(story, seed=5)
        return b"".join(found)

    stack, world = seen(run_stack), seen(run_world)
    assert b"/noise" in stack, "the negotiation before the handshake is in the clear"
    for plain in (b"/hinet/", b"heads", b"beagle"):
        assert plain not in stack
    assert b"heads" in world, "the vault's own encryption hides files, nothing but Noise hides the messages"


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    digests = [run_stack(whole_story, seed=seed).digest() for seed in (6, 6, 7)]
    assert digests[0] == digests[1] != digests[2]


def test_the_trace_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = ("from hinet_simnet.stack.stage import run_stack\n"
            "async def story(world):\n"
            "    await world.add('cloud', 'cloud'); await world.add('laptop')\n"
            "    await world.until(lambda: world.meshed('cloud', 'laptop'))\n"
            "    await world.call('laptop', 'vault.put', name='a', content=b'x' * 200000)\n"
            "    import trio; await trio.sleep(100)\n"
            "    await world.stop('laptop')\n"
            "print(run_stack(story, seed=5).digest())")
    digests = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120,
                       env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")}
    assert len(digests) == 1


def test_thirty_nodes_of_five_households_mesh() -> None:
    homes = [[DeviceSpec(f"h{home}-{number}", f"home{home}", role="member" if number else "admin", by="direct")
              for number in range(6)] for home in range(5)]

    async def story(world: World) -> None:
        for home in homes:
            await world.household(home)
        for home in homes:
            await world.until(lambda home=home: world.meshed(*(device.name for device in home)))
        await trio.sleep(30)
        strangers = {session.device.name for session in world.running_agent("h0-0").peers.sessions}
        assert strangers == {f"h0-{number}" for number in range(1, 6)}

    assert run_stack(story, seed=8).crashes == []


def test_the_world_level_imports_no_libp2p() -> None:
    code = ("import sys, hinet_simnet.world, hinet_simnet.levels; "
            "print([name for name in sys.modules if name.startswith('libp2p')])")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}).stdout
    assert shown.strip() == "[]"
