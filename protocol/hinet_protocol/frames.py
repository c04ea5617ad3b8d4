"""Bytes in, frames out: a 4-byte big-endian length, then that many bytes. Sans-IO. SPEC.md, 5.1.

The length is checked before anything is kept for it, so a hostile peer can make us hold at most one frame.
The same framing runs between the agent and its worker processes. The body's meaning is left to `messages`.
"""

from __future__ import annotations

from hinet_protocol import limits
from hinet_protocol.errors import FrameError, LimitError

header_bytes = 4


def encode_frame(body: bytes, bytes_max: int = limits.frame_bytes_max) -> bytes:
    """The frame for a body of 1 to `bytes_max` bytes. Raises LimitError outside that."""
    if not 1 <= len(body) <= bytes_max:
        raise LimitError(f"A frame of {len(body)} bytes can't be sent, 1 to {bytes_max} are allowed.")
    return len(body).to_bytes(header_bytes, "big") + body


class FrameDecoder:
    """Collects received bytes and gives back whole frame bodies, in order.

    `feed` may be called with pieces of any size. After an error the decoder stays broken and refuses more.
    """

    def __init__(self, bytes_max: int = limits.frame_bytes_max) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._broken: str | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that became whole. Raises FrameError for a length of zero or above `bytes_max`."""
        if self._broken is not None:
            raise FrameError(self._broken)
        self._buffer += data
        bodies: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= header_bytes:
            size = int.from_bytes(self._buffer[at : at + header_bytes], "big")
            if not 1 <= size <= self._bytes_max:
                self._broken = f"The peer announced a frame of {size} bytes, 1 to {self._bytes_max} are allowed."
                self._buffer.clear()
                raise FrameError(self._broken)
            end = at + header_bytes + size
            if len(self._buffer) < end:
                break
            bodies.append(bytes(memoryview(self._buffer)[at + header_bytes : end]))
            at = end
        if at:
            del self._buffer[:at]
        return bodies

    @property
    def pending_bytes(self) -> int:
        """How many received bytes wait for the rest of their frame."""
        return len(self._buffer)

    def finish(self) -> None:
        """To be called when the stream ends. Raises FrameError when it ended inside a frame."""
        if self._buffer:
            raise FrameError(f"The stream ended inside a frame, {len(self._buffer)} bytes were received of it.")
