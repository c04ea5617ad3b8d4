"""Relays over real sockets, Noise and yamux: what the one in the middle sees, what it can spoil, and what it must hold.

The devices at the ends listen nowhere, so that there is no way between them but the relay.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha512
from typing import Any, cast

import pytest
import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Connection, Ports, Stream
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.real.transport import Libp2pNetwork
from hinet_node.real.transport.over import StreamPipe
from hinet_node.sessions.peers import LocalFacts, Peers, Session
from hinet_node.sessions.relay import RelayClient, serving, talk
from hinet_protocol.chain import Chain, make_device_add, make_genesis
from hinet_protocol.identity import DeviceKeys, RootKey
from hinet_protocol.messages import PackBytes, PackRead
from hinet_protocol.relay import HOP_PROTOCOL, Hop, HopKind, RelayLimits, Status, Stop, StopKind
from hinet_simnet.disk import MemoryDisk

ROOT = RootKey(b"r" * 32)
NAMES = ("hub", "anna", "bert")
KEYS = {name: DeviceKeys.from_entropy(sha512(name.encode()).digest()) for name in NAMES}
PLAIN = b"nothing that the relay may read "


class Store:
    def __init__(self, chain: Chain) -> None:
        self.held = chain

    def chain(self) -> Chain:
        return self.held

    async def absorb(self, entries: Sequence[bytes]) -> None:
        self.held = self.held.merge(entries).chain


def household() -> Chain:
    chain = Chain.from_entries([make_genesis(ROOT, 1)])
    for name, keys in KEYS.items():
        chain = chain.with_entries([make_device_add(chain, ROOT, name=name, public=keys.public, role="member",
                                                    box_public=keys.box_public, tier="laptop", time_s=2)])
    return chain


async def answer(session: Session, message: PackRead) -> PackBytes:
    return PackBytes(message.pack, message.offset, 1 << 30, (PLAIN * 32768)[:message.length])


@asynccontextmanager
async def running(name: str, chain: Chain, **options: Any) -> AsyncIterator[Peers]:
    ports = Ports(SystemClock(), SystemRandomness(), Libp2pNetwork(), cast(Any, None), MemoryDisk(name),
                  cast(Any, None))
    peers = Peers(ports, KEYS[name].sign_seed, Store(chain), lambda: LocalFacts(tier="laptop"), discover=False,
                  **{"listen": [], **options})
    peers.on(PackRead, answer)
    async with trio.open_nursery() as nursery:
        await nursery.start(peers.run)
        yield peers
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.01)


def valley(test: Callable[[Peers, Peers, Peers], Awaitable[None]], **options: Any) -> None:
    """Run `test(hub, anna, bert)` once all have their sessions."""
    async def main() -> None:
        chain = household()
        with trio.fail_after(60):
            async with running("hub", chain, listen=["/ip4/127.0.0.1/tcp/0"], relay_limits=RelayLimits(),
                               **options) as hub:
                relays = list(hub.addresses)
                async with running("anna", chain, relays=relays) as anna, running("bert", chain, relays=relays) as bert:
                    await until(lambda: len(anna.sessions) == len(bert.sessions) == 2)
                    await test(hub, anna, bert)

    trio.run(main)


def between(one: Peers, other: Peers) -> Session:
    found = one.session_with(other.public)
    assert found is not None
    return found


def test_two_devices_that_listen_nowhere_meet_and_pass_a_pack_through_the_relay() -> None:
    async def test(hub: Peers, anna: Peers, bert: Peers) -> None:
        session = between(anna, bert)
        assert session.relayed
        assert session.relay == KEYS["hub"].public
        assert between(bert, anna).relayed
        for at in range(8):
            got = await session.request(PackRead(b"p" * 32, at, 1_000_000))
            assert isinstance(got, PackBytes)
            assert got.data == (PLAIN * 32768)[:1_000_000]

    valley(test)


def test_the_relay_sees_no_plaintext_and_a_changed_byte_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, spoil = bytearray(), [False]

    class Spy(serving.RelayServer):
        async def _pass_on(self, near: Stream, far: Stream) -> None:
            await super()._pass_on(cast(Stream, Tapped(near)), cast(Stream, Tapped(far)))

    class Tapped:
        def __init__(self, stream: Stream) -> None:
            self._stream = stream

        async def receive_some(self, bytes_max: int) -> bytes:
            data = await self._stream.receive_some(bytes_max)
            seen.extend(data)
            if spoil[0] and data:
                return data[:-1] + bytes([data[-1] ^ 1])
            return data

        async def send_all(self, data: bytes) -> None:
            await self._stream.send_all(data)

    monkeypatch.setattr("hinet_node.sessions.peers.RelayServer", Spy)

    async def test(hub: Peers, anna: Peers, bert: Peers) -> None:
        session = between(anna, bert)
        await session.request(PackRead(b"p" * 32, 0, 500_000))
        assert len(seen) > 500_000
        assert PLAIN not in seen
        assert b"hinet/session" not in seen
        spoil[0] = True
        with pytest.raises(NetworkError):
            await session.request(PackRead(b"p" * 32, 0, 1000), timeout_s=10)
        await until(session.over.is_set)
        spoil[0] = False
        await until(lambda: anna.session_with(bert.public) is not None)

    valley(test)


def test_when_the_relay_goes_the_session_ends_and_when_it_is_back_there_is_a_new_one() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = [f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"]

    async def main() -> None:
        chain = household()
        with trio.fail_after(60):
            async with running("anna", chain, relays=place) as anna, running("bert", chain, relays=place) as bert:
                for _ in range(2):
                    async with running("hub", chain, listen=place, relay_limits=RelayLimits()):
                        await until(lambda: len(anna.sessions) == len(bert.sessions) == 2)
                        assert between(anna, bert).relayed
                    await until(lambda: not anna.sessions and not bert.sessions)

    trio.run(main)


def test_a_slow_reader_at_the_far_end_stalls_the_sender_and_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst that two of its own can do to a relay: one sends without end, the other takes calls and reads nothing.
    Honest ends are slowed down before that, by the windows of their own connection."""

    async def unread(self: RelayClient, connection: Connection, stream: Stream) -> None:
        await talk.receive(stream)
        await talk.send(stream, Stop(StopKind.STATUS, status=Status.OK))
        await trio.sleep_forever()

    monkeypatch.setattr(RelayClient, "handle", unread)
    sent, turn = [0] * 14, trio.Lock()

    async def fill(session: Session, target: bytes, number: int) -> None:
        async with turn:
            stream = await session.open_stream(HOP_PROTOCOL)
            await talk.send(stream, Hop(HopKind.CONNECT, peer=target))
            assert Hop.decode(await talk.receive(stream)).status == Status.OK
        while True:
            await stream.send_all(bytes(1 << 18))
            sent[number] += 1 << 18

    async def main() -> None:
        chain, bounds = household(), RelayLimits(circuits_pair=16)
        with trio.fail_after(100):
            async with running("hub", chain, listen=["/ip4/127.0.0.1/tcp/0"], relay_limits=bounds) as hub:
                relays = list(hub.addresses)
                async with running("anna", chain) as anna, running("bert", chain, relays=relays) as bert:
                    session = await anna.dial(relays)
                    await until(lambda: bert.relays.describe()[0]["state"] == "reserved")
                    async with trio.open_nursery() as nursery:
                        for number in range(len(sent)):
                            nursery.start_soon(fill, session, bert.public, number)
                        before = -1
                        while before != sum(sent) or not all(sent):
                            before = sum(sent)
                            await trio.sleep(1)
                        assert held_bytes(hub) < 64 << 20
                        assert sum(sent) > 40 << 20
                        # Nobody was cut off, and there is room for talk.
                        assert [one.is_open for one in (session, between(bert, hub))] == [True, True]
                        await session.request(PackRead(b"p" * 32, 0, 100), timeout_s=20)
                        nursery.cancel_scope.cancel()

    trio.run(main)


