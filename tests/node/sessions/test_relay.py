"""Devices that don't reach each other meet through a sibling: over the in-memory ports, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Connection, Ports, Stream
from hinet_node.sessions.peers import LocalFacts, PeerEvent, Peers, Session
from hinet_node.sessions.relay import talk
from hinet_protocol.chain import Chain, make_device_add, make_device_revoke, make_genesis
from hinet_protocol.identity import DeviceKeys, RootKey, peer_id
from hinet_protocol.messages import HeadsGet, HeadsList, PackBytes, PackRead, PacksGet, PacksList
from hinet_protocol.relay import (
    HOP_PROTOCOL,
    STOP_PROTOCOL,
    Hop,
    HopKind,
    RelayLimits,
    Reservation,
    Status,
    Stop,
    StopKind,
    frame,
)
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.discovery import Lan
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.network import Internet
from hinet_simnet.randomness import SeededRandomness

ROOT = RootKey(b"r" * 32)
HUB_AT = "/ip4/10.0.0.1/tcp/4001"


class Store:
    """A chain in memory."""

    def __init__(self, chain: Chain) -> None:
        self.held = chain
        self.on_growth: Callable[[], None] = lambda: None

    def chain(self) -> Chain:
        return self.held

    async def absorb(self, entries: Sequence[bytes]) -> None:
        await trio.sleep(0.001)
        self.held = self.held.merge(entries).chain
        self.on_growth()


@dataclass
class Node:
    keys: DeviceKeys
    store: Store
    peers: Peers
    ports: Ports
    log: list[str]
    events: list[PeerEvent] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def names(self) -> list[str]:
        return [session.device.name for session in self.peers.sessions]

    def session(self, other: Node) -> Session:
        found = self.peers.session_with(other.keys.public)
        assert found is not None
        return found


class Valley:
    """A hub that all reach, and two devices that reach nobody else."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.internet = Internet(1)
        self.lan = Lan(self.internet)
        self.chain = Chain.from_entries([make_genesis(ROOT, 1)])
        self.starts = 0
        self.keys = {name: self.admit(name) for name in ("hub", "anna", "bert")}
        self.disks = {name: MemoryDisk(name) for name in (*self.keys, "spy")}
        self.internet.cut("anna", "bert")
        self.internet.cut("bert", "anna")

    def admit(self, name: str) -> DeviceKeys:
        keys = DeviceKeys.from_entropy(SeededRandomness(1, name).draw(64))
        self.chain = self.chain.with_entries([make_device_add(
            self.chain, ROOT, name=name, public=keys.public, box_public=keys.box_public, role="member", tier="laptop",
            time_s=2)])
        return keys

    async def start(self, name: str, *, keys: DeviceKeys | None = None, chain: Chain | None = None,
                    discover: bool = False, **options: Any) -> Node:
        self.starts += 1
        ports = Ports(clock=VirtualClock(), randomness=SeededRandomness(1, f"{name} {self.starts}"),
                      network=self.internet.host(name), discovery=self.lan.host(name), disk=self.disks[name],
                      compute=cast(Any, None))
        keys, store, log = keys or self.keys[name], Store(chain or self.chain), list[str]()
        peers = Peers(ports, keys.sign_seed, store, lambda: LocalFacts(tier="laptop"), discover=discover,
                      listen=["/ip4/0.0.0.0/tcp/0"], log=log.append, **options)
        store.on_growth = peers.chain_grew
        peers.on(HeadsGet, answer_heads)
        peers.on(PackRead, answer_pack)
        peers.on(PacksGet, answer_slowly)
        node = Node(keys, store, peers, ports, log)
        await self.nursery.start(self._run, node)
        return node

    async def hub(self, **options: Any) -> Node:
        return await self.start("hub", relay_limits=RelayLimits(**options))

    async def three(self) -> tuple[Node, Node, Node]:
        return await self.hub(), await self.start("anna", relays=[HUB_AT]), await self.start("bert", relays=[HUB_AT])

    async def _run(self, node: Node, *, task_status: Any) -> None:
        with node.scope:
            async with trio.open_nursery() as nursery, node.peers.events() as events:
                await nursery.start(node.peers.run)
                task_status.started()
                async for event in events:
                    node.events.append(event)

    def kill(self, name: str, node: Node) -> None:
        self.internet.kill(name)
        node.scope.cancel()


