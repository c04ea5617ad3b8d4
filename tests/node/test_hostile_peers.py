"""Hostile peers over real connections: with a stranger's key, a removed device's, a member's. Each ends in a typed
refusal and a line in the log, and the sibling that is connected meanwhile notices nothing."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio

from hinet_node.agent import Agent
from hinet_node.belonging.join_stream import JOIN_PROTOCOL
from hinet_node.belonging.membership import Membership
from hinet_node.config import Config
from hinet_node.errors import NetworkError
from hinet_node.ports import Ports, Stream
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.real.transport import Libp2pNetwork
from hinet_node.sessions.peers import SESSION_PROTOCOL
from hinet_node.vault import VaultSettings
from hinet_protocol import messages as m
from hinet_protocol.chain import Chain, make_device_add, make_device_revoke, make_genesis
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.frames import FrameDecoder, encode_frame
from hinet_protocol.identity import DeviceKeys, RootKey
from hinet_simnet.compute import FakeCompute
from hinet_simnet.disk import MemoryDisk

ROOT = RootKey(b"r" * 32)
SETTINGS = VaultSettings(chunk_bytes=1 << 16, pack_bytes=1 << 18, reserve_bytes=0, index_path=":memory:")
NO_DISCOVERY: Any = None
KEYS = {name: DeviceKeys.from_entropy((name.encode() * 32)[:64]) for name in ("anna", "bert", "mole", "rick", "eve")}


def household() -> Chain:
    """anna is admin, bert and mole are members, rick was removed; eve is nobody."""
    chain = Chain.from_entries([make_genesis(ROOT, 1)])
    for name in ("anna", "bert", "mole", "rick"):
        keys = KEYS[name]
        chain = chain.with_entries([make_device_add(
            chain, ROOT, name=name, public=keys.public, box_public=keys.box_public, tier="laptop", time_s=2,
            role="admin" if name == "anna" else "member")])
    return chain.with_entries([make_device_revoke(chain, ROOT, KEYS["rick"].public, time_s=3)])


CHAIN = household()


class Target:
    """anna's agent on loopback, with bert connected to it."""

    def __init__(self, agent: Agent, log: list[str]) -> None:
        self.agent, self.log = agent, log

    @property
    def address(self) -> str:
        return self.agent.addresses[0]

    def hello(self, name: str, **changes: Any) -> m.Hello:
        own = m.Hello((1,), CHAIN.identity_id, KEYS[name].public, name.encode().ljust(16, b"."), CHAIN.height,
                      CHAIN.heads, "laptop", (), 0, (), (), "hostile", 1_800_000_000)
        return replace(own, **changes)

    @asynccontextmanager
    async def stream(self, name: str, protocol: str = SESSION_PROTOCOL) -> AsyncIterator[Stream]:
        """A stream under this key, for bytes of one's own."""
        network = Libp2pNetwork()
        async with network.serve(KEYS[name].sign_seed, [], {}):
            connection = await network.dial(self.address, None, 5)
            yield await connection.open_stream(protocol)
            await connection.close()

    async def answered(self, stream: Stream, *sent: bytes) -> list[m.Message]:
        """All that comes until the stream ends."""
        heard: list[m.Message] = []
        decoder = FrameDecoder()
        with suppress(NetworkError), trio.move_on_after(30) as patience:
            for words in sent:
                await stream.send_all(words)
            while data := await stream.receive_some(1 << 16):
                heard += [m.from_wire(body) for body in decoder.feed(data)]
        assert not patience.cancelled_caught, f"the stream does not end; so far came {heard}"
        return heard


@asynccontextmanager
async def running(name: str, log: list[str], static: Sequence[str] = ()) -> AsyncIterator[Agent]:
    disk = MemoryDisk(name)
    ports = Ports(clock=SystemClock(), randomness=SystemRandomness(), network=Libp2pNetwork(), disk=disk,
                  discovery=NO_DISCOVERY, compute=FakeCompute(disk))
    membership = Membership.adopt(disk, ports.randomness, ports.clock, KEYS[name], CHAIN)
    agent = Agent(ports, membership, Config(name=name, static=tuple(static)), listen=["/ip4/127.0.0.1/tcp/0"],
                  log=log.append, vault_settings=SETTINGS, discover=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run)
        yield agent
        nursery.cancel_scope.cancel()


