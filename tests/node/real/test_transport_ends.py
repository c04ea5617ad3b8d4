"""Ends that nobody planned: what fails in one connection, one name or one look at the interfaces ends no agent."""

from __future__ import annotations

from typing import Any

import ifaddr
import pytest
import trio
from nacl.signing import SigningKey

from hinet_node.errors import NetworkError
from hinet_node.ports import Connection, Stream
from hinet_node.real.transport import Libp2pNetwork
from hinet_node.real.transport.muxed import MuxedConnection
from hinet_node.real.transport.sockets import ADDRESSES_REFRESH_S, ListenAddresses
from hinet_node.sessions.addresses import Address
from hinet_node.sessions.dialling import race

SEED_A, SEED_B = b"a" * 32, b"b" * 32
PUBLIC_B = bytes(SigningKey(SEED_B).verify_key)
LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]


class FailsWhileItIsCancelled:
    """libp2p's muxer in its worst moment: one of its tasks fails just as the others are cancelled."""

    def __init__(self) -> None:
        self.event_started = trio.Event()
        self.event_shutting_down = trio.Event()
        self.new_stream_send_channel, self.new_stream_receive_channel = trio.open_memory_channel[Any](1)

    async def start(self) -> None:
        async def fail_late() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("failed while it was cancelled")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_late)
            nursery.start_soon(trio.sleep_forever)
            self.event_started.set()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


class NoWire:
    async def abort(self) -> None:
        await trio.lowlevel.checkpoint()


def test_a_muxer_that_fails_while_it_is_cancelled_ends_its_connection_only() -> None:
    async def main() -> None:
        wire: Any = NoWire()
        connection = MuxedConnection(FailsWhileItIsCancelled(), wire, PUBLIC_B, "/ip4/192.0.2.1/tcp/1")
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: connection.run({}, lambda *stream: None, task_status=task_status))
            await connection.close()
        with pytest.raises(NetworkError, match="gone"):
            await connection.open_stream("/hinet/session/1")

    trio.run(main)


def test_a_stream_asked_for_in_the_moment_that_the_connection_ends_is_a_network_error() -> None:
    async def main() -> None:
        async with trio.open_nursery() as closed:
            pass
        wire: Any = NoWire()
        connection = MuxedConnection(FailsWhileItIsCancelled(), wire, PUBLIC_B, "/ip4/192.0.2.1/tcp/1")
        connection._nursery = closed  # its last task has ended, and `run` had no turn yet
        with pytest.raises(NetworkError, match="gone"):
            await connection.open_stream("/hinet/session/1")

    trio.run(main)


def test_a_handler_whose_inner_tasks_lose_the_peer_ends_its_stream_only() -> None:
    served: list[str] = []

    async def handler(connection: Connection, stream: Stream) -> None:
        async def lose() -> None:
            served.append("lost")
            raise NetworkError("the peer is gone")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)

    async def main() -> None:
        a, b = Libp2pNetwork(), Libp2pNetwork()
        with trio.fail_after(30):
            async with b.serve(SEED_B, LOOPBACK, {"/hinet/test/1": handler}) as addresses, a.serve(SEED_A, [], {}):
                for _ in range(2):
                    connection = await a.dial(addresses[0], PUBLIC_B, 5)
                    stream = await connection.open_stream("/hinet/test/1")
                    assert await stream.receive_some(1) == b""
                    await connection.close()

    trio.run(main)
    assert served == ["lost", "lost"]


@pytest.mark.parametrize("address", ["/dns/" + "a" * 70 + ".lan/tcp/1", "/dns/nas..lan/tcp/1", "nonsense",
                                     "/ip6zone/nosuch0/ip6/fe80::1/tcp/1", "/ip4/127.0.0.1/tcp/0"])
def test_an_address_that_can_not_be_dialled_fails_as_one_try_whoever_announced_it(address: str) -> None:
    """Anybody on the LAN may announce addresses under a sibling's name: none of them may end the agent."""
    async def main() -> None:
        network = Libp2pNetwork()
        with trio.fail_after(30):
            async with network.serve(SEED_A, [], {}):
                with pytest.raises(NetworkError):
                    await race(network, [address], PUBLIC_B, 2)

    trio.run(main)


def test_the_known_addresses_stay_while_the_kernel_can_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        addresses = ListenAddresses([Address("ip4", "0.0.0.0", 4001)], None)
        known = tuple(addresses)
        assert known

        def refuse() -> list[Any]:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(ifaddr, "get_adapters", refuse)
        await trio.sleep(2 * ADDRESSES_REFRESH_S)
        assert tuple(addresses) == known

    trio.run(main)