async def answer_slowly(session: Session, message: PacksGet) -> PacksList:
    await trio.sleep(6)
    return PacksList((), False)


async def answer_pack(session: Session, message: PackRead) -> PackBytes:
    return PackBytes(message.pack, message.offset, 1 << 20, b"x" * message.length)


async def answer_heads(session: Session, message: HeadsGet) -> HeadsList:
    return HeadsList(b"d" * 32, (message.digest,))


def valley(test: Callable[[Valley], Any]) -> str:
    """Run in virtual time, at most a virtual day; returns the digest of the trace."""
    digests = []

    async def main() -> None:
        with trio.fail_after(24 * 3600):
            async with trio.open_nursery() as nursery:
                place = Valley(nursery)
                await test(place)
                nursery.cancel_scope.cancel()
        digests.append(place.internet.trace.digest())

    virtual_run(main, seed=1)
    return str(digests[0])


async def ask(node: Node, message: Hop | bytes, *, hub: Node, protocol: str = HOP_PROTOCOL) -> Status | None:
    """What the hub answers on a stream of a connection that is no session."""
    connection = await node.ports.network.dial(HUB_AT, hub.keys.public, 5)
    stream = await connection.open_stream(protocol)
    await stream.send_all(message if isinstance(message, bytes) else frame(message))
    answer = Hop.decode(await talk.receive(stream)).status
    await connection.close()
    return answer


def test_two_devices_without_a_way_between_them_get_a_session_through_their_relay() -> None:
    async def test(place: Valley) -> None:
        hub, anna, bert = await place.three()
        await trio.sleep(8)
        assert anna.names() == ["bert", "hub"]
        session = anna.session(bert)
        assert (session.relayed, session.relay, anna.session(hub).relayed) == (True, hub.keys.public, False)
        assert session.address == bert.session(anna).address == f"{HUB_AT}/p2p/{peer_id(hub.keys.public)}/p2p-circuit"
        assert await session.request(HeadsGet(b"x" * 32)) == HeadsList(b"d" * 32, (b"x" * 32,))
        assert "siblings can call this device through hub" in anna.log
        assert hub.peers.relaying is not None
        for _ in range(4):
            await trio.sleep(2000)  # reservations are renewed meanwhile, sessions stay
            assert hub.peers.relaying.describe() == {"reservations": 2, "circuits": 1}
        assert anna.session(bert) is session

    assert valley(test) == valley(test)


def test_the_relayed_address_is_in_the_hello_and_serves_a_sibling_that_has_no_relay_itself() -> None:
    async def test(place: Valley) -> None:
        hub, bert = await place.hub(), await place.start("bert", relays=[HUB_AT])
        await trio.sleep(5)
        through = f"{HUB_AT}/p2p/{peer_id(hub.keys.public)}/p2p-circuit"
        assert hub.session(bert).hello.addresses[-1] != through  # the first hello came before the relay's key was known
        bert.scope.cancel()
        await trio.sleep(1)
        pinned = f"{HUB_AT}/p2p/{peer_id(hub.keys.public)}"
        bert = await place.start("bert", relays=[pinned])
        await trio.sleep(5)
        assert hub.session(bert).hello.addresses[-1] == through
        anna = await place.start("anna")
        session = await anna.peers.dial([through], expected_public=bert.keys.public)
        assert session.relayed
        assert anna.names() == ["bert"]  # the way through the hub needed no session with it

    valley(test)


