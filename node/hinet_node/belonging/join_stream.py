"""Runs one join machine of `hinet_protocol.join` over a stream: frames in, frames out, actions in order.

Both sides use it; what an action means on disk is left to `invite` and `join`. SPEC sections 4.4 to 4.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import Clock, Stream
from hinet_protocol import messages
from hinet_protocol.errors import ProtocolError
from hinet_protocol.frames import FrameDecoder, encode_frame
from hinet_protocol.join import (
    Aborted,
    Action,
    Event,
    Failed,
    Finished,
    Inviter,
    Joiner,
    PeerGone,
    Received,
    Send,
    SendEntries,
    Tick,
)

JOIN_PROTOCOL = "/hinet/join/1"
RECEIVE_BYTES = 65_536
FLUSH_S = 2.0
"""How long the side that speaks last waits for the other one to have read it and closed."""

Post = Callable[[Event], None]
Perform = Callable[[Action, Inviter | Joiner, Post, trio.Nursery], Awaitable[Event | None]]
"""Carries out an action other than sending, of a machine in this state: returns its event, or posts it later from a
task in the nursery."""


async def run_machine(machine: Inviter | Joiner, actions: Sequence[Action], stream: Stream, clock: Clock,
                      perform: Perform) -> Finished | Failed:
    """Run the machine to its end; the stream is closed then. Never raises for what the other side sends."""
    send, receive = trio.open_memory_channel[Event](64)

    def post(event: Event) -> None:
        with suppress(trio.BrokenResourceError, trio.WouldBlock):
            send.send_nowait(event)

    pending, spoke_last = deque(actions), False
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read, stream, send)
            while True:
                while pending:
                    action = pending.popleft()
                    if isinstance(action, Finished | Failed):
                        if spoke_last:
                            await _drain(receive)
                        nursery.cancel_scope.cancel()
                        return action
                    spoke_last = isinstance(action, Send)
                    event = await _carry_out(action, machine, stream, perform, post, nursery)
                    if event is not None:
                        machine, more = machine.step(event, clock.monotonic_s())
                        pending.extend(more)
                event, spoke_last = Tick(), False
                with trio.move_on_after(max(0.0, machine.deadline_s - clock.monotonic_s()) + 0.01):
                    event = await receive.receive()
                machine, more = machine.step(event, clock.monotonic_s())
                pending.extend(more)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FLUSH_S):
            await stream.close()
    raise AssertionError("the loop ends by returning")


async def send_message(stream: Stream, message: messages.Message) -> None:
    """One message in its frame. Errors: `NetworkError`."""
    await stream.send_all(encode_frame(messages.to_wire(message)))


async def _carry_out(action: Action, machine: Inviter | Joiner, stream: Stream, perform: Perform, post: Post,
                     nursery: trio.Nursery) -> Event | None:
    try:
        if isinstance(action, Send):
            await send_message(stream, action.message)
        elif isinstance(action, SendEntries):
            for message in action.messages:
                await send_message(stream, message)
        else:
            return await perform(action, machine, post, nursery)
    except NetworkError:
        post(PeerGone())
    return None


async def _read(stream: Stream, events: trio.MemorySendChannel[Event]) -> None:
    """Messages as events, in order; waits while the machine is busy, so a flood fills no memory."""
    decoder = FrameDecoder()
    with suppress(trio.BrokenResourceError):
        try:
            while data := await stream.receive_some(RECEIVE_BYTES):
                for body in decoder.feed(data):
                    await events.send(Received(messages.from_wire(body)))
        except ProtocolError as error:
            await events.send(Aborted(error))
            return
        except NetworkError:
            pass
        await events.send(PeerGone())


async def _drain(events: trio.MemoryReceiveChannel[Event]) -> None:
    """Wait until the other side has closed, so that our last message is not lost with the connection."""
    with trio.move_on_after(FLUSH_S):
        while not isinstance(await events.receive(), PeerGone):
            pass
