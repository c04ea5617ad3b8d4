"""Packs: sealed chunks in one file that is named by the hash of its ciphertext. SPEC.md, 6.1 and 6.2.

    header   72   magic "HINETPK", version 1, epoch id (32), salt (32): in clear
    chunks        each sealed on its own, slot numbers from 0
    padding       sealed zeros, so that the file is a multiple of 64 KiB
    footer        sealed rows: type, form, chunk id, stored and plain size of every slot; then, if a form says that the
                  chunk's id is of another epoch, that epoch's id
    trailer  32   sealed: where the footer begins, how long it is, how many rows

Every seal is ChaCha20-Poly1305 under the pack's own key, HKDF(epoch key, salt); the nonce is the slot number, so a
salt must never be used twice: a `PackBuilder` is good for one pack and its salt is drawn anew for each attempt.
The chunk id is the BLAKE3 of the plaintext, keyed by the epoch, and stands only in the sealed footer. A chunk that is
moved into a pack of a later epoch keeps its id, so that trees which name it need no change: its slot then says so, and
the footer names the epoch of the id. Whoever has no key can still check a pack against its name. What the chunks mean
is left to `trees`, reading and writing files to the node.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hinet_protocol.epochs import EpochKey
from hinet_protocol.errors import PackDamaged, PackMalformed
from hinet_protocol.sampling import may_shrink

magic = b"HINETPK\x01"
header_bytes = 72
trailer_bytes = 32
tag_bytes = 16
padding_multiple_bytes = 65_536
chunk_bytes_max = 4 << 20
slots_max = 65_536
pack_bytes_max = 64 << 20
zstd_level = 1

DATA, TREE_PAGE, TREE_ROOT, CHUNK_LIST, PAST = 1, 2, 3, 4, 5
"""Types of chunk: content of files, pages and roots of trees, lists of chunk ids of very large files, versions that
others replaced."""

_KINDS = frozenset((DATA, TREE_PAGE, TREE_ROOT, CHUNK_LIST, PAST))
_FOOTER, _TRAILER, _PADDING = 0xF0, 0xF1, 0xF2
_FOOTER_SLOT, _TRAILER_SLOT, _PADDING_SLOT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_NO_ID = bytes(32)
_ROW = struct.Struct(">BB32sII")
_COUNT = struct.Struct(">I")
_TRAILER_FORM = struct.Struct(">QII")
_ID_EPOCH_BYTES = 32
_ZSTD, _FOREIGN = 1, 2
"""Bits of a slot's form: its plaintext is compressed; its id is of the epoch that the footer names at its end."""
_FORM_MAX = _ZSTD | _FOREIGN


def chunk_id_key(epoch_key: bytes) -> bytes:
    """The key (32 bytes) of the chunk ids of one epoch."""
    return EpochKey(b"", epoch_key).id_key


def chunk_id(id_key: bytes, plaintext: bytes) -> bytes:
    """The id (32 bytes) of a chunk: BLAKE3 of its plaintext, keyed."""
    return blake3(plaintext, key=id_key).digest()


def pack_name(raw: bytes) -> bytes:
    """The name (32 bytes) of a pack or pack list: BLAKE3 of the whole file."""
    return blake3(raw).digest()


def verify_pack_name(name: bytes, raw: bytes) -> None:
    """Raises PackDamaged when the bytes are not those that the name stands for. Needs no key."""
    if pack_name(raw) != name:
        raise PackDamaged(f"Pack {name.hex()[:16]} does not match its name: its bytes changed.")


@dataclass(frozen=True, slots=True)
class Slot:
    """One sealed chunk in a pack. `offset` counts from the start of the file; `stored_bytes` is without the tag.

    `id_epoch` is the epoch whose id key made the chunk's id; empty when it is the pack's own.
    """

    number: int
    kind: int
    chunk_id: bytes
    offset: int
    stored_bytes: int
    plain_bytes: int
    compressed: bool
    id_epoch: bytes = b""

    @property
    def form(self) -> int:
        """As the footer writes it."""
        return (_ZSTD if self.compressed else 0) | (_FOREIGN if self.id_epoch else 0)

    @property
    def sealed_bytes(self) -> int:
        return self.stored_bytes + tag_bytes