def test_both_ends_of_a_passed_on_stream_prove_their_keys_and_refuse_another() -> None:
    """The handler plays relay and called device at once: what comes on the stream is the circuit."""
    expected, opened = {"caller": KEYS["anna"].public}, list[bytes]()

    async def circuit(connection: Connection, stream: Stream) -> None:
        await far.accept_over(stream, "/circuit", expected["caller"])

    async def echo(connection: Connection, stream: Stream) -> None:
        opened.append(connection.remote_public)
        await stream.send_all(await stream.receive_some(5))

    near, far = Libp2pNetwork(), Libp2pNetwork()

    async def main() -> None:
        with trio.fail_after(30):
            async with (far.serve(KEYS["bert"].sign_seed, ["/ip4/127.0.0.1/tcp/0"], {"/c": circuit, "/t": echo}) as at,
                        near.serve(KEYS["anna"].sign_seed, [], {})):
                below = await near.dial(at[0], KEYS["bert"].public, 5)
                above = await near.dial_over(await below.open_stream("/c"), "/way", KEYS["bert"].public, 5)
                assert (above.remote_public, above.remote_address) == (KEYS["bert"].public, "/way")
                stream = await above.open_stream("/t")
                await stream.send_all(b"hello")
                assert await stream.receive_some(5) == b"hello"
                assert opened == [KEYS["anna"].public]
                with pytest.raises(NetworkError, match="another device"):
                    await near.dial_over(await below.open_stream("/c"), "/way", KEYS["hub"].public, 5)
                expected["caller"] = KEYS["hub"].public
                with pytest.raises(NetworkError):
                    await open_over(near, await below.open_stream("/c"))
                assert opened == [KEYS["anna"].public]

    trio.run(main)


