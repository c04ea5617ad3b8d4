"""The merged view of all heads, in memory, and the pages of this device's own tree. SPEC.md, 6.3.

Leaves opening chunks to `reader`, sealing to `writer`, heads on disk to `headstore`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_node.vault.items import Item
from hinet_node.vault.reader import ChunkReader
from hinet_node.vault.writer import PackWriter
from hinet_protocol.errors import TreeMalformed
from hinet_protocol.heads import Head
from hinet_protocol.packs import TREE_PAGE, TREE_ROOT
from hinet_protocol.trees import (
    PageRef,
    Version,
    Versions,
    cut_pages,
    decode_page,
    decode_root,
    encode_page,
    encode_root,
    merge_into,
    shown,
)


@dataclass(frozen=True, slots=True)
class _Page:
    last: bytes
    entries: int
    chunk_id: bytes


class View:
    """All versions of all files, as the heads that could be opened say. Changed under the vault's writing lock only;
    `shown` may be asked for from any thread and gives a value that never changes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.tree: dict[bytes, Versions] = {}
        self.unreadable: dict[bytes, str] = {}
        """Head hash -> why its tree could not be opened yet."""
        self._taken_heads: set[bytes] = set()
        self._taken_pages: set[bytes] = set()
        self._pages: dict[bytes, _Page] = {}
        self._pages_epoch = b""
        self._dirty: set[bytes] = set()
        self._shown: dict[bytes, tuple[Version, bytes | None]] | None = None

    # ---- taking heads up -----------------------------------------------------------------------------------------

    def take_up(self, heads: Iterable[Head], reader: ChunkReader) -> bool:
        """Merge the trees of heads; whether anything changed. A head that can't be opened stays in `unreadable` and is
        tried again the next time."""
        changed = False
        for head in heads:
            if head.hash in self._taken_heads:
                continue
            try:
                changed |= self._take_tree(head, reader)
            except (IntegrityError, NotAuthorised, TreeMalformed) as error:
                self.unreadable[head.hash] = str(error)
                continue
            self._taken_heads.add(head.hash)
            self.unreadable.pop(head.hash, None)
        return changed

    def _take_tree(self, head: Head, reader: ChunkReader) -> bool:
        fresh = [page.chunk_id for page in decode_root(reader.read(head.tree_chunk))
                 if page.chunk_id not in self._taken_pages]
        # All pages are opened before the first is merged, so that a head counts whole or not at all.
        pages = {chunk: decode_page(reader.read(chunk)) for chunk in fresh}
        changed: list[bytes] = []
        with self._lock:
            for chunk, page in pages.items():
                changed += merge_into(self.tree, page)
                self._taken_pages.add(chunk)
            self._touch(changed)
        return bool(changed)

    def put(self, versions: Iterable[tuple[bytes, Version]]) -> list[tuple[bytes, Versions | None]]:
        """Enter versions of this device; what was there before, for `undo`."""
        before = []
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
        self._dirty.update(names)
        self._shown = None

    # ---- writing the tree ----------------------------------------------------------------------------------------

    def write_tree(self, writer: PackWriter, epoch_id: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """Seal the pages that are not held yet, then the root: (root's chunk id, all page ids)."""
        if epoch_id != self._pages_epoch:
            self._pages, self._pages_epoch = {}, epoch_id
        pages: dict[bytes, _Page] = {}
        for names in cut_pages(self.tree):
            known = self._pages.get(names[0])
            if (known is None or (known.last, known.entries) != (names[-1], len(names))
                    or not self._dirty.isdisjoint(names)):
                known = _Page(names[-1], len(names), writer.add(TREE_PAGE, encode_page(self.tree, names)))
            else:
                writer.add_held(TREE_PAGE, known.chunk_id, functools.partial(encode_page, self.tree, names))
            pages[names[0]] = known
        root = writer.add(TREE_ROOT, encode_root([PageRef(first, page.chunk_id, page.entries)
                                                  for first, page in pages.items()]))
        self._pages = pages
        self._dirty.clear()
        return root, tuple(page.chunk_id for page in pages.values())

    def published(self, head: Head, page_ids: Iterable[bytes]) -> None:
        """The head that carries the written tree is durable."""
        self._taken_heads.add(head.hash)
        self._taken_pages.update(page_ids)

    def forget_pages(self) -> None:
        """After a failed put: the pages that it made were taken back."""
        self._pages = {}

    # ---- reading -------------------------------------------------------------------------------------------------

    def shown(self) -> dict[bytes, tuple[Version, bytes | None]]:
        """Name shown -> version and, for a concurrent edit, the name it competes for. Not to be changed."""
        with self._lock:
            if self._shown is None:
                self._shown = shown(self.tree)
            return self._shown


def item_of(name: bytes, version: Version, conflict_of: bytes | None) -> Item:
    """A version as the vault shows it."""
    return Item(name, version.size, version.digest, version.device, version.time, conflict_of)
