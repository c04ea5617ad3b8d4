"""What a lying device works with: its own agent with its real keys, its victims, and connections beside the agent's.

A connection goes through the world's network port, so that it is proved to be this device's, as every connection of its
agent is. What is said on it is up to the lie. Leaves the lies themselves to the other files here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import trio

from hinet_node.agent import Agent
from hinet_node.errors import NetworkError, NodeError
from hinet_node.ports import Connection, Stream
from hinet_node.sessions.peers import SESSION_PROTOCOL
from hinet_node.sessions.session import Handler, Session
from hinet_protocol.errors import ProtocolError
from hinet_protocol.frames import FrameDecoder, encode_frame
from hinet_protocol.messages import Hello, Message, from_wire, to_wire
from hinet_simnet.randomness import SeededRandomness

DIAL_S = 10.0
READ_S = 10.0
READ_BYTES = 1 << 16


class Stage(Protocol):
    """What an adversary needs of a stage that runs the agents in this process."""

    def names(self) -> Sequence[str]: ...

    def running(self, name: str) -> bool: ...

    def agent(self, name: str) -> Agent | None: ...


@dataclass(frozen=True)
class Victim:
    """A sibling as the liar knows it."""

    name: str
    public: bytes
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Liar:
    """One lie that is being told."""

    agent: Agent
    victims: tuple[Victim, ...]
    randomness: SeededRandomness
    args: Mapping[str, Any]

    @property
    def for_s(self) -> float:
        return float(self.args["for_s"])

    @property
    def count(self) -> int:
        return int(self.args["count"])

    def hello(self, **changes: Any) -> Hello:
        """What the agent itself would say now, with changes."""
        return replace(self.agent.peers._own_hello(), **changes)

    def sessions(self) -> list[Session]:
        """The agent's own open sessions with the victims."""
        wanted = {victim.public for victim in self.victims}
        return [session for session in self.agent.peers.sessions if session.public in wanted]

    @contextmanager
    def answering(self, handlers: Mapping[type, Handler]) -> Iterator[None]:
        """The agent answers these questions otherwise, in all its sessions."""
        table = self.agent.peers._handlers
        honest = {kind: table[kind] for kind in handlers}
        table.update(handlers)
        try:
            yield
        finally:
            table.update(honest)

    async def each(self, lie: Callable[[Victim], Any]) -> None:
        """Tell all victims at once; one whose connection breaks ends the lie there."""
        async def one(victim: Victim) -> None:
            try:
                await lie(victim)
            except (NetworkError, NodeError, ProtocolError):
                return

        async with trio.open_nursery() as nursery:
            for victim in self.victims:
                nursery.start_soon(one, victim)


class Mask:
    """A stream to one victim on which anything may be said."""

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self.connection = connection
        self.stream = stream
        self._decoder = FrameDecoder()
        self._bodies: list[bytes] = []

    async def say(self, *bodies: Message) -> None:
        for body in bodies:
            await self.stream.send_all(encode_frame(to_wire(body)))

    async def hear(self) -> bytes | None:
        """The next frame's body; None when the victim closed or says nothing for long."""
        while not self._bodies:
            data = b""
            with trio.move_on_after(READ_S):
                data = await self.stream.receive_some(READ_BYTES)
            if not data:
                return None
            self._bodies += self._decoder.feed(data)
        return self._bodies.pop(0)

    async def heard(self) -> Message | None:
        body = await self.hear()
        return None if body is None else from_wire(body)

    async def until_closed(self, for_s: float) -> None:
        """Read and say nothing, until the victim has enough of it or the time is over."""
        with trio.move_on_after(for_s):
            while await self.stream.receive_some(READ_BYTES):
                pass


@asynccontextmanager
async def masked(liar: Liar, victim: Victim) -> AsyncIterator[Mask]:
    """A connection of the device's own beside those of its agent. Errors: `NetworkError`."""
    network = liar.agent.ports.network
    connection = await network.dial(victim.addresses[0], victim.public, DIAL_S)
    try:
        yield Mask(connection, await connection.open_stream(SESSION_PROTOCOL))
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(1):
            await connection.close()
