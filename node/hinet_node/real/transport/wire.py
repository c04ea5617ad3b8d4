"""The byte stream under Noise, and the limits on what a stranger can make this side allocate.

libp2p's layers read through `Wire` and `Capped`. Three of their faults are met here, where they start:
- a cancelled write leaves half a Noise message on the wire and kills the connection: writes here are shielded;
- `read_exactly` gives up after 100 short reads: `Wire.read(n)` itself waits for all n bytes;
- lengths that a peer claims are taken at their word: no read is longer than its layer's limit.
Leaves closing a stalled connection to another task (`Wire.abort` frees a blocked write).
"""

from __future__ import annotations

from typing import Any

import trio
from libp2p.abc import IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError, IOException

READ_BYTES_MAX = (1 << 16) + 2
"""The longest read that Noise makes: one message and its length."""

_RECEIVE_BYTES = 1 << 18


class Wire(IRawConnection):  # type: ignore[misc]
    """A trio stream as libp2p's raw connection."""

    def __init__(self, stream: trio.abc.Stream, *, is_initiator: bool) -> None:
        self.is_initiator = is_initiator
        self._stream = stream
        self._received = bytearray()
        self._write_lock = trio.Lock()

    async def read(self, n: int | None = None) -> bytes:
        """Exactly n bytes. Errors: `ConnectionClosedError` when the stream ends before."""
        if n is None or n > READ_BYTES_MAX:
            raise IOException(f"The peer claims {n} bytes where at most {READ_BYTES_MAX} may come.")
        while len(self._received) < n:
            try:
                piece = await self._stream.receive_some(_RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionClosedError("The connection is gone.") from error
            if not piece:
                raise ConnectionClosedError("The peer closed the connection.")
            self._received += piece
        data = bytes(memoryview(self._received)[:n])
        del self._received[:n]
        return data

    async def write(self, data: bytes) -> None:
        """All or nothing as far as cancellation goes. Errors: `ConnectionClosedError`."""
        with trio.CancelScope(shield=True):
            async with self._write_lock:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise ConnectionClosedError("The connection is gone.") from error

    async def abort(self) -> None:
        """Close at once; writes that are blocked in another task end with an error. Never raises."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    async def close(self) -> None:
        await self.abort()

    def get_remote_address(self) -> tuple[str, int] | None:
        return None

    def get_transport_addresses(self) -> list[Any]:
        return []

    def get_connection_type(self) -> ConnectionType:
        return ConnectionType.DIRECT


class Capped:
    """A reader and writer whose reads may not be longer than `bytes_max`; all else is the inner one's.

    Protocol negotiation reads a length of up to 64 bits and then that many bytes, before anybody is authenticated.
    """

    def __init__(self, inner: Any, bytes_max: int) -> None:
        self._inner = inner
        self._bytes_max = bytes_max

    async def read(self, n: int | None = None) -> bytes:
        if n is None or n > self._bytes_max:
            raise IOException(f"The peer claims {n} bytes where at most {self._bytes_max} may come.")
        data: bytes = await self._inner.read(n)
        if not data:
            raise ConnectionClosedError("The peer closed the connection.")
        return data

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)

    async def close(self) -> None:
        await self._inner.close()
