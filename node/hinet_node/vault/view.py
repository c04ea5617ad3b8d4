"""The merged view of all heads, in memory, and the pages of this device's own tree. SPEC.md, 6.3.

Leaves opening chunks to `reader`, sealing to `writer`, heads on disk to `headstore`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from hinet_node.errors import IntegrityError, NoSpace, NotAuthorised
from hinet_node.vault.items import Household, Item
from hinet_node.vault.pages import PageTable
from hinet_node.vault.reader import ChunkReader
from hinet_node.vault.writer import PackWriter
from hinet_protocol import trees
from hinet_protocol.errors import LimitError, TreeMalformed
from hinet_protocol.heads import Head
from hinet_protocol.packs import TREE_PAGE, TREE_ROOT
from hinet_protocol.trees import (
    PageRef,
    Version,
    Versions,
    check_room,
    decode_root,
    encode_page,
    encode_root,
    join,
    merge_into,
    shown,
    shown_beside,
)


class View:
    """All versions of all files, as the heads that could be opened say. Changed under the vault's writing lock only;
    `shown` may be asked for from any thread and gives a value that never changes."""

    def __init__(self, household: Household) -> None:
        self._household = household
        self._lock = threading.RLock()
        self.tree: dict[bytes, Versions] = {}
        self.unreadable: dict[bytes, str] = {}
        """Head hash -> why its tree could not be opened yet."""
        self._taken_heads: set[bytes] = set()
        self._taken_pages: set[bytes] = set()
        self._pages = PageTable()
        self._pages_epoch = b""
        self._contested: set[bytes] = set()
        self._replaced: list[tuple[bytes, Version]] = []
        self._beside: dict[bytes, tuple[Version, bytes]] | None = None
        self._shown: dict[bytes, tuple[Version, bytes | None]] | None = None
        self._changed_names: set[bytes] | None = None
        self._order: list[bytes] | None = None

    # ---- taking heads up -----------------------------------------------------------------------------------------

    def take_up(self, heads: Sequence[Head], reader: ChunkReader, known: Iterable[Head] = (),
                suspects: Collection[bytes] = ()) -> bool:
        """Merge the trees of heads; whether anything changed. A head that can't be opened stays in `unreadable` and is
        tried again the next time. What versions say they have seen is held against these heads and `known` ones, and
        against who is, or was, in the household. Versions that stood here, or that come from `suspects`, and were
        replaced are kept for `take_replaced`."""
        changed = False
        devices = self._household.names()
        numbers = {device: number for device, number in join(head.vector for head in (*heads, *known))
                   if device in devices}
        for head in heads:
            if head.hash in self._taken_heads:
                continue
            try:
                changed |= self._take_tree(head, reader, numbers, suspects)
            except (IntegrityError, NotAuthorised, TreeMalformed, LimitError) as error:
                self.unreadable[head.hash] = str(error)
                continue
            self._taken_heads.add(head.hash)
            self.unreadable.pop(head.hash, None)
        return changed

    def take_replaced(self) -> list[tuple[bytes, Version]]:
        """What was replaced since the last call: name and version."""
        found, self._replaced = self._replaced, []
        return found

    def _take_tree(self, head: Head, reader: ChunkReader, numbers: Mapping[bytes, int],
                   suspects: Collection[bytes]) -> bool:
        fresh = [page for page in decode_root(reader.read(head.tree_chunk))
                 if page.chunk_id not in self._taken_pages]
        # All pages are opened before the first is merged, so that a head counts whole or not at all.
        brought: dict[bytes, Versions] = {}
        left = trees.tree_bytes_max
        for page in fresh:
            raw = reader.read(page.chunk_id)
            left -= len(raw)
            if left < 0:
                raise LimitError(f"The tree has more than {trees.tree_bytes_max} bytes that are new here.")
            entries = page.decode(raw)
            _refuse_future(entries, numbers)
            merge_into(brought, entries)
        check_room(self.tree, brought)
        stood = {name: before for name, versions in brought.items()
                 if (before := self.tree.get(name)) is not None and before != versions}
        with self._lock:
            changed = merge_into(self.tree, brought)
            self._taken_pages.update(page.chunk_id for page in fresh)
            self._touch(changed)
        for name, before in stood.items():
            came = [version for version in brought[name] if version.device in suspects]
            self._replaced += [(name, version) for version in (*before, *came) if version not in self.tree[name]]
        return bool(changed)

    def merge(self, entries: Mapping[bytes, Versions]) -> bool:
        """Merge what some tree said, without a head that vouches for it; whether anything changed. Errors: `LimitError`
        when there is no room for it."""
        check_room(self.tree, entries)
        with self._lock:
            changed = merge_into(self.tree, entries)
            self._touch(changed)
        return bool(changed)

    def has_taken(self, head_hash: bytes) -> bool:
        """Whether the tree of this head is in the view."""
        return head_hash in self._taken_heads

    def put(self, versions: Iterable[tuple[bytes, Version]]) -> list[tuple[bytes, Versions | None]]:
        """Enter versions of this device; what was there before, for `undo`. Errors: `NoSpace` E_LIMIT, and then none
        was entered."""
        before, versions = [], list(versions)
        try:
            check_room(self.tree, {name: (version,) for name, version in versions})
        except LimitError as error:
            raise NoSpace(f"{error} Nothing was written.", code="E_LIMIT",
                          next_step="Put small files together into one (`tar`), and add that.") from None
        with self._lock:
            for name, version in versions:
                before.append((name, self.tree.get(name)))
                merge_into(self.tree, {name: (version,)})
            self._touch(name for name, _ in before)
        return before

    def undo(self, before: Iterable[tuple[bytes, Versions | None]]) -> None:
        """Take back a `put` whose head could not be published."""
        rows = list(before)
        with self._lock:
            for name, versions in reversed(rows):
                if versions is None:
                    self.tree.pop(name, None)
                else:
                    self.tree[name] = versions
            self._touch(name for name, _ in rows)

    def _touch(self, names: Iterable[bytes]) -> None:
        changed = set(names)
        self._pages.touch(changed)
        if self._changed_names is not None:
            self._changed_names |= changed
        for name in changed:
            if len(self.tree.get(name, ())) > 1:
                self._contested.add(name)
            else:
                self._contested.discard(name)
        self._shown = self._beside = self._order = None

    # ---- for collecting ------------------------------------------------------------------------------------------

    def follow_changes(self) -> None:
        """Remember from now on which names change."""
        with self._lock:
            self._changed_names = self._changed_names or set()

    def changed_names(self) -> frozenset[bytes]:
        """The names that changed since `follow_changes`, or since they were last forgotten."""
        with self._lock:
            return frozenset(self._changed_names or ())

    def forget_changed_names(self) -> None:
        with self._lock:
            if self._changed_names is not None:
                self._changed_names.clear()

    def names(self) -> list[bytes]:
        """All names, deleted ones included, in no order that matters."""
        with self._lock:
            return list(self.tree)

    def versions(self, names: Iterable[bytes]) -> list[tuple[bytes, Versions]]:
        """These names with their versions, as they are now."""
        with self._lock:
            return [(name, self.tree[name]) for name in names if name in self.tree]

    # ---- writing the tree ----------------------------------------------------------------------------------------

    def write_tree(self, writer: PackWriter, epoch_id: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """Seal the pages that changed, then the root: (root's chunk id, all page ids)."""
        with self._lock:
            if epoch_id != self._pages_epoch:
                self._pages.forget()
                self._pages_epoch = epoch_id
            rows = []
            for page in self._pages.update(self.tree):
                if page.chunk_id is None:
                    page.chunk_id = writer.add(TREE_PAGE, encode_page(self.tree, page.names))
                rows.append(PageRef(page.names[0], page.chunk_id, len(page.names)))
        return writer.add(TREE_ROOT, encode_root(rows)), tuple(row.chunk_id for row in rows)

    def published(self, head: Head, page_ids: Iterable[bytes]) -> None:
        """The head that carries the written tree is durable."""
        self._taken_heads.add(head.hash)
        self._taken_pages.update(page_ids)

    def forget_pages(self) -> None:
        """Seal all pages anew the next time: a put failed and took its packs back, or a pack was set aside."""
        with self._lock:
            self._pages.forget()

    # ---- reading -------------------------------------------------------------------------------------------------

    def shown(self) -> dict[bytes, tuple[Version, bytes | None]]:
        """Name shown -> version and, for a concurrent edit, the name it competes for. Not to be changed."""
        with self._lock:
            if self._shown is None:
                self._shown = shown(self.tree)
            return self._shown

    def order(self) -> list[bytes]:
        """The names of `shown`, sorted: made once, so that a long list can be asked for page by page. Not to be
        changed."""
        with self._lock:
            if self._order is None:
                self._order = sorted(self.shown())
            return self._order

    def lookup(self, name: bytes) -> tuple[Version, bytes | None] | None:
        """One row of `shown`, without making all of it."""
        with self._lock:
            versions = self.tree.get(name)
            if versions and not versions[0].deleted:
                return versions[0], None
            if self._beside is None:
                self._beside = shown_beside(self.tree, self._contested)
            return self._beside.get(name)

    def contested(self) -> list[bytes]:
        """The names with more than one version, sorted."""
        with self._lock:
            return sorted(self._contested)


def _refuse_future(page: Mapping[bytes, Versions], numbers: Mapping[bytes, int]) -> None:
    """A version that has seen what nobody wrote yet would hide it when it comes; one that has seen a thousand devices
    that never were leaves no room for those that are. Raises TreeMalformed."""
    for versions in page.values():
        for version in versions:
            if any(number > numbers.get(device, 0)
                   for device, number in (*version.seen, (version.device, version.counter))):
                raise TreeMalformed("A file's version claims to have seen what no head has brought yet.")


def item_of(name: bytes, version: Version, conflict_of: bytes | None) -> Item:
    """A version as the vault shows it."""
    return Item(name, version.size, version.digest, version.device, version.time, conflict_of)
