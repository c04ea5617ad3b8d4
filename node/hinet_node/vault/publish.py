"""Publishing a head: tree sealed, packs durable, number reserved, head signed and durable, in that order. SPEC.md, 6.5.

Leaves the content of files to `vault`, the merged view to `view`, which packs a head retains to `retaining`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.ports import Clock, Disk, Randomness
from hinet_node.vault.headstore import HeadStore
from hinet_node.vault.items import Household, VaultSettings
from hinet_node.vault.packstore import PackStore
from hinet_node.vault.pins import Pins
from hinet_node.vault.retaining import Retaining
from hinet_node.vault.twins import Twins
from hinet_node.vault.view import View
from hinet_node.vault.writer import PackWriter
from hinet_protocol.heads import Head, make_head, settles_max
from hinet_protocol.limits import devices_max
from hinet_protocol.trees import Vector, Version, join

MakeVersions = Callable[[int], list[tuple[bytes, Version]]]
"""From the number of the head to the versions that it brings."""


class Publisher:
    """Makes this device's heads. Blocks on the disk; used under the vault's writing lock."""

    def __init__(self, disk: Disk, randomness: Randomness, clock: Clock, household: Household, store: PackStore,
                 heads: HeadStore, view: View, settings: VaultSettings, holding: Callable[[bytes], bytes | None],
                 given_up: Callable[[Collection[bytes]], Collection[bytes]], twins: Twins, retaining: Retaining,
                 pins: Pins) -> None:
        self._disk = disk
        self._randomness = randomness
        self._clock = clock
        self._household = household
        self._store = store
        self._heads = heads
        self._view = view
        self._settings = settings
        self._holding = holding
        self._given_up = given_up
        self.replaced: frozenset[bytes] = frozenset()
        """Packs that are lost, and of which everything was saved: new heads do not name them."""
        self._twins = twins
        self._retaining = retaining
        self._pins = pins

    def epoch(self) -> tuple[bytes, bytes]:
        """Id and key of the epoch that new data is sealed under. Errors: `NotAuthorised`."""
        epoch_id = self._household.current_epoch()
        key = None if epoch_id is None else self._household.epoch_keys().get(epoch_id)
        if epoch_id is None or key is None:
            raise NotAuthorised("This device holds no key of the vault, so it can't write to it.",
                                next_step="Do this on a device with the role member or admin (`hinet-node devices`).")
        if self._household.device_public not in self._household.members():
            raise NotAuthorised("This device may not write to the vault: it is a keeper, or was revoked.",
                                next_step="Do this on a device with the role member or admin (`hinet-node devices`).")
        return epoch_id, key

    def refuse_doubt(self) -> None:
        """A new head takes the place of the last one: a device that has lost its last one writes none, since it would
        hide what only that brought, or use its number again. Errors: `IntegrityError` E_VAULT_DOUBT."""
        if self._heads.lost():
            raise IntegrityError(
                "This device's newest record of its own vault is damaged or gone, so nothing is written over it.",
                code="E_VAULT_DOUBT",
                next_step="`hinet-node vault repair` takes it from a sibling, or saves what is left.")

    def writer(self) -> PackWriter:
        """A writer under the current epoch. Errors: `NotAuthorised`, `IntegrityError` E_VAULT_DOUBT."""
        self.epoch()
        self.refuse_doubt()
        return self.writer_for_repair()

    def writer_for_repair(self) -> PackWriter:
        """A writer also while there is doubt. Errors: `NotAuthorised`."""
        writer = PackWriter(self._disk, self._randomness, self._store, *self.epoch(), self._settings.pack_bytes,
                            self._holding)
        self._pins.hold(writer)
        return writer

    def now(self) -> int:
        return max(0, int(self._clock.now_unix_s()))

    def publish(self, writer: PackWriter, make_versions: MakeVersions, *, settles: Iterable[bytes] = ()) -> Head:
        """Publish a head that has the view and these versions, and settles these heads beside those that the owner
        settled before. On an error the view is as before, and the packs are
        taken back unless the head may have reached the disk."""
        try:
            self.publish_twins()
        except BaseException:
            writer.take_back()
            raise
        return self._publish(writer, make_versions, settles)

    def publish_twins(self) -> None:
        """Publish heads for versions that would vanish, if there are any."""
        for _ in range(self._twins.due()):
            if self._twins.due():
                self._publish(self.writer(), self._twins.anew, ())

    def _publish(self, writer: PackWriter, make_versions: MakeVersions, settles: Iterable[bytes]) -> Head:
        epoch_id, _ = self.epoch()
        before = None
        try:
            seq = self._heads.reserve()
            before = self._view.put(make_versions(seq))
            root, page_ids = self._view.write_tree(writer, epoch_id)
            writer.finish()
            head = self._head(writer, epoch_id, seq, root, settles)
        except BaseException:
            self._view.undo(before or ())
            self._view.forget_pages()
            writer.take_back()
            raise
        try:
            self._heads.keep([head])
        except BaseException:
            # The write may have reached the disk before it failed: then its packs are needed at the next start.
            self._view.undo(before)
            self._view.forget_pages()
            raise
        self._view.published(head, page_ids)
        return head

    def absorb(self) -> Head | None:
        """Publish that this device has taken up what the siblings' heads brought; None when its own tree says it
        already. The pages are the siblings' own where the trees are equal, so this seldom makes a pack."""
        own = self._heads.own()
        writer = self.writer()
        try:
            root, page_ids = self._view.write_tree(writer, self.epoch()[0])
            if own is not None and own.tree_chunk == root:
                self._view.published(own, page_ids)
                writer.take_back()
                return None
        except BaseException:
            self._view.forget_pages()
            writer.take_back()
            raise
        return self.publish(writer, lambda seq: [])

    # ---- inside --------------------------------------------------------------------------------------------------

    def _head(self, writer: PackWriter, epoch_id: bytes, seq: int, root: bytes, settles: Iterable[bytes]) -> Head:
        before = self._before()
        settling = self._settling(settles)
        taken = [head for head in self._heads.current() if head.hash not in self._view.unreadable]
        tree_pack = self._holding(root)
        if tree_pack is None:
            raise IntegrityError("The tree that was just written is not on disk.",
                                 next_step="Run `hinet-node vault verify`, then try again.")
        given_up = {*self._given_up(settling), *self.replaced}
        inline, listed = self._retaining.sets({*writer.packs, tree_pack}, given_up)
        return make_head(
            self._household.sign, identity=self._household.identity_id, device=self._household.device_public, seq=seq,
            prev=before.hash if before else b"", epoch=epoch_id, tree_chunk=root, tree_pack=tree_pack, packs=inline,
            lists=listed, vector=self._vector(taken, seq),
            time=self.now(), settles=settling)

    def _vector(self, taken: Iterable[Head], seq: int) -> Vector:
        """What this device has taken up. Devices that never were in the household are left out, whoever lists them: a
        head has room for so many."""
        devices, members = self._household.names(), self._household.members()
        rows = [row for row in join(head.vector for head in taken) if row[0] in devices
                and row[0] != self._household.device_public]
        rows.sort(key=lambda row: row[0] not in members)
        return tuple(sorted([*rows[:devices_max - 1], (self._household.device_public, seq)]))

    def _before(self) -> Head | None:
        """The own head that the view was made from: the newest one, unless that can't be read."""
        own = self._heads.own()
        if own is None or self._view.has_taken(own.hash):
            return own
        return next((head for head in self._heads.older(self._household.device_public)
                     if self._view.has_taken(head.hash)), None)

    def _settling(self, wanted: Iterable[bytes]) -> tuple[bytes, ...]:
        """What the next head settles: `wanted`; own heads that could not be read once and are in the view now; what was
        settled before, as long as anybody may still look at it."""
        new = sorted({*wanted, *(head.hash for head in self._heads.skipped() if self._view.has_taken(head.hash))})
        own = self._heads.own()
        looked_at = {head.hash for head in self._heads.current()}
        before = [settled for settled in (own.settles if own else ()) if settled in looked_at and settled not in new]
        return tuple(sorted((new + before)[:settles_max]))
