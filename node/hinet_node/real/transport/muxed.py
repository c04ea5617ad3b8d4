"""A connection and its streams over libp2p's yamux.

Three of yamux's faults are met here: a writer whose peer reads slowly is cut off after five seconds (so no more is
written than the peer's window holds, and the waiting is ours), a peer that ignores its window fills the memory of the
other side (so what is buffered is counted), and windows grow without regard to each other (so together they stay below
what may be buffered; a relay whose circuits are read slowly would else cut an honest device off). Each stream has a
writer task of its own, so that cancelling `send_all` leaves no half-written frame behind. Leaves handshakes to
`network`, and deciding that a silent peer is dead to `hinet_node.sessions.peers` (closing the connection frees every
task that waits here).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.stream_muxer.exceptions import MuxedStreamEOF
from libp2p.stream_muxer.yamux import yamux

from hinet_node.errors import NetworkError
from hinet_node.real.transport.wire import Capped, Wire

if TYPE_CHECKING:
    from trio_typing import TaskStatus  # libp2p brings trio-typing's stubs, which hide trio's own types from mypy

logger = logging.getLogger(__name__)

yamux.MAX_WINDOW_SIZE = 4 * 1024 * 1024  # as shipped 16 MiB, which any stranger could make us hold for each stream
yamux.RTT_MEASURE_INTERVAL = 300  # as shipped 30 s; it only sizes windows, and each time wakes both devices twice

BUFFER_BYTES_MAX = 16 * 1024 * 1024
QUEUE_BYTES_MAX = 2 * 1024 * 1024
WRITE_BYTES_MAX = 1024 * 1024
STREAMS_MAX = 32
NEGOTIATION_BYTES_MAX = 1024
NEGOTIATION_S = 10
FLUSH_S = 2.0
LINGER_S = 5.0
IDLE_S = 60.0
_WINDOW_POLL_S = (0.005, 0.1)
_grow_window = yamux.YamuxStream._apply_autotune_epoch


def _grow_window_within_bounds(stream: Any, buffered: int) -> int:
    """Let a stream's window grow only while all windows of its connection, those to come too, fit the buffer."""
    buffers = stream.conn.stream_buffers
    targets = [one.target_recv_window for number, one in stream.conn.streams.items()
               if not one.closed or buffers.get(number)]
    coming = max(0, STREAMS_MAX - len(targets)) * yamux.DEFAULT_WINDOW_SIZE
    if sum(targets) + stream.target_recv_window + coming > BUFFER_BYTES_MAX:
        return 0
    return int(_grow_window(stream, buffered))


yamux.YamuxStream._apply_autotune_epoch = _grow_window_within_bounds


class Guard:
    """The secured connection as yamux sees it: the memory that a peer may fill is counted before its bytes are read."""

    def __init__(self, secured: Any) -> None:
        self._secured = secured
        self.is_initiator = secured.is_initiator
        self.muxed: Any = None

    async def read(self, n: int) -> bytes:
        if n > yamux.HEADER_SIZE:
            held = sum(map(len, self.muxed.stream_buffers.values()))
            if held + n > BUFFER_BYTES_MAX:
                raise ConnectionClosedError("The peer sends more than its windows allow.")
        data: bytes = await self._secured.read(n)
        if not data:
            raise ConnectionClosedError("The peer closed the connection.")
        return data

    async def write(self, data: bytes) -> None:
        await self._secured.write(data)

    async def close(self) -> None:
        await self._secured.close()

    def get_remote_address(self) -> None:
        return None


