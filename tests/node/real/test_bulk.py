"""Bulk connections over real TLS on loopback: who gets in, what stays bounded, how they end."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio
from blake3 import blake3

from hinet_node.errors import NetworkError
from hinet_node.ports import BulkEnd, BulkStream, Connection, Stream
from hinet_node.real.transport import Libp2pNetwork
from hinet_node.real.transport import bulk as real
from hinet_protocol import limits

TOKEN, SEED_A, SEED_B, OTHER = b"t" * 16, b"1" * 32, b"2" * 32, b"3" * 32


def end(own: bytes, other: bytes, token: bytes = TOKEN) -> BulkEnd:
    return BulkEnd(token, own, real.certificate(other))


def with_pair(test: Callable[[Libp2pNetwork, Libp2pNetwork, str], Awaitable[None]]) -> None:
    """a listens and serves `/echo/1`; b dials."""
    async def echo(connection: Connection, stream: Stream) -> None:
        await stream.send_all(await stream.receive_some(100))

    async def main() -> None:
        a, b = Libp2pNetwork(), Libp2pNetwork()
        async with a.serve(b"a" * 32, ["/ip4/127.0.0.1/tcp/0"], {"/echo/1": echo}) as addresses, \
                b.serve(b"b" * 32, [], {}):
            with trio.fail_after(20):
                await test(a, b, addresses[0])

    trio.run(main)


async def made(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> tuple[BulkStream, BulkStream]:
    expected = a.expect_bulk(end(SEED_A, SEED_B))
    dialled = await b.dial_bulk(address, end(SEED_B, SEED_A), 5)
    return await expected.arrive(5), dialled


def test_both_directions_carry_bytes_beside_sessions_on_the_same_port() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        session = await b.dial(address, None, 5)
        here, there = await made(a, b, address)
        await there.send_all(b"give")
        assert await here.receive_exactly(4) == b"give"
        pieces = [bytes([number]) * 700_000 for number in range(9)]
        got = blake3()
        longest: list[int] = []

        def sink(piece: memoryview) -> None:
            longest.append(len(piece))
            got.update(piece)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.send_from, iter(pieces))
            await there.receive_into(9 * 700_000, sink)
        assert got.digest() == blake3(b"".join(pieces)).digest()
        assert max(longest) <= 1 << 20
        stream = await session.open_stream("/echo/1")
        await stream.send_all(b"and the session goes on")
        assert await stream.receive_some(100) == b"and the session goes on"
        await here.close()
        with pytest.raises(NetworkError):
            await there.receive_exactly(1)
        await there.close()

    with_pair(test)


def test_who_has_no_token_or_another_certificate_gets_no_bulk_connection() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        with pytest.raises(NetworkError):  # nothing is expected
            await b.dial_bulk(address, end(SEED_B, SEED_A), 5)
        expected = a.expect_bulk(end(SEED_A, SEED_B))
        for wrong in (end(SEED_B, SEED_A, b"u" * 16),  # another token
                      end(OTHER, SEED_A),  # another certificate of ours
                      end(SEED_B, OTHER)):  # another one of theirs than was said
            with pytest.raises(NetworkError):
                await b.dial_bulk(address, wrong, 5)
        right = await b.dial_bulk(address, end(SEED_B, SEED_A), 5)
        stream = await expected.arrive(5)
        await stream.send_all(b"x")
        assert await right.receive_exactly(1) == b"x"
        with pytest.raises(NetworkError):  # a token is good for one connection
            await b.dial_bulk(address, end(SEED_B, SEED_A), 5)
        await stream.close()
        await right.close()

    with_pair(test)


def test_a_certificate_that_the_pinned_one_signed_is_refused_as_well() -> None:
    """A chain is no pin: whoever has the sibling's one-time key could else let others in under it."""
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        parent, key = Ed25519PrivateKey.from_private_bytes(SEED_B), Ed25519PrivateKey.from_private_bytes(OTHER)
        name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "hinet")])
        child = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                 .serial_number(2).not_valid_before(real._NOT_BEFORE).not_valid_after(real._NOT_AFTER)
                 .sign(parent, None))
        before, real._made = real._made, lambda seed: (child, key) if seed == SEED_B else before(seed)  # type: ignore
        try:
            theirs = real.certificate(SEED_A)
        finally:
            real._made, making = before, real._made
        expected = a.expect_bulk(BulkEnd(TOKEN, SEED_A, real.certificate(SEED_B)))
        real._made = making
        try:
            with pytest.raises(NetworkError):
                await b.dial_bulk(address, BulkEnd(TOKEN, SEED_B, theirs), 5)
        finally:
            real._made = before
        with pytest.raises(NetworkError):
            await expected.arrive(0.1)

    with_pair(test)


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_certificate_that_openssl_would_take_is_refused_when_it_is_not_the_pinned_one(
        side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = real._context

    def loose(one: BulkEnd, *, server: bool) -> ssl.SSLContext:
        if server == (side == "server"):
            one = replace(one, remote_certificate=real.certificate(OTHER))
        return narrow(one, server=server)

    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        monkeypatch.setattr(real, "_context", loose)
        expected = a.expect_bulk(end(SEED_A if side == "server" else OTHER, SEED_B))
        with pytest.raises(NetworkError):
            await b.dial_bulk(address, end(OTHER if side == "server" else SEED_B, SEED_A), 5)
        expected.forget()
        with pytest.raises(NetworkError):
            await expected.arrive(0.05)

    with_pair(test)


def test_a_token_is_good_for_one_connection_also_before_that_is_fetched() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        expected = a.expect_bulk(end(SEED_A, SEED_B))
        first = await b.dial_bulk(address, end(SEED_B, SEED_A), 5)
        with pytest.raises(NetworkError):
            await b.dial_bulk(address, end(SEED_B, SEED_A), 5)
        stream = await expected.arrive(5)
        await first.send_all(b"x")
        assert await stream.receive_exactly(1) == b"x"
        await stream.close()
        await first.close()

    with_pair(test)


def test_a_connection_that_was_forgotten_or_is_too_late_is_not_taken() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        expected = a.expect_bulk(end(SEED_A, SEED_B))
        with pytest.raises(NetworkError, match="did not come in time"):
            await expected.arrive(0.01)
        with pytest.raises(NetworkError):
            await b.dial_bulk(address, end(SEED_B, SEED_A), 5)

    with_pair(test)


def test_a_connection_that_came_and_is_not_wanted_any_more_is_closed() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        expected = a.expect_bulk(end(SEED_A, SEED_B))
        dialled = await b.dial_bulk(address, end(SEED_B, SEED_A), 5)
        expected.forget()
        with pytest.raises(NetworkError):
            await dialled.receive_exactly(1)
        with pytest.raises(NetworkError):
            await expected.arrive(0.01)
        await dialled.close()

    with_pair(test)


def test_only_so_many_are_expected_at_once_and_no_token_twice() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        waiting = [a.expect_bulk(end(SEED_A, SEED_B, bytes([number]) * 16))
                   for number in range(limits.bulk_connections_max)]
        with pytest.raises(NetworkError) as caught:
            a.expect_bulk(end(SEED_A, SEED_B))
        assert caught.value.code == "E_BUSY"
        waiting[0].forget()
        a.expect_bulk(end(SEED_A, SEED_B))
        with pytest.raises(NetworkError):
            a.expect_bulk(end(SEED_A, SEED_B))
        waiting[1].forget()
        with pytest.raises(NetworkError, match="certificate"):
            a.expect_bulk(BulkEnd(b"x" * 16, SEED_A, b"no certificate"))

    with_pair(test)


def test_somebody_who_begins_as_tls_and_goes_silent_holds_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet_node.real.transport.network.HANDSHAKE_S", 0.2)

    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        port = int(address.rpartition("/")[2])
        a.expect_bulk(end(SEED_A, SEED_B))
        threads = threading.active_count()
        with socket.create_connection(("127.0.0.1", port)) as first, \
                socket.create_connection(("127.0.0.1", port)) as second:
            first.sendall(b"\x16")
            second.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            for one in (first, second):
                one.setblocking(False)
                while True:
                    try:
                        assert await trio.to_thread.run_sync(lambda one=one: one.recv(100)) == b""
                        break
                    except BlockingIOError:
                        await trio.lowlevel.wait_readable(one.fileno())
                    except ConnectionResetError:
                        break
        assert threading.active_count() <= threads + 1, "a handshake takes no thread"
        host = a._host
        assert host is not None
        await trio.sleep(0.05)
        assert not host._handshakes

    with_pair(test)


def test_cancelling_a_transfer_frees_its_thread_at_once_and_ends_the_stream() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        for way in ("in", "out"):
            here, there = await made(a, b, address)
            with trio.move_on_after(0.1) as scope:
                if way == "in":
                    await here.receive_into(10, lambda piece: None)
                else:
                    await here.send_from(endless())
            assert scope.cancelled_caught
            for stream in (here, there):
                with pytest.raises(NetworkError):
                    await stream.receive_into(64 << 20, lambda piece: None)
                await stream.close()

    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(1 << 20)

    with_pair(test)


def test_what_the_disk_says_reaches_the_one_who_asked_and_ends_the_stream() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        here, there = await made(a, b, address)

        def full(piece: memoryview) -> None:
            raise OSError(28, "No space left on device")

        async with trio.open_nursery() as nursery:
            async def send() -> None:
                with pytest.raises(NetworkError):
                    await here.send_from(iter([bytes(1 << 20)] * 64))

            nursery.start_soon(send)
            with pytest.raises(OSError, match="No space"):
                await there.receive_into(64 << 20, full)
        await here.close()
        await there.close()

    with_pair(test)


def test_a_peer_that_goes_still_in_the_middle_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "STALL_S", 0.1)

    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        here, there = await made(a, b, address)
        await here.send_all(bytes(100))
        with pytest.raises(NetworkError, match="Nothing moved"):
            await there.receive_into(101, lambda piece: None)
        with pytest.raises(NetworkError):
            await here.send_from(iter([bytes(1 << 20)] * 64))
        await here.close()
        await there.close()

    with_pair(test)


