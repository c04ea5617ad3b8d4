"""The two ends: a device keeps a reservation at each of its relays, is called there, and calls siblings there.

A reservation lives as long as the session with the relay; it is renewed at half its time, and made anew as soon as the
relay is back. A relay is a sibling and still not trusted with anything: who calls must be a live device, and Noise
proves it. Leaves choosing addresses to `dialling`, sessions to `peers`, and the connection in the circuit to the
network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import trio

from hinet_node.errors import NetworkError, UsageError
from hinet_node.ports import Connection, Ports, Stream
from hinet_node.sessions.addresses import Address, is_relayed, parse_address, parse_relay
from hinet_node.sessions.relay import talk
from hinet_node.sessions.session import ChainStore, Session
from hinet_protocol import limits
from hinet_protocol.errors import RelayMalformed
from hinet_protocol.identity import fingerprint
from hinet_protocol.relay import HOP_PROTOCOL, Hop, HopKind, Status, Stop, StopKind, check_voucher

logger = logging.getLogger(__name__)

RELAYS_MAX = 3
CALLED_MAX = limits.relay_circuits_each_max
"""Circuits in which this device is being called, or was; no honest relay opens more."""
DIAL_S = 10.0
RETRY_S = (0.5, 20.0)
"""A relay that is away is tried again after an eighth of the time that it has been away, within these."""
REFUSED_S = 60.0
LIFETIME_S = (60.0, 24 * 3600.0)
_SAYS = {
    Status.PERMISSION_DENIED: "it knows this device, or the one that is called, as no live device of its household",
    Status.NO_RESERVATION: "the other device is not there now",
    Status.CONNECTION_FAILED: "the other device did not answer there",
    Status.RESOURCE_LIMIT_EXCEEDED: "it carries as much as it may already",
    Status.RESERVATION_REFUSED: "it has no room for another device",
}


@dataclass
class Way:
    """One relay of the settings. `pinned` is the key that its address names; `public` the one found there. `state` is
    away, reserved or refused."""

    address: Address
    pinned: bytes | None
    public: bytes | None
    state: str = "away"
    reason: str = ""

    @property
    def circuit(self) -> str:
        """The address at which siblings find this device through the relay; "" before its key is known."""
        return str(replace(self.address, relay=self.public)) if self.public else ""


class Caller(Protocol):
    """What is needed of `Peers`."""

    store: ChainStore
    public: bytes

    def session_with(self, public: bytes) -> Session | None: ...

    async def dial(self, addresses: Sequence[str], *, expected_public: bytes | None = None,
                   timeout_s: float = 15.0) -> Session: ...


class RelayClient:
    """The relays that this device is called through, and calls through. `found` is called when a reservation was made:
    siblings may be there. Errors of the constructor: `UsageError` for an address that is none."""

    def __init__(self, caller: Caller, ports: Ports, relays: Sequence[str], found: Callable[[], None],
                 log: Callable[[str], None]) -> None:
        self._caller = caller
        self._ports = ports
        self._found = found
        self._log = log
        self._called = 0
        self.ways = read_relays(relays)

    async def run(self) -> None:
        """Keep the reservations until cancelled."""
        async with trio.open_nursery() as nursery:
            for way in self.ways:
                nursery.start_soon(self._keep, way)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where siblings can call this device: at every relay whose key is known, also while it is away."""
        return tuple(way.circuit for way in self.ways if way.circuit and way.state != "refused")

    def addresses_of(self, public: bytes) -> tuple[str, ...]:
        """Where a sibling may be found that has the same relays as this device."""
        return tuple(way.circuit for way in self.ways if way.state == "reserved" and way.public != public)

    def describe(self) -> list[dict[str, Any]]:
        """The relays as `status` shows them."""
        return [{"address": str(way.address), "public": way.public.hex() if way.public else None, "state": way.state,
                 "reason": way.reason} for way in self.ways]

    # ---- the reservation -----------------------------------------------------------------------------------------

    async def _keep(self, way: Way) -> None:
        away_since_s = trio.current_time()
        while True:
            try:
                session = await self._session(way)
                lifetime_s = await self._reserve(way, session)
            except NetworkError as error:
                refused = error.code in ("E_RELAY", "E_SELF")
                self._note(way, "refused" if refused else "away", str(error))
                wait_s = REFUSED_S if refused else (trio.current_time() - away_since_s) / 8
                await trio.sleep(max(RETRY_S[0], wait_s if refused else min(wait_s, RETRY_S[1])) * self._jitter())
                continue
            self._note(way, "reserved", "")
            self._found()
            with trio.move_on_after(lifetime_s / 2):
                await session.over.wait()
                self._note(way, "away", "the session with it ended")
            away_since_s = trio.current_time()

    async def _session(self, way: Way) -> Session:
        if not self._caller.store.chain().is_member(self._caller.public):
            raise NetworkError("This device does not belong to its household any more.", code="E_RELAY")
        session = self._caller.session_with(way.public) if way.public is not None else None
        if session is None or session.relayed:
            session = await self._caller.dial([str(way.address)], expected_public=way.pinned, timeout_s=DIAL_S)
        if session.relayed:
            raise NetworkError("The relay is itself reached through another one.", code="E_RELAY")
        way.public = session.public
        return session

    async def _reserve(self, way: Way, session: Session) -> float:
        """How long the reservation holds."""
        try:
            stream = await session.open_stream(HOP_PROTOCOL)
        except NetworkError as error:
            if session.over.is_set():
                raise
            raise NetworkError(f"{session.device.name} does not serve as a relay.", code="E_RELAY",
                               next_step="there: set relay_serve = true in config.toml") from error
        try:
            await talk.send(stream, Hop(HopKind.RESERVE))
            answer = Hop.decode(await talk.receive(stream))
            if answer.status != Status.OK or answer.reservation is None:
                raise refused_by(session.device.name, answer.status)
            if answer.reservation.voucher:
                check_voucher(answer.reservation.voucher, relay=session.public, peer=self._caller.public)
        except RelayMalformed as error:
            raise NetworkError(f"{session.device.name} answered as no relay does: {error}", code="E_RELAY") from error
        finally:
            await stream.close()
        lifetime_s = answer.reservation.expires_s - self._ports.clock.now_unix_s()
        if LIFETIME_S[0] <= lifetime_s <= LIFETIME_S[1]:
            return lifetime_s
        return limits.relay_reservation_s / 2  # the two clocks differ by more than the reservation's time

    def _note(self, way: Way, state: str, reason: str) -> None:
        if (way.state, way.reason) == (state, reason):
            return
        before, way.state, way.reason = way.state, state, reason
        name = fingerprint(way.public) if way.public else str(way.address)
        device = self._caller.store.chain().device(way.public) if way.public else None
        name = device.name if device is not None else name
        if state == "reserved":
            self._log(f"siblings can call this device through {name}")
        elif before == "reserved" or state == "refused":
            self._log(f"siblings can't call this device through {name}: {reason}")

    def _jitter(self) -> float:
        """Between three quarters and five."""
        return 0.75 + int.from_bytes(self._ports.randomness.draw(4), "big") / 2**33

    # ---- being called --------------------------------------------------------------------------------------------

    async def handle(self, connection: Connection, stream: Stream) -> None:
        """A stop stream, from anybody: one of our relays says that a sibling calls."""
        way = next((way for way in self.ways if way.public == connection.remote_public), None)
        known = self._caller.store.chain().is_member(connection.remote_public)
        if way is None or not known or is_relayed(connection.remote_address):
            await talk.send(stream, _status(Status.PERMISSION_DENIED))
            return
        if self._called >= CALLED_MAX:
            await talk.send(stream, _status(Status.RESOURCE_LIMIT_EXCEEDED))
            return
        self._called += 1
        try:
            source = await self._source(stream)
            if source is not None:
                await self._ports.network.accept_over(stream, way.circuit, source)
        finally:
            self._called -= 1

    async def _source(self, stream: Stream) -> bytes | None:
        """Who calls, if it is one of us; the relay has its answer then."""
        try:
            message = Stop.decode(await talk.receive(stream))
        except RelayMalformed as error:
            logger.debug("a relay's call: %s", error)
            await talk.send(stream, _status(Status.MALFORMED_MESSAGE))
            return None
        if message.kind != StopKind.CONNECT or message.peer is None:
            await talk.send(stream, _status(Status.UNEXPECTED_MESSAGE))
            return None
        if message.peer == self._caller.public or not self._caller.store.chain().is_member(message.peer):
            await talk.send(stream, _status(Status.PERMISSION_DENIED))
            return None
        await talk.send(stream, _status(Status.OK))
        return message.peer

    # ---- calling -------------------------------------------------------------------------------------------------

    async def dial(self, address: str, expected_public: bytes | None, timeout_s: float) -> Connection:
        """As the network's `dial`, also for addresses that lead through a relay. Errors: `NetworkError`."""
        if not is_relayed(address) or expected_public is None:
            return await self._ports.network.dial(address, expected_public, timeout_s)
        place, begun_s = parse_address(address), trio.current_time()
        if place.relay in (self._caller.public, expected_public):
            raise NetworkError(f"{address} is no way to that device.", code="E_RELAY")
        with trio.move_on_after(timeout_s):
            stream, extra = await self._hop(place, timeout_s)
            try:
                await self._connect(stream, place.relay, expected_public)
                left_s = timeout_s - (trio.current_time() - begun_s)
                return await self._ports.network.dial_over(stream, address, expected_public, left_s)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await stream.close()
                    if extra is not None:
                        await extra.close()
                raise
        raise NetworkError(f"{address} did not answer within {timeout_s:g} s.")

    async def _hop(self, place: Address, timeout_s: float) -> tuple[Stream, Connection | None]:
        """A stream to ask the relay on: over the session with it, or over a connection of its own (which closes itself
        when it has been idle)."""
        session = self._caller.session_with(place.relay)
        if session is not None and not session.relayed:
            return await session.open_stream(HOP_PROTOCOL), None
        connection = await self._ports.network.dial(str(place.direct), place.relay, timeout_s)
        try:
            return await connection.open_stream(HOP_PROTOCOL), connection
        except BaseException:
            with trio.CancelScope(shield=True):
                await connection.close()
            raise

    async def _connect(self, stream: Stream, relay: bytes, target: bytes) -> None:
        device = self._caller.store.chain().device(relay)
        name = device.name if device is not None else fingerprint(relay)
        try:
            await talk.send(stream, Hop(HopKind.CONNECT, peer=target))
            answer = Hop.decode(await talk.receive(stream))
        except RelayMalformed as error:
            raise NetworkError(f"{name} answered as no relay does: {error}", code="E_RELAY") from error
        if answer.status != Status.OK:
            raise refused_by(name, answer.status)


def read_relays(texts: Sequence[str]) -> list[Way]:
    """The relays of the settings. Errors: `UsageError` for an address that is none, and for too many."""
    ways = []
    for text in dict.fromkeys(texts):
        address, pinned = parse_relay(text)
        ways.append(Way(address, pinned, pinned))
    if len(ways) > RELAYS_MAX:
        raise UsageError(f"{len(ways)} relays are too many; a device may have {RELAYS_MAX}",
                         next_step="keep those that most of your devices reach")
    return ways


def refused_by(name: str, status: Status | None) -> NetworkError:
    """What a relay's answer means."""
    said = _SAYS.get(status or Status.UNUSED, f"it answered {status.name if status else 'nothing'}")
    return NetworkError(f"The relay {name} refused: {said}.", code="E_RELAY")


def _status(status: Status) -> Stop:
    return Stop(StopKind.STATUS, status=status)
