"""A small household of real vaults: real keys, real packs, MemoryDisk or RealDisk, and sessions that carry the real
message bytes from one to the other in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from hinet_node.errors import NetworkError, NodeError
from hinet_node.vault import Replicator, Vault, VaultSettings
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.messages import from_wire, to_wire
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness

IDENTITY = b"I" * 32
SMALL = VaultSettings(chunk_bytes=4096, pack_bytes=65_536, reserve_bytes=0, sync_interval_s=0.2, index_path=":memory:")


class TestClock:
    __test__ = False

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def now_unix_s(self) -> float:
        return self.now

    def monotonic_s(self) -> float:
        return self.now


@dataclass
class Family:
    """The household that all devices of one test share."""

    names: dict[bytes, str] = field(default_factory=dict)
    keepers: set[bytes] = field(default_factory=set)
    revoked: set[bytes] = field(default_factory=set)
    epochs: dict[bytes, bytes] = field(default_factory=lambda: {b"1" * 32: b"k" * 32})
    current: bytes = b"1" * 32


class Member:
    """One device's sight of the household."""

    def __init__(self, family: Family, name: str, keeper: bool = False) -> None:
        self.family, self.name, self.keeper = family, name, keeper
        self.keys = DeviceKeys.from_entropy(SeededRandomness(name, "keys").draw(64))
        family.names[self.keys.public] = name
        if keeper:
            family.keepers.add(self.keys.public)
        self.lacks_epochs: set[bytes] = set()

    @property
    def identity_id(self) -> bytes:
        return IDENTITY

    @property
    def device_public(self) -> bytes:
        return self.keys.public

    @property
    def public(self) -> bytes:
        return self.keys.public

    def sign(self, domain: bytes, message: bytes) -> bytes:
        return self.keys.sign(domain, message)

    def members(self) -> Mapping[bytes, str]:
        return {public: name for public, name in self.family.names.items()
                if public not in self.family.keepers and public not in self.family.revoked}

    def keepers(self) -> Mapping[bytes, str]:
        return {public: name for public, name in self.family.names.items()
                if public in self.family.keepers and public not in self.family.revoked}

    def names(self) -> Mapping[bytes, str]:
        return dict(self.family.names)

    def current_epoch(self) -> bytes | None:
        return None if self.keeper or self.family.current in self.lacks_epochs else self.family.current

    def epoch_keys(self) -> Mapping[bytes, bytes]:
        if self.keeper:
            return {}
        return {name: key for name, key in self.family.epochs.items() if name not in self.lacks_epochs}


@dataclass
class Event:
    kind: str
    public: bytes
    reason: str
    session: Any = None


class MemorySession:
    """One side of a session: what is sent is encoded and decoded as on the wire."""

    def __init__(self, peers: MemoryPeers, device: Member) -> None:
        self.peers, self.device = peers, device
        self.other: MemorySession
        self.open = True
        self.sent: list[Any] = []
        self.cut_after: int | None = None
        """End the session after this many more answers."""
        self.mangle: Callable[[Any], Any] = lambda reply: reply

    async def request(self, message: Any, *, timeout_s: float = 30.0) -> Any:
        self.sent.append(message)
        await trio.lowlevel.checkpoint()
        if not self.open:
            raise NetworkError("the session ended")
        handler = self.other.peers.handlers[type(message)]
        try:
            reply = await handler(self.other, from_wire(to_wire(message)))
        except (NodeError, ProtocolError) as error:
            raise NodeError(str(error), code=error.code) from error
        if not self.open:
            raise NetworkError("the session ended")
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after <= 0:
                self.cut()
        return self.mangle(from_wire(to_wire(reply)))

    async def notify(self, message: Any) -> None:
        if not self.open:
            raise NetworkError("the session ended")
        await self.other.peers.handlers[type(message)](self.other, from_wire(to_wire(message)))

    def cut(self) -> None:
        for side in (self, self.other):
            if side.open:
                side.open = False
                side.peers.drop(side)


class MemoryPeers:
    """What the replicator needs of `hinet_node.sessions.peers.Peers`."""

    def __init__(self) -> None:
        self.sessions: list[MemorySession] = []
        self.handlers: dict[type, Any] = {}
        self._sends: list[trio.MemorySendChannel[Event]] = []

    def on(self, kind: type, handler: Any) -> None:
        assert kind not in self.handlers
        self.handlers[kind] = handler

    @asynccontextmanager
    async def events(self) -> Any:
        send, receive = trio.open_memory_channel[Event](256)
        self._sends.append(send)
        try:
            yield receive
        finally:
            self._sends.remove(send)

    def add(self, session: MemorySession) -> None:
        self.sessions.append(session)
        self._tell(Event("opened", session.device.public, "", session))

    def drop(self, session: MemorySession) -> None:
        self.sessions.remove(session)
        self._tell(Event("closed", session.device.public, "cut", session))

    def _tell(self, event: Event) -> None:
        for send in self._sends:
            send.send_nowait(event)


class Node:
    """A device with its vault and, once started, its replicator."""

    def __init__(self, family: Family, name: str, disk: Any, keeper: bool, settings: VaultSettings) -> None:
        self.member = Member(family, name, keeper)
        self.disk, self.settings = disk, settings
        self.clock = TestClock()
        self.opened = 0
        self.vault: Vault
        self.peers: MemoryPeers
        self.replicator: Replicator

    async def open(self) -> Node:
        """Open (again): what was in memory is gone, the disk stays."""
        self.opened += 1
        randomness = SeededRandomness(self.member.name, f"vault {self.opened}")
        self.vault = await Vault.open(self.disk, randomness, self.clock, self.member, self.settings)
        self.peers = MemoryPeers()
        self.replicator = Replicator(self.vault, self.peers)
        return self

    async def names(self) -> list[bytes]:
        return [item.name for item in await self.vault.list()]

    def trouble(self) -> set[str]:
        return {code for code, _ in self.vault.core.trouble}


def connect(left: Node, right: Node) -> tuple[MemorySession, MemorySession]:
    """Open a session between two nodes; left's side first."""
    here, there = MemorySession(left.peers, right.member), MemorySession(right.peers, left.member)
    here.other, there.other = there, here
    left.peers.add(here)
    right.peers.add(there)
    return here, there


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until a condition holds. Fails the test after `timeout_s`."""
    with trio.move_on_after(timeout_s) as scope:
        while not condition():
            await trio.sleep(0.005)
    assert not scope.cancelled_caught, "it never came to that"


class World:
    """Makes nodes and sessions for one test."""

    small = SMALL
    connect = staticmethod(connect)
    until = staticmethod(until)
    clock = TestClock
    quiet_peers = MemoryPeers

    def __init__(self) -> None:
        self.family = Family()

    def member(self, name: str, keeper: bool = False) -> Member:
        return Member(self.family, name, keeper)

    async def node(self, name: str, disk: Any = None, *, keeper: bool = False,
                   settings: VaultSettings = SMALL) -> Node:
        return await Node(self.family, name, MemoryDisk(name) if disk is None else disk, keeper, settings).open()

    @asynccontextmanager
    async def running(self, *nodes: Node) -> Any:
        """The replicators of these nodes run, all connected with each other."""
        async with trio.open_nursery() as nursery:
            for node in nodes:
                await nursery.start(node.replicator.run)
            for at, left in enumerate(nodes):
                for right in nodes[at + 1:]:
                    connect(left, right)
            yield nursery
            nursery.cancel_scope.cancel()

    def in_step(self, *nodes: Node) -> bool:
        return len({node.vault.core.digest() for node in nodes}) == 1


@pytest.fixture
def world() -> World:
    return World()
