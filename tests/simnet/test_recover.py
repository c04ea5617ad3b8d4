"""All admins are lost, a keeper or a member lives: the words bring the household back over the network."""

from __future__ import annotations

import pytest
import trio

from hinet_node.belonging import recovery
from hinet_node.belonging.membership import Membership, draw_keys
from hinet_node.belonging.recover_stream import ANSWERS_MAX, FIRST_S, Found, ask_siblings
from hinet_node.errors import NetworkError
from hinet_node.ports import Ports
from hinet_protocol.chain import Chain, make_genesis
from hinet_protocol.frames import encode_frame
from hinet_protocol.identity import RootKey
from hinet_protocol.messages import ChainEntries, to_wire
from hinet_protocol.recovering import RECOVER_PROTOCOL
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World, run_world

ROOT, SPARE = RootKey(bytes(31) + b"r"), RootKey(bytes(31) + b"s")


async def household(world: World) -> None:
    """cloud (admin), pocket (member), store (keeper), with a file; then cloud burns down."""
    ports = world._new_ports(DeviceSpec("cloud", "home", "cloud"))
    Membership.found(ports.disk, ports.randomness, ports.clock, name="cloud", tier="cloud", root=ROOT,
                     next_root_public=SPARE.public)
    await world.start("cloud")
    for name, role in (("pocket", "member"), ("store", "keeper")):
        await world.join(DeviceSpec(name, "home", "pocket", role), by="cloud")
    await world.until(lambda: world.meshed("cloud", "pocket", "store"))
    await world.call("pocket", "vault.put", name="notes/dog.md", content=b"Bello is a beagle.")
    packs = (await world.call("pocket", "vault.status"))["packs"]

    async def stored() -> bool:
        return bool((await world.call("store", "vault.status"))["packs"] >= packs)

    await world.until(stored)
    await world.kill("cloud")


async def ask(world: World, ports: Ports, root: RootKey = ROOT, addresses: tuple[str, ...] = ()) -> Found:
    return await ask_siblings(ports, draw_keys(ports.randomness), root, addresses, 60.0)


def chain_of_a_neighbour() -> tuple[bytes, ...]:
    return Chain.from_entries([make_genesis(RootKey(b"n" * 32), 1)]).raws()


async def recover(world: World, chain: Chain, *, revoke_others: bool = False) -> Membership:
    """A machine named new, from the chain that was found, running."""
    ports = world.ports("new")
    keys = draw_keys(ports.randomness)
    made = recovery.recovered(chain, ROOT, recovery.NewDevice(keys, "new", "cloud"), ports.randomness,
                              int(ports.clock.now_unix_s()), revoke_others=revoke_others)
    Membership.adopt(ports.disk, ports.randomness, ports.clock, keys, made)
    await world.start("new")
    return world.running_agent("new").membership


@pytest.mark.parametrize("survivor", ["pocket", "store"])
def test_one_survivor_is_enough_to_bring_everything_back(survivor: str) -> None:
    async def story(world: World) -> None:
        await household(world)
        await world.kill("store" if survivor == "pocket" else "pocket")
        ports = world._new_ports(DeviceSpec("new", "home", "cloud"))
        found = await ask(world, ports)
        assert found.chain is not None
        assert [public for public, _ in found.where] == [world.running_agent(survivor).membership.device_public]
        new = await recover(world, found.chain)
        assert new.role == "admin"
        await world.until(lambda: world.meshed("new", survivor))
        await world.until(lambda: world.chains_agree("new", survivor))

        async def readable() -> bool:
            items = (await world.call("new", "vault.ls"))["items"]
            return [item["name"] for item in items] == ["notes/dog.md"]

        await world.until(readable)
        content = (await world.call("new", "vault.get", name="notes/dog.md"))["content"]
        assert content == b"Bello is a beagle."

    run_world(story, seed=1)


