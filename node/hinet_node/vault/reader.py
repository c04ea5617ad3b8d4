"""Opening chunks: find a copy, read its range, open its seal, check its id. SPEC.md, 6.2.

A copy that does not open is checked against its pack's name; a damaged pack is set aside and the next copy is tried.
Leaves what chunks mean to `view` and `vault`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.vault.index import Place
from hinet_node.vault.items import Household
from hinet_node.vault.packstore import PackStore
from hinet_protocol.errors import PackDamaged, PackMalformed
from hinet_protocol.packs import PackReader, chunk_id_key
from hinet_protocol.trees import Version

_READERS_KEPT = 64


class ChunkReader:
    """Opens chunks by id. Blocks on the disk; may be used from several threads. `on_damage` hears of each pack that
    was set aside."""

    def __init__(self, store: PackStore, household: Household, on_damage: Callable[[bytes], None]) -> None:
        self._store = store
        self._household = household
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._readers: OrderedDict[bytes, PackReader] = OrderedDict()
        self._id_keys: dict[bytes, bytes] = {}
        self._looked_at: set[bytes] = set()

    def read(self, chunk_id: bytes) -> bytes:
        """The plaintext of a chunk, verified.

        Errors: `IntegrityError` (E_PACK_DAMAGED, E_PACK_MISSING) when no whole copy is held; `NotAuthorised` on a
        device without keys.
        """
        found = self._try_copies(chunk_id)
        if found is None and self._look_again():
            found = self._try_copies(chunk_id)
        if found is not None:
            return found
        if not self._household.epoch_keys():
            raise NotAuthorised("This device is a keeper: it holds the vault without the key and can't read it.",
                                next_step="Read it on a device with the role member or admin.")
        raise IntegrityError(
            "A part of this file is not on this device: its pack was not fetched yet, or was damaged and set aside.",
            code="E_PACK_MISSING",
            next_step="It comes when a sibling that holds it is in reach; `hinet-node vault status` shows what is "
                      "missing.")

    def content(self, version: Version) -> Iterator[bytes]:
        """The content of a version, chunk by chunk."""
        last, piece = b"", b""
        for chunk_id in self._content_ids(version):
            if chunk_id != last:  # a long hole is the same chunk over and over, which is opened once
                last, piece = chunk_id, self.read(chunk_id)
            yield piece

    def _content_ids(self, version: Version) -> Iterator[bytes]:
        for chunk_id in version.chunk_ids():
            if not version.indirect:
                yield chunk_id
                continue
            ids = self.read(chunk_id)
            yield from (ids[at:at + 32] for at in range(0, len(ids), 32))

    def pack_holding(self, chunk_id: bytes) -> bytes | None:
        """A pack whose copy of the chunk opens. The index knows only what a footer says, and a footer that another
        member sealed may say anything."""
        return next((place.pack for place in self._store.index.places(chunk_id) if self.opens(place)), None)

    def opens(self, place: Place) -> bool:
        """Whether this copy opens to its id."""
        try:
            self._open(place)
        except (PackDamaged, PackMalformed, OSError, IntegrityError):
            return False
        return True

    def open(self, place: Place) -> bytes:
        """The plaintext of one copy of a chunk. Errors: `PackDamaged`, `PackMalformed`, `OSError`, `IntegrityError`."""
        return self._open(place)

    def forget(self, pack: bytes) -> None:
        with self._lock:
            self._readers.pop(pack, None)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _try_copies(self, chunk_id: bytes, *, again: bool = True) -> bytes | None:
        whole = False
        for place in self._store.index.places(chunk_id):
            try:
                return self._open(place)
            except (PackDamaged, PackMalformed, OSError, IntegrityError):
                whole |= self._suspect(place)
        # A whole pack that did not open: a disk that failed for a moment, or an index that is right now.
        return self._try_copies(chunk_id, again=False) if whole and again else None

    def _open(self, place: Place) -> bytes:
        reader = self._reader(place.pack)
        sealed = self._store.read_at(place.pack, place.slot.offset, place.slot.sealed_bytes)
        return reader.open_slot(place.slot, sealed, self._id_key(place.slot.id_epoch or reader.header.epoch_id))

    def _reader(self, pack: bytes) -> PackReader:
        with self._lock:
            reader = self._readers.get(pack)
            if reader is not None:
                self._readers.move_to_end(pack)
                return reader
        reader = self._store.reader(pack)
        if reader is None:
            raise PackDamaged("The key of this pack's epoch is not on this device.")
        with self._lock:
            self._readers[pack] = reader
            while len(self._readers) > _READERS_KEPT:
                self._readers.popitem(last=False)
        return reader

    def _id_key(self, epoch_id: bytes) -> bytes:
        key = self._id_keys.get(epoch_id)
        if key is None:
            epoch_key = self._household.epoch_keys().get(epoch_id)
            if epoch_key is None:
                raise PackDamaged("The key of the epoch of a moved chunk's id is not on this device.")
            key = self._id_keys[epoch_id] = chunk_id_key(epoch_key)
        return key

    def _suspect(self, place: Place) -> bool:
        """A copy did not open: either the pack is damaged, or the index was wrong about it. Whether it is whole."""
        self.forget(place.pack)
        if self._store.matches_name(place.pack):
            size = self._store.index.pack_size(place.pack)
            self._store.index.remove_pack(place.pack)
            if size is not None:
                self._store.enter(place.pack, size)
            return True
        if self._store.set_aside(place.pack):
            self._on_damage(place.pack)
        return False

    def _look_again(self) -> bool:
        """Open packs whose key came since, and set aside damaged ones that don't open although their key is here."""
        opened = self._store.open_unopened()
        for name in self._store.stuck():
            if name not in self._looked_at and self._store.set_aside(name):
                self._on_damage(name)
            self._looked_at.add(name)
        return opened > 0