class MuxedStream:
    """One stream. `hinet_node.ports.Stream`."""

    def __init__(self, inner: Any, connection: MuxedConnection) -> None:
        self._inner = inner
        self._connection = connection
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._work = trio.Event()
        self._closing = False
        self._finished = trio.Event()
        self._failed: str | None = None

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        while self._queued_bytes >= QUEUE_BYTES_MAX and self._failed is None and not self._closing:
            await self._room.park()
        if self._failed is not None or self._closing:
            raise NetworkError(self._failed or "The stream is closed.")
        if data:
            self._queue.append(data)
            self._queued_bytes += len(data)
            self._work.set()

    async def receive_some(self, bytes_max: int) -> bytes:
        """As the port says. Waiting can be cancelled without losing bytes; taking them can't be interrupted."""
        await trio.lowlevel.checkpoint()
        muxed, stream_id = self._inner.conn, self._inner.stream_id
        while not (self._inner.recv_closed or self._inner.closed or muxed.stream_buffers.get(stream_id)):
            event = muxed.stream_events.get(stream_id)
            if event is None or muxed.event_shutting_down.is_set():
                raise NetworkError("The connection is gone.")
            await event.wait()
            if event is muxed.stream_events.get(stream_id):
                muxed.stream_events[stream_id] = trio.Event()
        with trio.CancelScope(shield=True):
            try:
                data: bytes = await self._inner.read(bytes_max)
            except MuxedStreamEOF as error:
                if muxed.event_shutting_down.is_set():
                    raise NetworkError("The connection is gone.") from error
                return b""
            except Exception as error:  # libp2p lets errors of every layer through
                raise NetworkError(f"The stream broke: {error or type(error).__name__}.") from error
        return data

    async def close(self) -> None:
        """Send what is queued (for at most two seconds), then end both directions."""
        self._closing = True
        self._room.unpark_all()
        self._work.set()
        with trio.CancelScope(shield=True), trio.move_on_after(FLUSH_S):
            await self._finished.wait()

    def fail(self, reason: str) -> None:
        """The connection is gone: wake everybody who waits."""
        if self._failed is None:
            self._failed = reason
        self._queue.clear()
        self._queued_bytes = 0
        self._room.unpark_all()
        self._work.set()
        self._finished.set()

    async def run_writer(self) -> None:
        """Write the queue until the stream is closed; runs in the connection's nursery."""
        try:
            await self._write_queue()
            await self._inner.close()
            self._finished.set()
            await self._drain()
        except Exception as error:  # libp2p lets errors of every layer through
            self.fail(f"The stream broke: {error or type(error).__name__}.")
        finally:
            self.fail("The stream is closed.")
            self._connection.forget(self)

    async def _write_queue(self) -> None:
        while True:
            if not self._queue:
                if self._closing or self._failed is not None:
                    return
                self._work = trio.Event()
                await self._work.wait()
                continue
            rest = memoryview(self._queue.popleft())
            while rest:
                size = min(await self._wait_for_window(), WRITE_BYTES_MAX, len(rest))
                await self._inner.write(rest[:size])
                rest = rest[size:]
                self._queued_bytes = max(0, self._queued_bytes - size)
                if self._queued_bytes < QUEUE_BYTES_MAX:
                    self._room.unpark_all()

    async def _wait_for_window(self) -> int:
        """The bytes that the peer takes now, at least one. Polled, as yamux itself does: it has no event for it."""
        pause_s = _WINDOW_POLL_S[0]
        while self._inner.send_window <= 0:
            if self._inner.closed or self._inner.conn.event_shutting_down.is_set():
                raise NetworkError("The connection is gone.")
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _WINDOW_POLL_S[1])
        return int(self._inner.send_window)

    async def _drain(self) -> None:
        """Take what the peer still sends until it closes too; a reset at once could cost it bytes it has not read."""
        with trio.move_on_after(LINGER_S):
            try:
                while await self.receive_some(WRITE_BYTES_MAX):
                    pass
                return
            except NetworkError:
                return
        await self._inner.reset()


