"""Packs on disk: fan-out folders, part files, setting aside what is damaged. SPEC.md, 6.5.

    vault/packs/ab/ab12…            a pack or pack list, named by the hash of its bytes
    vault/packs/ab/ab12….damaged    set aside: its bytes are not what its name says
    vault/parts/in-ab12…            a transfer that goes on where it stopped
    vault/parts/out-…               a pack being sealed; removed at the next start

Order: bytes, fsync, rename, fsync folder; then index. Leaves sealing to `writer`, opening to `reader`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from blake3 import blake3

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.ports import Disk
from hinet_node.vault.index import Index
from hinet_node.vault.items import Household
from hinet_protocol.errors import PackDamaged, PackMalformed
from hinet_protocol.heads import decode_pack_list, is_pack_list
from hinet_protocol.packs import PackReader, Slot, header_bytes, pack_bytes_max, read_header

_PIECE_BYTES = 4 << 20
_PACK_FILE = re.compile(r"[0-9a-f]{64}")


def pack_path(name: bytes) -> str:
    text = name.hex()
    return f"vault/packs/{text[:2]}/{text}"


def incoming_path(name: bytes) -> str:
    return f"vault/parts/in-{name.hex()}"


def outgoing_path(salt: bytes) -> str:
    return f"vault/parts/out-{salt.hex()[:16]}"


class PackStore:
    """The packs of one home. Methods block on the disk and may be called from a worker thread."""

    def __init__(self, disk: Disk, household: Household, index_path: str | None) -> None:
        self._disk = disk
        self._household = household
        path = index_path or disk.path("vault/index.sqlite")
        if path.startswith("memory:"):
            path = ":memory:"
        self._remove_outgoing()
        self.index = Index(path, self._fill)
        self._fill(self.index)

    def close(self) -> None:
        self.index.close()

    # ---- index ---------------------------------------------------------------------------------------------------

    def _fill(self, index: Index) -> None:
        """Bring an index in step with the folder: the folder is right."""
        known = index.packs()
        found = set()
        for name in self.on_disk():
            found.add(name)
            size = self._disk.size(pack_path(name))
            if known.get(name) != size:
                index.remove_pack(name)
                self._enter(index, name, size)
        for name in known.keys() - found:
            index.remove_pack(name)
        self.open_unopened(index)

    def open_unopened(self, index: Index | None = None) -> int:
        """Read the footers of packs whose key came since; how many could be opened."""
        index = index or self.index
        opened = 0
        for name, size in index.unopened():
            opened += self._enter(index, name, size)
        return opened

    def stuck(self) -> list[bytes]:
        """Packs that could not be opened although their epoch's key is here, or whose header is none."""
        found = []
        for name, size in self.index.unopened():
            try:
                if self._reader(self.read_at(name, 0, header_bytes), size) is None:
                    continue
            except (PackMalformed, OSError):
                pass  # a header that is none, or a file that is gone: looked at as well
            found.append(name)
        return found

    def on_disk(self) -> Iterator[bytes]:
        """Names of all pack files in the folders; other files are left alone."""
        for folder in self._disk.list("vault/packs"):
            for entry in self._disk.list(f"vault/packs/{folder}"):
                if _PACK_FILE.fullmatch(entry) and entry.startswith(folder):
                    yield bytes.fromhex(entry)

    def enter(self, name: bytes, size_bytes: int) -> None:
        """Index a pack that has just been committed."""
        self._enter(self.index, name, size_bytes)

    def _enter(self, index: Index, name: bytes, size_bytes: int) -> bool:
        """Whether the pack could be opened."""
        slots, epoch = self._slots_of(name, size_bytes)
        index.add_pack(name, size_bytes, slots, epoch=epoch)
        return slots is not None

    def _slots_of(self, name: bytes, size_bytes: int) -> tuple[tuple[Slot, ...] | None, bytes]:
        """The slots by the pack's footer, and its epoch: () and nothing for a pack list; no slots without the key or
        for a pack that is damaged."""
        epoch = b""
        try:
            first = self.read_at(name, 0, header_bytes)
            if is_pack_list(first):
                return (), epoch
            epoch = read_header(first).epoch_id
            reader = self._reader(first, size_bytes)
            if reader is None:
                return None, epoch
            reader.open_trailer(self.read_at(name, *reader.trailer_range))
            return reader.open_footer(self.read_at(name, *reader.footer_range)), epoch
        except (PackDamaged, PackMalformed, FileNotFoundError):
            return None, epoch

    def _reader(self, first: bytes, size_bytes: int) -> PackReader | None:
        key = self._household.epoch_keys().get(read_header(first).epoch_id)
        return None if key is None else PackReader(first, size_bytes, key)

    def reader(self, name: bytes) -> PackReader | None:
        """For opening slots of a pack; None without its epoch's key. Raises PackMalformed, FileNotFoundError."""
        return self._reader(self.read_at(name, 0, header_bytes), self._disk.size(pack_path(name)))

    # ---- bytes ---------------------------------------------------------------------------------------------------

    def holds(self, name: bytes) -> bool:
        return self.index.pack_size(name) is not None

    def read_at(self, name: bytes, offset: int, length: int) -> bytes:
        return self._disk.read_at(pack_path(name), offset, length)

    def read_list(self, name: bytes) -> tuple[bytes, ...] | None:
        """The names in a held pack list, else None. A file that is no list is None too."""
        size = self.index.pack_size(name)
        if size is None or size > pack_bytes_max:
            return None
        try:
            return decode_pack_list(self._disk.read(pack_path(name)))
        except (PackMalformed, FileNotFoundError):
            return None

    def add_whole(self, name: bytes, raw: bytes) -> None:
        """Write a small pack or a pack list in one go; the same name again changes nothing."""
        if not self._disk.exists(pack_path(name)):
            self._disk.write_atomic(pack_path(name), raw)
        self.enter(name, len(raw))

    def remove(self, name: bytes) -> None:
        """Remove a pack that no head needs (an unfinished put)."""
        self._disk.remove(pack_path(name))
        self.index.remove_pack(name)

    def _remove_outgoing(self) -> None:
        for entry in self._disk.list("vault/parts"):
            if entry.startswith("out-"):
                try:
                    self._disk.remove(f"vault/parts/{entry}")
                except NoSpace:
                    return  # a read-only disk: it is removed once that is over

    def incoming(self) -> dict[bytes, int]:
        """Name -> bytes so far of the transfers that were begun."""
        found = {}
        for entry in self._disk.list("vault/parts"):
            if entry.startswith("in-") and _PACK_FILE.fullmatch(entry[3:]):
                found[bytes.fromhex(entry[3:])] = self._disk.size(f"vault/parts/{entry}")
        return found

    # ---- checking ------------------------------------------------------------------------------------------------

    def matches_name(self, name: bytes) -> bool:
        """Whether the bytes on disk are those that the name stands for; needs no key. Reads the pack in pieces."""
        state, at = blake3(), 0
        try:
            size = self._disk.size(pack_path(name))
            while at < size:
                piece = self.read_at(name, at, _PIECE_BYTES)
                if not piece:
                    return False
                state.update(piece)
                at += len(piece)
        except OSError:
            return False  # a sector that can't be read is damage as well
        return state.digest() == name

    def set_aside(self, name: bytes) -> None:
        """Take a damaged pack out of use; the file stays, as `….damaged`, so that nothing is thrown away unseen. A disk
        that can't be written keeps it under its name, and it is merely not used."""
        self.index.remove_pack(name)
        try:
            self._disk.move(pack_path(name), pack_path(name) + ".damaged")
        except (NoSpace, OSError):
            return

    def damaged_error(self, name: bytes) -> IntegrityError:
        return IntegrityError(
            f"Pack {name.hex()[:16]} on this device is damaged: its bytes do not match its name.",
            code="E_PACK_DAMAGED",
            next_step="It was set aside and is fetched again when a sibling that holds it is in reach; then try again. "
                      "`hinet-node vault status` shows whether it came.")
