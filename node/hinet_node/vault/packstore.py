"""Packs on disk: fan-out folders, part files, setting aside what is damaged. SPEC.md, 6.5.

    vault/packs/ab/ab12…            a pack or pack list, named by the hash of its bytes
    vault/packs/ab/ab12….damaged    set aside: its bytes are not what its name says
    vault/parts/in-ab12…            a transfer that goes on where it stopped
    vault/parts/out-…               a pack being sealed; removed at the next start

Order: bytes, fsync, rename, fsync folder; then index. Leaves sealing to `writer`, opening to `reader`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.ports import Disk
from hinet_node.vault.index import Index
from hinet_node.vault.items import Household
from hinet_node.vault.packfolder import aside_path, entries, look, reason
from hinet_node.vault.packfolder import pack_path as pack_path
from hinet_node.vault.packnotes import PackNotes
from hinet_protocol.errors import PackDamaged, PackMalformed
from hinet_protocol.heads import decode_pack_list, is_pack_list
from hinet_protocol.packs import PackReader, Slot, header_bytes, pack_bytes_max, read_header

_PIECE_BYTES = 4 << 20
_PACK_FILE = re.compile(r"[0-9a-f]{64}")

def incoming_path(name: bytes) -> str:
    return f"vault/parts/in-{name.hex()}"


def outgoing_path(salt: bytes) -> str:
    return f"vault/parts/out-{salt.hex()[:16]}"


class PackStore:
    """The packs of one home. Methods block on the disk and may be called from a worker thread."""

    def __init__(self, disk: Disk, household: Household, index_path: str | None) -> None:
        self._disk = disk
        self._household = household
        self.closed: dict[str, str] = {}
        """What could not be looked at when the index was last compared with the folders: path -> why."""
        self._moving = threading.Condition()
        self._arriving: dict[bytes, int] = {}
        self._leaving: set[bytes] = set()
        path = index_path or disk.path("vault/index.sqlite")
        if path.startswith("memory:"):
            path = ":memory:"
        self._remove_outgoing()
        self.index = Index(path, self._fill)
        self.notes = PackNotes(path if path == ":memory:" else str(Path(path).with_name("notes.sqlite")))
        self._fill(self.index)

    def close(self) -> None:
        self.index.close()
        self.notes.close()

    # ---- index ---------------------------------------------------------------------------------------------------

    def _fill(self, index: Index) -> None:
        """Bring an index in step with the folder: the folder is right. What stands in a pack's place and can't be
        opened as a file (a folder, a link, a file of another user) is not held, and is told of by `vault verify`."""
        known = index.packs()
        found = set()
        seen = look(self._disk)
        self.closed = dict(seen.closed)
        for name in seen.packs:
            try:
                size = self._disk.size(pack_path(name))
            except (OSError, IntegrityError) as error:
                self.closed[pack_path(name)] = reason(error)
                continue
            found.add(name)
            if known.get(name) != size:
                index.remove_pack(name)
                self._enter(index, name, size)
        for name in known.keys() - found:
            self.drop(name)
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
            except (PackMalformed, OSError, IntegrityError):
                pass  # a header that is none, or a file that is gone: looked at as well
            found.append(name)
        return found

    def on_disk(self) -> Iterator[bytes]:
        """Names of all pack files in the folders; other files are left alone."""
        yield from look(self._disk).packs

    def enter(self, name: bytes, size_bytes: int) -> None:
        """Index a pack that has just been committed."""
        self._enter(self.index, name, size_bytes)

    def _enter(self, index: Index, name: bytes, size_bytes: int) -> bool:
        """Whether the pack could be opened."""
        slots, epoch = self.slots_of(name, size_bytes)
        index.add_pack(name, size_bytes, slots, epoch=epoch)
        return slots is not None

    def slots_of(self, name: bytes, size_bytes: int) -> tuple[tuple[Slot, ...] | None, bytes]:
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
        except (PackDamaged, PackMalformed, OSError, IntegrityError):
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

    def read_into(self, name: bytes, offset: int, buffer: memoryview) -> int:
        return self._disk.read_into(pack_path(name), offset, buffer)

    def read_list(self, name: bytes) -> tuple[bytes, ...] | None:
        """The names in a held pack list, else None. A file that is no list is None too."""
        size = self.index.pack_size(name)
        if size is None or size > pack_bytes_max:
            return None
        try:
            return decode_pack_list(self._disk.read(pack_path(name)))
        except (PackMalformed, OSError, IntegrityError):
            return None

    def add_whole(self, name: bytes, raw: bytes) -> None:
        """Write a small pack or a pack list in one go; the same name again changes nothing."""
        if not self._disk.exists(pack_path(name)):
            self._disk.write_atomic(pack_path(name), raw)
        self.enter(name, len(raw))

    @contextmanager
    def arriving(self, name: bytes) -> Iterator[None]:
        """While a pack goes to its place and then into the index: its file is no stranger to `vault verify`, and nobody
        sets it aside for the damaged one that it replaces."""
        with self._moving:
            while name in self._leaving:
                self._moving.wait()
            self._arriving[name] = self._arriving.get(name, 0) + 1
        try:
            yield
        finally:
            with self._moving:
                self._arriving[name] -= 1
                if not self._arriving[name]:
                    del self._arriving[name]
                self._moving.notify_all()

    def is_arriving(self, name: bytes) -> bool:
        return name in self._arriving

    def remove(self, name: bytes) -> None:
        """Remove a pack that no head needs (an unfinished put)."""
        try:
            self._disk.remove(pack_path(name))
        finally:
            if not self._disk.exists(pack_path(name)):  # removed, durably or not: it can't be read any more
                self.index.remove_pack(name)

    def _remove_outgoing(self) -> None:
        for entry in entries(self._disk, "vault/parts", self.closed):
            if entry.startswith("out-"):
                try:
                    self._disk.remove(f"vault/parts/{entry}")
                except (NoSpace, OSError, IntegrityError):
                    return  # a read-only disk: it is removed once that is over

    def incoming(self) -> dict[bytes, int]:
        """Name -> bytes so far of the transfers that were begun."""
        found = {}
        for entry in entries(self._disk, "vault/parts", {}):
            if entry.startswith("in-") and _PACK_FILE.fullmatch(entry[3:]):
                found[bytes.fromhex(entry[3:])] = self._disk.size(f"vault/parts/{entry}")
        return found

    # ---- checking ------------------------------------------------------------------------------------------------

    def matches_name(self, name: bytes) -> bool:
        """Whether the bytes on disk are those that the name stands for; needs no key. Reads the pack in pieces."""
        try:
            return self.digest(pack_path(name)) == name
        except (OSError, IntegrityError):
            return False  # a sector that can't be read is damage as well

    def digest(self, path: str) -> bytes:
        """What a file would be named by its bytes. Errors: `OSError`, `IntegrityError` for a link."""
        state, at = blake3(), 0
        while piece := self._disk.read_at(path, at, _PIECE_BYTES):
            state.update(piece)
            at += len(piece)
        return state.digest()

    def drop(self, name: bytes) -> None:
        """A pack is not held any more, and nobody wanted that: out of the index, with a memory of what it held."""
        self.notes.keep_slots(name, self.index.slots_in(name))
        self.index.remove_pack(name)

    def set_aside(self, name: bytes) -> bool:
        """Take a damaged pack out of use; what stood there stays, as `….damaged`, so that nothing is thrown away
        unseen. A disk that can't be written keeps it under its name, and it is merely not used. False for a pack that
        is whole: a copy may have come between the look and this call."""
        with self._moving:
            while name in self._arriving:
                self._moving.wait()
            self._leaving.add(name)
        try:
            if self.matches_name(name):
                return False
            try:
                self._disk.move(pack_path(name), aside_path(name))
            except (NoSpace, OSError, IntegrityError):
                pass  # out of the index all the same
            self.drop(name)  # only now: from here on it may be fetched again, and must find its place free
            return True
        finally:
            with self._moving:
                self._leaving.discard(name)
                self._moving.notify_all()

    def forget_aside(self, name: bytes) -> None:
        """A whole copy is here: what was set aside is of no use any more. A folder or link in its place stays."""
        self.notes.forget_aside(name)
        try:
            self._disk.remove(aside_path(name))
        except (NoSpace, OSError, IntegrityError):
            return

    def damaged_error(self, name: bytes) -> IntegrityError:
        return IntegrityError(
            f"Pack {name.hex()[:16]} on this device is damaged: its bytes do not match its name.",
            code="E_PACK_DAMAGED",
            next_step="It was set aside and is fetched again when a sibling that holds it is in reach; then try again. "
                      "`hinet-node vault status` shows whether it came.")