@dataclass(frozen=True, slots=True)
class PackHeader:
    """The part of a pack that is in clear."""

    epoch_id: bytes
    salt: bytes


class _Seals:
    """The seals of one pack: nonce = slot, associated data = version, type, slot, chunk id."""

    __slots__ = ("_cipher",)

    def __init__(self, header: PackHeader, epoch_key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(EpochKey(header.epoch_id, epoch_key).pack_key(header.salt))

    def seal(self, kind: int, slot: int, chunk: bytes, plaintext: bytes) -> bytes:
        return self._cipher.encrypt(slot.to_bytes(12, "big"), plaintext, _associated(kind, slot, chunk))

    def unseal(self, kind: int, slot: int, chunk: bytes, sealed: bytes) -> bytes:
        try:
            return self._cipher.decrypt(slot.to_bytes(12, "big"), sealed, _associated(kind, slot, chunk))
        except InvalidTag:
            raise PackDamaged("A seal in a pack does not open: wrong key, or its bytes changed.") from None


def _associated(kind: int, slot: int, chunk: bytes) -> bytes:
    return magic + bytes((kind,)) + slot.to_bytes(4, "big") + chunk


@dataclass(frozen=True, slots=True)
class PackSummary:
    """A finished pack."""

    name: bytes
    size_bytes: int
    slots: tuple[Slot, ...]


class PackBuilder:
    """Seals chunks into one pack, as a stream: `take` gives the bytes that are ready, in file order.

    `salt` is 32 fresh random bytes that were never used before. After `finish` the builder is spent. `id_epoch` is the
    one earlier epoch that chunks with ids of another epoch may be of; without it there are none.
    """

    def __init__(self, epoch_id: bytes, epoch_key: bytes, salt: bytes, id_epoch: bytes = b"") -> None:
        if len(epoch_id) != 32 or len(salt) != 32 or len(id_epoch) not in (0, 32) or id_epoch == epoch_id:
            raise ValueError("Epoch ids and a salt have 32 bytes each, and the epoch of foreign ids is another one.")
        self.id_epoch = id_epoch
        header = PackHeader(epoch_id, salt)
        self._seals = _Seals(header, epoch_key)
        self._compressor = zstandard.ZstdCompressor(level=zstd_level, write_content_size=False)
        self._slots: list[Slot] = []
        self._ids: set[bytes] = set()
        self._ready: list[bytes] = [magic + epoch_id + salt]
        self._hash = blake3()
        self._finished = False
        self.size_bytes = header_bytes

    def __contains__(self, chunk: bytes) -> bool:
        return chunk in self._ids

    @property
    def slot_count(self) -> int:
        return len(self._slots)

    def add(self, kind: int, chunk: bytes, plaintext: bytes, *, foreign: bool = False) -> Slot:
        """Seal one chunk of at most 4 MiB under its id, which with `foreign` is one of `id_epoch`. The caller keeps to
        `slots_max` and `pack_bytes_max`."""
        if self._finished:
            raise ValueError("This pack is finished; a new one needs a new salt.")
        if (kind not in _KINDS or len(chunk) != 32 or chunk in self._ids or len(plaintext) > chunk_bytes_max
                or (foreign and not self.id_epoch)):
            raise ValueError("A chunk of this type, id or size can't go into this pack.")
        if len(self._slots) >= slots_max or self.size_bytes + len(plaintext) > pack_bytes_max - (4 << 20):
            raise ValueError("The pack is full.")
        stored = self._compressor.compress(plaintext) if may_shrink(plaintext, self._compressor) else plaintext
        compressed = len(stored) < len(plaintext)
        if not compressed:
            stored = plaintext
        slot = Slot(len(self._slots), kind, chunk, self.size_bytes, len(stored), len(plaintext), compressed,
                    self.id_epoch if foreign else b"")
        self._emit(self._seals.seal(kind, slot.number, chunk, stored))
        self._slots.append(slot)
        self._ids.add(chunk)
        return slot

    def take(self) -> bytes:
        """The bytes that became ready since the last call."""
        ready = self._ready[0] if len(self._ready) == 1 else b"".join(self._ready)
        self._ready.clear()
        self._hash.update(ready)
        return ready

    def finish(self) -> tuple[bytes, PackSummary]:
        """The last bytes, and the pack's name, size and slots."""
        if self._finished:
            raise ValueError("This pack is finished; a new one needs a new salt.")
        self._finished = True
        rows = _COUNT.pack(len(self._slots)) + b"".join(
            _ROW.pack(slot.kind, slot.form, slot.chunk_id, slot.stored_bytes, slot.plain_bytes)
            for slot in self._slots)
        if any(slot.id_epoch for slot in self._slots):
            rows += self.id_epoch
        footer_bytes = len(rows) + tag_bytes
        rest = self.size_bytes + tag_bytes + footer_bytes + trailer_bytes
        self._emit(self._seals.seal(_PADDING, _PADDING_SLOT, _NO_ID, bytes(-rest % padding_multiple_bytes)))
        trailer = _TRAILER_FORM.pack(self.size_bytes, footer_bytes, len(self._slots))
        self._emit(self._seals.seal(_FOOTER, _FOOTER_SLOT, _NO_ID, rows))
        self._emit(self._seals.seal(_TRAILER, _TRAILER_SLOT, _NO_ID, trailer))
        last = self.take()
        return last, PackSummary(self._hash.digest(), self.size_bytes, tuple(self._slots))

    def _emit(self, piece: bytes) -> None:
        self._ready.append(piece)
        self.size_bytes += len(piece)


def read_header(first: bytes) -> PackHeader:
    """The header from the first 72 bytes (more are ignored). Raises PackMalformed."""
    if len(first) < header_bytes or first[:7] != magic[:7]:
        raise PackMalformed("This is no HiNet pack.")
    if first[:8] != magic:
        raise PackMalformed(f"This pack has version {first[7]}; a newer hinet-node is needed to read it.")
    return PackHeader(bytes(first[8:40]), bytes(first[40:72]))


class PackReader:
    """Opens one pack without holding it: the caller reads the ranges that it is told.

    `trailer_range` → `open_trailer` → `footer_range` → `open_footer`, then `open_slot` for each slot. Sizes are
    checked before anything of that size is read or allocated.
    """

    def __init__(self, first: bytes, size_bytes: int, epoch_key: bytes) -> None:
        self.header = read_header(first)
        if size_bytes % padding_multiple_bytes or not padding_multiple_bytes <= size_bytes <= pack_bytes_max:
            raise PackMalformed(f"A pack can't have {size_bytes} bytes; it is cut short or grew.")
        self.size_bytes = size_bytes
        self.trailer_range = (size_bytes - trailer_bytes, trailer_bytes)
        self._seals = _Seals(self.header, epoch_key)
        self._rows = 0
        self.footer_range = (0, 0)

    def open_trailer(self, sealed: bytes) -> None:
        """Learn `footer_range`. Raises PackDamaged (also for a wrong key) or PackMalformed."""
        plain = self._seals.unseal(_TRAILER, _TRAILER_SLOT, _NO_ID, sealed)
        if len(plain) != _TRAILER_FORM.size:
            raise PackMalformed("The trailer of a pack has the wrong size.")
        offset, length, self._rows = _TRAILER_FORM.unpack(plain)
        exact = _COUNT.size + self._rows * _ROW.size + tag_bytes
        if (self._rows > slots_max or length not in (exact, exact + _ID_EPOCH_BYTES)
                or offset < header_bytes + tag_bytes or offset + length + trailer_bytes != self.size_bytes):
            raise PackMalformed("The footer of a pack is not where its trailer says.")
        self.footer_range = (offset, length)

    def open_footer(self, sealed: bytes) -> tuple[Slot, ...]:
        """All slots of the pack, checked against each other and the file's size. Raises PackDamaged, PackMalformed."""
        plain = self._seals.unseal(_FOOTER, _FOOTER_SLOT, _NO_ID, sealed)
        exact = _COUNT.size + self._rows * _ROW.size
        if len(plain) not in (exact, exact + _ID_EPOCH_BYTES) or _COUNT.unpack_from(plain)[0] != self._rows:
            raise PackMalformed("The footer of a pack has the wrong size.")
        id_epoch = plain[exact:]
        at, slots = header_bytes, []
        for number in range(self._rows):
            kind, form, chunk, stored, whole = _ROW.unpack_from(plain, _COUNT.size + number * _ROW.size)
            if (kind not in _KINDS or form > _FORM_MAX or whole > chunk_bytes_max
                    or (stored >= whole if form & _ZSTD else stored != whole)):
                raise PackMalformed(f"Slot {number} of a pack has the wrong type or size.")
            slots.append(Slot(number, kind, chunk, at, stored, whole, bool(form & _ZSTD),
                              self._foreign(id_epoch) if form & _FOREIGN else b""))
            at += stored + tag_bytes
        room = self.footer_range[0] - at - tag_bytes
        if not 0 <= room < padding_multiple_bytes:
            raise PackMalformed("The slots of a pack do not fill it.")
        if len({slot.chunk_id for slot in slots}) != len(slots):
            raise PackMalformed("A chunk is in a pack twice.")
        if id_epoch and not any(slot.id_epoch for slot in slots):
            raise PackMalformed("A pack names an epoch that none of its chunks is of.")
        return tuple(slots)

    def _foreign(self, id_epoch: bytes) -> bytes:
        if not id_epoch or id_epoch == self.header.epoch_id:
            raise PackMalformed("A slot's id is of another epoch, and the pack does not say of which.")
        return id_epoch

    def open_slot(self, slot: Slot, sealed: bytes, id_key: bytes) -> bytes:
        """The plaintext of one slot; `sealed` is the range (slot.offset, slot.sealed_bytes), `id_key` that of the epoch
        `slot.id_epoch`, or of the pack's own. Raises PackDamaged."""
        stored = self._seals.unseal(slot.kind, slot.number, slot.chunk_id, sealed)
        plain = _inflate(stored, slot.plain_bytes) if slot.compressed else stored
        if len(plain) != slot.plain_bytes or chunk_id(id_key, plain) != slot.chunk_id:
            raise PackDamaged("A chunk in a pack is not what its id says.")
        return plain


def _inflate(stored: bytes, plain_bytes: int) -> bytes:
    """Never makes more than `plain_bytes` (itself at most 4 MiB) + 1 bytes, whatever the frame says."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=chunk_bytes_max * 2).stream_reader(stored) as reader:
            return reader.read(plain_bytes + 1)
    except zstandard.ZstdError as error:
        raise PackDamaged(f"A chunk in a pack does not decompress: {error}.") from None


def open_pack(raw: bytes, epoch_key: bytes) -> tuple[PackReader, tuple[Slot, ...]]:
    """Open a pack that is whole in memory. Raises PackDamaged, PackMalformed."""
    reader = PackReader(raw[:header_bytes], len(raw), epoch_key)
    offset, length = reader.trailer_range
    reader.open_trailer(raw[offset:offset + length])
    offset, length = reader.footer_range
    return reader, reader.open_footer(raw[offset:offset + length])
