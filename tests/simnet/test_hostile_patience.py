"""Strangers with patience, in virtual time: slow ones, half-open joins, crowds. The household notices nothing but lines
in its log, and the simulator's checkers watch the sizes of everything meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from hinet_node.belonging.join_stream import JOIN_PROTOCOL
from hinet_node.errors import NetworkError
from hinet_node.ports import Stream
from hinet_node.sessions.peers import SESSION_PROTOCOL
from hinet_protocol import limits
from hinet_protocol import messages as m
from hinet_protocol.frames import encode_frame
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.join.secrets import exchange_share
from hinet_simnet.pytest_plugin import MakeHousehold
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World

EVE = DeviceKeys.from_entropy(b"e" * 32 + b"v" * 32)


@asynccontextmanager
async def stranger(world: World, name: str, protocol: str, keys: DeviceKeys = EVE) -> AsyncIterator[Stream]:
    """A stream to the first device, under a key that nobody knows."""
    network = world.internet.host(name)
    async with network.serve(keys.sign_seed, [], {}):
        connection = await network.dial(world.running_agent("anna").addresses[0], None, 5)
        yield await connection.open_stream(protocol)


async def over(stream: Stream) -> None:
    """Until the other side has ended the stream."""
    try:
        while await stream.receive_some(1 << 16):
            pass
    except NetworkError:
        pass


async def trickle(stream: Stream, words: bytes) -> None:
    """One byte in ten seconds."""
    try:
        for byte in words:
            await stream.send_all(bytes([byte]))
            await trio.sleep(10)
    except NetworkError:
        pass


@pytest.mark.parametrize(("protocol", "bound_s"), [(SESSION_PROTOCOL, limits.handshake_ms_max / 1_000),
                                                   (JOIN_PROTOCOL, limits.join_attempt_s_max)])
def test_one_byte_in_ten_seconds_lasts_no_longer_than_silence(household: MakeHousehold, protocol: str, bound_s: float,
                                                              ) -> None:
    with household("anna", "bert") as house:
        house.until_meshed("anna", "bert")

        async def attack(world: World) -> float:
            began = world.now_s()
            async with stranger(world, "eve", protocol) as stream, trio.open_nursery() as nursery:
                nursery.start_soon(trickle, stream, encode_frame(bytes(100)))
                await over(stream)
                nursery.cancel_scope.cancel()
            return world.now_s() - began

        took_s = house.run(attack)
        assert took_s < bound_s + 5
        assert house.meshed("anna", "bert")
        assert [line for line in house.log("anna") if "refused" in line or "failed" in line]


def half_open(nameplate: str) -> bytes:
    """A joiner's first message; what follows never comes."""
    share = exchange_share("code", "joiner", b"some-other-words", EVE.public, bytes(32), b"e" * 32)
    return encode_frame(m.to_wire(m.JoinOpen((1,), "code", nameplate, share)))


def test_a_joiner_that_never_confirms_holds_the_others_up_for_one_step_at_most(household: MakeHousehold) -> None:
    with household("anna", "bert") as house:

        async def attack(world: World) -> float:
            shown = await world.call("anna", "invite", role="member", accept=True, wait=False)
            async with trio.open_nursery() as nursery:
                ready = trio.Event()

                async def hold() -> None:
                    async with stranger(world, "eve", JOIN_PROTOCOL) as stream:
                        await stream.send_all(half_open(shown["code"].split("-")[0]))
                        ready.set()
                        await over(stream)

                nursery.start_soon(hold)
                await ready.wait()
                began = world.now_s()
                await world.join(DeviceSpec("cleo", "home", "laptop"), by="anna")
                nursery.cancel_scope.cancel()
            return world.now_s() - began

        assert house.run(attack) < limits.join_attempt_s_max + 15
        house.until_meshed("anna", "bert", "cleo")


def test_two_thousand_tries_of_fifty_strangers_leave_the_household_at_work(household: MakeHousehold) -> None:
    def one(number: int) -> Callable[[World], Any]:
        keys = DeviceKeys.from_entropy(bytes([number]) * 32 + b"s" * 32)

        async def crowd(world: World) -> None:
            network = world.internet.host(f"stranger{number}")
            async with network.serve(keys.sign_seed, [], {}):
                for _ in range(40):
                    try:
                        connection = await network.dial(world.running_agent("anna").addresses[0], None, 5)
                        stream = await connection.open_stream((SESSION_PROTOCOL, JOIN_PROTOCOL)[number % 2])
                        await stream.send_all(b"\0\x0f\xff\xff" + bytes(1_000))
                    except NetworkError:
                        pass
                    await trio.sleep(0.2)
        return crowd

    with household("anna", "bert") as house:
        house.until_meshed("anna", "bert")

        async def attack(world: World) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(one(number), world)
                await trio.sleep(5)
                await world.call("bert", "vault.put", name="notes/a.md", content=b"at work")

        house.run(attack)
        house.until(lambda: house.holds("anna", "notes/a.md", b"at work"))
        assert house.meshed("anna", "bert")
