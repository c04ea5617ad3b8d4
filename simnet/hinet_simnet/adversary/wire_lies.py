"""Lies on the wire: bytes that are no frames, frames too long, silence, slowness, floods, other people's words.

Leaves the chain's and the vault's to `chain_lies` and `vault_lies`.
"""

from __future__ import annotations

import trio

from hinet_node.errors import NetworkError, NodeError
from hinet_protocol import session as machine
from hinet_protocol.errors import ProtocolError
from hinet_protocol.frames import encode_frame
from hinet_protocol.messages import HeadsGet, PackRead, PacksGet, Ping, VaultChanged, to_wire
from hinet_simnet.adversary.anything import any_message
from hinet_simnet.adversary.mask import Liar, Victim, masked

PIECE_BYTES = 2_000
SILENT_CONNECTIONS = 8
FLOOD_AT_ONCE = 64


async def garbage(liar: Liar) -> None:
    """Random bytes where frames should be."""
    async def lie(victim: Victim) -> None:
        for _ in range(liar.count):
            async with masked(liar, victim) as mask:
                await mask.stream.send_all(liar.randomness.draw(1 + liar.randomness.below(PIECE_BYTES)))
                await mask.until_closed(1)
    await liar.each(lie)


async def huge_frame(liar: Liar) -> None:
    """A frame that says it has 4 GiB, then one that is as long as allowed and means nothing."""
    async def lie(victim: Victim) -> None:
        for header, body in ((b"\xff\xff\xff\xff", bytes(1 << 16)), (b"\x00\x10\x00\x00", bytes(1 << 20))):
            async with masked(liar, victim) as mask:
                await mask.stream.send_all(header)
                await mask.stream.send_all(body)
                await mask.until_closed(liar.for_s)
    await liar.each(lie)


async def silent(liar: Liar) -> None:
    """Connections on which nothing is ever said, and no answer to any question about the vault."""
    async def never(session: object, question: object) -> object:
        await trio.sleep_forever()
        raise AssertionError

    async def lie(victim: Victim) -> None:
        async with trio.open_nursery() as nursery:
            async def one() -> None:
                try:
                    async with masked(liar, victim) as mask:
                        await mask.until_closed(liar.for_s)
                except NetworkError:
                    return
            for _ in range(SILENT_CONNECTIONS):
                nursery.start_soon(one)

    with liar.answering({HeadsGet: never, PacksGet: never, PackRead: never}):
        await liar.each(lie)
        await trio.sleep(liar.for_s)


async def slow(liar: Liar) -> None:
    """A greeting that comes one byte at a time."""
    async def lie(victim: Victim) -> None:
        frame = encode_frame(to_wire(liar.hello()))
        async with masked(liar, victim) as mask:
            for at in range(len(frame)):
                await mask.stream.send_all(frame[at:at + 1])
                await trio.sleep(liar.for_s / len(frame))
            await mask.until_closed(liar.for_s)
    await liar.each(lie)


async def flood(liar: Liar) -> None:
    """As many questions, notices and pings as a session takes."""
    async def ask(victim: Victim) -> None:
        session = liar.agent.peers.session_with(victim.public)
        if session is None:
            return
        for number in range(liar.count):
            session.feed(machine.Push(Ping(number)))
            await session.notify(VaultChanged(liar.randomness.draw(32)))
            question = (HeadsGet(liar.randomness.draw(32)), PacksGet(b"", 4_096),
                        PackRead(liar.randomness.draw(32), 0, 1_000))[number % 3]
            try:
                await session.request(question, timeout_s=5)
            except ProtocolError:
                continue
            except NodeError:
                if not session.is_open:
                    return

    async def lie(victim: Victim) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(FLOOD_AT_ONCE):
                nursery.start_soon(_quietly, ask, victim)
    await liar.each(lie)


async def _quietly(work: object, victim: Victim) -> None:
    try:
        await work(victim)  # type: ignore[operator]
    except (NetworkError, NodeError, ProtocolError):
        return


async def replay(liar: Liar) -> None:
    """The frames that one sibling sent, said to another as the liar's own; and its own greeting twice."""
    heard: list[bytes] = []

    async def listen(victim: Victim) -> None:
        async with masked(liar, victim) as mask:
            await mask.say(liar.hello())
            for _ in range(3):
                body = await mask.hear()
                if body is None:
                    return
                heard.append(body)

    async def lie(victim: Victim) -> None:
        for bodies in (heard, [to_wire(liar.hello())] * 2, [to_wire(liar.hello()), *heard]):
            async with masked(liar, victim) as mask:
                for body in bodies:
                    await mask.stream.send_all(encode_frame(body))
                await mask.until_closed(2)

    await liar.each(listen)
    await liar.each(lie)


async def double(liar: Liar) -> None:
    """A second life under the same key: a greeting with another boot nonce, as from a copied disk."""
    async def lie(victim: Victim) -> None:
        async with masked(liar, victim) as mask:
            await mask.say(liar.hello(boot_nonce=liar.randomness.draw(16)))
            await mask.until_closed(liar.for_s)
    await liar.each(lie)


async def anything(liar: Liar) -> None:
    """Random messages of all classes, in greetings of its own and in the agent's open sessions."""
    async def lie(victim: Victim) -> None:
        for number in range(liar.count):
            message = any_message(liar.randomness)
            session = liar.agent.peers.session_with(victim.public)
            if number % 2 and session is not None:
                session._queue(message)
                await trio.sleep(0.1)
                continue
            async with masked(liar, victim) as mask:
                if number % 4:
                    await mask.say(liar.hello())
                await mask.say(message)
                await mask.until_closed(0.5)
    await liar.each(lie)