async def open_over(network: Libp2pNetwork, stream: Stream) -> None:
    connection = await network.dial_over(stream, "/way", KEYS["bert"].public, 5)
    await connection.open_stream("/t")


def test_closing_a_passed_on_stream_frees_whoever_reads_it_at_once() -> None:
    freed = []

    async def silent(connection: Connection, stream: Stream) -> None:
        await stream.receive_some(1)

    async def read(pipe: StreamPipe) -> None:
        try:
            await pipe.receive_some(1)
        except trio.ClosedResourceError:
            freed.append(trio.current_time())

    near, far = Libp2pNetwork(), Libp2pNetwork()

    async def main() -> None:
        with trio.fail_after(30):
            async with (far.serve(KEYS["bert"].sign_seed, ["/ip4/127.0.0.1/tcp/0"], {"/s": silent}) as at,
                        near.serve(KEYS["anna"].sign_seed, [], {}), trio.open_nursery() as nursery):
                connection = await near.dial(at[0], KEYS["bert"].public, 5)
                closing = list[Callable[[], Any]]()
                pipe = StreamPipe(await connection.open_stream("/s"), closing.append)
                nursery.start_soon(read, pipe)
                await trio.sleep(0.05)
                await pipe.aclose()
                while not freed:
                    await trio.sleep(0.01)  # nobody has closed the stream under it yet
                assert len(closing) == 1
                with pytest.raises(trio.ClosedResourceError):
                    await pipe.send_all(b"more")
                await connection.close()

    trio.run(main)


def held_bytes(peers: Peers) -> int:
    """What the transport of this device buffers: received and not read, and queued and not sent."""
    network = peers._ports.network
    assert isinstance(network, Libp2pNetwork)
    assert network._host is not None
    found = 0
    for connection in network._host._connections:
        found += sum(map(len, connection._muxed.stream_buffers.values()))
        found += sum(stream._queued_bytes for stream in connection._streams)
    return found
