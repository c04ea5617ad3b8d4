"""Verifying: all on disk against names, seals and signatures; what is wrong, and which files it touches. SPEC.md, 6.7.

Works on keepers without keys, beside a running agent and while the vault is written to: what comes or goes meanwhile is
no fault. A damaged pack is set aside, so that it is fetched again; an index that lies is put right. Reads each pack in
pieces. Leaves heads to `headcheck`, everything else that has to be done to `mending`, `salvage` and `repairing`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from blake3 import blake3

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.vault.headcheck import check_heads, check_seq, open_again
from hinet_node.vault.index import Place
from hinet_node.vault.items import OnProgress, Progress
from hinet_node.vault.packfolder import Found, look, pack_path, reason
from hinet_node.vault.report import (
    DAMAGED,
    FILE,
    FOLDER,
    INDEX,
    LIST,
    MALFORMED,
    MISPLACED,
    MISSING,
    PACK,
    REBUILT,
    UNREADABLE,
    Fault,
    VerifyReport,
)
from hinet_node.vault.touched import Touched
from hinet_protocol.errors import PackDamaged, PackMalformed, TreeMalformed
from hinet_protocol.heads import decode_pack_list, is_pack_list
from hinet_protocol.packs import DATA, TREE_PAGE, TREE_ROOT, Slot, pack_bytes_max
from hinet_protocol.reconcile import needs_of
from hinet_protocol.trees import Version, decode_page, decode_root

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

FETCH = "`hinet-node vault repair` fetches it from a sibling."
DAMAGED_FILES_MAX = 100_000


def missing_packs(core: VaultCore) -> tuple[bytes, ...]:
    """Packs that the kept heads need and that are not held, sorted. Heads are looked at first, since packs come before
    the heads that need them; and twice, since heads give up packs before these go."""
    missing = _missing(core)
    return tuple(sorted(missing & _missing(core))) if missing else ()


def _missing(core: VaultCore) -> set[bytes]:
    needs = needs_of(core.needed_heads(), core.store.read_list)
    held = core.store.index.packs()
    return {name for name in needs.packs if name not in held}


class Checker:
    """One verification. Used by one thread."""

    def __init__(self, core: VaultCore, *, deep: bool, on_progress: OnProgress | None) -> None:
        self._core = core
        self._store = core.store
        self._deep = deep and bool(core.household.epoch_keys())
        self._report = on_progress
        self._touched = Touched(core)
        self._faults: list[Fault] = []
        self._damaged: list[bytes] = []
        self._wrong_files: dict[bytes, str] = {}
        self._why_aside: dict[bytes, str] = {}
        self._packs = self._packs_bytes = self._chunks = self._done = self._total = 0
        self._now_s = core.publisher.now()
        self._later = {chunk_id for _, version in self._touched.longer for chunk_id in version.chunk_ids()
                       if not version.indirect} if self._deep else set()
        self._put_off: dict[bytes, Place] = {}
        """The only copies of chunks that are opened with their files, in the order of the files."""

    def run(self) -> VerifyReport:
        """The whole of it. Errors: our own bugs only."""
        core, index = self._core, self._store.index
        sizes = index.packs()
        if index.made_anew:
            self._fault(INDEX, REBUILT, "vault/index.sqlite", "The index was damaged and was made anew from the packs "
                        f"({index.made_anew}).", "Nothing is to do.")
            index.made_anew = ""
        found = look(core.disk)
        self._folders(found)
        names = sorted({*sizes, *found.packs})
        self._total = sum(sizes.values()) + (sum(one.size for _, one in self._touched.longer) if self._deep else 0)
        if index.prune():
            self._index_lied("It held chunks of packs that are not there.")
        for name in names:
            self._pack(name, sizes.get(name))
        heads, faults = check_heads(core.disk, core.heads, dict(core.household.names()))
        self._faults += [*faults, *check_seq(core.heads)]
        missing = missing_packs(core)
        self._store.notes.prune_aside(missing)
        self._name_missing(missing, found)
        if self._deep:
            self._files()
        unreadable = sorted({*self._touched.files_lacking(), *self._wrong_files})
        return VerifyReport(self._packs, self._packs_bytes, tuple(self._damaged), missing, tuple(unreadable),
                            self._deep, self._chunks, heads, tuple(self._faults))

    def one(self, name: bytes, *, records: bool) -> list[Fault]:
        """What is wrong with one pack, and with the records of heads if these are asked for."""
        self._pack(name, self._store.index.pack_size(name))
        for damaged, why in self._why_aside.items():
            self._fault(PACK, DAMAGED, pack_path(damaged), f"Pack {damaged.hex()[:16]} was damaged and is set aside: "
                        f"{why}.", FETCH, damaged)
        if records:
            self._faults += check_heads(self._core.disk, self._core.heads, dict(self._core.household.names()))[1]
            self._faults += check_seq(self._core.heads)
        return self._faults

    def settled(self, report: VerifyReport) -> VerifyReport:
        """The same report after writers have come to rest: a file that was being put in is whole by now."""
        lacking = {*Touched(self._core).files_lacking(), *self._wrong_files}
        return replace(report, files_unreadable=tuple(name for name in report.files_unreadable if name in lacking))

    # ---- packs ---------------------------------------------------------------------------------------------------

    def _pack(self, name: bytes, size: int | None) -> None:
        """Bytes against the name, the index against the footer; with deep checking every chunk."""
        path, disk = pack_path(name), self._core.disk
        try:
            on_disk = disk.size(path)
            whole = self._store.digest(path) == name
        except (OSError, IntegrityError) as error:
            self._unreadable(name, error, size)
            return
        self._tell(on_disk)
        if not whole:
            if disk.exists(path) and self._store.index.pack_size(name) == size:
                self._set_aside(name, self._why(path, on_disk, size))
            return
        self._packs += 1
        self._packs_bytes += on_disk
        self._store.notes.note_checked(name, self._now_s)
        self._compare_index(name, on_disk)

    def _unreadable(self, name: bytes, error: OSError | IntegrityError, size: int | None) -> None:
        """Gone meanwhile, or damage of another kind than changed bytes."""
        if isinstance(error, FileNotFoundError):
            if size is not None and self._store.index.pack_size(name) is not None:
                self._store.drop(name)  # needed or not is told by the heads
            return
        if isinstance(error, PermissionError):
            # It may be whole, and a move would only hide it: whoever owns it can open it again.
            self._store.drop(name)
            self._fault(PACK, UNREADABLE, pack_path(name), f"Pack {name.hex()[:16]} can't be read: {reason(error)}.",
                        open_again(self._core.disk, pack_path(name)), name)
            return
        self._set_aside(name, reason(error))

    def _set_aside(self, name: bytes, why: str) -> None:
        if self._core.set_aside(name):
            self._damaged.append(name)
            self._why_aside[name] = why

    def _why(self, path: str, on_disk: int, size: int | None) -> str:
        if size is not None and on_disk < size:
            return f"it was cut short, {on_disk} of {size} bytes are there"
        if size is not None and on_disk > size:
            return f"it grew from {size} to {on_disk} bytes"
        first = self._core.disk.read_at(path, 0, 4096)
        return "it begins with zeros" if first and not any(first) else "its bytes changed"

    def _compare_index(self, name: bytes, on_disk: int) -> None:
        """A pack that is whole, against what the index says of it."""
        index = self._store.index
        (slots, _), known = self._store.slots_of(name, on_disk), index.pack_size(name)
        if known is None:
            if self._store.is_arriving(name):
                return
            if name in _missing(self._core):  # else it is left over from a put that failed, and harms nobody
                self._index_lied(f"It did not know pack {name.hex()[:16]}.")
            self._store.enter(name, on_disk)
            self._core.view.forget_pages()
        elif known != on_disk or (slots is not None and index.slots_in(name) != slots):
            if index.pack_size(name) is None:
                return
            index.remove_pack(name)
            self._store.enter(name, on_disk)
            self._core.reader.forget(name)
            self._core.view.forget_pages()
            self._index_lied(f"What it said of pack {name.hex()[:16]} was not what the pack says.")
        if slots is None:
            self._malformed(name)
        elif self._deep:
            self._open_all(name, slots)

    def _malformed(self, name: bytes) -> None:
        """A pack that is what its name says and can't be opened: without its key, that is as it should be."""
        try:
            if self._store.reader(name) is None:
                return
            what = "its seals do not open with the key of its epoch"
        except (PackMalformed, OSError, IntegrityError) as error:
            what = str(error)
        self._fault(PACK, MALFORMED, pack_path(name), f"Pack {name.hex()[:16]} is as its writer made it, and no pack: "
                    f"{what}", "A faulty device made it; see who: hinet-node vault status", name)

    def _open_all(self, name: bytes, slots: tuple[Slot, ...]) -> None:
        """Every chunk of a pack, also those that no file needs now."""
        if not slots:
            self._list(name)
        for slot in slots:
            if slot.kind == DATA and slot.chunk_id in self._later and len(self._store.index.places(slot.chunk_id)) == 1:
                self._put_off[slot.chunk_id] = Place(name, slot)  # opened with its file, which is this copy's only use
                continue
            if not self._open_slot(Place(name, slot)):
                return

    def _open_slot(self, place: Place) -> bool:
        """Open one chunk. False when its pack can't be read any more."""
        name, slot = place.pack, place.slot
        try:
            plain = self._core.reader.open(place)
            self._chunks += 1
            if slot.kind == TREE_PAGE:
                decode_page(plain)
            elif slot.kind == TREE_ROOT:
                decode_root(plain)
            elif slot.kind == DATA:
                self._whole_file(slot.chunk_id, plain)
        except (PackDamaged, PackMalformed, TreeMalformed) as error:
            self._fault(PACK, MALFORMED, pack_path(name), f"Slot {slot.number} of pack {name.hex()[:16]} is not "
                        f"what its footer says: {error}", "A faulty device made it; other copies of the chunk are "
                        "used where there are any.", name, self._touched.files_with({slot.chunk_id}))
        except (OSError, IntegrityError) as error:
            self._unreadable(name, error, slot.offset)
            return False
        return True

    def _list(self, name: bytes) -> None:
        try:
            raw = self._core.disk.read(pack_path(name))
            if is_pack_list(raw[:8]):
                decode_pack_list(raw)
        except PackMalformed as error:
            self._fault(LIST, MALFORMED, pack_path(name), f"Pack list {name.hex()[:16]} is as its writer made it, and "
                        f"no list: {error}", "A faulty device made it; see who: hinet-node vault status", name)
        except (OSError, IntegrityError):
            return  # gone meanwhile

    # ---- files ---------------------------------------------------------------------------------------------------

    def _whole_file(self, chunk_id: bytes, plain: bytes) -> None:
        """Files of one chunk are checked when their chunk is open anyway."""
        wanted = self._touched.single.get(chunk_id)
        if wanted and blake3(plain).digest() != wanted[0][1]:
            for name, _ in wanted:
                self._wrong_file(name, "its content does not match its digest")

    def _files(self) -> None:
        """Files of several chunks, and those that need one that was not seen: whole, against their digest."""
        for name, version in self._touched.longer:
            seen = 0
            try:
                for piece in self._core.content(version):
                    seen += 1
                    self._done += len(piece)
                    self._say("files", self._total)
            except (IntegrityError, NotAuthorised) as error:
                if error.code != "E_PACK_MISSING":
                    self._wrong_file(name, str(error))
            self._settle_put_off(version, seen)

    def _settle_put_off(self, version: Version, seen: int) -> None:
        """The first `seen` chunks of a file were opened with it; those behind them are opened one by one."""
        for at, chunk_id in enumerate(version.chunk_ids()):
            place = self._put_off.pop(chunk_id, None)
            if place is None:
                continue
            if at < seen:
                self._chunks += 1
            elif self._store.index.pack_size(place.pack) is not None:
                self._open_slot(place)

    def _wrong_file(self, name: bytes, why: str) -> None:
        if name in self._wrong_files or len(self._wrong_files) >= DAMAGED_FILES_MAX:
            return
        self._wrong_files[name] = why
        shown = name.decode("utf-8", "replace")
        self._fault(FILE, DAMAGED, shown, f"{shown!r} can't be read whole: {why}", "Take an earlier version of it "
                    "(`hinet-node vault history`), or put it in again.", name, (name,))

    # ---- what is not there ---------------------------------------------------------------------------------------

    def _folders(self, found: Found) -> None:
        for path, why in sorted(found.closed.items()):
            self._fault(FOLDER, UNREADABLE, path, f"{path} can't be read: {why}. The packs in it are not used.",
                        open_again(self._core.disk, path))

    def _name_missing(self, missing: tuple[bytes, ...], found: Found) -> None:
        """Packs that are needed and not here: set aside, under another name, or gone."""
        astray = self._astray(set(missing), found.strays) if missing else {}
        for name in missing:
            files = self._touched.files_of_pack(name)
            if name in astray:
                self._fault(PACK, MISPLACED, astray[name], f"Pack {name.hex()[:16]} lies under another name.",
                            "`hinet-node vault repair` puts it back.", name, files)
            elif name in self._why_aside or name in found.aside:
                why = self._why_aside.get(name, "it was found damaged before")
                self._fault(PACK, DAMAGED, pack_path(name), f"Pack {name.hex()[:16]} is damaged and set aside: {why}.",
                            FETCH, name, files)
            elif not any(fault.name == name and fault.state == UNREADABLE for fault in self._faults):
                self._fault(PACK, MISSING, pack_path(name), f"Pack {name.hex()[:16]} is needed and not here.", FETCH,
                            name, files)
        for name in sorted(self._why_aside.keys() - set(missing)):
            self._fault(PACK, DAMAGED, pack_path(name), f"Pack {name.hex()[:16]}, which no device needs any more, is "
                        f"damaged and set aside: {self._why_aside[name]}.", "Nothing is to do.", name)

    def _astray(self, missing: set[bytes], strays: list[str]) -> dict[bytes, str]:
        """Which of the missing packs lie in the folders under a wrong name."""
        found: dict[bytes, str] = {}
        for path in strays:
            try:
                if self._core.disk.size(path) <= pack_bytes_max:
                    digest = self._store.digest(path)
                    if digest in missing:
                        found[digest] = path
            except (OSError, IntegrityError):
                continue
        return found

    # ---- telling -------------------------------------------------------------------------------------------------

    def _index_lied(self, what: str) -> None:
        self._fault(INDEX, REBUILT, "vault/index.sqlite", f"The index was wrong and was put right. {what}",
                    "Nothing is to do.")

    def _fault(self, kind: str, state: str, path: str, what: str, next_step: str, name: bytes = b"",
               files: tuple[bytes, ...] = ()) -> None:
        self._faults.append(Fault(kind, state, path, what, next_step, name, files=files))

    def _tell(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._say("packs", self._total)

    def _say(self, what: str, total: int | None) -> None:
        if self._report is not None:
            self._report(Progress(what, self._done, total))
