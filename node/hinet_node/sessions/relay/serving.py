"""The device in the middle: answers its siblings' RESERVE and CONNECT, calls the one that is wanted, passes bytes on.

Nobody but live devices of the household is served. What is read from one end waits until the other end takes it, so
that a slow reader slows its sender down and fills no memory here. Leaves the rules to `hinet_protocol.relay.desk`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Clock, Connection, Stream
from hinet_node.sessions.addresses import is_relayed
from hinet_node.sessions.relay import talk
from hinet_protocol import limits
from hinet_protocol.chain import Chain
from hinet_protocol.errors import RelayMalformed
from hinet_protocol.relay import (
    STOP_PROTOCOL,
    Arrived,
    CallTarget,
    CircuitEnded,
    Cut,
    Desk,
    Grew,
    Hop,
    HopKind,
    Reached,
    RelayLimits,
    Reply,
    Start,
    Status,
    Stop,
    StopKind,
    Ticked,
    make_voucher,
)

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 16
ASKING_MAX = 8
"""Hop streams of one device whose question has not come yet."""


@dataclass(eq=False)
class _Call:
    """One hop stream: where the question came from, and the stream to the device that it called."""

    connection: Connection
    stream: Stream
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    far: Stream | None = None


class RelayServer:
    """Serves as a relay while `run` is running. `seed` is the device's own, for vouchers."""

    def __init__(self, public: bytes, seed: bytes, chain: Callable[[], Chain], clock: Clock,
                 bounds: RelayLimits) -> None:
        self._seed = seed
        self._chain = chain
        self._clock = clock
        self._bounds = bounds
        self._desk = Desk(public, chain(), bounds)
        self._calls: dict[int, _Call] = {}
        self._links: dict[int, Connection] = {}
        self._numbers = 0
        self._asking: Counter[bytes] = Counter()
        self._changed = trio.Event()

    async def run(self) -> None:
        """End reservations and circuits when their time is over, until cancelled."""
        while True:
            self._changed = trio.Event()
            wake_ms = self._desk.wake_ms
            wait_s = float("inf") if wake_ms is None else max(0, wake_ms - self._now_ms()) / 1000
            with trio.move_on_after(wait_s):
                await self._changed.wait()
                continue
            self._feed(Ticked())

    def chain_changed(self) -> None:
        """The chain grew: whoever was removed is cut off now."""
        self._feed(Grew(self._chain()))

    def describe(self) -> dict[str, int]:
        """What is served now, for `status`."""
        return {"reservations": len(self._desk.reservations),
                "circuits": sum(one.is_open for one in self._desk.circuits.values())}

    async def handle(self, connection: Connection, stream: Stream) -> None:
        """A hop stream, from anybody."""
        if not self._desk.chain.is_member(connection.remote_public):
            await talk.send(stream, _status(Status.PERMISSION_DENIED))  # nothing is read from a stranger
            return
        asker = connection.remote_public
        if self._asking[asker] >= ASKING_MAX:
            await talk.send(stream, _status(Status.RESOURCE_LIMIT_EXCEEDED))
            return
        self._asking[asker] += 1
        try:
            message = Hop.decode(await talk.receive(stream))
        except RelayMalformed as error:
            logger.debug("%s: %s", connection.remote_address, error)
            await talk.send(stream, _status(Status.MALFORMED_MESSAGE))
            return
        finally:
            self._asking[asker] -= 1
            if not self._asking[asker]:
                del self._asking[asker]
        await self._serve(_Call(connection, stream), message)

    async def _serve(self, call: _Call, message: Hop) -> None:
        self._numbers += 1
        number = self._numbers
        self._calls[number] = call
        self._links[number] = call.connection
        asked = Arrived(number, number, call.connection.remote_public, message,
                        is_relayed(call.connection.remote_address), max(0, int(self._clock.now_unix_s())))
        try:
            with call.scope:
                for action in self._feed(asked):
                    await self._do(call, action)
        finally:
            del self._calls[number]
            self._feed(CircuitEnded(number))
            if call.far is not None:
                await call.far.close()

    def _feed(self, event: Arrived | Reached | CircuitEnded | Grew | Ticked) -> tuple[Reply | CallTarget | Start, ...]:
        """What is to be done for the stream that the event is about; cuts are done here."""
        self._desk, actions = self._desk.step(event, self._now_ms())
        kept = {one.link for one in self._desk.reservations.values()}
        self._links = {at: one for at, one in self._links.items() if at in kept or at in self._calls}
        self._changed.set()
        rest = []
        for action in actions:
            if not isinstance(action, Cut):
                rest.append(action)
            elif action.stream in self._calls:
                logger.debug("a circuit was cut: %s", action.reason)
                self._calls[action.stream].scope.cancel()
        return tuple(rest)

    async def _do(self, call: _Call, action: Reply | CallTarget | Start) -> None:
        if isinstance(action, Reply):
            await talk.send(call.stream, self._with_voucher(action))
        elif isinstance(action, CallTarget):
            accepted = await self._call_target(call, action)
            for following in self._feed(Reached(action.stream, accepted)):
                await self._do(call, following)
        else:
            assert call.far is not None, "a circuit starts when the target was reached"
            await self._pass_on(call.stream, call.far)

    def _with_voucher(self, action: Reply) -> Hop:
        promised = action.message.reservation
        if promised is None or action.voucher_for is None:
            return action.message
        voucher = make_voucher(self._seed, action.voucher_for, promised.expires_s)
        return replace(action.message, reservation=replace(promised, voucher=voucher))

    async def _call_target(self, call: _Call, action: CallTarget) -> bool:
        """Ask the device that is wanted; False when it can't be reached or says no."""
        with trio.move_on_after(limits.relay_ask_ms_max / 1000):
            try:
                call.far = await self._links[action.link].open_stream(STOP_PROTOCOL)
                await talk.send(call.far, Stop(StopKind.CONNECT, peer=action.source, limit=action.limit))
                answer = Stop.decode(await talk.receive(call.far))
            except (NetworkError, RelayMalformed) as error:
                logger.debug("a call did not reach its device: %s", error)
                return False
            return answer.kind == StopKind.STATUS and answer.status == Status.OK
        return False

    async def _pass_on(self, near: Stream, far: Stream) -> None:
        async with trio.open_nursery() as nursery:
            async def one_way(source: Stream, sink: Stream) -> None:
                passed = 0
                try:
                    while data := await source.receive_some(PIECE_BYTES):
                        passed += len(data)
                        if self._bounds.circuit_bytes and passed > self._bounds.circuit_bytes:
                            break
                        await sink.send_all(data)
                except NetworkError as error:
                    logger.debug("a circuit ended: %s", error)
                nursery.cancel_scope.cancel()  # a connection with one direction is over

            nursery.start_soon(one_way, near, far)
            nursery.start_soon(one_way, far, near)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)


def _status(status: Status) -> Hop:
    return Hop(HopKind.STATUS, status=status)
