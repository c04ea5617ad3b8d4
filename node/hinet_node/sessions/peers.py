"""Sessions with the household's other devices: finding, dialling and accepting them, and telling the node about it.

Runs over the Network, Discovery, Disk, Clock and Randomness ports. Leaves to others: what messages mean (handlers
registered with `on`), one session's working (`session`), when to dial whom (`dialling`), relays (`relay`), the
chain on disk (`ChainStore`, given by the agent), joining (`belonging.invite`, through `handlers`). SPEC section 5.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from nacl.signing import SigningKey

from hinet_node.errors import NetworkError
from hinet_node.ports import Announcement, Connection, Ports, Stream, StreamHandler
from hinet_node.sessions.address_book import AddressBook
from hinet_node.sessions.addresses import is_relayed
from hinet_node.sessions.dialling import Dialler, race
from hinet_node.sessions.relay import RelayClient, RelayServer
from hinet_node.sessions.session import ChainStore, Handler, Session
from hinet_protocol import PROTOCOL_VERSION, limits
from hinet_protocol import session as machine
from hinet_protocol.errors import CloneDetected, ProtocolError
from hinet_protocol.identity import peer_id, peer_public
from hinet_protocol.messages import Hello
from hinet_protocol.relay import HOP_PROTOCOL, STOP_PROTOCOL, RelayLimits

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # libp2p brings trio-typing's stubs, which hide trio's own types from mypy

__all__ = ["SERVICE", "SESSION_PROTOCOL", "ChainStore", "Handler", "LocalFacts", "PeerEvent", "Peers", "Session"]

SESSION_PROTOCOL = "/hinet/session/1"
SERVICE = "_hinet._tcp"
GREETINGS_MAX = 64
"""Inbound sessions that are not open yet; more are turned away, so that strangers can't use up the node."""
EVENTS_MAX = 256
ADDRESS_POLL_S = 3.0
MOVED_PROBE_S = 2.0
"""How long a session's other end may take to answer after our own address changed; a wrong guess costs a dial."""
QUARANTINE_S = 60.0
GOODBYE_S = 2.0
RETIRE_S = 1.0
RETIRE_S_MAX = 10.0


@dataclass(frozen=True)
class LocalFacts:
    """What this device says of itself in its hello."""

    tier: str
    backends: tuple[str, ...] = ()
    memory_bytes: int = 0
    bases: tuple[bytes, ...] = ()
    agent_version: str = ""


@dataclass(frozen=True)
class PeerEvent:
    """Something happened to a session. `kind` is "opened", "closed" or "refused" (no session came of it); `code` is
    that of the error that ended it, "" without one."""

    kind: str
    public: bytes
    reason: str
    session: Session | None = None
    code: str = ""