def under_attack(attack: Callable[[Target], Awaitable[None]]) -> Target:
    """Run `attack(target)`; bert's session is the same one afterwards, and answers."""
    holder: list[Target] = []

    async def main() -> None:
        log: list[str] = []
        with trio.fail_after(60):
            async with running("anna", log) as anna, running("bert", [], anna.addresses):
                while not anna.peers.sessions:
                    await trio.sleep(0.01)
                (before,) = anna.peers.sessions
                holder.append(Target(anna, log))
                await attack(holder[0])
                assert anna.peers.session_with(KEYS["bert"].public) is before
                assert before.is_open
                assert await before.lives()

    trio.run(main)
    return holder[0]


def wire(message: m.Message) -> bytes:
    return encode_frame(m.to_wire(message))


GOODBYE = wire(m.Goodbye("OK", ""))
PING = m.to_wire(m.Ping(1))
NONSENSE = {
    "a length above the bound": (b"\xff\xff\xff\xff", "E_FRAME"),
    "a length of zero": (bytes(4), "E_FRAME"),
    "values nested too deep": (encode_frame(b"\x91" * 1_000 + b"\xc0"), "E_LIMIT"),
    "a list of four milliards": (encode_frame(b"\x92\x03\xdd\xff\xff\xff\xff"), "E_LIMIT"),
    "bytes after the message": (encode_frame(PING + b"\0"), "E_ENCODING"),
    "text that is no UTF-8": (encode_frame(b"\x92\x05\x82\xa4code\xa2\xff\xfe\xa7message\xa0"), "E_ENCODING"),
    "an integer in a longer form": (encode_frame(b"\x92\x03\x81\xa6number\xcc\x01"), "E_ENCODING"),
    "a key that is there twice": (encode_frame(b"\x92\x03\x82\xa6number\x01\xa6number\x02"), "E_ENCODING"),
    "a float": (encode_frame(b"\x92\x03\x81\xa6number\xcb" + bytes(8)), "E_ENCODING"),
    "a huge integer": (encode_frame(b"\x92\x03\x81\xa6number\xcf" + b"\xff" * 8), "E_MESSAGE"),
    "a truth for a number": (encode_frame(b"\x92\x03\x81\xa6number\xc3"), "E_MESSAGE"),
    "an unknown message": (encode_frame(b"\x92\x7f\x80"), "E_MESSAGE"),
    "a message of a join": (wire(m.JoinDone(bytes(32))), "E_VIOLATION"),
    "an answer that nobody asked for": (wire(m.Response(1 << 40, m.HeadsList(b"", ()))), "E_VIOLATION"),
    "entries that nobody asked for": (wire(m.ChainEntries((), True)), "E_VIOLATION"),
    "Ready once more": (wire(m.Ready()), "E_VIOLATION"),
    "a number that was used": (wire(m.Request(7, m.HeadsGet(b""))) * 2, "E_VIOLATION"),
    "numbers in the wrong order": (wire(m.Request(7, m.HeadsGet(b""))) + wire(m.Request(6, m.HeadsGet(b""))),
                                   "E_VIOLATION"),
}


def test_whatever_a_member_says_ends_its_own_session_with_a_code_and_a_line_in_the_log() -> None:
    async def attack(target: Target) -> None:
        for why, (words, code) in NONSENSE.items():
            lines = len(target.log)
            async with target.stream("mole") as stream:
                heard = await target.answered(stream, wire(target.hello("mole")), wire(m.Ready()), words)
            assert any(isinstance(one, m.Ready) for one in heard), why
            assert isinstance(heard[-1], m.Goodbye), why
            assert heard[-1].code == code, (why, heard[-1])
            while not any("mole left" in line or "mole was refused" in line for line in target.log[lines:]):
                await trio.sleep(0.005)

    under_attack(attack)


