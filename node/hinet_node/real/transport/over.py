"""A stream that a relay passes on, as the raw byte stream under Noise.

Cancelling and closing work as on a socket: whoever reads or writes when the pipe is closed is freed at once. Leaves the
handshake to `network`, and asking a relay for such a stream to `hinet_node.sessions.relay`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Stream


class StreamPipe(trio.abc.Stream):
    """`hinet_node.ports.Stream` as trio's. `start` runs the closing in the background: it may take seconds to send what
    is queued to somebody who does not read."""

    def __init__(self, stream: Stream, start: Callable[[Callable[[], Any]], None]) -> None:
        self._stream = stream
        self._start = start
        self._closed = False
        self._waiting: dict[trio.CancelScope, None] = {}

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._freed_by_closing() as scope:
            try:
                await self._stream.send_all(bytes(data))
            except NetworkError as error:
                raise trio.BrokenResourceError(str(error)) from error
            finally:
                self._waiting.pop(scope, None)
        self._check()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = b""
        with self._freed_by_closing() as scope:
            try:
                data = await self._stream.receive_some(max_bytes or 1 << 16)
            except NetworkError as error:
                raise trio.BrokenResourceError(str(error)) from error
            finally:
                self._waiting.pop(scope, None)
        self._check()
        return data

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            for scope in tuple(self._waiting):
                scope.cancel()
            self._start(self._stream.close)
        await trio.lowlevel.checkpoint()

    def _freed_by_closing(self) -> trio.CancelScope:
        self._check()
        scope = trio.CancelScope()
        self._waiting[scope] = None
        return scope

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("The connection is closed.")