class Peers:
    """All sessions of this device. Everything runs inside `run`, in the caller's nursery."""

    def __init__(self, ports: Ports, device_seed: bytes, store: ChainStore, facts: Callable[[], LocalFacts], *,
                 listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"), static: Sequence[str] = (),
                 handlers: Mapping[str, StreamHandler] | None = None, discover: bool = True,
                 relays: Sequence[str] = (), relay_limits: RelayLimits | None = None,
                 log: Callable[[str], None] = lambda line: None) -> None:
        """`relays` are siblings through which this device can be called; `relay_limits` what it carries for siblings
        itself, None for nothing. Errors: `UsageError` for a relay's address that is none."""
        self.store = store
        self.public = bytes(SigningKey(device_seed).verify_key)
        self._ports = ports
        self._seed = device_seed
        self._facts = facts
        self._listen = tuple(listen)
        self._stream_handlers: dict[str, StreamHandler] = {SESSION_PROTOCOL: self._accept, **(handlers or {})}
        self._discover = discover
        self._handlers: dict[type, Handler] = {}
        self._sessions: dict[bytes, Session] = {}
        self._all: dict[Session, None] = {}
        self._greetings: set[Session] = set()
        self._strangers: set[Session] = set()
        self._quarantined: dict[bytes, float] = {}
        self._subscribers: dict[trio.MemorySendChannel[PeerEvent], trio.MemoryReceiveChannel[PeerEvent]] = {}
        self._addresses: Sequence[str] = ()
        self._grown = trio.Event()
        self._moved = trio.Event()
        self._ended = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._boot_nonce = b""
        self.relays = RelayClient(self, ports, relays, self._look_everywhere, log)
        self.relaying: RelayServer | None = None
        if self.relays.ways:
            self._stream_handlers[STOP_PROTOCOL] = self.relays.handle
        if relay_limits is not None:
            self.relaying = RelayServer(self.public, device_seed, store.chain, ports.clock, relay_limits)
            self._stream_handlers[HOP_PROTOCOL] = self.relaying.handle
        self._book = AddressBook(ports.disk, self.relays.addresses_of)
        self._dialler = Dialler(self, self._book, ports.randomness, static)

    # ---- for the rest of the node --------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[Sequence[str]] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, announce, dial and keep sessions until cancelled; `started` gives the dialable addresses.

        Errors: `PortBusy`, `NetworkError` before it has started.
        """
        self._boot_nonce = self._ports.randomness.draw(16)
        async with self._ports.network.serve(self._seed, self._listen, self._stream_handlers) as addresses:
            self._addresses = addresses
            try:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._spread_chain)
                    nursery.start_soon(self._dialler.run)
                    nursery.start_soon(self._watch_addresses)
                    nursery.start_soon(self.relays.run)
                    if self.relaying is not None:
                        nursery.start_soon(self.relaying.run)
                    if self._discover:
                        nursery.start_soon(self._announce)
                        nursery.start_soon(self._browse)
                    task_status.started(tuple(addresses))
            finally:
                self._nursery = None
                await self._say_goodbye()
                self._addresses = ()

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses that this device can be dialled at now, directly; empty before `run` has started."""
        return tuple(self._addresses)

    @property
    def sessions(self) -> list[Session]:
        """The open sessions, ordered by device name."""
        return sorted((session for session in self._sessions.values() if session.is_open),
                      key=lambda session: session.device.name)

    def session_with(self, public: bytes) -> Session | None:
        """The open session with the device of this Ed25519 key."""
        session = self._sessions.get(public)
        return session if session is not None and session.is_open else None

    def on(self, message_type: type, handler: Handler) -> None:
        """Answer messages of this class. To be called before `run`; one handler for each class."""
        assert message_type not in self._handlers, f"{message_type.__name__} has a handler already"
        self._handlers[message_type] = handler

    @asynccontextmanager
    async def events(self) -> AsyncIterator[trio.MemoryReceiveChannel[PeerEvent]]:
        """Subscribe to sessions opened, closed and refused. A subscriber that falls 256 events behind loses the
        oldest."""
        send, receive = trio.open_memory_channel[PeerEvent](EVENTS_MAX)
        self._subscribers[send] = receive
        try:
            yield receive
        finally:
            del self._subscribers[send]
            send.close()
            receive.close()

    async def dial(self, addresses: Sequence[str], *, expected_public: bytes | None = None,
                   timeout_s: float = 15.0) -> Session:
        """The session with the device at these addresses, tried one after the other a little apart; the first that
        answers counts. Errors: `NetworkError` naming each try, or why the session was refused."""
        if self._nursery is None:
            raise NetworkError("The agent's network is not running.")
        connection = await race(self.relays, addresses, expected_public, timeout_s,
                                lambda address: self._failed_at(expected_public, address))
        public = connection.remote_public
        known = self.session_with(public)
        if known is not None and known.relayed and not is_relayed(connection.remote_address):
            known = None  # what follows is better
        if known is not None or public == self.public:
            await connection.close()
            if known is None:
                raise NetworkError(f"{connection.remote_address} is this device itself.", code="E_SELF")
            return known
        try:
            stream = await connection.open_stream(SESSION_PROTOCOL)
        except BaseException:
            await connection.close()
            raise
        session = self._session(connection, stream, dialled_by_us=True)
        self._nursery.start_soon(self._run, session)
        with trio.move_on_after(timeout_s):
            await session.settled.wait()
        if not session.is_open:
            session.shut("it did not open in time")
            code = session.error.code if session.error is not None else None
            raise NetworkError(f"{connection.remote_address} opened no session: {session.reason}", code=code)
        return session

    def _failed_at(self, public: bytes | None, address: str) -> None:
        if public is not None:
            session = self.session_with(public)
            self._book.fail(public, address, met=session is not None and not session.relayed)

    async def reach(self, public: bytes, *, timeout_s: float = 15.0) -> Session:
        """The session with a device, dialling it at its known addresses when there is none. Errors: `NetworkError`."""
        session = self.session_with(public)
        if session is not None:
            return session
        addresses = self._book.find(public)
        if not addresses:
            raise NetworkError("This device was never seen, so nobody knows where to dial it.",
                               next_step="Start the agent there, on the same network.")
        return await self.dial(addresses, expected_public=public, timeout_s=timeout_s)

    def chain_grew(self) -> None:
        """The agent appended to the chain: push it to all sessions and close those of revoked devices."""
        self._grown.set()

    # ---- what sessions need --------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._ports.clock.monotonic_s() * 1000)

    def handler(self, message_type: type) -> Handler | None:
        return self._handlers.get(message_type)

    def opened(self, session: Session) -> None:
        """A session's machine says that it is open: decide which of two stays."""
        first = self.session_with(session.public)
        if self._quarantined.get(session.public, 0.0) > self._ports.clock.monotonic_s():
            _refuse_clone(session)
            return
        verdict = machine.session_verdict(
            first.hello if first is not None else None, session.hello, own=self.public,
            second_dialled_by_us=session.dialled_by_us,
            first_dialled_by_us=first is not None and first.dialled_by_us,
            first_open_ms=self.now_ms() - first.opened_ms if first is not None else 0,
            first_relayed=first is not None and first.relayed, second_relayed=session.relayed)
        if first is None or verdict == machine.NEW:
            self._install(session)
        elif verdict == machine.KEEP_SECOND:
            self._install(session)
            if first.relayed and not session.relayed and self._nursery is not None:
                self._nursery.start_soon(self._retire, first)
            else:
                first.shut("another session with this device took its place")
        elif verdict == machine.KEEP_FIRST:
            session.shut("there is a session with this device already")
        elif self._nursery is not None:
            self._nursery.start_soon(self._judge_clone, first, session)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _install(self, session: Session) -> None:
        self._sessions[session.public] = session
        session.shown = True
        self._book.keep(session.public, session.address if session.dialled_by_us else None, session.hello.addresses)
        self._tell(PeerEvent("opened", session.public, "", session))

    async def _retire(self, session: Session) -> None:
        """A direct session took a relayed one's place: what was asked there is answered there, for a while."""
        with trio.move_on_after(RETIRE_S_MAX):
            await trio.sleep(RETIRE_S)  # the other side may learn a moment later that there is a better one
            while session.is_busy:
                await trio.sleep(RETIRE_S / 4)
        session.shut("a direct session with this device took its place")

    async def _judge_clone(self, first: Session, second: Session) -> None:
        """Two boots under one key: a restart, or a copied key."""
        if not await first.lives():
            first.shut("the device was started anew")
            if second.is_open and self._sessions.get(second.public) in (first, None):
                self._install(second)
            return
        self._quarantined[second.public] = self._ports.clock.monotonic_s() + QUARANTINE_S
        self._dialler.hold(second.public, QUARANTINE_S)
        for session in (first, second):
            _refuse_clone(session)

    def _session(self, connection: Connection, stream: Stream, *, dialled_by_us: bool) -> Session:
        return Session(self, connection, stream, self._own_hello(), dialled_by_us=dialled_by_us)

    def _look_everywhere(self) -> None:
        """A relay is there: so may be siblings that were given up for a while."""
        for device in self.store.chain().members():
            if self.session_with(device.public) is None:
                self._dialler.look(device.public, heard=True)

    def _own_hello(self) -> Hello:
        chain, facts = self.store.chain(), self._facts()
        relayed = self.relays.addresses
        addresses = (*tuple(self._addresses)[:limits.addresses_max - len(relayed)], *relayed)
        return Hello(
            versions=(PROTOCOL_VERSION,), identity_id=chain.identity_id, device=self.public,
            boot_nonce=self._boot_nonce, height=chain.height, heads=chain.heads[:limits.heads_max], tier=facts.tier,
            backends=facts.backends[:limits.backends_max], memory_bytes=facts.memory_bytes,
            bases=facts.bases[:limits.bases_max], addresses=addresses,
            agent=facts.agent_version, time_s=max(0, int(self._ports.clock.now_unix_s())))

    async def _say_goodbye(self) -> None:
        """All sessions end in order; a peer that does not read any more can't hold this up for long."""
        for session in list(self._all):
            session.shut("this device stops")
        with trio.CancelScope(shield=True), trio.move_on_after(GOODBYE_S):
            while self._all:
                self._ended = trio.Event()
                await self._ended.wait()

    async def _accept(self, connection: Connection, stream: Stream) -> None:
        # Strangers, whose keys cost nothing, must not use up the places of devices that belong.
        greetings = self._greetings if self.store.chain().is_member(connection.remote_public) else self._strangers
        if len(greetings) >= GREETINGS_MAX or self._nursery is None:
            await connection.close()
            return
        session = self._session(connection, stream, dialled_by_us=False)
        greetings.add(session)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run, session)
                await session.settled.wait()
                greetings.discard(session)
        finally:
            greetings.discard(session)

    async def _run(self, session: Session) -> None:
        self._all[session] = None
        try:
            await session.run()
        finally:
            del self._all[session]
            self._ended.set()
            if self._sessions.get(session.public) is session:
                del self._sessions[session.public]
            code = "" if session.error is None else session.error.code
            if session.shown:
                self._tell(PeerEvent("closed", session.public, session.reason, session, code))
            elif session.error is not None:
                self._tell(PeerEvent("refused", session.public, session.reason, code=code))
            self._dialler.look(session.public)

    def _tell(self, event: PeerEvent) -> None:
        for send, receive in self._subscribers.items():
            if send.statistics().current_buffer_used >= EVENTS_MAX:
                receive.receive_nowait()
            send.send_nowait(event)

    async def _spread_chain(self) -> None:
        while True:
            await self._grown.wait()
            self._grown = trio.Event()
            if self.relaying is not None:
                self.relaying.chain_changed()
            for session in list(self._all):
                session.chain_changed()
            self._dialler.look()

    async def _announce(self) -> None:
        while True:
            addresses = tuple(self._addresses)
            announcement = Announcement(peer_id(self.public), SERVICE, addresses, {"boot": self._boot_nonce.hex()})
            async with self._ports.discovery.announce(announcement):
                if isinstance(self._addresses, tuple):
                    await trio.sleep_forever()  # a network whose addresses stay gives a tuple
                while tuple(self._addresses) == addresses:
                    await self._moved.wait()
                    self._moved = trio.Event()

    async def _watch_addresses(self) -> None:
        """This machine was plugged elsewhere, or woke up elsewhere: announce it, see which sessions have survived, and
        dial the others at once. (Without this, a session over an address that is gone ends after 30 s of silence.)"""
        known = tuple(self._addresses)
        while not isinstance(self._addresses, tuple):  # a network whose addresses stay gives a tuple
            await trio.sleep(ADDRESS_POLL_S)
            if tuple(self._addresses) == known:
                continue
            lost, known = set(known) - set(self._addresses), tuple(self._addresses)
            self._moved.set()
            async with trio.open_nursery() as nursery:
                for session in self.sessions if lost else ():
                    nursery.start_soon(self._see_if_alive, session)
            for device in self.store.chain().members():
                self._dialler.look(device.public, heard=True)

    async def _see_if_alive(self, session: Session) -> None:
        if not await session.lives(MOVED_PROBE_S):
            session.shut("this device's address changed, and the connection with it")

    async def _browse(self) -> None:
        async with self._ports.discovery.browse(SERVICE) as found:
            async for announcement in found:
                try:
                    public = peer_public(announcement.name)
                except ProtocolError:
                    continue  # somebody else's use of the service name
                if public == self.public:
                    self._check_own(announcement)
                elif self._book.hear(public, announcement.addresses, announcement.properties.get("boot", "")):
                    self._dialler.look(public, heard=True)

    def _check_own(self, announcement: Announcement) -> None:
        """Our own announcement comes back; under another boot nonce it is another machine's."""
        boot = announcement.properties.get("boot", "")
        if boot not in ("", self._boot_nonce.hex()):
            where = ", ".join(announcement.addresses[:2])
            self._tell(PeerEvent("refused", self.public, str(CloneDetected(
                f"Another machine is live with this device's own key ({where}): its disk or home was copied. Run "
                "`hinet-node init --rekey` on one of the two.")), code=CloneDetected.code))


def _refuse_clone(session: Session) -> None:
    error = CloneDetected(
        f"Two machines are live under the key of {session.device.name!r}: a disk or home was copied. Run "
        "`hinet-node init --rekey` on one of the two.")
    session.shut(str(error), error)
