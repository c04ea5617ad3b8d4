"""Fetching one pack over the session: pieces in order, resumed where it stopped, named before it counts. SPEC.md, 6.6.

Several pieces are asked for at once; they are appended in order, so a part file is always a beginning of the pack.
Leaves which packs to fetch to `transfer`, and the faster way to `pull_bulk`, which resumes and keeps packs as here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio
from blake3 import blake3

from hinet_node.errors import IntegrityError, NetworkError, NodeError
from hinet_node.vault.core import VaultCore
from hinet_node.vault.pacing import Limit
from hinet_node.vault.packstore import incoming_path, pack_path
from hinet_protocol.errors import ProtocolError
from hinet_protocol.messages import PackBytes, PackRead
from hinet_protocol.reconcile import pieces

if TYPE_CHECKING:
    from hinet_node.sessions.peers import Session


@dataclass(eq=False)
class _Piece:
    offset: int
    length: int
    done: trio.Event = field(default_factory=trio.Event)
    data: bytes = b""
    error: NodeError | ProtocolError | None = None


async def pull_pack(session: Session, core: VaultCore, name: bytes, size_bytes: int, *, outstanding: int,
                    limit: Limit) -> int:
    """Fetch a pack, check it against its name, make it durable, index it; how many bytes came over the network.

    Errors: `NetworkError`, the sibling's own error, `NoSpace` (what came stays for the next try); `IntegrityError`
    E_PACK_REFUSED when the sibling's bytes are wrong (what came is thrown away).
    """
    part = incoming_path(name)
    received = 0
    for attempt in (1, 2):
        state, have = await core.disk.run_blocking(lambda: resume(core, part, size_bytes))
        received += await _fetch_rest(session, core, name, size_bytes, have, state, outstanding, limit)
        if state.digest() == name:
            break
        core.disk.remove(part)
        # After a power cut the beginning may be torn: then a second try from nothing is right.
        if have == 0 or attempt == 2:
            raise wrong_bytes(session.device.name, name)
    await core.disk.run_blocking(lambda: keep_pack(core, name, size_bytes, session.device.name))
    return received


def resume(core: VaultCore, part: str, size_bytes: int) -> tuple[blake3, int]:
    """What is there of an earlier transfer, hashed."""
    state, have = blake3(), 0
    if not core.disk.exists(part):
        return state, 0
    if core.disk.size(part) > size_bytes:
        core.disk.remove(part)
        return state, 0
    while piece := core.disk.read_at(part, have, 4 << 20):
        state.update(piece)
        have += len(piece)
    return state, have


async def _fetch_rest(session: Session, core: VaultCore, name: bytes, size_bytes: int, have: int, state: blake3,
                      outstanding: int, limit: Limit) -> int:
    """Ask for what is missing and append it, in order."""
    part, received, pace = incoming_path(name), 0, limit.inbound()
    waiting: deque[_Piece] = deque()
    failure: NodeError | ProtocolError | OSError | None = None

    async def ask(piece: _Piece) -> None:
        try:
            piece.data = await _read(session, core, name, size_bytes, piece)
        except (NodeError, ProtocolError) as error:
            piece.error = error
        piece.done.set()

    async with trio.open_nursery() as nursery:
        rows = deque(pieces(size_bytes, have))
        while failure is None and (rows or waiting):
            while rows and len(waiting) < outstanding:
                piece = _Piece(*rows.popleft())
                if pace is not None:
                    await trio.sleep(pace(piece.length))
                waiting.append(piece)
                nursery.start_soon(ask, piece)
            first = waiting.popleft()
            await first.done.wait()
            failure = first.error
            if failure is None:
                try:
                    core.disk.append(part, first.data)
                except (NodeError, OSError) as error:
                    failure = error
                    break
                state.update(first.data)
                received += len(first.data)
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return received


async def _read(session: Session, core: VaultCore, name: bytes, size_bytes: int, piece: _Piece) -> bytes:
    reply = await session.request(PackRead(name, piece.offset, piece.length),
                                  timeout_s=core.settings.request_timeout_s)
    if (not isinstance(reply, PackBytes) or reply.pack != name or reply.offset != piece.offset
            or reply.size != size_bytes or len(reply.data) != piece.length):
        raise NetworkError(f"{session.device.name} answered a question about a pack with something else.",
                           next_step="Bring both devices to the same version of hinet-node.")
    return reply.data


def keep_pack(core: VaultCore, name: bytes, size_bytes: int, sibling: str) -> None:
    """A part file that matches its name becomes a pack: durable, then in the index."""
    with core.store.arriving(name):
        core.disk.commit(incoming_path(name), pack_path(name))
        core.store.enter(name, size_bytes)
    core.note_arrival(name, sibling)
    core.settle("E_PACK_DAMAGED", name)
    core.store.forget_aside(name)


def wrong_bytes(sibling: str, name: bytes) -> IntegrityError:
    """What a sibling sent is not the pack of that name."""
    return IntegrityError(f"{sibling} sent wrong bytes for pack {name.hex()[:16]}; they were thrown away.",
                          code="E_PACK_REFUSED", next_step=f"Run `hinet-node vault verify` on {sibling}.")
