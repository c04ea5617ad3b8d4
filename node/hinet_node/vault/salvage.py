"""Saving what still opens in damaged packs that no sibling has, and the trees of a device that lost its heads.

SPEC.md, 6.7.

Each chunk is sealed on its own, so damage takes the chunks that it hits and no others. What opens, and is in no other
pack, goes into new packs with the ids that it has, so that no tree changes. A pack of which nothing is lost then is not
needed any more; one of which something is lost stays wanted, and its file stays, since a sibling may have it after all.
Only devices with keys can do this. Leaves finding damage to `checking`, giving up what is lost to `acceptance`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.vault.packfolder import aside_path
from hinet_node.vault.repack import Mover
from hinet_protocol.errors import LimitError, PackDamaged, PackMalformed, TreeMalformed
from hinet_protocol.packs import (
    TREE_PAGE,
    PackReader,
    Slot,
    chunk_id_key,
    header_bytes,
    magic,
    pack_bytes_max,
    padding_multiple_bytes,
)
from hinet_protocol.trees import decode_page

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

_SALT_AT = 40


@dataclass
class Saved:
    """What became of one damaged pack."""

    name: bytes
    slots: int = 0
    """How many it had; 0 when that can't be told."""
    saved: int = 0
    elsewhere: int = 0
    """Chunks that another pack has."""
    lost: set[bytes] = field(default_factory=set)
    """Ids of the chunks that are nowhere."""

    @property
    def replaced(self) -> bool:
        """Whether everything in it is somewhere else now."""
        return self.slots > 0 and not self.lost


class Salvage:
    """One attempt, by one thread under the vault's writing lock. New packs are durable, and in no head yet."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core
        self._keys = dict(core.household.epoch_keys())
        self._mover = Mover(core)
        self._elsewhere: set[bytes] = set()

    @property
    def packs(self) -> set[bytes]:
        """Packs that hold what was saved or was elsewhere: the next head names them."""
        return self._elsewhere | self._mover.packs

    def save(self, name: bytes) -> Saved:
        """All that can be saved of one pack that was set aside. Errors: `NoSpace`."""
        try:
            return self._save(name)
        except BaseException:
            self._mover.drop()
            raise

    def _save(self, name: bytes) -> Saved:
        found = Saved(name)
        opened = self._open(name)
        slots = self._slots(name, opened)
        found.slots = len(slots)
        for slot in slots:
            held = self._core.reader.pack_holding(slot.chunk_id)
            if held is not None:
                self._elsewhere.add(held)
                found.elsewhere += 1
                continue
            plain = self._plain(name, opened, slot)
            if plain is None:
                found.lost.add(slot.chunk_id)
            else:
                assert opened is not None, "nothing opens without a reader"
                self._mover.add(slot.kind, slot.chunk_id, plain, slot.id_epoch or opened.header.epoch_id)
                found.saved += 1
        self._mover.finish()
        return found

    # ---- opening -------------------------------------------------------------------------------------------------

    def _open(self, name: bytes) -> PackReader | None:
        """A reader for what is left of the pack; its header may be damaged, so that every key is tried, and the salt
        with one byte changed."""
        try:
            size = self._core.disk.size(aside_path(name))
            first = self._core.disk.read_at(aside_path(name), 0, header_bytes)
        except (OSError, IntegrityError):
            return None
        if len(first) < header_bytes:
            return None
        known = self._core.store.notes.slots_aside(name)
        rounded = min(max(-(-size // padding_multiple_bytes) * padding_multiple_bytes, padding_multiple_bytes),
                      pack_bytes_max)
        for epoch_id in self._epochs(first):
            reader = self._reader(magic + epoch_id + first[_SALT_AT:], rounded, self._keys[epoch_id])
            if self._fits(name, reader, size, known):
                return reader
        if size != rounded and not known:
            return None
        for at in range(_SALT_AT, header_bytes):
            for change in range(1, 256):
                salt = bytearray(first[_SALT_AT:])
                salt[at - _SALT_AT] ^= change
                for epoch_id in self._epochs(first):
                    reader = self._reader(magic + epoch_id + bytes(salt), rounded, self._keys[epoch_id])
                    if self._fits(name, reader, size, known):
                        return reader
        return None

    def _epochs(self, first: bytes) -> list[bytes]:
        """The epochs whose key is here, the one that the header names first."""
        return sorted(self._keys, key=lambda epoch_id: (epoch_id != first[8:_SALT_AT], epoch_id))

    def _reader(self, first: bytes, size: int, key: bytes) -> PackReader:
        return PackReader(first, size, key)

    def _fits(self, name: bytes, reader: PackReader, size: int, known: tuple[Slot, ...]) -> bool:
        """Whether a key and a header open anything of this file: its trailer, or one of a few slots."""
        try:
            if size == reader.size_bytes:
                reader.open_trailer(self._core.disk.read_at(aside_path(name), *reader.trailer_range))
                return True
        except (PackDamaged, PackMalformed, OSError):
            pass
        smallest = sorted(known, key=lambda slot: slot.stored_bytes)[:3]
        return any(self._unsealed(name, reader, slot) is not None for slot in smallest)

    def _slots(self, name: bytes, reader: PackReader | None) -> tuple[Slot, ...]:
        """By the footer if that opens, else as the index knew them."""
        if reader is not None and reader.footer_range[1]:
            try:
                return reader.open_footer(self._core.disk.read_at(aside_path(name), *reader.footer_range))
            except (PackDamaged, PackMalformed, OSError):
                pass
        return self._core.store.notes.slots_aside(name)

    def _plain(self, name: bytes, reader: PackReader | None, slot: Slot) -> bytes | None:
        return None if reader is None else self._unsealed(name, reader, slot)

    def _unsealed(self, name: bytes, reader: PackReader, slot: Slot) -> bytes | None:
        key = self._keys.get(slot.id_epoch or reader.header.epoch_id)
        if key is None:
            return None
        try:
            sealed = self._core.disk.read_at(aside_path(name), slot.offset, slot.sealed_bytes)
            return reader.open_slot(slot, sealed, chunk_id_key(key))
        except (PackDamaged, PackMalformed, OSError):
            return None


def recollect(core: VaultCore) -> int:
    """Merge every tree page that opens into the view: all that this device's packs still say of its files, when its own
    heads are lost and nobody has them. Deletions are versions too, so nothing comes back that was removed. How many
    names came."""
    before = len(core.view.tree)
    for chunk_id in core.store.index.ids_of_kind(TREE_PAGE):
        try:
            core.view.merge(decode_page(core.reader.read(chunk_id)))
        except (IntegrityError, NotAuthorised, TreeMalformed, LimitError):
            continue
    return len(core.view.tree) - before
