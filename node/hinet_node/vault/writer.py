"""Sealing: chunks into packs, packs onto the disk, with bounded memory. SPEC.md, 6.1 and 6.5.

One `PackWriter` serves one put: it shares a pack among small files, skips chunks that are held already, and takes back
its packs when the put fails. Leaves trees and heads to `vault`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blake3 import blake3

from hinet_node.ports import Disk, Randomness
from hinet_node.vault.packstore import PackStore, outgoing_path, pack_path
from hinet_protocol.packs import (
    CHUNK_LIST,
    DATA,
    PackBuilder,
    chunk_bytes_max,
    chunk_id,
    chunk_id_key,
    slots_max,
)
from hinet_protocol.trees import chunks_direct_max, encode_chunk_list

_FLUSH_BYTES = 4 << 20
_IDS_PER_LIST = chunk_bytes_max // 32


class PackWriter:
    """Blocks on the disk; used by one thread at a time.

    `packs` are the packs that hold what was added, old ones for chunks that were held already; `sealed` are the ids of
    the other chunks. `holding` gives a pack whose copy of a chunk opens.
    """

    def __init__(self, disk: Disk, randomness: Randomness, store: PackStore, epoch_id: bytes, epoch_key: bytes,
                 pack_bytes: int, holding: Callable[[bytes], bytes | None]) -> None:
        self._disk = disk
        self._randomness = randomness
        self._store = store
        self._epoch = (epoch_id, epoch_key)
        self._id_key = chunk_id_key(epoch_key)
        self._pack_bytes = pack_bytes
        self._holding = holding
        self._builder: PackBuilder | None = None
        self._part = ""
        self._pending = 0
        self._made: list[bytes] = []
        self.packs: set[bytes] = set()
        self.sealed: set[bytes] = set()

    def id_of(self, plaintext: bytes) -> bytes:
        return chunk_id(self._id_key, plaintext)

    def add(self, kind: int, plaintext: bytes) -> bytes:
        """Store one chunk unless it is held; its id. Raises NoSpace."""
        name = self.id_of(plaintext)
        if self._builder is not None and name in self._builder:
            return name
        held_in = self._holding(name)
        if held_in is not None:
            self.packs.add(held_in)
            return name
        builder = self._builder or self._begin()
        builder.add(kind, name, plaintext)
        self.sealed.add(name)
        self._pending += len(plaintext)
        if self._pending >= _FLUSH_BYTES:
            self._flush(builder.take())
        if builder.size_bytes >= self._pack_bytes or builder.slot_count >= slots_max:
            self._end(builder)
        return name

    def add_content(self, pieces: Iterator[bytes], on_bytes: Callable[[int], None]) -> tuple[int, bytes, bool, bytes]:
        """Store a file's content, given as chunks: (size, digest, indirect, chunk ids), as `Version` holds them."""
        state, size = blake3(), 0
        ids: list[bytes] = []
        lists: list[bytes] = []
        for piece in pieces:
            state.update(piece)
            size += len(piece)
            ids.append(self.add(DATA, piece))
            if len(ids) == _IDS_PER_LIST:
                lists.append(self.add(CHUNK_LIST, encode_chunk_list(ids)))
                ids.clear()
            on_bytes(len(piece))
        if not lists and len(ids) <= chunks_direct_max:
            return size, state.digest(), False, b"".join(ids)
        if ids:
            lists.append(self.add(CHUNK_LIST, encode_chunk_list(ids)))
        return size, state.digest(), True, b"".join(lists)

    def finish(self) -> None:
        """Close the last pack. After this everything that was added is durable."""
        if self._builder is not None:
            self._end(self._builder)

    def take_back(self) -> None:
        """The put failed: remove what it wrote, so that its room is free again."""
        if self._builder is not None:
            self._builder = None
            self._disk.remove(self._part)
        for name in self._made:
            self._store.remove(name)
        self._made.clear()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _begin(self) -> PackBuilder:
        salt = self._randomness.draw(32)
        self._part = outgoing_path(self._randomness.draw(8))
        self._builder = PackBuilder(*self._epoch, salt)
        return self._builder

    def _flush(self, sealed: bytes) -> None:
        self._disk.append(self._part, sealed)
        self._pending = 0

    def _end(self, builder: PackBuilder) -> None:
        last, summary = builder.finish()
        self._flush(last)
        self._disk.commit(self._part, pack_path(summary.name))
        self._builder = None
        self._made.append(summary.name)
        self._store.index.add_pack(summary.name, summary.size_bytes, summary.slots, epoch=self._epoch[0], mine=True)
        self.packs.add(summary.name)
