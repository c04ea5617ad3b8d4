"""Peers over the in-memory ports, in virtual time: finding each other, losing each other, and who is let in."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio

from hinet_node.errors import NetworkError, NodeError, NoSpace, TryAgain
from hinet_node.ports import Ports
from hinet_node.sessions.address_book import FILE
from hinet_node.sessions.dialling import HEARD_PAUSE_S
from hinet_node.sessions.peers import SERVICE, SESSION_PROTOCOL, LocalFacts, PeerEvent, Peers, Session
from hinet_protocol.chain import Chain, make_device_add, make_device_revoke, make_genesis
from hinet_protocol.errors import VaultError
from hinet_protocol.frames import FrameDecoder, encode_frame
from hinet_protocol.identity import DeviceKeys, RootKey, peer_id
from hinet_protocol.messages import (
    ChainGet,
    HeadsGet,
    HeadsList,
    Hello,
    PackBytes,
    PackRead,
    PacksGet,
    PacksList,
    VaultChanged,
    from_wire,
    to_wire,
)
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.discovery import Lan
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.network import Internet
from hinet_simnet.randomness import SeededRandomness

ROOT = RootKey(b"r" * 32)
STRANGER_ROOT = RootKey(b"s" * 32)


class Store:
    """A chain in memory; `absorb` takes a moment, as a disk does."""

    def __init__(self, chain: Chain) -> None:
        self.held = chain
        self.on_growth: Callable[[], None] = lambda: None
        self.full = False

    def chain(self) -> Chain:
        return self.held

    async def absorb(self, entries: Sequence[bytes]) -> None:
        await trio.sleep(0.001)
        if self.full:
            raise NoSpace("the disk is full")
        self.add(*entries)

    def add(self, *entries: bytes) -> None:
        merged = self.held.merge(entries)
        self.held = merged.chain
        if merged.added:
            self.on_growth()
        if merged.rejected:
            raise merged.rejected[0].error


@dataclass
class Node:
    name: str
    keys: DeviceKeys
    store: Store
    disk: MemoryDisk
    peers: Peers
    events: list[PeerEvent] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def names(self) -> list[str]:
        return [session.device.name for session in self.peers.sessions]

    def reasons(self, kind: str) -> list[str]:
        return [event.reason for event in self.events if event.kind == kind]


class Village:
    """Nodes of one household (and strangers) on one LAN."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.seed = seed
        self.nursery = nursery
        self.internet = Internet(seed)
        self.lan = Lan(self.internet)
        self.randomness = SeededRandomness(seed, "village")
        self.chain = Chain.from_entries([make_genesis(ROOT, 1)])
        self.nodes: dict[str, Node] = {}

    def admit(self, name: str, role: str = "member") -> DeviceKeys:
        keys = DeviceKeys.from_entropy(SeededRandomness(self.seed, name).draw(64))
        self.chain = self.chain.with_entries([make_device_add(
            self.chain, ROOT, name=name, public=keys.public, box_public=keys.box_public, role=role, tier="laptop",
            time_s=2)])
        return keys

    def revoke(self, name: str) -> bytes:
        public = self.nodes[name].keys.public
        return make_device_revoke(self.chain, ROOT, public, time_s=3)

    async def start(self, name: str, keys: DeviceKeys, *, chain: Chain | None = None, disk: MemoryDisk | None = None,
                    setup: Callable[[Peers], None] = lambda peers: None, host: str | None = None,
                    **options: Any) -> Node:
        host = host or name
        disk = disk or MemoryDisk(name)
        ports = Ports(clock=VirtualClock(), randomness=SeededRandomness(self.seed, f"{name} {self.randomness.draw(4)}"),
                      network=self.internet.host(host), discovery=self.lan.host(host), disk=disk,
                      compute=cast(Any, None))
        store = Store(chain or self.chain)
        peers = Peers(ports, keys.sign_seed, store, lambda: LocalFacts(tier="laptop", agent_version="test"),
                      listen=["/ip4/0.0.0.0/tcp/0"], **options)
        store.on_growth = peers.chain_grew
        setup(peers)
        node = Node(name, keys, store, disk, peers)
        self.nodes[name] = node
        await self.nursery.start(self._run, node)
        return node

    async def _run(self, node: Node, *, task_status: Any) -> None:
        with node.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, node)
                await nursery.start(node.peers.run)
                task_status.started()

    async def _listen(self, node: Node) -> None:
        async with node.peers.events() as events:
            async for event in events:
                node.events.append(event)

    def kill(self, name: str) -> None:
        """Power is lost."""
        self.internet.kill(name)
        self.lan.kill(name)
        self.nodes[name].scope.cancel()


