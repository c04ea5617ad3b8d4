"""Answering siblings' questions about the vault: heads, pack names, bytes of packs. SPEC.md, 6.6.

Needs no key: a keeper answers as everybody does. Each answer is bounded by one frame. Leaves asking to `replicate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hinet_node.errors import NodeError
from hinet_node.vault.core import VaultCore
from hinet_protocol import limits
from hinet_protocol.messages import HeadsGet, HeadsList, PackBytes, PackRead, PacksGet, PacksList

if TYPE_CHECKING:
    from hinet_node.sessions.peers import Session

_HEADS_BYTES_MAX = limits.frame_bytes_max - limits.message_overhead_bytes


class Server:
    """The handlers, as `hinet_node.sessions.peers.Peers.on` takes them."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core

    async def heads_get(self, session: Session, message: HeadsGet) -> HeadsList:
        digest = self._core.digest()
        self._core.same_at.pop(session.device.public, None)
        if message.digest == digest:
            self._core.peers_hold[session.device.public] = self._core.head_hashes()
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

    async def pack_read(self, session: Session, message: PackRead) -> PackBytes:
        store = self._core.store
        size = store.index.pack_size(message.pack)
        if size is None or message.offset > size:
            raise _not_here(message.pack)
        try:
            data = store.read_at(message.pack, message.offset, min(message.length, size - message.offset))
        except OSError as error:
            raise _not_here(message.pack) from error
        return PackBytes(message.pack, message.offset, size, data)

    def handlers(self) -> list[tuple[type, Any]]:
        """Message class and handler."""
        return [(HeadsGet, self.heads_get), (PacksGet, self.packs_get), (PackRead, self.pack_read)]


def _not_here(pack: bytes) -> NodeError:
    return NodeError(f"Pack {pack.hex()[:16]} is not on this device, or can't be read here.", code="E_NO_SUCH_PACK",
                     next_step="Ask another sibling.")
