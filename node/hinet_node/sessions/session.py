"""One session: runs the pure machine of `hinet_protocol.session` on one stream.

Three tasks for each session: a reader, a sender and a ticker; a task for each question that is being answered. The
machine decides; here are the waiting, the order of what is sent, and the bounds on what is queued. Leaves who is
dialled and which of two sessions stays to `hinet_node.sessions.peers`. SPEC section 5.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from hinet_node.errors import NetworkError, NodeError
from hinet_node.ports import Connection, Stream
from hinet_protocol import limits
from hinet_protocol import session as machine
from hinet_protocol.chain import Chain, Device, Rejected
from hinet_protocol.errors import ProtocolError, SessionError
from hinet_protocol.frames import FrameDecoder, encode_frame
from hinet_protocol.messages import Hello, Message, from_wire, to_wire

logger = logging.getLogger(__name__)

QUEUE_BYTES = 4 * limits.frame_bytes_max
"""With more than this waiting to be sent, questions and answers wait before they are queued."""
QUEUE_BYTES_MAX = 4 * QUEUE_BYTES
"""With more than this the peer does not read what it asks for, and the session ends."""
NOTICES_MAX = 16
GOODBYE_S = 1.0
RECEIVE_BYTES = 1 << 18


class ChainStore(Protocol):
    """The chain as the agent keeps it."""

    def chain(self) -> Chain:
        """The current verified chain, durable already."""

    async def absorb(self, entries: Sequence[bytes]) -> None:
        """Verify raw entries, make them durable, then let `chain()` hold them. Entries that are known already are no
        error. Errors: `hinet_protocol.errors.ProtocolError` for the first that is refused, `NoSpace`."""


Handler = Callable[["Session", Any], Awaitable[Any]]
"""`async def handler(session, message) -> reply message, or None for a notice`. A `NodeError` or `ProtocolError` that
it raises goes to the asker with its code and text; anything else crashes the agent (it is our bug)."""


class Owner(Protocol):
    """What a session needs of `Peers`."""

    store: ChainStore

    def now_ms(self) -> int: ...

    def handler(self, message_type: type) -> Handler | None: ...

    def opened(self, session: Session) -> None: ...


class Session:
    """A session with a member device. Others get it when it is open: both hellos are done, the chains agree, membership
    was judged."""

    relayed: bool = False
    """Whether its bytes go through another device of the household."""

    def __init__(self, owner: Owner, connection: Connection, stream: Stream, own: Hello, *,
                 dialled_by_us: bool) -> None:
        self.address = connection.remote_address
        self.public = connection.remote_public
        self.dialled_by_us = dialled_by_us
        self.settled = trio.Event()
        """Set when the session is open, or over without having been."""
        self.over = trio.Event()
        self.is_open = False
        self.opened_ms = 0
        self.shown = False
        """Whether `Peers` has told the node that this session opened; then it also tells that it closed."""
        self.error: ProtocolError | None = None
        self.reason = ""
        self._owner = owner
        self._connection = connection
        self._stream = stream
        self._machine, self._first = machine.Session.start(
            own, self.public, owner.store.chain(), owner.now_ms(), dialled=dialled_by_us)
        self._device: Device | None = None
        self._hello: Hello | None = None
        self._nursery: trio.Nursery | None = None
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._work = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._rearm = trio.Event()
        self._pong = trio.lowlevel.ParkingLot()
        self._slots = trio.Semaphore(limits.requests_outstanding_max)
        self._waiting: dict[int, tuple[trio.Event, list[Message | ProtocolError]]] = {}
        self._notices = 0
        self._sending = trio.CancelScope(shield=True)

    # ---- for the rest of the node --------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The peer as the chain knows it now."""
        found = self._machine.device or self._device
        assert found is not None, "only open sessions are handed out"
        return found

    @property
    def hello(self) -> Hello:
        """What the peer said of itself when the session began."""
        assert self._hello is not None, "only open sessions are handed out"
        return self._hello

    @property
    def heads(self) -> tuple[bytes, ...]:
        """The heads of the chain that the peer last said it holds: what it knows of who belongs."""
        return self._machine.peer_heads

    async def request(self, message: Message, *, timeout_s: float = 30.0) -> Message:
        """Send a question and wait for its answer. Errors: `NetworkError` when the session ends or nothing comes within
        `timeout_s`; the error that the other side sent, as `NodeError` with its code."""
        with trio.move_on_after(timeout_s):
            try:
                self._slots.acquire_nowait()  # a free slot costs no turn of the scheduler
            except trio.WouldBlock:
                await self._slots.acquire()
            try:
                return await self._ask(message)
            finally:
                self._slots.release()
        raise NetworkError(f"{self._name()} did not answer within {timeout_s:g} s.", code="E_TIMEOUT")

    async def notify(self, message: Message) -> None:
        """Send a notice that has no answer. Errors: `NetworkError`."""
        await self._wait_for_room()
        try:
            self.feed(machine.Push(message))
        except SessionError as error:
            raise NetworkError(str(error), code=error.code) from error

    async def close(self, reason: str = "closed by this device", *, error: ProtocolError | None = None) -> None:
        """Say goodbye, with an error if there is one, and wait until the session is over; never raises."""
        self.shut(reason, error)
        with trio.move_on_after(5):
            await self.over.wait()

    # ---- for Peers -----------------------------------------------------------------------------------------------

    def shut(self, reason: str, error: ProtocolError | None = None) -> None:
        """`close` without waiting."""
        self.reason = self.reason or reason
        self.feed(machine.Shut(error))

    def chain_changed(self) -> None:
        """Our chain grew. While entries from this peer are being taken in, their end reports it."""
        if not self._machine.importing:
            self.feed(machine.ChainChanged(self._owner.store.chain()))

    async def lives(self, timeout_s: float = limits.clone_probe_ms / 1000) -> bool:
        """Probe the peer: whether it answers in time, by default that which SPEC gives a clone."""
        probed_ms = self._owner.now_ms()
        self.feed(machine.Probe())
        with trio.move_on_after(timeout_s):
            while not machine.answered_probe(self._machine, probed_ms):
                if self.over.is_set() or self._machine.phase == "closed":
                    return False
                await self._pong.park()
        return machine.answered_probe(self._machine, probed_ms)

    async def run(self) -> None:
        """Run the session until it is over. Leaves nothing behind: the stream and the connection are closed."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._do(self._first)
                nursery.start_soon(self._read)
                nursery.start_soon(self._tick)
                nursery.start_soon(self._send)
        finally:
            self._nursery = None
            self.feed(machine.PeerGone())  # no more than a note to the machine when it is closed already
            self._finish()
            await self._stream.close()
            await self._connection.close()

    # ---- events and actions --------------------------------------------------------------------------------------

    def feed(self, event: machine.Event) -> None:
        """Give the machine an event and do what it says, without waiting."""
        self._machine, actions = self._machine.step(event, self._owner.now_ms())
        self._do(actions)

    def _do(self, actions: Sequence[machine.Action]) -> None:
        for action in actions:
            if isinstance(action, machine.Send):
                self._queue(action.message)
            elif isinstance(action, machine.Asked):
                self._start(self._answer, action.number, action.body)
            elif isinstance(action, (machine.Answered, machine.AskFailed)):
                self._resolve(action)
            elif isinstance(action, machine.Noticed):
                self._start(self._notice, action.body)
            elif isinstance(action, machine.ImportEntries):
                self._start(self._import, action.entries)
            elif isinstance(action, machine.Opened):
                self._device, self._hello, self.is_open = action.device, action.hello, True
                self.opened_ms = self._owner.now_ms()
                self._rearm.set()
                self.settled.set()
                self._owner.opened(self)
            else:
                self._closed(action.error)

    def _start(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(work, *args)

    def _queue(self, message: Message) -> None:
        frame = encode_frame(to_wire(message))
        if self._outgoing_bytes + len(frame) > QUEUE_BYTES_MAX:
            self._outgoing.clear()
            self._outgoing_bytes = 0
            self.feed(machine.PeerGone())
            return
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        self._work.set()

    def _closed(self, error: ProtocolError | None) -> None:
        """The machine is done: stop everything but the sender, which still has the goodbye to send."""
        self.error = error
        self.reason = self.reason or (str(error) if error is not None else "the other side said goodbye")
        self._finish()
        self._work.set()
        self._sending.deadline = trio.current_time() + GOODBYE_S
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()  # all but `_send`, which is shielded until its deadline

    def _finish(self) -> None:
        self.is_open = False
        self.settled.set()
        self.over.set()
        self._room.unpark_all()
        self._pong.unpark_all()
        for event, _ in self._waiting.values():
            event.set()

    # ---- the three tasks -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        decoder = FrameDecoder()
        while self._machine.phase != "closed":
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except NetworkError:
                data = b""
            if not data:
                self._lost()
                return
            try:
                for body in decoder.feed(data):
                    self.feed(machine.Received(from_wire(body)))
            except ProtocolError as error:
                self.feed(machine.Shut(error))
            self._pong.unpark_all()

    async def _send(self) -> None:
        with self._sending:
            while self._outgoing or self._machine.phase != "closed":
                if not self._outgoing:
                    self._work = trio.Event()
                    await self._work.wait()
                    continue
                frame = self._outgoing.popleft()
                try:
                    await self._stream.send_all(frame)
                except NetworkError:
                    self._outgoing.clear()
                    self._lost()
                    return
                self._outgoing_bytes = max(0, self._outgoing_bytes - len(frame))
                if self._outgoing_bytes < QUEUE_BYTES:
                    self._room.unpark_all()

    def _lost(self) -> None:
        """The stream ended. After a goodbye the machine is closed already and this changes nothing."""
        if self._machine.phase == "open":
            self.reason = self.reason or "the connection was lost"
        self.feed(machine.PeerGone())

    async def _tick(self) -> None:
        try:
            while self._machine.phase != "closed":
                self._rearm = trio.Event()
                with trio.move_on_after(max(0, self._machine.wake_ms - self._owner.now_ms()) / 1000):
                    await self._rearm.wait()
                if self._owner.now_ms() >= self._machine.wake_ms:
                    self.feed(machine.Tick())
        finally:
            self.shut("this device stops")  # cancelled from outside: the peer gets its goodbye; else it is over already

    # ---- questions, answers, entries -----------------------------------------------------------------------------

    async def _ask(self, message: Message) -> Message:
        await self._wait_for_room()
        number = self._machine.next_number
        event, result = trio.Event(), list[Message | ProtocolError]()
        self._waiting[number] = (event, result)
        try:
            self.feed(machine.Ask(message))
            await event.wait()
        except SessionError as error:
            raise NetworkError(str(error), code=error.code) from error
        finally:
            del self._waiting[number]
            if not result:
                self.feed(machine.Forget(number))
        if not result:
            raise NetworkError(f"The session with {self._name()} ended before the answer came.")
        answer = result[0]
        if isinstance(answer, SessionError):
            raise NetworkError(str(answer), code=answer.code)
        if isinstance(answer, ProtocolError):
            raise NodeError(str(answer), code=answer.code)
        return answer

    def _resolve(self, action: machine.Answered | machine.AskFailed) -> None:
        waiting = self._waiting.get(action.number)
        if waiting is not None:
            waiting[1].append(action.body if isinstance(action, machine.Answered) else action.error)
            waiting[0].set()

    async def _answer(self, number: int, body: Message) -> None:
        handler = self._owner.handler(type(body))
        try:
            if handler is None:
                raise ProtocolError(f"This device does not answer {type(body).__name__}.")
            reply = await handler(self, body)
            if reply is None:  # a notice, which a peer sent as a question
                raise ProtocolError(f"This device does not answer {type(body).__name__}.")
            assert isinstance(reply, Message), f"the handler of {type(body).__name__} gave no message"
            await self._wait_for_room()
            event: machine.Event = machine.Answer(number, reply)
        except ProtocolError as error:
            event = machine.AnswerError(number, error)
        except NodeError as error:
            event = machine.AnswerError(number, _coded(error))
        if self._machine.phase == "open":
            self.feed(event)

    async def _notice(self, body: Message) -> None:
        handler = self._owner.handler(type(body))
        if handler is None or self._notices >= NOTICES_MAX:
            return  # a notice may be lost: whoever lacks something asks again
        self._notices += 1
        try:
            await handler(self, body)
        except (ProtocolError, NodeError) as error:
            logger.debug("a notice from %s failed: %s", self.address, error)
        finally:
            self._notices -= 1

    async def _import(self, entries: tuple[bytes, ...]) -> None:
        rejected: tuple[Rejected, ...] = ()
        try:
            await self._owner.store.absorb(entries)
        except ProtocolError as error:
            rejected = (Rejected(b"", error),)
        except NodeError as error:
            self.shut(str(error), SessionError(f"The other device could not keep the chain: {error}"))
            return
        self.feed(machine.ChainChanged(self._owner.store.chain(), rejected))

    async def _wait_for_room(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._outgoing_bytes >= QUEUE_BYTES and not self.over.is_set():
            await self._room.park()

    def _name(self) -> str:
        return self._device.name if self._device is not None else self.address


def _coded(error: NodeError) -> ProtocolError:
    """A node error as the protocol can send it."""
    known = ProtocolError(str(error))
    known.code = error.code  # type: ignore[misc]
    return known
