"""Sealing: chunks into packs, packs onto the disk, with bounded memory. SPEC.md, 6.1 and 6.5.

One `PackWriter` serves one put: it shares a pack among small files, skips chunks that are held already, and takes back
its packs when the put fails. A lane of the disk writes, syncs and indexes one pack while the next is sealed. Leaves
trees and heads to `vault`.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from hinet_node.errors import NoSpace
from hinet_node.ports import Disk, Lane, Pending, Randomness
from hinet_node.vault.packstore import PackStore, outgoing_path, pack_path
from hinet_protocol.packs import (
    CHUNK_LIST,
    PackBuilder,
    PackSummary,
    chunk_bytes_max,
    chunk_id,
    chunk_id_key,
    padding_multiple_bytes,
    slots_max,
)
from hinet_protocol.trees import chunks_direct_max, encode_chunk_list

_FLUSH_BYTES = 4 << 20
_CALLS_MAX = 4
"""So many writes, of 4 to 8 MiB each, wait for the disk at most."""
_IDS_PER_LIST = chunk_bytes_max // 32


class PackWriter:
    """Blocks on the disk; used by one thread at a time. Ends with `finish` or `take_back`.

    `packs` are the packs that hold what was added, old ones for chunks that were held already; `sealed_chunks` counts
    the other chunks. `holding` gives a pack whose copy of a chunk opens.
    """

    def __init__(self, disk: Disk, randomness: Randomness, store: PackStore, epoch_id: bytes, epoch_key: bytes,
                 pack_bytes: int, holding: Callable[[bytes], bytes | None]) -> None:
        self._disk = disk
        self._randomness = randomness
        self._store = store
        self._epoch = (epoch_id, epoch_key)
        self.id_key = chunk_id_key(epoch_key)
        self._pack_bytes = pack_bytes
        self._holding = holding
        self._lane: Lane | None = None
        self._calls: deque[tuple[Pending[None], PackBuilder]] = deque()
        self._done: list[PackBuilder] = []
        self._new: set[bytes] = set()
        self._builder: PackBuilder | None = None
        self._parts: list[str] = []
        self._pending = 0
        self._rest = b""
        self._pages: memoryview | None = None
        self._made: list[bytes] = []
        self.packs: set[bytes] = set()
        self.sealed_chunks = 0

    def add(self, kind: int, plaintext: bytes, name: bytes | None = None) -> bytes:
        """Store one chunk unless it is held; its id, which is `name` if the caller has made it already. Raises
        NoSpace."""
        if name is None:
            name = chunk_id(self.id_key, plaintext)
        if self._is_under_way(name):
            return name
        held_in = None if name in self._new else self._holding(name)
        if held_in is not None:
            self.packs.add(held_in)
            return name
        builder = self._builder or self._begin()
        builder.add(kind, name, plaintext)
        self.sealed_chunks += 1
        self._pending += len(plaintext)
        if self._pending >= _FLUSH_BYTES:
            self._write(builder)
        if builder.size_bytes >= self._pack_bytes or builder.slot_count >= slots_max:
            self._end(builder)
        return name

    def ask(self, names: set[bytes]) -> None:
        """Look up at once which of these chunks no pack holds, for the calls of `add` that follow."""
        self._new = names - self._store.index.held(names)
        self._done.clear()

    def finish(self) -> None:
        """Close the last pack. After this everything that was added is durable."""
        if self._builder is not None:
            self._end(self._builder, last=True)
        while self._calls:
            self._calls.popleft()[0].result()
        self._close_lane()

    def take_back(self) -> None:
        """The put failed: remove what it wrote, so that its room is free again. What a failing disk keeps does no harm:
        a part goes at the next start, and a pack that no head needs is like any other."""
        self._close_lane()
        self._calls.clear()
        self._builder = None
        for part in self._parts:
            with suppress(NoSpace, OSError):
                self._disk.remove(part)
        self._parts.clear()
        for name in self._made:
            with suppress(NoSpace, OSError):
                self._store.remove(name)
        self._made.clear()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _is_under_way(self, name: bytes) -> bool:
        """Whether the chunk is in a pack that the index does not know yet, or did not when it was asked."""
        if self._builder is not None and name in self._builder:
            return True
        return any(name in builder for _, builder in self._calls) or any(name in builder for builder in self._done)

    def _begin(self) -> PackBuilder:
        salt = self._randomness.draw(32)
        self._parts.append(outgoing_path(self._randomness.draw(8)))
        self._builder = PackBuilder(*self._epoch, salt)
        return self._builder

    def _write(self, builder: PackBuilder) -> None:
        """Hand on what is sealed, in whole blocks as far as it goes, which disks take best."""
        ready = self._rest + builder.take()
        whole = len(ready) - len(ready) % padding_multiple_bytes
        self._rest = ready[whole:]
        self._do(builder, partial(self._append, self._parts[-1], ready[:whole]))
        self._pending = 0

    def _end(self, builder: PackBuilder, *, last: bool = False) -> None:
        rest, summary = builder.finish()
        self._pending = 0
        self._builder = None
        self._made.append(summary.name)
        self.packs.add(summary.name)
        work = partial(self._commit, self._parts[-1], self._rest + rest, summary)
        self._rest = b""
        if last and self._lane is None:
            work()  # most puts make one small pack, which needs no thread
        else:
            self._do(builder, work)

    def _append(self, part: str, sealed: bytes) -> None:
        """Large pieces from pages of their own, which disks can take past the page cache (`real.disk_direct`)."""
        if len(sealed) < _FLUSH_BYTES:
            self._disk.append(part, sealed)
            return
        if self._pages is None:
            self._pages = memoryview(mmap.mmap(-1, _FLUSH_BYTES))
        for at in range(0, len(sealed), _FLUSH_BYTES):
            size = min(_FLUSH_BYTES, len(sealed) - at)
            self._pages[:size] = memoryview(sealed)[at:at + size]
            self._disk.append(part, self._pages[:size])

    def _commit(self, part: str, rest: bytes, summary: PackSummary) -> None:
        self._append(part, rest)
        with self._store.arriving(summary.name):
            self._disk.commit(part, pack_path(summary.name))
            self._store.index.add_pack(summary.name, summary.size_bytes, summary.slots, epoch=self._epoch[0], mine=True)

    def _do(self, builder: PackBuilder, work: Callable[[], None]) -> None:
        """In the lane, when there is room for one more call."""
        if self._lane is None:
            self._lane = self._disk.lane()
        while len(self._calls) >= _CALLS_MAX:
            call, done = self._calls.popleft()
            call.result()
            self._done.append(done)
        self._calls.append((self._lane.do(work), builder))

    def _close_lane(self) -> None:
        if self._lane is not None:
            self._lane.close()
            self._lane = None


class ContentIds:
    """The ids of one file's chunks as they come, in the form that `Version` keeps: many are put into lists."""

    def __init__(self, writer: PackWriter) -> None:
        self._writer = writer
        self._ids: list[bytes] = []
        self._lists: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        self._ids.append(chunk)
        if len(self._ids) == _IDS_PER_LIST:
            self._close_list()

    def finish(self) -> tuple[bool, bytes]:
        """Whether the ids are those of lists, and the ids."""
        if not self._lists and len(self._ids) <= chunks_direct_max:
            return False, b"".join(self._ids)
        if self._ids:
            self._close_list()
        return True, b"".join(self._lists)

    def _close_list(self) -> None:
        self._lists.append(self._writer.add(CHUNK_LIST, encode_chunk_list(self._ids)))
        self._ids.clear()