def test_when_the_relay_dies_the_session_ends_and_when_it_is_back_there_is_a_new_one() -> None:
    async def test(place: Valley) -> None:
        hub, anna, bert = await place.three()
        await trio.sleep(8)
        anna.session(bert)
        place.kill("hub", hub)
        await trio.sleep(31)
        assert anna.names() == bert.names() == []
        await trio.sleep(60)
        await place.hub()
        await trio.sleep(20)
        assert anna.names() == ["bert", "hub"]
        assert bert.session(anna).relayed

    valley(test)


def test_a_direct_way_takes_the_relayed_ones_place_and_the_other_way_round() -> None:
    async def test(place: Valley) -> None:
        hub, anna, bert = await place.three()
        await trio.sleep(8)
        assert anna.session(bert).relayed
        place.internet.heal()
        await trio.sleep(150)  # nobody tells: the direct addresses are tried now and then
        assert not anna.session(bert).relayed
        assert not bert.session(anna).relayed
        assert len(anna.peers._all) == 2
        assert hub.peers.relaying is not None
        assert hub.peers.relaying.describe()["circuits"] == 0
        place.internet.cut("anna", "bert")
        place.internet.cut("bert", "anna")
        await trio.sleep(90)
        assert anna.session(bert).relayed
        assert bert.session(anna).relayed

    valley(test)


