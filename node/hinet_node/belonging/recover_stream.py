"""The chain from siblings, for `init --recover`: asked for with the root's signature, answered by any live device.

The rules are `hinet_protocol.recovering`'s. Several siblings are asked and what they say is merged, because any one of
them may be behind. SPEC section 4.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from hinet_node.belonging.join_stream import send_message
from hinet_node.belonging.membership import Membership
from hinet_node.errors import NetworkError
from hinet_node.ports import Connection, Ports, Stream
from hinet_node.sessions.peers import SERVICE
from hinet_protocol import limits, messages
from hinet_protocol.chain import Chain, entry_hash
from hinet_protocol.errors import JoinError, ProtocolError, SessionBusy
from hinet_protocol.frames import FrameDecoder
from hinet_protocol.identity import DeviceKeys, RootKey, peer_public
from hinet_protocol.recovering import RECOVER_PROTOCOL, check_answer, check_recover_open, make_recover_open

ANSWERS_MAX = 64
"""Askers that are served at once. Strangers among them are turned away after their first message, or `FIRST_S`."""
FIRST_S = 5.0
STEP_S = 30.0
DIAL_TIMEOUT_S = 5.0
LAN_S = 5.0
"""How long further siblings on the LAN have to announce themselves after the first one has answered."""
ASKED_MAX = 64
RECEIVE_BYTES = 65_536


class RecoverAnswer:
    """The answering side, one per agent."""

    def __init__(self, membership: Membership, log: Callable[[str], None]) -> None:
        self._membership = membership
        self._log = log
        self._answering = 0

    async def handle(self, connection: Connection, stream: Stream) -> None:
        """Serve one asker's stream to its end."""
        self._answering += 1
        try:
            with trio.move_on_after(STEP_S), suppress(NetworkError):
                try:
                    await self._answer(connection, stream)
                except ProtocolError as error:
                    self._log(f"{connection.remote_address} asked for the chain and was refused: {error}")
                    await send_message(stream, messages.JoinRefuse(error.code, messages.error_text(error)))
        finally:
            self._answering -= 1
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                await stream.close()

    async def _answer(self, connection: Connection, stream: Stream) -> None:
        if self._answering > ANSWERS_MAX:
            raise SessionBusy("This device is busy with others that ask. Try again in a moment.")
        chain, asked = self._membership.chain(), self._membership.device_public
        message: messages.Message | None = None
        with trio.move_on_after(FIRST_S):
            message = await _Messages(stream, limits.frame_bytes_max).following()
        if not isinstance(message, messages.RecoverOpen):
            raise JoinError(f"A recovery begins with RecoverOpen, not with {type(message).__name__}.")
        check_recover_open(message, chain, asker=connection.remote_public, asked=asked)
        given: set[bytes] = set()
        more = True
        while more:
            entries, more = chain.entries_for((), given=given)
            given.update(map(entry_hash, entries))
            await send_message(stream, messages.ChainEntries(entries, more))
        self._log(f"{connection.remote_address} proved the words and was given the chain")


@dataclass
class Found:
    """What the siblings said. `where` has the key and address of each that answered."""

    chain: Chain | None = None
    where: list[tuple[bytes, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def ask_siblings(ports: Ports, keys: DeviceKeys, root: RootKey, addresses: Sequence[str], timeout_s: float,
                       ) -> Found:
    """The chain, merged from all siblings that answer: those at `addresses`, or whoever the LAN announces.

    Errors: `NetworkError` when none answers.
    """
    found = Found()
    async with ports.network.serve(keys.sign_seed, [], {}):
        with trio.move_on_after(timeout_s) as scope:
            if addresses:
                async with trio.open_nursery() as nursery:
                    for address in addresses[:ASKED_MAX]:
                        nursery.start_soon(_ask_at, ports, keys, root, (address,), None, found)
            else:
                await _ask_the_lan(ports, keys, root, found, scope)
    if found.chain is None:
        why = f" ({found.failures[-1]})" if found.failures else ""
        raise NetworkError(f"no device of this identity answered{why}", code="E_NO_SIBLING",
                           next_step="start the agent on any device of the household and name it with --address; or "
                                     "bring the chain in a file, from: hinet-node identity export-chain FILE")
    return found


async def _ask_the_lan(ports: Ports, keys: DeviceKeys, root: RootKey, found: Found, scope: trio.CancelScope) -> None:
    asked: dict[bytes, None] = {}
    async with trio.open_nursery() as nursery, ports.discovery.browse(SERVICE) as announcements:

        async def ask(public: bytes, addresses: Sequence[str]) -> None:
            await _ask_at(ports, keys, root, addresses, public, found)
            if found.chain is not None:
                scope.deadline = min(scope.deadline, trio.current_time() + LAN_S)

        async for announcement in announcements:
            try:
                public = peer_public(announcement.name)
            except ProtocolError:
                continue  # somebody else's use of the service name
            if public not in asked and len(asked) < ASKED_MAX and announcement.addresses:
                asked[public] = None
                nursery.start_soon(ask, public, announcement.addresses)


async def _ask_at(ports: Ports, keys: DeviceKeys, root: RootKey, addresses: Sequence[str], expected: bytes | None,
                  found: Found) -> None:
    """Ask one device, at the first of its addresses that answers; what it says joins what others said."""
    for address in addresses[:limits.addresses_max]:
        try:
            connection = await ports.network.dial(address, expected, DIAL_TIMEOUT_S)
            try:
                chain = await _ask_over(connection, keys, root)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                    await connection.close()
            check_answer(chain, root)
            if found.chain is not None and found.chain.identity_id != chain.identity_id:
                raise JoinError("It gave the chain of another identity.")
        except (NetworkError, ProtocolError) as error:
            found.failures.append(f"{address}: {error}")
            continue
        found.chain = chain if found.chain is None else found.chain.with_entries(chain.raws())
        found.where.append((connection.remote_public, connection.remote_address))
        return


async def _ask_over(connection: Connection, keys: DeviceKeys, root: RootKey) -> Chain:
    stream = await connection.open_stream(RECOVER_PROTOCOL)
    try:
        await send_message(stream, make_recover_open(root, asker=keys.public, asked=connection.remote_public))
        incoming = _Messages(stream, limits.chain_bytes_max)
        raws: list[bytes] = []
        while True:
            with trio.move_on_after(STEP_S) as scope:
                message = await incoming.following()
            if scope.cancelled_caught:
                raise NetworkError("it did not answer in time")
            if isinstance(message, messages.JoinRefuse):
                raise message.error()
            if not isinstance(message, messages.ChainEntries) or (message.more and not message.entries):
                raise JoinError("It broke the protocol of recovery.")
            raws += message.entries
            if not message.more:
                return Chain.from_entries(raws)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
            await stream.close()


class _Messages:
    """The messages of a stream, of at most `bytes_max` bytes in all."""

    def __init__(self, stream: Stream, bytes_max: int) -> None:
        self._stream = stream
        self._left = bytes_max
        self._decoder = FrameDecoder()
        self._bodies: list[bytes] = []

    async def following(self) -> messages.Message:
        """Errors: `NetworkError` at the end of the stream; `ProtocolError` for anything that is no message."""
        while not self._bodies:
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise NetworkError("the other side closed the stream")
            self._left -= len(data)
            if self._left < 0:
                raise JoinError("The other side sends more than a chain can hold.")
            self._bodies += self._decoder.feed(data)
        return messages.from_wire(self._bodies.pop(0))
