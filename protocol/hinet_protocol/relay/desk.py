"""The relay's rules as a pure machine: who may be called through this device, who may call, and for how long.

`step(event, now_ms)` gives the next state and the actions, in order; `now_ms` is monotonic. The caller keeps streams
and connections (by the numbers that it gave them), passes the bytes on, and counts those.

    Arrived(RESERVE) ── live sibling ──> Reply OK, the reservation stands until it expires or is made anew
    Arrived(CONNECT) ── both live, reserved, room ──> CallTarget ── Reached(True) ──> Reply OK, Start
                                                          └──────── Reached(False) ─> Reply CONNECTION_FAILED

Strangers and removed devices are told PERMISSION_DENIED whatever they ask, so that they learn nothing from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hinet_protocol import limits
from hinet_protocol.chain import Chain
from hinet_protocol.relay.wire import Hop, HopKind, Limit, Reservation, Status


@dataclass(frozen=True)
class RelayLimits:
    """What this device carries for its siblings. Zero seconds or bytes are no limit."""

    circuit_s: int = limits.relay_circuit_s
    circuit_bytes: int = limits.relay_circuit_bytes
    circuits_each: int = limits.relay_circuits_each_max
    circuits_pair: int = limits.relay_circuits_pair_max
    circuits: int = limits.relay_circuits_max
    reservations: int = limits.devices_max

    @property
    def circuit(self) -> Limit | None:
        """As it is told to both ends."""
        return Limit(self.circuit_s, self.circuit_bytes) if self.circuit_s or self.circuit_bytes else None


@dataclass(frozen=True)
class Kept:
    """A reservation: the connection on which the device can be called, and until when."""

    link: int
    expires_ms: int


@dataclass(frozen=True)
class Circuit:
    """A circuit that is being made, or open since `started_ms`."""

    source: bytes
    target: bytes
    since_ms: int
    is_open: bool = False


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrived:
    """A question came on hop stream `stream`, over connection `link`, from the device whose key Noise proved there.

    `relayed`: that connection is itself a circuit. `now_unix_s` is this device's clock, for the reservation's text.
    """

    stream: int
    link: int
    peer: bytes
    message: Hop
    relayed: bool
    now_unix_s: int


@dataclass(frozen=True)
class Reached:
    """The device that was called for hop stream `stream` said yes, or did not."""

    stream: int
    accepted: bool


@dataclass(frozen=True)
class CircuitEnded:
    """The circuit of this hop stream is over, or its source went away while it was made."""

    stream: int


@dataclass(frozen=True)
class Grew:
    """The chain is this one now."""

    chain: Chain = field(repr=False)


@dataclass(frozen=True)
class Ticked:
    """Time has passed; see `Desk.wake_ms`."""


Event = Arrived | Reached | CircuitEnded | Grew | Ticked


# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """Answer on the hop stream; `voucher_for`: with a voucher for this device in the reservation."""

    stream: int
    message: Hop
    voucher_for: bytes | None = None


@dataclass(frozen=True)
class CallTarget:
    """Open a stop stream on connection `link` and ask whether the call from `source` is taken; then say Reached."""

    stream: int
    link: int
    source: bytes
    limit: Limit | None


@dataclass(frozen=True)
class Start:
    """Pass bytes on, both ways, until either end is over; then say CircuitEnded."""

    stream: int


@dataclass(frozen=True)
class Cut:
    """End the circuit of this hop stream at once."""

    stream: int
    reason: str


Action = Reply | CallTarget | Start | Cut


@dataclass(frozen=True)
class Desk:
    """The state of a relay."""

    own: bytes
    chain: Chain = field(repr=False)
    limits: RelayLimits = RelayLimits()
    reservations: Mapping[bytes, Kept] = field(default_factory=dict)
    circuits: Mapping[int, Circuit] = field(default_factory=dict)

    @property
    def wake_ms(self) -> int | None:
        """When the next Ticked is due; None for never."""
        due = [kept.expires_ms for kept in self.reservations.values()]
        if self.limits.circuit_s:
            due += [one.since_ms + 1000 * self.limits.circuit_s for one in self.circuits.values()]
        return min(due, default=None)

    def step(self, event: Event, now_ms: int) -> tuple[Desk, tuple[Action, ...]]:
        """The next state and the actions. Never raises for anything that a peer sent."""
        if isinstance(event, Arrived):
            return self._arrived(event, now_ms)
        if isinstance(event, Reached):
            return self._reached(event, now_ms)
        if isinstance(event, CircuitEnded):
            return replace(self, circuits=_without(self.circuits, event.stream)), ()
        if isinstance(event, Grew):
            return self._grew(event.chain)
        return self._ticked(now_ms)

    def _arrived(self, event: Arrived, now_ms: int) -> tuple[Desk, tuple[Action, ...]]:
        served = self.chain.is_member(event.peer) and self.chain.is_member(self.own)
        if event.relayed or event.peer == self.own or not served:
            return self._refuse(event, Status.PERMISSION_DENIED)
        if event.message.kind == HopKind.RESERVE:
            return self._reserve(event, now_ms)
        if event.message.kind == HopKind.CONNECT:
            return self._connect(event, now_ms)
        return self._refuse(event, Status.UNEXPECTED_MESSAGE)

    def _refuse(self, event: Arrived, status: Status) -> tuple[Desk, tuple[Action, ...]]:
        return self, (Reply(event.stream, Hop(HopKind.STATUS, status=status)),)

    def _reserve(self, event: Arrived, now_ms: int) -> tuple[Desk, tuple[Action, ...]]:
        if event.peer not in self.reservations and len(self.reservations) >= self.limits.reservations:
            return self._refuse(event, Status.RESERVATION_REFUSED)
        kept = Kept(event.link, now_ms + 1000 * limits.relay_reservation_s)
        promised = Reservation(event.now_unix_s + limits.relay_reservation_s)
        answer = Hop(HopKind.STATUS, reservation=promised, limit=self.limits.circuit, status=Status.OK)
        after = replace(self, reservations={**self.reservations, event.peer: kept})
        return after, (Reply(event.stream, answer, voucher_for=event.peer),)

    def _connect(self, event: Arrived, now_ms: int) -> tuple[Desk, tuple[Action, ...]]:
        target = event.message.peer
        if target is None or target == event.peer:
            return self._refuse(event, Status.MALFORMED_MESSAGE)
        if not self.chain.is_member(target):
            return self._refuse(event, Status.PERMISSION_DENIED)
        kept = self.reservations.get(target)
        if kept is None or kept.expires_ms <= now_ms:
            return self._refuse(event, Status.NO_RESERVATION)
        if self._full(event.peer, target):
            return self._refuse(event, Status.RESOURCE_LIMIT_EXCEEDED)
        begun = Circuit(event.peer, target, now_ms)
        after = replace(self, circuits={**self.circuits, event.stream: begun})
        return after, (CallTarget(event.stream, kept.link, event.peer, self.limits.circuit),)

    def _full(self, source: bytes, target: bytes) -> bool:
        """Whether one more circuit is too much: in all, for one of the two, or between them (so that no device can take
        all that another one may have)."""
        held = [(one.source, one.target) for one in self.circuits.values()]
        return (
            len(held) >= self.limits.circuits
            or any(sum(public in pair for pair in held) >= self.limits.circuits_each for public in (source, target))
            or sum(source in pair and target in pair for pair in held) >= self.limits.circuits_pair
        )

    def _reached(self, event: Reached, now_ms: int) -> tuple[Desk, tuple[Action, ...]]:
        circuit = self.circuits.get(event.stream)
        if circuit is None:
            return self, ()  # cut, or its source went away, meanwhile
        if not event.accepted:
            after = replace(self, circuits=_without(self.circuits, event.stream))
            return after, (Reply(event.stream, Hop(HopKind.STATUS, status=Status.CONNECTION_FAILED)),)
        opened = replace(circuit, since_ms=now_ms, is_open=True)
        answer = Hop(HopKind.STATUS, limit=self.limits.circuit, status=Status.OK)
        after = replace(self, circuits={**self.circuits, event.stream: opened})
        return after, (Reply(event.stream, answer), Start(event.stream))

    def _grew(self, chain: Chain) -> tuple[Desk, tuple[Action, ...]]:
        """Whoever was removed loses its reservation and its circuits at once."""
        member = chain.is_member
        lost = [at for at, one in self.circuits.items() if not (member(one.source) and member(one.target))]
        if not member(self.own):
            lost = list(self.circuits)
        after = replace(
            self,
            chain=chain,
            reservations={public: kept for public, kept in self.reservations.items() if member(public)},
            circuits=_without(self.circuits, *lost),
        )
        return after, tuple(Cut(at, "a device was removed from the household") for at in lost)

    def _ticked(self, now_ms: int) -> tuple[Desk, tuple[Action, ...]]:
        most_ms = 1000 * self.limits.circuit_s
        old = [at for at, one in self.circuits.items() if most_ms and now_ms >= one.since_ms + most_ms]
        kept = {public: one for public, one in self.reservations.items() if one.expires_ms > now_ms}
        after = replace(self, reservations=kept, circuits=_without(self.circuits, *old))
        return after, tuple(Cut(at, "the time of a circuit is over") for at in old)


def _without(circuits: Mapping[int, Circuit], *gone: int) -> Mapping[int, Circuit]:
    return {at: one for at, one in circuits.items() if at not in gone}