class MuxedConnection:
    """One authenticated connection. `hinet_node.ports.Connection`."""

    def __init__(self, muxed: Any, wire: Wire, remote_public: bytes, remote_address: str) -> None:
        self.remote_public = remote_public
        self.remote_address = remote_address
        self._muxed = muxed
        self._wire = wire
        self._nursery: trio.Nursery | None = None
        self._streams: dict[MuxedStream, None] = {}  # in order, so that a simulation repeats
        self._closed = trio.Event()
        self._idle_since = trio.current_time()

    async def open_stream(self, protocol: str) -> MuxedStream:
        """Errors: `NetworkError` when the connection is gone or the peer does not speak the protocol."""
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:  # a nursery that ends takes no more tasks
            raise NetworkError("The connection is gone.")
        send, receive = trio.open_memory_channel[MuxedStream | NetworkError](1)
        try:
            # In a task of its own: cancelled half way, yamux would keep a stream that nobody knows.
            self._nursery.start_soon(self._open, protocol, send)
        except RuntimeError as error:  # the nursery's last task has ended, and `run` had no turn yet to say so
            raise NetworkError("The connection is gone.") from error
        try:
            result = await receive.receive()
        except trio.EndOfChannel:
            raise NetworkError("The connection is gone.") from None
        finally:
            receive.close()
        if isinstance(result, NetworkError):
            raise result
        return result

    async def _open(self, protocol: str, send: trio.MemorySendChannel[MuxedStream | NetworkError]) -> None:
        with send:
            try:
                with trio.fail_after(NEGOTIATION_S):
                    inner = await self._muxed.open_stream()
                    speaker = MultiselectCommunicator(Capped(inner, NEGOTIATION_BYTES_MAX))
                    await MultiselectClient().select_one_of([protocol], speaker, NEGOTIATION_S)
            except Exception as error:  # libp2p lets errors of every layer through
                with suppress(trio.BrokenResourceError):  # the one who asked was cancelled
                    send.send_nowait(NetworkError(f"{self.remote_address} did not open {protocol}: {error}."))
                return
            stream = self._adopt(inner)
            try:
                send.send_nowait(stream)
            except trio.BrokenResourceError:  # the one who asked was cancelled
                await stream.close()

    async def close(self) -> None:
        """Say goodbye for at most a second, then close the socket."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._abort_after, 1.0)
                try:
                    await self._muxed.close()
                except Exception as error:  # libp2p lets errors of every layer through; closing goes on
                    logger.debug("closing %s: %s", self.remote_address, error)
                nursery.cancel_scope.cancel()
            await self._wire.abort()
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()
            await self._closed.wait()

    async def wait_closed(self) -> None:
        """Until the connection is gone, whoever ended it."""
        await self._closed.wait()

    async def _abort_after(self, timeout_s: float) -> None:
        await trio.sleep(timeout_s)
        await self._wire.abort()

    async def run(self, handlers: Mapping[str, Any], serve: Callable[[MuxedConnection, MuxedStream, Any], None], *,
                  task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Move the connection's bytes until it ends; `serve(connection, stream, handler)` is called for each stream
        that the peer opens."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._accept, handlers, serve)
                nursery.start_soon(self._close_when_idle)
                nursery.start_soon(self._run_muxer, nursery)
                await self._muxed.event_started.wait()
                task_status.started()
        except* Exception as errors:
            # Cancelled in the moment that libp2p fails, its nurseries give both at once, which no `except Exception`
            # inside catches. One connection is over then, and not the agent. (Handlers run elsewhere.)
            logger.debug("connection to %s: %s", self.remote_address, errors)
        finally:
            self._nursery = None
            for stream in tuple(self._streams):
                stream.fail("The connection is gone.")
            await self._wire.abort()
            self._closed.set()

    async def _run_muxer(self, nursery: trio.Nursery) -> None:
        try:
            await self._muxed.start()
        except Exception as error:  # libp2p lets errors of every layer through: the connection is over either way
            logger.debug("connection to %s: %s", self.remote_address, error)
        nursery.cancel_scope.cancel()

    async def _accept(self, handlers: Mapping[str, Any],
                      serve: Callable[[MuxedConnection, MuxedStream, Any], None]) -> None:
        assert self._nursery is not None
        opening = trio.CapacityLimiter(STREAMS_MAX)
        async for inner in self._muxed.new_stream_receive_channel:
            if len(self._streams) + opening.borrowed_tokens >= STREAMS_MAX:
                self._nursery.start_soon(_reset, inner)
            else:
                self._nursery.start_soon(self._negotiate, inner, handlers, serve, opening)

    async def _negotiate(self, inner: Any, handlers: Mapping[str, Any],
                         serve: Callable[[MuxedConnection, MuxedStream, Any], None],
                         opening: trio.CapacityLimiter) -> None:
        async with opening:
            try:
                speaker = MultiselectCommunicator(Capped(inner, NEGOTIATION_BYTES_MAX))
                protocol, handler = await Multiselect(dict(handlers)).negotiate(speaker, NEGOTIATION_S)
            except Exception as error:  # libp2p lets errors of every layer through
                logger.debug("%s opened no stream: %s", self.remote_address, error)
                await _reset(inner)
                return
            if protocol is None or handler is None:
                await _reset(inner)
                return
            serve(self, self._adopt(inner), handler)

    def _adopt(self, inner: Any) -> MuxedStream:
        stream = MuxedStream(inner, self)
        if self._nursery is None:
            stream.fail("The connection is gone.")
            return stream
        self._streams[stream] = None
        self._nursery.start_soon(stream.run_writer)
        return stream

    def forget(self, stream: MuxedStream) -> None:
        """A stream is over."""
        self._streams.pop(stream, None)
        self._idle_since = trio.current_time()

    async def _close_when_idle(self) -> None:
        """A connection that nobody uses is given up, so that strangers can't hold one for ever."""
        while self._streams or trio.current_time() - self._idle_since < IDLE_S:
            await trio.sleep(IDLE_S / 4)
        await self._wire.abort()


async def _reset(inner: Any) -> None:
    try:
        await inner.reset()
    except Exception as error:  # libp2p lets errors of every layer through; the stream is over either way
        logger.debug("resetting a stream: %s", error)


