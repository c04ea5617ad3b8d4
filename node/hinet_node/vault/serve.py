"""Answering siblings' questions about the vault: heads, pack names, bytes of packs. SPEC.md, 6.6.

Needs no key: a keeper answers as everybody does. Each answer is bounded by one frame, or goes in pieces over a bulk
connection. Leaves asking to `replicate`, who may have such a connection to `bulk`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import trio

from hinet_node.errors import NetworkError, NodeError
from hinet_node.ports import BulkStream
from hinet_node.vault.core import VaultCore
from hinet_node.vault.pacing import Limit
from hinet_protocol import limits
from hinet_protocol.bulk import PackRequest, encode_answer
from hinet_protocol.messages import (
    HeadsGet,
    HeadsList,
    PackBytes,
    PackRead,
    PacksGet,
    PacksList,
    RangesGet,
    RangesList,
)
from hinet_protocol.ranges import answer

if TYPE_CHECKING:
    from hinet_node.sessions.peers import Session

_PIECE_BYTES = 1 << 20
_HEADS_BYTES_MAX = limits.frame_bytes_max - limits.message_overhead_bytes


class Server:
    """The handlers, as `hinet_node.sessions.peers.Peers.on` takes them."""

    def __init__(self, core: VaultCore, limit: Limit) -> None:
        self._core = core
        self._limit = limit
        self.sent_bytes = 0
        """Of packs, since the start."""
        self._sorted: tuple[int, list[tuple[bytes, int]]] = (-1, [])
        """What is held, as it was at a number of the index's changes."""

    async def heads_get(self, session: Session, message: HeadsGet) -> HeadsList:
        digest = self._core.digest()
        self._core.same_at.pop(session.device.public, None)
        if message.digest == digest:
            self._core.met_equal(session.device.public)
            self._core.same_at[session.device.public] = digest
            return HeadsList(digest, ())
        raws: list[bytes] = []
        room = _HEADS_BYTES_MAX
        # Newest first, so that of a household beyond one frame the forks of long ago are what is left out.
        for head in sorted(self._core.offered_heads(), key=lambda head: (-head.time, head.hash)):
            room -= len(head.raw) + 8
            if room < 0 or len(raws) == limits.devices_max:
                break
            raws.append(head.raw)
        return HeadsList(digest, tuple(raws))

    async def packs_get(self, session: Session, message: PacksGet) -> PacksList:
        rows = self._core.store.index.packs_after(message.after, message.limit + 1)
        return PacksList(tuple(rows[:message.limit]), len(rows) > message.limit)

    async def ranges_get(self, session: Session, message: RangesGet) -> RangesList:
        index = self._core.store.index
        if self._sorted[0] != index.changes:
            self._sorted = (index.changes, sorted(index.packs().items()))
        return RangesList(answer(self._sorted[1], message.ranges))

    async def pack_read(self, session: Session, message: PackRead) -> PackBytes:
        store = self._core.store
        size = store.index.pack_size(message.pack)
        if size is None or message.offset > size:
            raise _not_here(message.pack)
        try:
            data = store.read_at(message.pack, message.offset, min(message.length, size - message.offset))
        except OSError as error:
            raise _not_here(message.pack) from error
        self._core.pins.read(message.pack)
        pace = self._limit.outbound()
        if pace is not None:
            await trio.sleep(pace(len(data)))
        self.sent_bytes += len(data)
        return PackBytes(message.pack, message.offset, size, data)

    async def send_pack(self, stream: BulkStream, request: PackRequest) -> int:
        """Answer one request on a bulk connection; how many bytes of the pack went out. Errors: `NetworkError`; also
        when the disk fails in the middle, for the answer said how much would come."""
        store = self._core.store
        size = store.index.pack_size(request.pack)

        def answer() -> Iterator[bytes | memoryview]:
            whole = None if size is None or request.offset > size else size
            at, turn = request.offset, 0
            # While one piece goes out the next is read, so there are two.
            pages = [memoryview(mmap.mmap(-1, _PIECE_BYTES)) for _ in range(2)] if whole else []
            try:
                first = min(whole - at, store.read_into(request.pack, at, pages[0])) if whole is not None else 0
                if whole is not None and first < min(_PIECE_BYTES, whole - at):
                    whole = None  # shorter than the index says: a comparison with the folder sets it aside
            except OSError:
                whole = None
            yield encode_answer(whole)
            if whole is None:
                return
            while first:
                self.sent_bytes += first
                yield pages[turn][:first]
                at, turn = at + first, 1 - turn
                first = min(whole - at, store.read_into(request.pack, at, pages[turn])) if at < whole else 0
            if at < whole:
                raise NetworkError(f"Pack {request.pack.hex()[:16]} on this device ended while it was sent.")
            sent.append(at - request.offset)

        sent: list[int] = []
        try:
            await stream.send_from(answer(), self._limit.outbound())
        except OSError as error:
            raise NetworkError(f"Pack {request.pack.hex()[:16]} on this device can't be read.") from error
        return sum(sent)

    def handlers(self) -> list[tuple[type, Any]]:
        """Message class and handler."""
        return [(HeadsGet, self.heads_get), (PacksGet, self.packs_get), (PackRead, self.pack_read),
                (RangesGet, self.ranges_get)]


def _not_here(pack: bytes) -> NodeError:
    return NodeError(f"Pack {pack.hex()[:16]} is not on this device, or can't be read here.", code="E_NO_SUCH_PACK",
                     next_step="Ask another sibling.")
