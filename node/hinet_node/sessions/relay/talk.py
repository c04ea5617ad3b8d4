"""One message of the relay protocol on a stream: never a byte more is read, for what follows belongs to somebody else.

Leaves what messages mean to `serving` and `calling`.
"""

from __future__ import annotations

import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Stream
from hinet_protocol import limits
from hinet_protocol.relay import Frames, Hop, Stop, frame


async def receive(stream: Stream) -> bytes:
    """The next message's bytes. Errors: `NetworkError` when it does not come whole and in time, `RelayMalformed`."""
    frames = Frames()
    with trio.move_on_after(limits.relay_ask_ms_max / 1000):
        while frames.wanted:
            data = await stream.receive_some(frames.wanted)
            if not data:
                raise NetworkError("The other side of a relay stream went away.")
            frames.feed(data)
        return frames.message
    raise NetworkError("The other side of a relay stream said nothing in time.")


async def send(stream: Stream, message: Hop | Stop) -> None:
    """Errors: `NetworkError`."""
    await stream.send_all(frame(message))