def test_a_hello_that_lies_gets_a_refusal_and_nothing_else() -> None:
    async def attack(target: Target) -> None:
        other = RootKey(b"x" * 32).identity_id
        for name, changes, code in (
            ("eve", {"identity_id": other}, "E_STRANGER"), ("eve", {}, "E_STRANGER"),
            ("eve", {"device": KEYS["bert"].public}, "E_VIOLATION"),
            ("eve", {"device": KEYS["anna"].public}, "E_VIOLATION"), ("mole", {"versions": (7, 9)}, "E_VERSION"),
            ("mole", {"identity_id": other}, "E_STRANGER"), ("rick", {}, "E_REVOKED"),
        ):
            lines = len(target.log)
            async with target.stream(name) as stream:
                heard = await target.answered(stream, wire(target.hello(name, **changes)), wire(m.Ready()),
                                              wire(m.ChainGet(())))
            # Who doesn't belong by its key hears not even what the device is.
            assert [type(one) for one in heard] == ([m.Hello] if name == "mole" else []) + [m.Goodbye], (name, changes)
            assert isinstance(heard[-1], m.Goodbye)
            assert heard[-1].code == code
            who = {"eve": "a stranger", "rick": "rick", "mole": "mole"}[name]
            while not any(f"{who}" in line and "was refused" in line for line in target.log[lines:]):
                await trio.sleep(0.005)

    under_attack(attack)


def test_entries_of_a_removed_device_or_another_identity_are_refused_and_change_nothing() -> None:
    other = RootKey(b"x" * 32)
    rick_adds = sign_entry(KEYS["rick"], CHAIN.identity_id, CHAIN.heads, "device.add", {
        "name": "evil", "sign": KEYS["eve"].public, "box": KEYS["eve"].box_public, "role": "admin", "tier": "laptop",
        "expires": 0, "ephemeral": None, "epochs": []}, 4)
    foreign = sign_entry(KEYS["mole"], other.identity_id, CHAIN.heads, "device.revoke",
                         {"device": KEYS["bert"].public, "reason": ""}, 4)
    mole_removes = sign_entry(KEYS["mole"], CHAIN.identity_id, CHAIN.heads, "device.revoke",
                              {"device": KEYS["bert"].public, "reason": ""}, 4)

    async def attack(target: Target) -> None:
        height = target.agent.membership.chain().height
        for entry, code in ((rick_adds, "E_ENTRY_UNAUTHORISED"), (mole_removes, "E_ENTRY_UNAUTHORISED"),
                            (foreign, "E_CHAIN_FOREIGN"), (make_genesis(other, 1), "E_CHAIN_FOREIGN"),
                            (b"\x92\x00\x00", "E_ENTRY")):
            hello = target.hello("mole", heads=(b"h" * 32,), height=99)
            async with target.stream("mole") as stream:
                heard = await target.answered(stream, wire(hello), wire(m.ChainEntries((entry,), False)))
            assert isinstance(heard[-1], m.Goodbye)
            assert heard[-1].code == code
        assert target.agent.membership.chain().height == height
        assert target.agent.membership.chain().is_member(KEYS["bert"].public)

    under_attack(attack)


def test_what_was_recorded_in_one_session_opens_no_other() -> None:
    """The frames of a member's whole session, played by another key and played again under the same one."""
    async def attack(target: Target) -> None:
        said = [wire(target.hello("mole")), wire(m.Ready()), wire(m.Request(1, m.HeadsGet(b"")))]
        async with target.stream("eve") as stream:
            heard = await target.answered(stream, *said)
        assert [type(one) for one in heard] == [m.Goodbye]
        async with target.stream("mole") as stream:
            heard = await target.answered(stream, *said, *said)
        assert isinstance(heard[-1], m.Goodbye)
        assert heard[-1].code == "E_VIOLATION"
        async with target.stream("mole") as stream:
            heard = await target.answered(stream, *reversed(said))
        assert isinstance(heard[-1], m.Goodbye)
        assert heard[-1].code == "E_VIOLATION"

    under_attack(attack)