def test_all_survivors_are_put_out_when_the_owner_says_so() -> None:
    async def story(world: World) -> None:
        await household(world)
        ports = world._new_ports(DeviceSpec("new", "home", "cloud"))
        found = await ask(world, ports)
        assert found.chain is not None
        assert len(found.where) == 2
        new = await recover(world, found.chain, revoke_others=True)
        await trio.sleep(120)
        assert not world.running_agent("new").peers.sessions
        assert [device.name for device in new.chain().members()] == ["new"]
        assert len(new.chain().checkpoints()) == 1

    run_world(story, seed=2)


def test_other_words_get_nothing_and_nobody_there_is_said_so() -> None:
    async def story(world: World) -> None:
        await household(world)
        ports = world._new_ports(DeviceSpec("new", "home", "cloud"))
        with pytest.raises(NetworkError, match="not the words") as caught:
            await ask(world, ports, RootKey(b"x" * 32))
        assert "export-chain" in (caught.value.next_step or "")
        assert (await ask(world, ports, SPARE)).chain is not None
        for name in ("pocket", "store"):
            await world.kill(name)
        begun_s = trio.current_time()
        with pytest.raises(NetworkError, match="no device of this identity answered"):
            await ask(world, ports)
        assert trio.current_time() - begun_s < 70

    run_world(story, seed=3)


def test_a_sibling_that_talks_nonsense_holds_nobody_up() -> None:
    async def story(world: World) -> None:
        await household(world)
        liar, ports = world._new_ports(DeviceSpec("liar", "home", "cloud")), world._new_ports(
            DeviceSpec("new", "home", "cloud"))
        noise = SeededRandomness("noise")

        async def lie(connection: object, stream: object) -> None:
            for _ in range(100):
                await stream.send_all(noise.draw(1_000))  # type: ignore[attr-defined]

        foreign = chain_of_a_neighbour()

        async def another_identity(connection: object, stream: object) -> None:
            frame = encode_frame(to_wire(ChainEntries(foreign, False)))
            await stream.send_all(frame)  # type: ignore[attr-defined]
            await trio.sleep_forever()

        async def silent(connection: object, stream: object) -> None:
            await trio.sleep_forever()

        true = tuple(world.running_agent("pocket").addresses)
        keys = draw_keys(liar.randomness)
        async with liar.network.serve(keys.sign_seed, ["/ip4/0.0.0.0/tcp/0"], {RECOVER_PROTOCOL: lie}) as bad:
            found = await ask(world, ports, addresses=(*tuple(bad), *true))
            assert found.chain is not None
            assert len(found.where) == 1
            assert found.failures
        other = world.ports("liar")
        async with other.network.serve(keys.sign_seed, ["/ip4/0.0.0.0/tcp/0"],
                                       {RECOVER_PROTOCOL: another_identity}) as bad:
            with pytest.raises(NetworkError, match="another identity than the words"):
                await ask(world, ports, addresses=tuple(bad))
        other = world.ports("liar")
        async with other.network.serve(keys.sign_seed, ["/ip4/0.0.0.0/tcp/0"], {RECOVER_PROTOCOL: silent}) as bad:
            found = await ask(world, ports, addresses=(*tuple(bad), *true))
            assert len(found.where) == 1

    run_world(story, seed=4)


def test_strangers_that_ask_and_say_nothing_use_up_no_agent() -> None:
    async def story(world: World) -> None:
        await household(world)
        ports = world._new_ports(DeviceSpec("new", "home", "cloud"))
        keys = draw_keys(ports.randomness)
        address = world.running_agent("pocket").addresses[0]
        async with ports.network.serve(keys.sign_seed, [], {}):
            connection = await ports.network.dial(address, None, 5.0)
            for _ in range(ANSWERS_MAX):
                await connection.open_stream(RECOVER_PROTOCOL)
            await trio.sleep(1)
            with pytest.raises(NetworkError, match="busy"):
                await ask(world, world.ports("other"), addresses=(address,))
            await trio.sleep(FIRST_S)
            assert (await ask(world, world.ports("other"), addresses=(address,))).chain is not None
            await connection.close()
        assert not world.crashes

    run_world(story, seed=5)