def village(test: Callable[[Village], Any], seed: int = 1) -> Village:
    """Run `test(village)` in virtual time, at most a virtual hour."""
    holder: list[Village] = []

    async def main() -> None:
        with trio.fail_after(3600):
            async with trio.open_nursery() as nursery:
                holder.append(Village(seed, nursery))
                await test(holder[0])
                nursery.cancel_scope.cancel()

    virtual_run(main, seed=seed)
    return holder[0]


async def three(place: Village, **options: Any) -> list[Node]:
    keys = {name: place.admit(name) for name in ("anna", "bert", "cleo")}
    return [await place.start(name, keys[name], **options) for name in keys]


def test_three_devices_find_each_other_and_hold_one_session_with_each() -> None:
    async def test(place: Village) -> None:
        anna, bert, cleo = await three(place)
        await trio.sleep(5)
        assert anna.names() == ["bert", "cleo"]
        assert bert.names() == ["anna", "cleo"]
        assert cleo.names() == ["anna", "bert"]
        session = anna.peers.session_with(bert.keys.public)
        assert session is not None
        assert (session.hello.tier, session.hello.agent, session.device.name) == ("laptop", "test", "bert")
        assert [event.kind for event in anna.events] == ["opened", "opened"]
        await trio.sleep(600)
        assert anna.peers.session_with(bert.keys.public) is session

    village(test)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    async def test(place: Village) -> None:
        await three(place)
        await trio.sleep(120)

    digests = [village(test, seed).internet.trace.digest() for seed in (5, 5, 6)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_devices_that_start_at_the_same_moment_agree_on_one_session() -> None:
    for seed in range(12):
        async def test(place: Village) -> None:
            keys = {name: place.admit(name) for name in ("anna", "bert")}
            anna, bert = [await place.start(name, keys[name], discover=False) for name in keys]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(try_dial, anna, bert)
                nursery.start_soon(try_dial, bert, anna)
            await trio.sleep(20)
            (one,), (other,) = anna.peers.sessions, bert.peers.sessions
            assert one.dialled_by_us != other.dialled_by_us
            assert len(anna.peers._all) == len(bert.peers._all) == 1
            assert one.is_open
            assert other.is_open

        village(test, seed)


async def try_dial(node: Node, other: Node) -> None:
    try:
        await node.peers.dial(other.peers.addresses, expected_public=other.keys.public)
    except NetworkError:
        pass  # the other one's dial won


async def answer_heads(session: Session, message: HeadsGet) -> HeadsList:
    return HeadsList(b"d" * 32, (message.digest,))


def test_questions_are_answered_and_errors_come_back_with_their_code() -> None:
    async def broken(session: Session, message: PacksGet) -> PacksList:
        raise TryAgain("not now")

    async def damaged(session: Session, message: PackRead) -> PackBytes:
        raise VaultError("no such pack")

    async def noticed(session: Session, message: VaultChanged) -> None:
        await trio.lowlevel.checkpoint()

    def setup(peers: Peers) -> None:
        peers.on(HeadsGet, answer_heads)
        peers.on(VaultChanged, noticed)
        peers.on(PacksGet, broken)
        peers.on(PackRead, damaged)

    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        anna = await place.start("anna", keys["anna"])
        await place.start("bert", keys["bert"], setup=setup)
        await trio.sleep(5)
        (session,) = anna.peers.sessions
        assert await session.request(HeadsGet(b"x" * 32)) == HeadsList(b"d" * 32, (b"x" * 32,))
        with pytest.raises(NodeError, match="not now") as caught:
            await session.request(PacksGet(b"", 5))
        assert caught.value.code == "E_TRY_AGAIN"
        with pytest.raises(NodeError, match="no such pack") as caught:
            await session.request(PackRead(b"p" * 32, 0, 5))
        assert caught.value.code == "E_VAULT"
        with pytest.raises(NodeError, match="does not answer VaultChanged"):  # a notice, asked as a question
            await session.request(VaultChanged(b"d" * 32))
        (back,) = place.nodes["bert"].peers.sessions
        with pytest.raises(NodeError, match="does not answer HeadsGet"):
            await back.request(HeadsGet(b""))

    village(test)


def test_many_questions_at_once_are_all_answered_and_a_late_answer_is_forgotten() -> None:
    async def slow(session: Session, message: PackRead) -> PackBytes:
        await trio.sleep(message.offset / 1000)
        return PackBytes(message.pack, message.offset, 1 << 30, b"x" * message.length)

    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        anna = await place.start("anna", keys["anna"])
        await place.start("bert", keys["bert"], setup=lambda peers: peers.on(PackRead, slow))
        await trio.sleep(5)
        (session,) = anna.peers.sessions
        answers: list[int] = []

        async def ask(number: int) -> None:
            answer = await session.request(PackRead(b"p" * 32, number, 900_000), timeout_s=300)
            assert isinstance(answer, PackBytes)
            assert len(answer.data) == 900_000
            answers.append(answer.offset)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(ask, number)
        assert sorted(answers) == list(range(200))
        with pytest.raises(NetworkError, match=r"bert did not answer within 2 s") as caught:
            await session.request(PackRead(b"p" * 32, 5000, 1), timeout_s=2)
        assert caught.value.code == "E_TIMEOUT"
        await trio.sleep(10)
        await session.request(PackRead(b"p" * 32, 1, 1))

    village(test)


def test_a_notice_reaches_the_handler_and_needs_no_answer() -> None:
    seen: list[bytes] = []

    async def note(session: Session, message: VaultChanged) -> None:
        seen.append(message.digest)

    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        anna = await place.start("anna", keys["anna"])
        await place.start("bert", keys["bert"], setup=lambda peers: peers.on(VaultChanged, note))
        await trio.sleep(5)
        await anna.peers.sessions[0].notify(VaultChanged(b"n" * 32))
        await trio.sleep(1)
        assert seen == [b"n" * 32]

    village(test)


def test_a_device_with_an_older_chain_catches_up_before_anybody_is_judged() -> None:
    async def test(place: Village) -> None:
        anna_keys, bert_keys = place.admit("anna"), place.admit("bert")
        old = place.chain
        cleo_keys = place.admit("cleo")
        anna = await place.start("anna", anna_keys)
        bert = await place.start("bert", bert_keys, chain=old)
        cleo = await place.start("cleo", cleo_keys)
        await trio.sleep(10)
        assert bert.store.chain().heads == anna.store.chain().heads
        assert bert.names() == ["anna", "cleo"]
        assert cleo.names() == ["anna", "bert"]

    village(test)


def test_new_entries_reach_all_open_sessions_within_a_second() -> None:
    async def test(place: Village) -> None:
        nodes = await three(place)
        await trio.sleep(5)
        place.admit("dora")
        nodes[0].store.add(*place.chain.raws())
        await trio.sleep(1)
        assert all(node.store.chain().device_named("dora") is not None for node in nodes)

    village(test)


def test_sessions_of_a_revoked_device_end_within_a_second_and_it_stays_out() -> None:
    async def test(place: Village) -> None:
        anna, bert, cleo = await three(place)
        await trio.sleep(5)
        anna.store.add(place.revoke("cleo"))
        await trio.sleep(1)
        assert anna.names() == ["bert"]
        assert bert.names() == ["anna"]
        assert cleo.names() == []
        assert any("removed from the household" in reason for reason in cleo.reasons("closed"))
        await trio.sleep(300)
        assert (anna.names(), bert.names(), cleo.names()) == (["bert"], ["anna"], [])

    village(test)


def test_a_stranger_is_told_why_and_gets_nothing() -> None:
    async def test(place: Village) -> None:
        anna = await place.start("anna", place.admit("anna"))
        keys = DeviceKeys.from_entropy(b"t" * 64)
        chain = Chain.from_entries([make_genesis(STRANGER_ROOT, 1)])
        chain = chain.with_entries([make_device_add(
            chain, STRANGER_ROOT, name="spy", public=keys.public, box_public=keys.box_public, role="admin",
            tier="cloud", time_s=2)])
        spy = await place.start("spy", keys, chain=chain)
        with pytest.raises(NetworkError, match="different identities"):
            await spy.peers.dial(anna.peers.addresses)
        assert anna.names() == []
        assert len(spy.store.chain()) == 2
        assert anna.reasons("refused")

    village(test)


def test_a_lost_peer_is_dialled_again_after_it_restarts() -> None:
    async def test(place: Village) -> None:
        anna, bert, cleo = await three(place)
        await trio.sleep(5)
        place.kill("cleo")
        await trio.sleep(1)
        assert anna.names() == ["bert"]
        assert anna.reasons("closed") == ["the connection was lost"]
        await place.start("cleo", cleo.keys, disk=cleo.disk)
        await trio.sleep(10)
        assert anna.names() == ["bert", "cleo"]
        assert bert.names() == ["anna", "cleo"]
        assert anna.reasons("refused") == []

    village(test)


@pytest.mark.parametrize("discover", [True, False])
@pytest.mark.parametrize("killed", ["anna", "bert"])
def test_a_killed_device_that_returns_is_met_in_under_five_seconds(killed: str, discover: bool) -> None:
    """Whichever of the two has the lower key, with multicast and without, however long it was away."""
    for away_s in (1, 20, 900):
        async def test(place: Village, away_s: int = away_s) -> None:
            keys = {name: place.admit(name) for name in ("anna", "bert")}
            nodes = {name: await place.start(name, keys[name]) for name in keys}
            await trio.sleep(30)
            place.kill(killed)
            await trio.sleep(away_s)
            (other,) = [node for name, node in nodes.items() if name != killed]
            assert other.names() == []
            if not discover:
                place.lan.kill(other.name)  # multicast is blocked from now on
            begun_s = trio.current_time()
            await place.start(killed, keys[killed], disk=nodes[killed].disk, discover=discover)
            while other.names() != [killed]:
                await trio.sleep(0.01)
            assert trio.current_time() - begun_s < 5

        village(test)


def test_a_device_that_only_the_others_can_dial_is_dialled_when_it_announces_itself_again() -> None:
    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        anna, bert = [await place.start(name, keys[name]) for name in keys]
        await trio.sleep(30)
        place.kill("bert")
        await trio.sleep(900)  # by now anna tries about once a minute
        bert.disk.remove(FILE)

        def deaf(peers: Peers) -> None:
            peers._browse = trio.sleep_forever  # type: ignore[method-assign]

        begun_s = trio.current_time()
        await place.start("bert", keys["bert"], disk=bert.disk, setup=deaf)
        while anna.names() != ["bert"]:
            await trio.sleep(0.01)
        assert trio.current_time() - begun_s < 5

    village(test)


def test_a_connection_that_one_side_lost_is_replaced_at_once_by_the_one_that_it_dials_anew() -> None:
    """Its address changed: its old connection is dead and its sibling does not know it yet."""
    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        anna, bert = [await place.start(name, keys[name]) for name in keys]
        await trio.sleep(30)
        for node, other in ((anna, bert), (bert, anna)):
            (held,) = other.peers.sessions
            (lost,) = node.peers.sessions
            place.internet.partition([node.name], [other.name])
            lost.shut("the address changed")
            await trio.sleep(2)
            place.internet.heal()
            begun_s = trio.current_time()
            while node.names() != [other.name] or other.peers.sessions == [held]:
                await trio.sleep(0.01)
            assert trio.current_time() - begun_s < 5
            await trio.sleep(30)
            assert node.names() == [other.name]
            assert other.names() == [node.name]

    village(test)


def test_announcements_in_quick_succession_end_no_wait_so_nobody_can_make_us_dial_in_a_loop() -> None:
    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        anna = await place.start("anna", keys["anna"])
        dialled: list[float] = []
        dial = anna.peers.dial

        async def count(*arguments: Any, **more: Any) -> Session:
            dialled.append(trio.current_time())
            return await dial(*arguments, **more)

        anna.peers.dial = count  # type: ignore[method-assign]
        for number in range(1000):  # anybody on the LAN may say so
            if anna.peers._book.hear(keys["bert"].public, ["/ip4/10.0.0.1/tcp/9"], str(number)):
                anna.peers._dialler.look(keys["bert"].public, heard=True)
            await trio.sleep(0.06)
        assert 10 < len(dialled) < 60 / HEARD_PAUSE_S * 3

    village(test)


def test_remembered_addresses_bring_devices_together_without_discovery() -> None:
    async def test(place: Village) -> None:
        anna, bert, _cleo = await three(place)
        await trio.sleep(5)
        assert anna.disk.exists(FILE)
        for node in (anna, bert):
            place.kill(node.name)
        await trio.sleep(1)
        anna = await place.start("anna", anna.keys, disk=anna.disk, discover=False)
        bert = await place.start("bert", bert.keys, disk=bert.disk, discover=False)
        await trio.sleep(30)
        assert "bert" in anna.names()
        assert "anna" in bert.names()

    village(test)


def test_a_static_address_is_dialled_and_our_own_is_left_alone() -> None:
    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        bert = await place.start("bert", keys["bert"], discover=False)
        static = [*bert.peers.addresses, "/ip4/10.0.0.2/tcp/4001"]
        anna = await place.start("anna", keys["anna"], discover=False, static=static)
        assert anna.peers.addresses == ("/ip4/10.0.0.2/tcp/4001",)
        await trio.sleep(10)
        assert anna.names() == ["bert"]
        assert bert.names() == ["anna"]

    village(test)


def test_reach_dials_a_known_device_on_demand() -> None:
    async def test(place: Village) -> None:
        anna, bert, _ = await three(place)
        await trio.sleep(5)
        (session,) = [session for session in anna.peers.sessions if session.device.name == "bert"]
        await session.close()
        again = await anna.peers.reach(bert.keys.public)
        assert again is not session
        assert again.device.name == "bert"
        with pytest.raises(NetworkError, match="never seen"):
            await anna.peers.reach(b"?" * 32)

    village(test)


def test_a_partition_is_noticed_by_the_heartbeat_and_healed_by_dialling() -> None:
    async def test(place: Village) -> None:
        anna, bert, cleo = await three(place)
        await trio.sleep(5)
        place.internet.partition(["anna"], ["bert", "cleo"])
        await trio.sleep(45)
        assert anna.names() == []
        assert bert.names() == ["cleo"]
        place.internet.heal()
        await trio.sleep(90)
        assert anna.names() == ["bert", "cleo"]
        assert cleo.names() == ["anna", "bert"]

    village(test)


def test_a_copied_key_is_noticed_by_everybody_and_quarantined() -> None:
    async def test(place: Village) -> None:
        anna, bert, cleo = await three(place)
        await trio.sleep(5)
        copy = await place.start("copy of cleo", cleo.keys, disk=cleo.disk.copy())
        await trio.sleep(20)
        for node in (anna, bert):
            assert "cleo" not in node.names()
            assert any("--rekey" in reason for reason in (*node.reasons("closed"), *node.reasons("refused")))
        for node in (copy, cleo):
            assert any("--rekey" in reason for reason in (*node.reasons("closed"), *node.reasons("refused")))
        copy.scope.cancel()
        place.kill("copy of cleo")
        await trio.sleep(200)
        assert anna.names() == ["bert", "cleo"]

    village(test)


def test_a_copied_key_at_static_addresses_is_dialled_with_patience_by_everybody() -> None:
    async def test(place: Village) -> None:
        keys = {name: place.admit(name) for name in ("anna", "bert")}
        first = await place.start("bert", keys["bert"], discover=False)
        twin = await place.start("twin", keys["bert"], discover=False)
        static = [*first.peers.addresses, *twin.peers.addresses]
        anna = await place.start("anna", keys["anna"], discover=False, static=static)
        third = await place.start("third", keys["bert"], discover=False, static=anna.peers.addresses)
        await trio.sleep(1800)
        assert any("init --rekey" in reason for reason in anna.reasons("closed"))
        for node in (anna, first, twin, third):
            # Three who dial about once a minute for half an hour, two sessions opened and closed at the most each time.
            assert 0 < len(node.events) < 3 * 30 * 4, "not in a loop"

    village(test)


def test_a_full_disk_ends_the_session_and_nothing_else() -> None:
    async def test(place: Village) -> None:
        anna_keys, bert_keys = place.admit("anna"), place.admit("bert")
        old = place.chain
        place.admit("cleo")
        anna = await place.start("anna", anna_keys)
        bert = await place.start("bert", bert_keys, chain=old, setup=lambda peers: None)
        bert.store.full = True
        await trio.sleep(20)
        assert anna.names() == bert.names() == []
        assert any("full" in reason for reason in bert.reasons("refused"))
        bert.store.full = False
        await trio.sleep(120)
        assert anna.names() == ["bert"]

    village(test)


@asynccontextmanager
async def raw_session(place: Village, keys: DeviceKeys, target: Node) -> AsyncIterator[Any]:
    """A peer that speaks bytes of its own."""
    network = place.internet.host("raw")
    async with network.serve(keys.sign_seed, [], {}):
        connection = await network.dial(target.peers.addresses[0], None, 5)
        yield await connection.open_stream(SESSION_PROTOCOL)


def test_nonsense_oversized_frames_and_silence_end_the_session_only() -> None:
    async def test(place: Village) -> None:
        anna_keys, bert_keys, raw_keys = place.admit("anna"), place.admit("bert"), place.admit("raw")
        anna = await place.start("anna", anna_keys)
        await place.start("bert", bert_keys)
        for words in (b"\xff\xff\xff\xff", b"\0\0\0\0", encode_frame(b"nonsense"), encode_frame(b"\x91\x01"), b"\0"):
            async with raw_session(place, raw_keys, anna) as stream:
                await stream.send_all(words)
                with trio.fail_after(40):
                    try:
                        while await stream.receive_some(1 << 20):
                            pass
                    except NetworkError:
                        pass  # a broken connection is as good as an end
        assert anna.names() == ["bert"]
        assert len(anna.reasons("refused")) == 5

    village(test)


async def heard_from(stream: Any) -> list[Any]:
    """All messages until the other side ends the stream."""
    decoder, heard = FrameDecoder(), list[Any]()
    with trio.fail_after(60):
        try:
            while data := await stream.receive_some(1 << 20):
                heard += map(from_wire, decoder.feed(data))
        except NetworkError:
            pass  # a broken connection is as good as an end
    return heard


def hello_of(keys: DeviceKeys, chain: Chain, **changes: Any) -> Hello:
    return dataclasses.replace(Hello(
        versions=(1,), identity_id=chain.identity_id, device=keys.public, boot_nonce=bytes(16), height=chain.height,
        heads=chain.heads, tier="laptop", backends=(), memory_bytes=0, bases=(), addresses=(), agent="", time_s=0),
        **changes)


def test_an_unknown_protocol_version_is_refused_by_name_on_both_sides() -> None:
    async def test(place: Village) -> None:
        anna_keys, raw_keys = place.admit("anna"), place.admit("raw")
        anna = await place.start("anna", anna_keys)
        async with raw_session(place, raw_keys, anna) as stream:
            await stream.send_all(encode_frame(to_wire(hello_of(raw_keys, place.chain, versions=(7, 9)))))
            hello, goodbye = await heard_from(stream)
        assert (hello.versions, goodbye.code) == ((1,), "E_VERSION")
        for text in (goodbye.message, *anna.reasons("refused")):
            assert "[7, 9]" in text
            assert "[1]" in text
            assert "Upgrade" in text

    village(test)


def test_a_stranger_gets_a_refusal_and_nothing_else_whatever_it_says() -> None:
    async def test(place: Village) -> None:
        anna = await place.start("anna", place.admit("anna"))
        keys = DeviceKeys.from_entropy(b"t" * 64)
        foreign = Chain.from_entries([make_genesis(STRANGER_ROOT, 1)])
        asked = encode_frame(to_wire(HeadsGet(b""))), encode_frame(to_wire(ChainGet(())))
        for hello in (hello_of(keys, foreign), hello_of(keys, place.chain)):
            for more in (b"", *asked):
                async with raw_session(place, keys, anna) as stream:
                    await stream.send_all(encode_frame(to_wire(hello)) + more)
                    (refusal,) = await heard_from(stream)
                assert refusal.code in ("E_STRANGER", "E_VIOLATION")
        async with raw_session(place, keys, anna) as stream:
            await stream.send_all(asked[0])
            (refusal,) = await heard_from(stream)
            assert refusal.code == "E_VIOLATION"
        network = place.internet.host("raw")
        async with network.serve(keys.sign_seed, [], {}):
            connection = await network.dial(anna.peers.addresses[0], None, 5)
            for protocol in ("/hinet/vault/1", "/hinet/session/2", "/ipfs/id/1.0.0"):
                with pytest.raises(NetworkError):
                    await (await connection.open_stream(protocol)).receive_some(1)

    village(test)


def test_stopping_says_goodbye_to_everybody() -> None:
    async def test(place: Village) -> None:
        anna, bert, cleo = await three(place)
        await trio.sleep(5)
        bert.scope.cancel()
        await trio.sleep(1)
        assert anna.names() == ["cleo"]
        assert anna.reasons("closed") == ["the other side said goodbye"]
        assert cleo.reasons("closed") == ["the other side said goodbye"]

    village(test)


def test_a_subscriber_that_does_not_read_loses_the_oldest_events_only() -> None:
    async def test(place: Village) -> None:
        anna = await place.start("anna", place.admit("anna"))
        async with anna.peers.events() as events:
            for number in range(300):
                anna.peers._tell(PeerEvent("refused", b"", str(number)))
            assert (await events.receive()).reason == "44"

    village(test)


def test_messages_survive_the_wire() -> None:
    message = HeadsList(b"d" * 32, (b"x",))
    assert from_wire(to_wire(message)) == message


def test_what_is_announced_names_a_key_and_its_addresses_and_nothing_else() -> None:
    """Everybody on the LAN hears it: no name of the owner, of the device, its tier or its household."""
    async def test(place: Village) -> None:
        anna = await place.start("anna", place.admit("anna"))
        heard = []
        async with place.lan.host("eve").browse(SERVICE) as found:
            with trio.move_on_after(5):
                async for announcement in found:
                    heard.append(announcement)
        (said,) = heard
        assert said.name == peer_id(anna.keys.public)
        assert set(said.properties) == {"boot"}
        assert len(bytes.fromhex(said.properties["boot"])) == 16
        assert set(said.addresses) == set(anna.peers.addresses)
        text = " ".join((said.name, *said.addresses, *said.properties.values()))
        for secret in ("anna", "laptop", place.chain.identity_id.hex(), "home"):
            assert secret not in text.replace(said.name, "")

    village(test)
