"""The session: a pure machine for one stream `/hinet/session/1` between two devices. SPEC.md, 5.4 to 5.8.

`step(event, now_ms)` gives the next state and the actions, to be done in order. `now_ms` is monotonic. The caller keeps
the stream, the clock, the chain on disk and the waiting tasks; the machine says what to send, when the peer is one of
us, which answer belongs to which question, and when to give up.

    greeting --Hello--> judging --(ChainGet/ChainEntries as often as needed)--> judging
    judging  --peer is a live device: send Ready--> waiting --peer's Ready--> open
    any      --error, Goodbye, silence--> closed

A stranger is told why and nothing else: what this device can do is said only to live devices of the chain, and entries
of the chain are given only to those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hinet_protocol import PROTOCOL_VERSION, limits
from hinet_protocol.chain import Chain, Device, entry_hash, root_cause
from hinet_protocol.errors import (
    CloneDetected,
    DeviceRevoked,
    ProtocolError,
    SessionBusy,
    SessionError,
    SessionSilent,
    SessionViolation,
    Stranger,
    VersionUnsupported,
)
from hinet_protocol.messages import (
    ChainEntries,
    ChainGet,
    ChainNotice,
    ErrorReply,
    Goodbye,
    Hello,
    Message,
    Ping,
    Pong,
    Ready,
    Request,
    Response,
    VaultChanged,
    error_text,
)
from hinet_protocol.session_events import (
    Action,
    Answer,
    Answered,
    AnswerError,
    Ask,
    Asked,
    AskFailed,
    ChainChanged,
    Closed,
    Event,
    Forget,
    ImportEntries,
    Noticed,
    Opened,
    PeerGone,
    Probe,
    Push,
    Received,
    Send,
    Shut,
    Tick,
)

__all__ = [
    "Action",
    "Answer",
    "AnswerError",
    "Answered",
    "Ask",
    "AskFailed",
    "Asked",
    "ChainChanged",
    "Closed",
    "Event",
    "Forget",
    "ImportEntries",
    "KEEP_FIRST",
    "KEEP_SECOND",
    "NEW",
    "Noticed",
    "Opened",
    "PeerGone",
    "Probe",
    "Push",
    "Received",
    "SUSPECT",
    "Send",
    "Session",
    "Shut",
    "Tick",
    "answered_probe",
    "session_verdict",
]


@dataclass(frozen=True)
class Session:
    """One end of a session. `peer` is the Ed25519 key that Noise proved; it never changes.

    `phase`: greeting, judging, waiting, open, closed. `own` is the hello that we send; `peer_heads` are the heads of
    the chain that the peer last said it holds.
    """

    own: Hello
    peer: bytes
    chain: Chain = field(repr=False)
    started_ms: int
    phase: str = "greeting"
    hello: Hello | None = None
    hellos: int = 0
    told: str = ""
    version: int = 0
    received_ms: int = 0
    sent_ms: int = 0
    importing: bool = False
    pulling: bool = False
    pull_rounds: int = 0
    batch: tuple[bytes, ...] = field(default=(), repr=False)
    peer_ready: bool = False
    held_get: ChainGet | None = None
    given: frozenset[bytes] = field(default=frozenset(), repr=False)
    next_number: int = 1
    asked: frozenset[int] = frozenset()
    answering: frozenset[int] = frozenset()
    last_asked: int = 0
    last_pong: int = -1
    peer_heads: tuple[bytes, ...] = ()
    error: ProtocolError | None = None

    @classmethod
    def start(
        cls, own: Hello, peer: bytes, chain: Chain, now_ms: int, *, dialled: bool = True
    ) -> tuple[Session, tuple[Action, ...]]:
        """The first state, and our hello to send. A key that we don't know and that dialled us speaks first."""
        session = cls(own, peer, chain, started_ms=now_ms, received_ms=now_ms, sent_ms=now_ms)
        return session._greet() if dialled or chain.is_member(peer) else (session, ())

    def _greet(self) -> tuple[Session, tuple[Action, ...]]:
        """Our hello, without what strangers need not know where the peer may be one."""
        if self.chain.is_member(self.peer):
            return replace(self, told="all"), (Send(self.own),)
        return replace(self, told="little"), (Send(_discreet(self.own)),)

    @property
    def wake_ms(self) -> int:
        """When the next Tick is due."""
        if self.phase == "closed":
            return self.received_ms + limits.silence_ms_max
        silent = self.received_ms + limits.silence_ms_max
        if self.phase != "open":
            return min(silent, self.started_ms + limits.handshake_ms_max)
        return min(silent, self.sent_ms + limits.heartbeat_idle_ms)

    @property
    def device(self) -> Device | None:
        """The peer as our chain knows it now."""
        return self.chain.device(self.peer)

    def step(self, event: Event, now_ms: int) -> tuple[Session, tuple[Action, ...]]:
        """The next state and the actions. Never raises for anything the peer sent.

        Raises SessionBusy or SessionError for an Ask or Push of ours that can't be sent now; the state then stays.
        """
        if isinstance(event, (Ask, Push)):
            after, actions = self._ask(event.body) if isinstance(event, Ask) else self._push(event.body)
        elif self.phase == "closed":
            return self, ()
        else:
            state = replace(self, received_ms=now_ms) if isinstance(event, Received) else self
            try:
                after, actions = state._step(event, now_ms)
            except ProtocolError as error:
                after, actions = state._close(error)
        if any(isinstance(action, Send) for action in actions):
            after = replace(after, sent_ms=now_ms)
        return after, actions

    def _step(self, event: Event, now_ms: int) -> tuple[Session, tuple[Action, ...]]:
        if isinstance(event, Received):
            return self._received(event.message)
        if isinstance(event, Tick):
            return self._tick(now_ms)
        if isinstance(event, Probe):
            return self, (Send(Ping(now_ms)),)
        if isinstance(event, ChainChanged):
            return self._chain_changed(event, now_ms)
        if isinstance(event, Forget):
            return replace(self, asked=self.asked - {event.number}), ()
        if isinstance(event, (Answer, AnswerError)):
            return self._answer(event)
        if isinstance(event, PeerGone):
            gone = SessionError("The peer closed the connection.")
            return self._close(None if self.phase == "open" and not self.asked else gone, say=False)
        assert isinstance(event, Shut)
        return self._close(event.error)

    def _close(self, error: ProtocolError | None, say: bool = True) -> tuple[Session, tuple[Action, ...]]:
        """Closed, with a Goodbye unless the peer is gone or has said its own, and an error for every open question."""
        actions: list[Action] = []
        if say:
            code = "OK" if error is None else error.code
            text = "" if error is None else error_text(error)
            actions.append(Send(Goodbye(code, text)))
        lost = error if error is not None else SessionError("The session ended before the answer came.")
        actions += [AskFailed(number, lost) for number in sorted(self.asked)]
        closed = replace(self, phase="closed", asked=frozenset(), answering=frozenset(), held_get=None, error=error)
        return closed, (*actions, Closed(error))

    # --- what the peer says ------------------------------------------------------------------------------------------

    def _received(self, message: Message) -> tuple[Session, tuple[Action, ...]]:
        if isinstance(message, Goodbye):
            return self._close(message.error(), say=False)
        if isinstance(message, Hello):
            return self._hello(message)
        if self.phase == "greeting":
            raise SessionViolation(f"The peer sent {type(message).__name__} before its hello.")
        if isinstance(message, Ping):
            return self, (Send(Pong(message.number)),)
        if isinstance(message, Pong):
            return replace(self, last_pong=message.number), ()
        if isinstance(message, ChainGet):
            return self._chain_get(message)
        if isinstance(message, ChainEntries):
            return self._chain_entries(message)
        if isinstance(message, ChainNotice):
            return replace(self, peer_heads=message.heads)._pull(message.heads)
        if isinstance(message, Ready):
            if self.peer_ready:
                raise SessionViolation("The peer said Ready twice.")
            return replace(self, peer_ready=True)._judge()
        if self.phase != "open":
            raise SessionViolation(f"The peer sent {type(message).__name__} before the session was open.")
        return self._work(message)

    def _hello(self, hello: Hello) -> tuple[Session, tuple[Action, ...]]:
        if self.hello is not None:
            return self._second_hello(self.hello, hello)
        shared = set(hello.versions) & set(self.own.versions) & {PROTOCOL_VERSION}
        if not shared:
            raise VersionUnsupported(
                f"The peer speaks protocol versions {list(hello.versions)}, this device speaks "
                f"{list(self.own.versions)}. Upgrade hinet-node on the older one."
            )
        if hello.device != self.peer:
            raise SessionViolation("The peer's hello names another key than the one its connection proved.")
        if hello.device == self.own.device:
            raise CloneDetected(
                "Another machine is live with this device's own key: its disk or home was copied. Run "
                "`hinet-node init --rekey` on one of the two."
            )
        if hello.identity_id != self.own.identity_id:
            raise Stranger("The two devices belong to different identities.")
        state = replace(self, phase="judging", hello=hello, hellos=1, version=max(shared), peer_heads=hello.heads)
        known = state.device
        if known is not None and not known.live:
            raise _revoked(known)
        state, first = state._greet() if state.told == "" else (state, ())
        after, actions = state._pull(hello.heads)
        return _then((after, actions) if actions else state._judge(), first)

    def _second_hello(self, first: Hello, second: Hello) -> tuple[Session, tuple[Action, ...]]:
        """A peer that did not know us has judged us meanwhile, and says now what it can do."""
        same = all(
            getattr(first, name) == getattr(second, name)
            for name in ("versions", "identity_id", "device", "boot_nonce", "height", "heads")
        )
        if self.peer_ready or self.hellos > 1 or first != _discreet(first) or not same:
            raise SessionViolation("The peer said hello twice.")
        return replace(self, hello=second, hellos=2), ()

    def _chain_get(self, message: ChainGet) -> tuple[Session, tuple[Action, ...]]:
        if not self.chain.is_member(self.peer):
            # Perhaps our own pull will show us that the peer belongs; until then it gets nothing.
            if self.held_get is not None:
                raise SessionViolation("The peer asked for the chain again before it had an answer.")
            return replace(self, held_get=message), ()
        return self._give(message)

    def _give(self, message: ChainGet) -> tuple[Session, tuple[Action, ...]]:
        """The next batch of entries. A locator is too short to name many branches, so what was given is remembered."""
        entries, more = self.chain.entries_for(message.have, given=self.given)
        given = self.given.union(map(entry_hash, entries)) if more else frozenset()
        return replace(self, given=given), (Send(ChainEntries(entries, more)),)

    def _chain_entries(self, message: ChainEntries) -> tuple[Session, tuple[Action, ...]]:
        if not self.pulling or self.importing:
            raise SessionViolation("The peer sent chain entries that nobody asked for.")
        if not message.entries:
            if message.more:
                raise SessionViolation("The peer announced more chain entries but sent none.")
            return replace(self, pulling=False)._judge()
        batch = tuple(map(entry_hash, message.entries))
        after = replace(self, importing=True, pulling=message.more, batch=batch)
        return after, (ImportEntries(message.entries),)

    def _pull(self, heads: Iterable[bytes]) -> tuple[Session, tuple[Action, ...]]:
        """Asks for what the peer has and we lack, unless that is under way."""
        if self.pulling or self.importing or not self.chain.missing(heads):
            return self, ()
        return replace(self, pulling=True, pull_rounds=1), (Send(ChainGet(self.chain.locator())),)

    # --- membership --------------------------------------------------------------------------------------------------

    def _chain_changed(self, event: ChainChanged, now_ms: int) -> tuple[Session, tuple[Action, ...]]:
        grown = event.chain.heads != self.chain.heads
        cause = root_cause(event.rejected)
        if cause is not None:
            # A newer version's entry, or one that breaks the rules: either way we can't go on together blindly.
            raise cause
        state = replace(self, chain=event.chain)
        known = state.device
        if known is not None and not known.live and self.hello is not None:
            raise _revoked(known)
        actions: tuple[Action, ...] = ()
        if grown and self.phase in ("waiting", "open"):
            actions = (Send(ChainNotice(event.chain.height, event.chain.heads[: limits.heads_max])),)
        if self.importing:
            # Progress of a long pull gives the greeting new time.
            state = replace(state, importing=False, batch=(), started_ms=now_ms)
            if state.pulling:
                if state.pull_rounds >= limits.chain_pull_rounds_max:
                    raise SessionViolation("The peer sends chain entries without end.")
                more = Send(ChainGet(event.chain.locator(self.batch)))
                return replace(state, pull_rounds=state.pull_rounds + 1), (*actions, more)
        return _then(state._judge(), actions)

    def _judge(self) -> tuple[Session, tuple[Action, ...]]:
        """Decides about the peer once nothing is being pulled."""
        if self.phase == "open" or self.pulling or self.importing or self.hello is None:
            return self, ()
        device = self.device
        if device is None:
            raise Stranger("The peer is not a device of this household, or joined a moment ago. It was told nothing.")
        if not device.live:
            raise _revoked(device)
        actions: tuple[Action, ...] = ()
        state = self
        if self.held_get is not None:
            state, actions = replace(state, held_get=None)._give(self.held_get)
        if state.phase == "judging":
            actions += (Send(Ready()),) if state.told == "all" else (Send(self.own), Send(Ready()))
            if self.chain.heads != self.own.heads:
                # What we learnt since our hello; from now on every growth is told.
                actions += (Send(ChainNotice(self.chain.height, self.chain.heads[: limits.heads_max])),)
            state = replace(state, phase="waiting")
        if state.peer_ready and state.hello is not None:
            actions += (Opened(device, state.hello),)
            state = replace(state, phase="open")
        return state, actions

    # --- questions and answers ---------------------------------------------------------------------------------------

    def _ask(self, body: Message) -> tuple[Session, tuple[Action, ...]]:
        if self.phase != "open":
            raise SessionError("The session with this device is not open.")
        if len(self.asked) >= limits.requests_outstanding_max:
            raise SessionBusy(f"{limits.requests_outstanding_max} questions wait for this device already.")
        number = self.next_number
        after = replace(self, next_number=number + 1, asked=self.asked | {number})
        return after, (Send(Request(number, body)),)

    def _push(self, body: Message) -> tuple[Session, tuple[Action, ...]]:
        if self.phase != "open":
            raise SessionError("The session with this device is not open.")
        return self, (Send(body),)

    def _answer(self, event: Answer | AnswerError) -> tuple[Session, tuple[Action, ...]]:
        if event.number not in self.answering:
            raise SessionError(f"Nobody asked question {event.number}.")
        after = replace(self, answering=self.answering - {event.number})
        if isinstance(event, Answer):
            return after, (Send(Response(event.number, event.body)),)
        return after, (Send(ErrorReply(event.number, event.error.code, error_text(event.error))),)

    def _work(self, message: Message) -> tuple[Session, tuple[Action, ...]]:
        if isinstance(message, Request):
            if message.number <= self.last_asked:
                raise SessionViolation("The peer used a question number twice.")
            state = replace(self, last_asked=message.number)
            if len(self.answering) >= limits.requests_outstanding_max:
                return state, (Send(ErrorReply(message.number, SessionBusy.code, "Too many questions at once.")),)
            state = replace(state, answering=state.answering | {message.number})
            return state, (Asked(message.number, message.body),)
        if isinstance(message, (Response, ErrorReply)):
            if not 0 < message.number < self.next_number:
                raise SessionViolation("The peer answered a question that was never asked.")
            if message.number not in self.asked:
                return self, ()  # it was forgotten: the answer came too late
            after = replace(self, asked=self.asked - {message.number})
            if isinstance(message, Response):
                return after, (Answered(message.number, message.body),)
            return after, (AskFailed(message.number, message.error()),)
        if isinstance(message, VaultChanged):
            return self, (Noticed(message),)
        raise SessionViolation(f"The peer sent {type(message).__name__} outside a question or answer.")

    # --- time --------------------------------------------------------------------------------------------------------

    def _tick(self, now_ms: int) -> tuple[Session, tuple[Action, ...]]:
        if now_ms >= self.received_ms + limits.silence_ms_max:
            raise SessionSilent(f"The peer sent nothing for {limits.silence_ms_max // 1000} seconds.")
        if self.phase != "open":
            if now_ms >= self.started_ms + limits.handshake_ms_max:
                raise SessionSilent("The peer did not finish the greeting in time.")
            return self, ()
        if now_ms >= self.sent_ms + limits.heartbeat_idle_ms:
            return self, (Send(Ping(now_ms)),)
        return self, ()


