"""The agent's side of the local socket: carries calls to `Api.dispatch`. Frames and the other side: `local_socket`.

Bounded everywhere: connections, request size, the time that a request may take to come and an answer to be read, queued
progress (older values are dropped when the reader is slow). A caller that hangs up cancels its call; a malformed frame
costs only its own connection; one that comes when all places are taken is told so.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from hinet_node.api import Api, Emit
from hinet_node.errors import NodeError, TryAgain, UsageError
from hinet_node.foreign_errors import as_node_error
from hinet_node.local.client import (
    ANSWER_BYTES_MAX,
    CONNECTIONS_MAX,
    HEADER_BYTES,
    PROGRESS_QUEUED_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_S_MAX,
    decode,
    encode,
    prepare,
)

OnError = Callable[[str, BaseException], None]

TURN_AWAY_S = 1.0
SEND_S_MAX = 300.0
"""How long a caller may take to read one frame: long enough for one that was stopped for a moment at its terminal."""
ACCEPT_PAUSE_S = 0.1


async def serve(api: Api, path: Path, on_unexpected: OnError, *,
                task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    """Serve calls on `path` until cancelled; the socket is removed then. The home's lock must be held.

    `on_unexpected(verb, error)` is told of errors that are nobody's kind, for the log.
    """
    prepare(path)
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    former_mask = os.umask(0o177)  # the socket is 0600 from the moment that it exists
    try:
        await listening.bind(str(path))
    finally:
        os.umask(former_mask)
    listening.listen(CONNECTIONS_MAX)
    limit = trio.CapacityLimiter(CONNECTIONS_MAX)
    try:
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                try:
                    connection, _ = await listening.accept()
                except OSError:  # no file descriptor is left, or the caller has gone already
                    await trio.sleep(ACCEPT_PAUSE_S)
                    continue
                stream, token = trio.SocketStream(connection), object()
                try:
                    limit.acquire_on_behalf_of_nowait(token)
                except trio.WouldBlock:
                    await _turn_away(stream)
                else:
                    nursery.start_soon(_serve_connection, api, stream, on_unexpected, limit, token)
    finally:
        listening.close()
        path.unlink(missing_ok=True)


async def _turn_away(stream: trio.SocketStream) -> None:
    """Tell a caller that all places are taken. The answer fits an empty socket's buffer, so this does not wait."""
    full = TryAgain(f"the agent has {CONNECTIONS_MAX} callers already",
                    next_step="try again in a moment; if it stays so, look for a program that keeps calling the agent")
    async with stream:
        with trio.move_on_after(TURN_AWAY_S), suppress(trio.BrokenResourceError):
            await stream.send_all(encode({"id": None, "error": _described(full)}, ANSWER_BYTES_MAX))


async def _serve_connection(api: Api, stream: trio.SocketStream, on_unexpected: OnError,
                            limit: trio.CapacityLimiter, token: object) -> None:
    try:
        async with stream:
            reader = _Reader(stream)
            while (body := await _request(reader)) is not None:
                await _serve_call(api, stream, reader, decode(body), on_unexpected)
    except* (trio.BrokenResourceError, trio.ClosedResourceError, ValueError):
        pass  # a caller that went away or wrote nonsense ends its own connection and nothing else
    finally:
        limit.release_on_behalf_of(token)


async def _request(reader: _Reader) -> bytes | None:
    """The next request; None at the end, or when it has not come whole in time: a silent caller loses its place."""
    with trio.move_on_after(REQUEST_S_MAX):
        return await reader.frame()
    return None


class _Reader:
    """Frames out of the stream; bytes that come during a call are kept for the next frame."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def frame(self) -> bytes | None:
        """The next frame's body; None at the end. Errors: `ValueError` for a length over the limit."""
        while True:
            if len(self._buffer) >= HEADER_BYTES:
                size = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
                if size > REQUEST_BYTES_MAX:
                    raise ValueError("request too long")
                if len(self._buffer) >= HEADER_BYTES + size:
                    body = bytes(self._buffer[HEADER_BYTES:HEADER_BYTES + size])
                    del self._buffer[:HEADER_BYTES + size]
                    return body
            if not await self._more():
                return None

    async def hang_up(self) -> None:
        """Return when the caller has closed its side, or sends more than one request ahead."""
        while len(self._buffer) <= REQUEST_BYTES_MAX:
            try:
                if not await self._more():
                    return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _more(self) -> bool:
        data = await self._stream.receive_some(65_536)
        self._buffer += data
        return bool(data)


async def _serve_call(api: Api, stream: trio.SocketStream, reader: _Reader, request: Mapping[str, Any],
                      on_unexpected: OnError) -> None:
    number, verb, args = request.get("id"), request.get("verb"), request.get("args")
    send_progress, receive_progress = trio.open_memory_channel[dict[str, Any]](PROGRESS_QUEUED_MAX)

    def send(progress: Mapping[str, Any]) -> None:
        with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            send_progress.send_nowait({"id": number, "progress": dict(progress)})

    emit = for_all_threads(send)
    answer: dict[str, Any] | None = None

    async def run_verb() -> None:
        nonlocal answer
        try:
            if not isinstance(verb, str) or not isinstance(args, dict):
                raise UsageError("a request needs a verb and a map of arguments")
            answer = {"id": number, "result": await api.dispatch(verb, args, emit)}
        except NodeError as error:
            answer = {"id": number, "error": _described(error)}
        except Exception as error:
            known = as_node_error(error)
            if known.code == "E_UNEXPECTED":
                on_unexpected(str(verb), error)
                known.next_step = "see the agent's log"
            answer = {"id": number, "error": _described(known)}
        finally:
            send_progress.close()

    async with trio.open_nursery() as nursery:

        async def cancel_when_gone() -> None:
            await reader.hang_up()
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel_when_gone)
        nursery.start_soon(run_verb)
        async for progress in receive_progress:
            await _send(stream, encode(progress, ANSWER_BYTES_MAX))
        nursery.cancel_scope.cancel()
    if answer is not None:
        await _send(stream, _fitting(answer))


async def _send(stream: trio.SocketStream, frame: bytes) -> None:
    """A caller that does not read loses its place, as a silent one does. Errors: `trio.BrokenResourceError`."""
    with trio.move_on_after(SEND_S_MAX) as patience:
        await stream.send_all(frame)
    if patience.cancelled_caught:
        raise trio.BrokenResourceError("the caller does not read its answers")


def for_all_threads(send: Emit) -> Emit:
    """`send`, callable from worker threads too; from those, values that come too fast are dropped for the newest, and
    a call whose caller has gone ends at its next report: a thread can't be cancelled otherwise."""
    token, own_thread = trio.lowlevel.current_trio_token(), threading.get_ident()
    waiting: list[Mapping[str, Any]] = []
    lock = threading.Lock()

    def flush() -> None:
        with lock:
            progress = waiting.pop()
        send(progress)

    def emit(progress: Mapping[str, Any]) -> None:
        if threading.get_ident() == own_thread:
            send(progress)
            return
        trio.from_thread.check_cancelled()
        with lock:
            waiting.append(progress)
            if len(waiting) > 1:
                del waiting[0]
                return
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(flush)

    return emit


def _fitting(answer: dict[str, Any]) -> bytes:
    try:
        return encode(answer, ANSWER_BYTES_MAX)
    except NodeError as error:
        return encode({"id": answer["id"], "error": _described(error)}, ANSWER_BYTES_MAX)


def _described(error: NodeError) -> dict[str, Any]:
    return {"code": error.code, "what": error.what, "next": error.next_step, "exit_code": error.exit_code}