def test_a_question_that_was_asked_through_the_relay_is_answered_there_also_when_a_direct_way_comes() -> None:
    async def test(place: Valley) -> None:
        _, anna, bert = await place.three()
        await trio.sleep(8)
        relayed, answers = anna.session(bert), []

        async def ask_slowly() -> None:
            answers.append(await relayed.request(PacksGet(b"", 1)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_slowly)
            await trio.sleep(0.1)
            place.internet.heal()
            direct = await anna.peers.dial(bert.peers.addresses, expected_public=bert.keys.public)
            assert not direct.relayed
            assert anna.session(bert) is direct
        assert answers == [PacksList((), False)]
        await trio.sleep(5)
        assert relayed.over.is_set()

    valley(test)


def test_while_a_relay_helps_out_the_direct_addresses_that_fail_are_kept() -> None:
    async def test(place: Valley) -> None:
        _, anna, bert = await place.three()
        forwarded = "/ip4/10.9.9.9/tcp/4001"  # a way in that bert does not know of
        anna.peers._book.keep(bert.keys.public, forwarded, bert.peers.addresses)
        await trio.sleep(300)
        assert anna.session(bert).relayed
        assert forwarded in anna.peers._book.find(bert.keys.public, direct=True)

    valley(test)


def test_an_announcement_on_the_lan_moves_a_relayed_session_at_once() -> None:
    async def test(place: Valley) -> None:
        await place.hub()
        anna = await place.start("anna", relays=[HUB_AT], discover=True)
        bert = await place.start("bert", relays=[HUB_AT])
        await trio.sleep(100)
        assert anna.session(bert).relayed
        bert.scope.cancel()
        place.internet.heal()
        await trio.sleep(1)
        bert = await place.start("bert", relays=[HUB_AT], discover=True)
        await trio.sleep(5)
        assert not anna.session(bert).relayed

    valley(test)


def test_strangers_and_removed_devices_are_served_nothing() -> None:
    async def test(place: Valley) -> None:
        hub, anna, bert = await place.three()
        await trio.sleep(8)
        session = bert.session(anna)
        for name, keys in (("spy", DeviceKeys.from_entropy(b"s" * 64)), ("spy", place.keys["anna"])):
            if keys is place.keys["anna"]:
                await hub.store.absorb([make_device_revoke(place.chain, ROOT, keys.public, time_s=3)])
                await trio.sleep(0.5)
                assert session.over.is_set()  # its circuit was cut as soon as the relay knew
                assert hub.peers.relaying is not None
                assert hub.peers.relaying.describe() == {"reservations": 1, "circuits": 0}
            network = place.internet.host(name)
            async with network.serve(keys.sign_seed, [], {}):
                ports = Ports(VirtualClock(), SeededRandomness(1, "spy"), network, cast(Any, None), cast(Any, None),
                              cast(Any, None))
                spy = Node(keys, hub.store, hub.peers, ports, [])
                for message in (Hop(HopKind.RESERVE), Hop(HopKind.CONNECT, peer=bert.keys.public), b"\xff\xff\xff"):
                    assert await ask(spy, message, hub=hub) == Status.PERMISSION_DENIED

    valley(test)


def test_a_sibling_is_not_connected_to_strangers_to_itself_or_to_who_is_not_there() -> None:
    async def test(place: Valley) -> None:
        hub, anna = await place.hub(), await place.start("anna", relays=[HUB_AT])
        await trio.sleep(5)
        for target, wanted in ((b"s" * 32, Status.PERMISSION_DENIED), (anna.keys.public, Status.MALFORMED_MESSAGE),
                               (None, Status.MALFORMED_MESSAGE), (place.keys["bert"].public, Status.NO_RESERVATION)):
            assert await ask(anna, Hop(HopKind.CONNECT, peer=target), hub=hub) == wanted
        assert await ask(anna, Hop(HopKind.STATUS, status=Status.OK), hub=hub) == Status.UNEXPECTED_MESSAGE
        for rough in (b"\xff\xff\xff\xff", b"\x00", b"\x81\x20" + b"x" * 4097, b"\x02\x09" + b"\x00" * 8):
            assert await ask(anna, rough, hub=hub) == Status.MALFORMED_MESSAGE
        way = f"{HUB_AT}/p2p/{peer_id(hub.keys.public)}/p2p-circuit"
        with pytest.raises(NetworkError, match="the other device is not there now"):
            await anna.peers.dial([way], expected_public=place.keys["bert"].public)

    valley(test)


def test_a_device_that_does_not_serve_says_so_and_the_status_tells_it() -> None:
    async def test(place: Valley) -> None:
        await place.start("hub")
        anna = await place.start("anna", relays=[HUB_AT])
        await trio.sleep(5)
        (shown,) = anna.peers.relays.describe()
        assert (shown["state"], shown["address"]) == ("refused", HUB_AT)
        assert shown["reason"].startswith("hub does not serve as a relay")
        assert anna.names() == ["hub"]

    valley(test)


def test_circuits_are_bounded_for_each_device_and_by_bytes_and_time() -> None:
    async def test(place: Valley) -> None:
        hub = await place.hub(circuit_bytes=200_000, circuit_s=600, circuits_each=2)
        anna, bert = await place.start("anna", relays=[HUB_AT]), await place.start("bert", relays=[HUB_AT])
        await trio.sleep(8)
        first = anna.session(bert)
        with trio.fail_after(3600):
            await first.over.wait()  # its ten minutes are over
        await trio.sleep(30)
        second = anna.session(bert)
        assert second is not first
        asked = 0
        while second.is_open:
            asked += 1
            with suppress(NetworkError):
                await second.request(PackRead(b"p" * 32, 0, 10_000))
        assert 18 <= asked <= 21  # answers of 10 kB each
        await trio.sleep(30)
        way = anna.session(bert).address
        await anna.peers.relays.dial(way, bert.keys.public, 5)  # with the session's own circuit: two
        with pytest.raises(NetworkError, match="as much as it may"):
            await anna.peers.relays.dial(way, bert.keys.public, 5)
        assert hub.names() == ["anna", "bert"]

    valley(test)


async def hostile_hub(place: Valley, behave: Callable[[Connection, Stream], Any], *, name: str = "hub") -> Node:
    """A sibling that grants reservations and does what `behave` does with the rest."""
    async def hop(connection: Connection, stream: Stream) -> None:
        message = Hop.decode(await talk.receive(stream))
        if message.kind == HopKind.RESERVE:
            await talk.send(stream, Hop(HopKind.STATUS, reservation=Reservation(1 << 40), status=Status.OK))
            return
        await behave(connection, stream)

    return await place.start(name, handlers={HOP_PROTOCOL: hop})


async def wait(connection: Connection, stream: Stream) -> None:
    await trio.sleep(300)


async def nonsense(connection: Connection, stream: Stream) -> None:
    await stream.send_all(b"\xff" * 10_000)


async def huge(connection: Connection, stream: Stream) -> None:
    await stream.send_all(b"\xff\x7f" + b"x" * 100_000)


async def cut(connection: Connection, stream: Stream) -> None:
    await stream.send_all(frame(Hop(HopKind.STATUS, status=Status.OK))[:2])


@pytest.mark.parametrize(("behave", "wanted"), [
    (wait, "did not answer|in time"), (nonsense, "no relay"), (huge, "no relay"), (cut, "went away"),
])
def test_a_relay_that_answers_badly_or_late_gets_no_session_and_harms_nothing(
        behave: Callable[[Connection, Stream], Any], wanted: str) -> None:
    async def test(place: Valley) -> None:
        await no_session_through(place, await hostile_hub(place, behave), wanted)

    valley(test)


def test_a_relay_that_puts_another_device_in_the_wanted_ones_place_is_caught() -> None:
    async def swap(connection: Connection, stream: Stream) -> None:
        await talk.send(stream, Hop(HopKind.STATUS, status=Status.OK))
        await hubs[0].ports.network.accept_over(stream, "/swapped", connection.remote_public)

    hubs: list[Node] = []

    async def test(place: Valley) -> None:
        hubs.append(await hostile_hub(place, swap))
        await no_session_through(place, hubs[0], "another device")

    valley(test)


async def no_session_through(place: Valley, hub: Node, wanted: str) -> None:
    anna = await place.start("anna", relays=[HUB_AT])
    await trio.sleep(5)
    way = f"{HUB_AT}/p2p/{peer_id(hub.keys.public)}/p2p-circuit"
    with pytest.raises(NetworkError, match=wanted):
        await anna.peers.dial([way], expected_public=place.keys["bert"].public, timeout_s=15)
    await trio.sleep(40)
    assert anna.names() == ["hub"]
    assert len(anna.peers._all) == 1


def test_a_relay_can_not_bring_strangers_or_flood_a_device_with_calls() -> None:
    async def test(place: Valley) -> None:
        hub = await hostile_hub(place, lambda connection, stream: trio.sleep(0))
        anna = await place.start("anna", relays=[HUB_AT])
        await trio.sleep(5)
        session, answers = hub.session(anna), list[Status | None]()

        async def call(message: bytes) -> None:
            stream = await session.open_stream(STOP_PROTOCOL)
            await stream.send_all(message)
            answers.append(Stop.decode(await talk.receive(stream)).status)

        await call(frame(Stop(StopKind.CONNECT, peer=b"s" * 32)))
        await call(frame(Stop(StopKind.CONNECT, peer=anna.keys.public)))
        await call(frame(Stop(StopKind.STATUS, status=Status.OK)))
        await call(b"\x80\x80\x80\x80" + b"x" * 64)
        assert answers == [Status.PERMISSION_DENIED, Status.PERMISSION_DENIED, Status.UNEXPECTED_MESSAGE,
                           Status.MALFORMED_MESSAGE]
        answers.clear()
        for _ in range(40):
            await call(frame(Stop(StopKind.CONNECT, peer=place.keys["bert"].public)))
        assert answers.count(Status.OK) == 16
        assert answers.count(Status.RESOURCE_LIMIT_EXCEEDED) == 24
        await trio.sleep(30)  # nobody spoke on them
        answers.clear()
        await call(frame(Stop(StopKind.CONNECT, peer=place.keys["bert"].public)))
        assert answers == [Status.OK]
        assert anna.names() == ["hub"]

    valley(test)


def test_no_device_can_take_all_the_circuits_of_another_or_all_the_relays_attention() -> None:
    async def test(place: Valley) -> None:
        hub, anna, bert = await place.three()
        await trio.sleep(8)
        way = anna.session(bert).address
        for _ in range(3):
            await anna.peers.relays.dial(way, bert.keys.public, 5)
        with pytest.raises(NetworkError, match="as much as it may"):
            await anna.peers.relays.dial(way, bert.keys.public, 5)
        silent = [await anna.session(hub).open_stream(HOP_PROTOCOL) for _ in range(9)]
        assert Hop.decode(await talk.receive(silent[-1])).status == Status.RESOURCE_LIMIT_EXCEEDED
        assert await ask(bert, Hop(HopKind.RESERVE), hub=hub) == Status.OK
        await trio.sleep(11)
        assert await ask(anna, Hop(HopKind.RESERVE), hub=hub) == Status.OK

    valley(test)


def test_a_relay_that_calls_in_a_siblings_name_is_caught_by_the_called_device() -> None:
    async def test(place: Valley) -> None:
        hub = await hostile_hub(place, lambda connection, stream: trio.sleep(0))
        anna = await place.start("anna", relays=[HUB_AT])
        await trio.sleep(5)
        for name, caught in (("bert", True), ("hub", False)):
            stream = await hub.session(anna).open_stream(STOP_PROTOCOL)
            await talk.send(stream, Stop(StopKind.CONNECT, peer=place.keys[name].public))
            assert Stop.decode(await talk.receive(stream)).status == Status.OK
            connection = await hub.ports.network.dial_over(stream, "/anna", anna.keys.public, 5)
            if caught:
                with pytest.raises(NetworkError):
                    await connection.open_stream(HOP_PROTOCOL)
            else:  # its own name is its own affair
                await connection.open_stream(STOP_PROTOCOL)
        assert anna.names() == ["hub"]

    valley(test)


def test_nothing_is_relayed_over_what_is_relayed_already() -> None:
    async def test(place: Valley) -> None:
        await place.hub()
        anna = await place.start("anna", relays=[HUB_AT])
        bert = await place.start("bert", relays=[HUB_AT], relay_limits=RelayLimits())
        await trio.sleep(8)
        for message in (Hop(HopKind.RESERVE), Hop(HopKind.CONNECT, peer=place.keys["hub"].public)):
            stream = await anna.session(bert).open_stream(HOP_PROTOCOL)
            await talk.send(stream, message)
            assert Hop.decode(await talk.receive(stream)).status == Status.PERMISSION_DENIED

    valley(test)


def test_a_sender_waits_for_a_reader_inside_a_circuit() -> None:
    async def unread(connection: Connection, stream: Stream) -> None:
        await trio.sleep_forever()

    async def test(place: Valley) -> None:
        await place.hub()
        anna = await place.start("anna", relays=[HUB_AT])
        bert = await place.start("bert", relays=[HUB_AT], handlers={"/unread/1": unread})
        await trio.sleep(8)
        connection = await anna.peers.relays.dial(anna.session(bert).address, bert.keys.public, 5)
        stream, sent = await connection.open_stream("/unread/1"), 0
        with trio.move_on_after(60):
            while sent < 64 << 20:
                await stream.send_all(bytes(1 << 20))
                sent += 1 << 20
        assert sent < 16 << 20
        await anna.session(bert).request(HeadsGet(b"x" * 32))

    valley(test)


def test_a_call_from_a_device_that_is_no_relay_of_ours_is_refused() -> None:
    async def test(place: Valley) -> None:
        _, anna, bert = await place.three()
        await trio.sleep(8)
        stream = await anna.session(bert).open_stream(STOP_PROTOCOL)
        assert Stop.decode(await talk.receive(stream)).status == Status.PERMISSION_DENIED

    valley(test)