def replace(session: Session, **changes: Any) -> Session:
    """`dataclasses.replace`, without running the constructor: a step makes two or three of these, and there is nothing
    to check in them. Ten times faster."""
    after = object.__new__(Session)
    after.__dict__.update(session.__dict__)
    after.__dict__.update(changes)
    return after


def _discreet(own: Hello) -> Hello:
    """A hello for somebody who may be a stranger: enough to find out, and nothing of the machine."""
    return dataclasses.replace(own, backends=(), memory_bytes=0, bases=(), addresses=(), agent="")


def _then(stepped: tuple[Session, tuple[Action, ...]], first: tuple[Action, ...]) -> tuple[Session, tuple[Action, ...]]:
    return stepped[0], (*first, *stepped[1])


def _revoked(device: Device) -> DeviceRevoked:
    return DeviceRevoked(
        f"The device {device.name!r} ({device.fingerprint}) was removed from the household. If that was a mistake, "
        "give it new keys and invite it again."
    )


# --- several sessions under one key ----------------------------------------------------------------------------------

NEW = "new"
KEEP_FIRST = "keep-first"
KEEP_SECOND = "keep-second"
SUSPECT = "suspect"


def session_verdict(
    first: Hello | None,
    second: Hello,
    *,
    own: bytes,
    second_dialled_by_us: bool,
    first_dialled_by_us: bool = False,
    first_open_ms: int = 0,
) -> str:
    """What to do when a session opens while another with the same device key is held.

    NEW: there is no other. KEEP_FIRST or KEEP_SECOND: both ends dialled at once; both choose the connection that the
    lower key dialled, and of two with the same dialler the later, because its other end gave up the first. So it has
    when the first was open for `limits.twin_sessions_ms` (`first_open_ms` says how long): nobody dials a device with
    which it has a session, so the other end has lost it (its address changed, or it slept), and the second stays.

    SUSPECT: the boot nonces differ. Either the device was started anew and the first session is dead, or two machines
    are live under one key. Give the first a Probe; if `answered_probe` says yes within `limits.clone_probe_ms`, close
    both with CloneDetected and tell the owner, otherwise close the first and keep the second.
    """
    if first is None or first.device != second.device:
        return NEW
    if first.boot_nonce != second.boot_nonce:
        return SUSPECT
    if first_dialled_by_us == second_dialled_by_us or first_open_ms >= limits.twin_sessions_ms:
        return KEEP_SECOND
    ours_wins = own < second.device
    return KEEP_SECOND if second_dialled_by_us == ours_wins else KEEP_FIRST


def answered_probe(session: Session, probed_ms: int) -> bool:
    """The peer answered the Probe that was sent at this time: its end of this session lives."""
    return session.phase != "closed" and session.last_pong >= probed_ms
