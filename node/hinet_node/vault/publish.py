"""Publishing a head: tree sealed, packs durable, number reserved, head signed and durable, in that order. SPEC.md, 6.5.

Leaves the content of files to `vault`, the merged view to `view`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.ports import Clock, Disk, Randomness
from hinet_node.vault.headstore import HeadStore
from hinet_node.vault.items import Household, VaultSettings
from hinet_node.vault.packstore import PackStore
from hinet_node.vault.twins import Twins
from hinet_node.vault.view import View
from hinet_node.vault.writer import PackWriter
from hinet_protocol.heads import (
    Head,
    encode_pack_list,
    make_head,
    pack_list_names_max,
    pack_lists_max,
    packs_inline_max,
    settles_max,
)
from hinet_protocol.packs import pack_name
from hinet_protocol.trees import Version, join

MakeVersions = Callable[[int], list[tuple[bytes, Version]]]
"""From the number of the head to the versions that it brings."""


class Publisher:
    """Makes this device's heads. Blocks on the disk; used under the vault's writing lock."""

    def __init__(self, disk: Disk, randomness: Randomness, clock: Clock, household: Household, store: PackStore,
                 heads: HeadStore, view: View, settings: VaultSettings,
                 holding: Callable[[bytes], bytes | None],
                 given_up: Callable[[Collection[bytes]], Collection[bytes]], twins: Twins) -> None:
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
        return PackWriter(self._disk, self._randomness, self._store, *self.epoch(), self._settings.pack_bytes,
                          self._holding)

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
        own, before = self._heads.own(), self._before()
        settling = self._settling(settles)
        taken = [head for head in self._heads.current() if head.hash not in self._view.unreadable]
        packs = set(writer.packs)
        lists: set[bytes] = set()
        for head in (*taken, *((own,) if own else ())):
            packs.update(head.packs)
            lists.update(head.lists)
        given_up = {*self._given_up(settling), *self.replaced}
        if given_up:
            packs, lists = self._without(given_up, packs, lists)
        inline, listed = self._retain(packs, lists)
        tree_pack = self._holding(root)
        if tree_pack is None:
            raise IntegrityError("The tree that was just written is not on disk.",
                                 next_step="Run `hinet-node vault verify`, then try again.")
        return make_head(
            self._household.sign, identity=self._household.identity_id, device=self._household.device_public, seq=seq,
            prev=before.hash if before else b"", epoch=epoch_id, tree_chunk=root, tree_pack=tree_pack, packs=inline,
            lists=listed, vector=join([*(head.vector for head in taken), ((self._household.device_public, seq),)]),
            time=self.now(), settles=settling)

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

    def _without(self, given_up: Collection[bytes], packs: set[bytes],
                 lists: set[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Packs and lists that leave out what is given up. Of a list that is lost nobody knows what it named: then
        everything that is held is named."""
        packs, kept = packs.difference(given_up), set[bytes]()
        for name in sorted(lists):
            names = self._store.read_list(name)
            if name in given_up:
                packs.update(self._store.index.packs())
            elif names is None or not any(one in given_up for one in names):
                kept.add(name)
            else:
                packs.update(one for one in names if one not in given_up)
        return packs, kept

    def _retain(self, packs: set[bytes], lists: set[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Name the packs in the head itself while they are few, else in pack lists, which are written here."""
        if len(packs) <= packs_inline_max and len(lists) <= pack_lists_max:
            return packs, lists
        known = {name: self._store.read_list(name) for name in lists}
        listed = {name for names in known.values() for name in names or ()}
        packs = packs - listed
        if len(packs) <= packs_inline_max and len(lists) <= pack_lists_max:
            return packs, lists
        if len(lists) < pack_lists_max:
            return set(), lists | self._write_lists(packs)
        readable = {name for name, names in known.items() if names is not None}
        return set(), (lists - readable) | self._write_lists(packs | listed)

    def _write_lists(self, packs: Iterable[bytes]) -> set[bytes]:
        ordered = sorted(packs)
        made = set()
        for at in range(0, len(ordered), pack_list_names_max):
            raw = encode_pack_list(ordered[at:at + pack_list_names_max])
            name = pack_name(raw)
            self._store.add_whole(name, raw)
            made.add(name)
        return made
