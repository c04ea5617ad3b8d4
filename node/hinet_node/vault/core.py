"""What the vault does, in blocking form: put, take up heads, find versions. SPEC.md, 6.

Leaves packs on disk to `packstore`, heads to `headstore`, sealing to `writer` and `publish`, opening to `reader`, the
merged view to `view`, other edits to `edits`, the past to `history`; waiting and threads to `vault`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from blake3 import blake3

from hinet_node.errors import IntegrityError, NodeError, NoSpace, NotAuthorised, UsageError
from hinet_node.ports import Clock, Disk, Randomness
from hinet_node.vault import adding
from hinet_node.vault.acceptance import Acceptance
from hinet_node.vault.collect import Collector
from hinet_node.vault.counting import count
from hinet_node.vault.edits import Edit, Edits
from hinet_node.vault.finding import Placed
from hinet_node.vault.headstore import HeadStore
from hinet_node.vault.history import History
from hinet_node.vault.items import Household, Item, OnProgress, Trouble, VaultSettings
from hinet_node.vault.ledger import Ledger
from hinet_node.vault.looks import Looks
from hinet_node.vault.packstore import PackStore
from hinet_node.vault.pins import Pins
from hinet_node.vault.publish import Publisher
from hinet_node.vault.reader import ChunkReader
from hinet_node.vault.reseal import Reseal
from hinet_node.vault.retaining import Retaining
from hinet_node.vault.sources import Source, room_bytes, source_stat
from hinet_node.vault.twins import Twins
from hinet_node.vault.view import View, item_of
from hinet_node.vault.writer import PackWriter
from hinet_protocol.heads import Head, vault_digest
from hinet_protocol.reconcile import needs_of, whole_heads
from hinet_protocol.trees import Version

ARRIVALS_MAX = 4_096


class VaultCore:
    """One device's replica. Blocks on the disk; changes are made by one thread at a time."""

    def __init__(self, disk: Disk, randomness: Randomness, clock: Clock, household: Household,
                 settings: VaultSettings) -> None:
        self.disk = disk
        self.clock = clock
        self.randomness = randomness
        self.household = household
        self.settings = settings
        self.store = PackStore(disk, household, settings.index_path)
        self.heads = HeadStore(disk, household.identity_id, household.device_public, settings.heads_kept)
        self.reader = ChunkReader(self.store, household, self.note_damage)
        self.view = View(household)
        self.twins = Twins(self)
        own = self.heads.own()
        self.ledger = Ledger(disk, needs_of([own] if own else [], self.store.read_list).packs)
        self.pins = Pins(clock)
        self.collector = Collector(self)
        self.retaining = Retaining(household, self.store, self.heads, self.view, self.ledger, self.reader,
                                   self.collector.marker)
        self.publisher = Publisher(disk, randomness, clock, household, self.store, self.heads, self.view, settings,
                                   self.reader.pack_holding, lambda more: self.acceptance.given_up(more),
                                   self.twins, self.retaining, self.pins)
        self.reseal = Reseal(self)
        self.edits = Edits(self)
        self.history = History(self)
        self.looks = Looks(self.store.index, randomness.draw)
        self.acceptance = Acceptance(self)
        self.trouble: dict[tuple[str, bytes], Trouble] = {}
        """What is wrong now, by code and subject."""
        self.peers_hold: dict[bytes, frozenset[bytes]] = {}
        """Device -> hashes of the heads that it said it holds whole, as met since the start."""
        self.same_at: dict[bytes, bytes] = {}
        """Device -> the vault digest of both, if its last question since our last comparison found no difference."""
        self.scrub_days = 0
        """Within so many days every pack is verified in the background; 0 where nothing does that."""
        self.compared: dict[bytes, int] = {}
        """Device -> how often this one has compared with it, pulled and come to an end, since the start."""
        self.arrived_from: dict[bytes, str] = {}
        """Pack -> name of the sibling that it came from; the last ones."""
        self._digest: tuple[tuple[frozenset[bytes], int, int], bytes, frozenset[bytes]] = (
            (frozenset(), -1, -1), b"", frozenset())
        self._absorb_due = False
        """What siblings brought is in the view, and no head of this device says so yet."""
        self._take_up()
        self._take_up_older()
        # Power was lost between keeping a head that a copy of this device made and publishing one that joins the two.
        self._absorb_due |= any(head.hash not in self.heads.settled for head in self.heads.skipped())

    # ---- writing -------------------------------------------------------------------------------------------------

    def put(self, sources: Mapping[bytes, Source], on_progress: OnProgress | None, *,
            keep_past: bool = True) -> list[Item]:
        """Store files under one head. What they replace stays restorable if `keep_past`."""
        total = sum(len(source) if isinstance(source, bytes) else room_bytes(source_stat(source))
                    for source in sources.values() if not isinstance(source, Placed))
        adding.put(self, list(sources.items()), total, on_progress, keep_past=keep_past)
        return [item_of(name, *self._row(name)) for name in sources]

    def publish(self, writer: PackWriter, versions: Mapping[bytes, Version], *, keep_past: bool = True) -> None:
        """Publish these as edits of this device; without any, nothing is kept."""
        if versions:
            self.publisher.publish(writer, lambda seq: [
                self.edits.version(writer, Edit(name, version), seq, keep_past=keep_past)
                for name, version in versions.items()])
        else:
            writer.take_back()

    def check_room(self, size_bytes: int) -> None:
        """Before anything is written. Errors: `NoSpace`."""
        free = self.disk.free_bytes()
        if free < size_bytes + self.settings.reserve_bytes:
            raise NoSpace(
                f"The vault needs {_mebibytes(size_bytes)} MiB and keeps {_mebibytes(self.settings.reserve_bytes)} MiB "
                f"in reserve, but only {_mebibytes(free)} MiB are free on the disk. Nothing was written.",
                next_step="Free some space (`df -h`), then try again.")

    # ---- taking up what siblings have ----------------------------------------------------------------------------

    def accept(self, offered: Sequence[Head]) -> Sequence[Head]:
        """Keep heads whose packs are all held, take up their trees, publish that this device has them."""
        held = self.store.index.packs()
        whole = whole_heads(offered, held, self.store.read_list)
        if len(whole) < len(offered):
            whole = whole_heads(offered, held, self.store.read_list, self.acceptance.lost())
        kept = self.heads.keep(whole)
        self.twins.met(kept)
        # A head of this device that it did not make: its copy's. Others see only the newest, so it must hold both.
        copied = any(head.device == self.household.device_public for head in kept)
        self._absorb_due |= self._take_up() or copied or (self.heads.own() is None and bool(self.view.tree))
        self._take_up_older()
        self._absorb_due |= self.twins.due() > 0
        if (self._absorb_due or self.acceptance.must_speak()) and self.may_write() and not self.heads.lost():
            try:
                self.publisher.publish_twins()
                if self.acceptance.must_speak():
                    self.publish_settling(())
                else:
                    self.publisher.absorb()
                self._absorb_due = False
                self.settle("E_NO_SPACE", b"head")
            except NoSpace as error:
                self.note_error(error, b"head")
        return kept

    def publish_settling(self, heads: Iterable[bytes]) -> None:
        """Publish a head with the view as it is, which settles these heads. Errors: `NoSpace`, `NotAuthorised`."""
        self.publisher.publish(self.publisher.writer(), lambda seq: [], settles=heads)

    def head_due(self) -> bool:
        """Whether what is in the view has yet to be published, and may be."""
        return self._absorb_due and self.may_write() and not self.heads.lost()

    def may_write(self) -> bool:
        """Whether this device may make heads: it has the keys, and is a member."""
        try:
            self.publisher.epoch()
        except NotAuthorised:
            return False
        return True

    def _take_up(self) -> bool:
        if not self.household.epoch_keys():
            return False
        # This device's own first: whatever others bring, there is room for what is here already.
        own, current, suspects = self.household.device_public, self.heads.current(), self.twins.suspects()
        changed = self.view.take_up([head for head in current if head.device == own], self.reader, current,
                                    suspects=suspects)
        if self.ledger.unneeded:
            self.view.follow_changes()  # what others bring may refer to packs that were given up
        changed |= self.view.take_up(current, self.reader, suspects=suspects)
        self.twins.look(self.view.take_replaced())
        for code, subject in tuple(self.trouble):
            if code == "E_TREE_UNREADABLE":
                self.settle(code, subject)
        for head in self.heads.needed():
            why = self.view.unreadable.get(head.hash)
            if why is not None:
                self.note(Trouble("E_TREE_UNREADABLE", f"The newest state of {self.name_of(head.device)} can't be "
                                  f"read here yet: {why}", "It is tried again when packs or keys arrive. If they never "
                                  f"will: hinet-node vault accept-older --head {head.hash.hex()[:12]}"), head.hash)
        return changed

    def _take_up_older(self) -> None:
        """Where a device's newest tree can't be opened, the newest one before it that can stands in."""
        if not self.household.epoch_keys():
            return
        for device, head in self.heads.newest().items():
            if head.hash not in self.view.unreadable:
                continue
            for older in self.heads.older(device):
                self.view.take_up([older], self.reader, self.heads.current())
                if self.view.unreadable.pop(older.hash, None) is None:
                    break

    # ---- reading -------------------------------------------------------------------------------------------------

    def shown(self) -> Mapping[bytes, tuple[Version, bytes | None]]:
        """Name shown -> version, and the name it competes for. Errors: `NotAuthorised` on a keeper."""
        self.refuse_keeper()
        return self.view.shown()

    def version(self, name: bytes) -> tuple[Version, bytes | None]:
        """Errors: `UsageError` E_NO_SUCH_FILE, `NotAuthorised`."""
        self.refuse_keeper()
        return self._row(name)

    def _row(self, name: bytes) -> tuple[Version, bytes | None]:
        row = self.view.lookup(name)
        if row is None:
            raise UsageError(f"The vault holds no file {name.decode('utf-8', 'backslashreplace')!r}.",
                             code="E_NO_SUCH_FILE", next_step="`hinet-node vault ls` lists the files.")
        return row

    def refuse_keeper(self) -> None:
        """Errors: `NotAuthorised` on a device without keys."""
        if not self.household.epoch_keys():
            raise NotAuthorised("This device is a keeper: it holds the vault without the key and can't read it.",
                                next_step="Read it on a device with the role member or admin.")

    def content(self, version: Version) -> Iterator[bytes]:
        """The content in chunks; the last check, of the whole digest, comes after the last chunk. Errors:
        `IntegrityError`."""
        state, left = blake3(), version.size
        for piece in self.reader.content(version):
            left -= len(piece)
            if left < 0:
                break  # a few chunks, named over and over, would be a file without end
            state.update(piece)
            yield piece
        if left or state.digest() != version.digest:
            raise IntegrityError("A file's content does not match its digest.", next_step="Run "
                                 "`hinet-node vault verify --deep`, then try again when a sibling is in reach.")

    # ---- what is known -------------------------------------------------------------------------------------------

    def needed_heads(self) -> Sequence[Head]:
        """The heads whose packs are wanted here: those that nobody settled and that count (SPEC.md, 6.10)."""
        overruled = count(self.heads, self.household, self.ledger).overruled
        return [head for head in self.heads.needed() if head not in overruled]

    def offered_heads(self) -> list[Head]:
        """What is told to siblings: of each device that may write now the newest head, and those that contradict each
        other, but settled ones. This device's newest is told in any case: nobody else may have it. An older one alone
        is old to whoever did not see why it counts here, and goes on in the heads of those who took it up."""
        members, own = self.household.members(), self.heads.own()
        told = [head for head in self.heads.needed() if head.device in members]
        newest = {head.device: head.seq for head in self.heads.newest().values()}
        count = Counter((head.device, head.seq) for head in told)
        return [head for head in (*told, *((own,) if own and own.device in members and own not in told else ()))
                if head.seq == newest[head.device] or count[head.device, head.seq] > 1]

    def digest(self) -> bytes:
        """What is compared with siblings first: the offered heads, and those packs that are needed and held."""
        hashes = frozenset(head.hash for head in self.offered_heads())
        state = (hashes, self.store.index.changes, self.ledger.changes)
        if self._digest[0] != state:
            needs = needs_of([head for head in self.needed_heads() if head.hash in hashes], self.store.read_list)
            held = self.store.index.packs()
            names = frozenset(name for name in needs.packs if name in held)
            self._digest = (state, vault_digest(state[0], names), names)
        return self._digest[1]

    # ---- what siblings said --------------------------------------------------------------------------------------

    def met_equal(self, device: bytes) -> None:
        """A sibling's vault digest was this device's own: it holds the same heads, and the same packs of these."""
        self.digest()
        self.pins.await_for(device, ())
        self.peers_hold[device] = self.head_hashes()
        self.store.notes.said(device, self._digest[2], self.publisher.now())

    def met(self, device: bytes, packs: Collection[bytes]) -> None:
        """A sibling said which packs it holds."""
        self.store.notes.said(device, packs, self.publisher.now())

    def note_arrival(self, pack: bytes, sibling: str) -> None:
        self.arrived_from.pop(pack, None)
        self.arrived_from[pack] = sibling
        while len(self.arrived_from) > ARRIVALS_MAX:
            del self.arrived_from[next(iter(self.arrived_from))]

    # ---- trouble -------------------------------------------------------------------------------------------------

    def set_aside(self, pack: bytes) -> bool:
        """Take a damaged pack out of use, so that it is fetched again; False for one that is whole by now."""
        self.reader.forget(pack)
        if not self.store.set_aside(pack):
            return False
        self.note_damage(pack)
        return True

    def take_up_again(self) -> None:
        """Chunks were saved: what could not be opened for want of them is tried again."""
        self._take_up()
        self._take_up_older()

    def in_doubt(self) -> bool:
        """Whether this device does not know its own last state of the vault now."""
        try:
            self.publisher.refuse_doubt()
        except IntegrityError:
            return True
        return False

    def has_damage(self) -> bool:
        """A pack was set aside and has not come again."""
        return any(code == "E_PACK_DAMAGED" for code, _ in tuple(self.trouble))

    def head_hashes(self) -> frozenset[bytes]:
        return frozenset(head.hash for head in self.heads.current())

    def name_of(self, device: bytes) -> str:
        """A device's name for a person."""
        name = self.household.names().get(device)
        return f"{name} ({device.hex()[:8]})" if name else f"device {device.hex()[:16]}"

    def note(self, trouble: Trouble, subject: bytes = b"") -> None:
        self.trouble[trouble.code, subject] = trouble

    def note_error(self, error: NodeError, subject: bytes = b"") -> None:
        self.note(Trouble(error.code, error.what, error.next_step or ""), subject)

    def settle(self, code: str, subject: bytes = b"") -> None:
        self.trouble.pop((code, subject), None)

    def note_damage(self, pack: bytes) -> None:
        """A pack was set aside."""
        self.view.forget_pages()
        self.note_error(self.store.damaged_error(pack), pack)


def _mebibytes(count: int) -> int:
    return -(-count // (1 << 20))