def test_a_flood_of_streams_and_questions_takes_little_memory_and_ends_nobody_elses_session() -> None:
    async def attack(target: Target) -> None:
        network = Libp2pNetwork()
        async with network.serve(KEYS["mole"].sign_seed, [], {}):
            connection = await network.dial(target.address, None, 5)
            opened = refused = 0

            async def one_stream(protocol: str) -> None:
                nonlocal opened, refused
                try:
                    stream = await connection.open_stream(protocol)
                    await stream.send_all(b"\0\x0f\xff\xff" + bytes(100_000))
                    opened += 1
                except NetworkError:
                    refused += 1

            tracemalloc.start()
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon(one_stream, (SESSION_PROTOCOL, JOIN_PROTOCOL, "/hinet/none/1")[number % 3])
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            await connection.close()
        assert refused > 200
        assert opened <= 64
        assert peak < 64 << 20

    under_attack(attack)


def silent_connections(address: str, host: str, count: int) -> list[socket.socket]:
    """TCP connections that say nothing, from one address of the loopback network."""
    found = []
    for _ in range(count):
        one = socket.socket()
        one.bind((host, 0))
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", int(address.rsplit("/", 1)[1])))
        found.append(one)
    return found


def test_a_crowd_of_silent_connections_from_one_machine_keeps_no_sibling_out() -> None:
    async def attack(target: Target) -> None:
        crowd = silent_connections(target.address, "127.0.0.2", 500)
        try:
            await trio.sleep(0.2)
            async with target.stream("mole") as stream:
                heard = await target.answered(stream, wire(target.hello("mole")), wire(m.Ready()), GOODBYE)
            assert any(isinstance(one, m.Ready) for one in heard)
        finally:
            for one in crowd:
                one.close()

    under_attack(attack)


def test_strangers_that_hold_all_greetings_keep_no_member_out() -> None:
    """A key costs nothing, so those of strangers must not use up the places of devices that belong."""
    async def attack(target: Target) -> None:
        async with AsyncExitStack() as stack:
            for number in range(4):
                network = Libp2pNetwork()
                await stack.enter_async_context(network.serve(bytes([number]) * 32, [], {}))
                connection = await network.dial(target.address, None, 5)
                for _ in range(20):
                    with suppress(NetworkError):
                        await connection.open_stream(SESSION_PROTOCOL)
            async with target.stream("mole") as stream:
                heard = await target.answered(stream, wire(target.hello("mole")), wire(m.Ready()), GOODBYE)
            assert any(isinstance(one, m.Ready) for one in heard)

    under_attack(attack)


def test_a_share_that_is_no_point_of_the_curve_ends_its_own_join_only() -> None:
    """Anybody who sees the nameplate can send one; half of all numbers are none."""
    async def attack(target: Target) -> None:
        shown = await target.agent.api.dispatch("invite", {"role": "member", "accept": True, "wait": False})
        nameplate = shown["code"].split("-")[0]
        for y in (2, 1, 0, 2**255 - 20, 2**256 - 1):
            opening = m.JoinOpen((1,), "code", nameplate, b"A" + y.to_bytes(32, "little"))
            async with target.stream("eve", JOIN_PROTOCOL) as stream:
                heard = await target.answered(stream, wire(opening))
            assert [getattr(one, "code", "") for one in heard] == ["E_JOIN"], y

    under_attack(attack)


@pytest.mark.parametrize("words", [b"", b"\0\0\0\x10" + b"x" * 5], ids=["silent", "in the middle of a frame"])
def test_a_joiner_that_goes_away_frees_the_inviter_for_the_next_one(words: bytes) -> None:
    async def attack(target: Target) -> None:
        await target.agent.api.dispatch("invite", {"role": "member", "accept": True, "wait": False})
        async with target.stream("eve", JOIN_PROTOCOL) as stream:
            await stream.send_all(words or b"\0")
            async with target.stream("rick", JOIN_PROTOCOL) as other:
                heard = await target.answered(other)
            assert [getattr(one, "code", "") for one in heard] == ["E_BUSY"]
        while True:
            async with target.stream("eve", JOIN_PROTOCOL) as stream:
                heard = await target.answered(stream, wire(m.JoinOpen((1,), "code", "0", bytes(33))))
            if [getattr(one, "code", "") for one in heard] == ["E_CODE_UNKNOWN"]:
                break

    under_attack(attack)
