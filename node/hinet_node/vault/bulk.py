"""Bulk connections for packs: who gets one, who makes it, how many, and when they end. SPEC.md, 5.12.

Made inside an open, direct session with a live device and gone with it; whoever dialled the session dials again, so
what lets sessions through lets these through. Where none can be had, packs go over the session (`pull`), and it is
tried again some time later. Leaves TLS to the Network port, the bytes that are said to `hinet_protocol.bulk`, pulling
to `pull`, reading packs to `serve`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from hinet_node.errors import NetworkError, NodeError
from hinet_node.ports import BulkEnd, BulkStream, ExpectedBulk, Network, Randomness
from hinet_node.vault.serve import Server
from hinet_protocol import bulk as wire
from hinet_protocol import limits
from hinet_protocol.errors import ProtocolError
from hinet_protocol.messages import BulkOpen, BulkReady, BulkWant

if TYPE_CHECKING:
    from hinet_node.sessions.peers import Session

logger = logging.getLogger(__name__)

_SETUP_S = limits.bulk_setup_ms_max / 1000
_IDLE_S = limits.bulk_idle_ms_max / 1000
_AGAIN_S = 60.0
"""So long a sibling with which no bulk connection could be made is not asked for another."""


class Bulk:
    """All bulk connections of this device. Its tasks run in the nursery that `begin` is given."""

    def __init__(self, network: Network, randomness: Randomness, server: Server) -> None:
        self._network = network
        self._randomness = randomness
        self._server = server
        self._nursery: trio.Nursery | None = None
        self._serving: Counter[bytes] = Counter()
        """Connections on which a device asks us, those that are being made included."""
        self._wanted: dict[Session, list[ExpectedBulk]] = {}
        """What came of asking those who dialled us."""
        self._failed_s: dict[Session, float] = {}
        """A new session is a new chance: what ended the old one may have ended its bulk connection first."""

    def begin(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def handlers(self) -> list[tuple[type, Any]]:
        """Message class and handler, as `hinet_node.sessions.peers.Peers.on` takes them."""
        return [(BulkOpen, self._on_open), (BulkWant, self._on_want)]

    # ---- asking ----------------------------------------------------------------------------------------------------

    async def connect(self, session: Session) -> BulkStream | None:
        """A new connection on which this device asks the sibling for packs; None when none can be had now."""
        if session.relayed or trio.current_time() < self._failed_s.get(session, -_AGAIN_S) + _AGAIN_S:
            return None
        try:
            if session.dialled_by_us:
                return (await self._open(session, pulls=True))[0]
            return await self._want(session)
        except (NodeError, ProtocolError) as error:
            logger.debug("no bulk connection with %s: %s", session.address, error)
            self.broke(session)
            return None

    def broke(self, session: Session) -> None:
        """A connection could not be made, or ended early: the session does for a while."""
        self._failed_s[session] = trio.current_time()

    def leave(self, session: Session) -> None:
        """The session is over."""
        self._failed_s.pop(session, None)

    async def _open(self, session: Session, *, pulls: bool) -> tuple[BulkStream, bytes]:
        """The connection, and this end's certificate on it."""
        token, seed = self._randomness.draw(limits.bulk_token_bytes), self._randomness.draw(32)
        own = self._network.bulk_certificate(seed)
        end = BulkEnd(token, seed, _certificate(
            await session.request(BulkOpen(token, own, pulls), timeout_s=_SETUP_S)))
        return await self._network.dial_bulk(session.address, end, _SETUP_S), own

    async def _want(self, session: Session) -> BulkStream:
        if session in self._wanted:
            raise NetworkError("A bulk connection with this device is being made already.")
        came = self._wanted[session] = []
        try:
            _certificate(await session.request(BulkWant(), timeout_s=2 * _SETUP_S))
            if not came:
                raise NetworkError(f"{session.device.name} says that it made a bulk connection and did not.")
            return await came.pop().arrive(_SETUP_S)
        finally:
            del self._wanted[session]
            for expected in came:
                expected.forget()

    # ---- being asked -----------------------------------------------------------------------------------------------

    async def _on_open(self, session: Session, message: BulkOpen) -> BulkReady:
        if session.relayed or session.dialled_by_us or self._nursery is None:
            raise NetworkError("Whoever dialled a direct session opens its bulk connections.", code="E_VIOLATION")
        if not message.pulls and (session not in self._wanted or self._wanted[session]):
            raise NetworkError("Nobody here wants a bulk connection now.", code="E_VIOLATION")
        seed = self._randomness.draw(32)
        certificate = self._network.bulk_certificate(seed)
        if message.pulls:
            self._check_room(session)
        expected = self._network.expect_bulk(BulkEnd(message.token, seed, message.certificate))
        if message.pulls:
            self._serve_soon(session, expected.arrive)
        else:
            self._wanted[session].append(expected)
        return BulkReady(certificate)

    async def _on_want(self, session: Session, message: BulkWant) -> BulkReady:
        if session.relayed or not session.dialled_by_us or self._nursery is None:
            raise NetworkError("Whoever dialled a direct session opens its bulk connections.", code="E_VIOLATION")
        self._check_room(session)
        made, certificate = await self._open(session, pulls=False)
        try:
            self._check_room(session)  # while it was being made, others may have been
        except NetworkError:
            await made.close()
            raise

        async def take(timeout_s: float) -> BulkStream:
            return made

        self._serve_soon(session, take)
        return BulkReady(certificate)

    def _check_room(self, session: Session) -> None:
        public = session.device.public
        if (self._serving[public] >= limits.bulk_connections_each_max
                or self._serving.total() >= limits.bulk_connections_max):
            raise NetworkError("This device serves as many bulk connections as it may.", code="E_BUSY")

    def _serve_soon(self, session: Session, arrive: Callable[[float], Awaitable[BulkStream]]) -> None:
        assert self._nursery is not None, "whoever calls has looked"
        self._serving[session.device.public] += 1
        self._nursery.start_soon(self._serve, session, session.device.public, arrive)

    async def _serve(self, session: Session, public: bytes, arrive: Callable[[float], Awaitable[BulkStream]]) -> None:
        """Answer on one connection until it ends, or its session does."""
        stream: BulkStream | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at_end, session, nursery.cancel_scope)
                try:
                    stream = await arrive(_SETUP_S)
                    await self._answer(stream)
                except (NodeError, ProtocolError) as error:
                    logger.debug("bulk connection of %s: %s", session.address, error)
                nursery.cancel_scope.cancel()
        finally:
            self._serving -= Counter({public: 1})  # leaves out what is at zero
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await stream.close()

    async def _answer(self, stream: BulkStream) -> None:
        sent = 0
        while sent < limits.bulk_bytes_max:
            raw = b""
            with trio.move_on_after(_IDLE_S):
                raw = await stream.receive_exactly(wire.request_bytes)
            if not raw:
                return
            sent += await self._server.send_pack(stream, wire.decode_request(raw))


async def _cancel_at_end(session: Session, scope: trio.CancelScope) -> None:
    await session.over.wait()
    scope.cancel()


def _certificate(reply: Any) -> bytes:
    if not isinstance(reply, BulkReady):
        raise NetworkError("The sibling answered a question about a bulk connection with something else.")
    return reply.certificate