def test_a_pace_is_kept_by_both_ends_in_small_pieces() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        here, there = await made(a, b, address)
        asked: dict[str, list[int]] = {"out": [], "in": []}

        def pace(way: str) -> Any:
            def wait(size: int) -> float:
                asked[way].append(size)
                return 0.001

            return wait

        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.send_from, iter([bytes(1_000_000)]), pace("out"))
            await there.receive_into(1_000_000, lambda piece: None, pace("in"))
        for sizes in asked.values():
            assert sum(sizes) == 1_000_000
            assert max(sizes) <= real.PACED_BYTES
        await here.close()
        await there.close()

    with_pair(test)


def test_tls_1_2_is_refused() -> None:
    async def test(a: Libp2pNetwork, b: Libp2pNetwork, address: str) -> None:
        a.expect_bulk(end(SEED_A, SEED_B))
        old = real._context(end(SEED_B, SEED_A), server=False)  # the right certificate and token, and an old protocol
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2

        def connect() -> None:
            with socket.create_connection(("127.0.0.1", int(address.rpartition("/")[2]))) as raw, \
                    old.wrap_socket(raw, server_hostname=TOKEN.hex()):
                raise AssertionError("it let us in")

        with pytest.raises(OSError):  # an alert, or a connection that is reset
            await trio.to_thread.run_sync(connect)

    with_pair(test)


def test_a_network_over_other_sockets_says_that_it_makes_none() -> None:
    from hinet_simnet.network import Internet
    from hinet_simnet.stack.sockets import MemorySockets

    network = Libp2pNetwork(sockets=MemorySockets(Internet(0).host("a")))
    for ask in (lambda: network.bulk_certificate(SEED_A), lambda: network.expect_bulk(end(SEED_A, SEED_B))):
        with pytest.raises(NetworkError):
            ask()
