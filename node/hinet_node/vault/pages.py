"""The pages of this device's tree, kept up as names change, so that one edit costs one page. SPEC.md, 6.3.

Leaves where pages are cut to `hinet_protocol.trees`, sealing them to `view`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from hinet_protocol.trees import Tree, cut_pages, is_closed


@dataclass(slots=True)
class Page:
    """One page. `chunk_id` is None until it was sealed since its last change."""

    names: list[bytes]
    chunk_id: bytes | None = None


class PageTable:
    """The same pages as `cut_pages` over the whole tree gives, made from the last ones and the names that changed."""

    def __init__(self) -> None:
        self._pages: list[Page] = []
        self._firsts: list[bytes] = []
        self._changed: set[bytes] = set()

    def touch(self, names: Iterable[bytes]) -> None:
        """These names were added, or their versions changed."""
        self._changed.update(names)

    def forget(self) -> None:
        """Cut and seal everything anew the next time: names went away, or pages were lost."""
        self._pages, self._firsts = [], []
        self._changed.clear()

    def update(self, tree: Tree) -> list[Page]:
        """The pages of the tree now, in order; not to be changed except for `chunk_id`."""
        if not self._pages:
            self._pages = [Page(names) for names in cut_pages(tree, sorted(tree))]
            self._firsts = [page.names[0] for page in self._pages]
        else:
            groups: dict[int, set[bytes]] = {}
            for name in self._changed:
                groups.setdefault(max(0, bisect_right(self._firsts, name) - 1), set()).add(name)
            for at in sorted(groups, reverse=True):
                self._recut(tree, at, groups[at])
        self._changed.clear()
        return self._pages

    def _recut(self, tree: Tree, at: int, changed: set[bytes]) -> None:
        names, end = sorted(changed.union(self._pages[at].names)), at + 1
        while True:
            parts = list(cut_pages(tree, names))
            if end == len(self._pages) or is_closed(tree, parts[-1]):
                break
            names += self._pages[end].names
            end += 1
        self._pages[at:end] = [Page(part) for part in parts]
        self._firsts[at:end] = [part[0] for part in parts]
