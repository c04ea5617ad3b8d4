"""What this device's next head retains: the packs of its own head and of all heads that count, less those that it has
found not to need. SPEC.md, 6.4 and 6.10.

A few packs stand in the head itself, more in pack lists. A list is a file that never changes, so it is named again
while every pack in it is retained, and replaced by a new one when one is not. Leaves finding out what is needed to
`marking`, the head itself to `publish`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from hinet_node.errors import NodeError
from hinet_node.vault.counting import count
from hinet_node.vault.headstore import HeadStore
from hinet_node.vault.items import Household
from hinet_node.vault.ledger import Ledger
from hinet_node.vault.marking import Marker
from hinet_node.vault.packstore import PackStore
from hinet_node.vault.reader import ChunkReader
from hinet_node.vault.view import View
from hinet_protocol.heads import encode_pack_list, pack_list_names_max, pack_lists_max, packs_inline_max
from hinet_protocol.packs import pack_name


class Retaining:
    """Blocks on the disk; used under the vault's writing lock."""

    def __init__(self, household: Household, store: PackStore, heads: HeadStore, view: View, ledger: Ledger,
                 reader: ChunkReader, marker: Callable[[], Marker]) -> None:
        self._household = household
        self._store = store
        self._heads = heads
        self._view = view
        self._ledger = ledger
        self._reader = reader
        self._marker = marker

    def sets(self, fresh: Collection[bytes], lost: Collection[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Packs and pack lists for the next head, which also needs the packs `fresh`. New lists are on disk then.
        `lost` are packs and lists that nobody holds and that the owner gave up (6.11); of a list that is lost nobody
        knows what it named: then everything that is held is."""
        own = self._heads.own()
        sources = [head for head in count(self._heads, self._household, self._ledger).heads
                   if head.hash not in self._view.unreadable]
        if own is not None and own not in sources:
            sources.append(own)
        packs, lists = set(fresh), set[bytes]()
        for head in sources:
            packs.update(head.packs)
            lists.update(head.lists)
        if self._ledger.unneeded:
            self._ledger.take_out(fresh)
            self._ledger.take_out(self.reached_again(self._ledger.unneeded))
        unneeded = self._ledger.unneeded
        if not unneeded and not lost and len(packs) <= packs_inline_max and len(lists) <= pack_lists_max:
            return packs, lists
        known = {name: self._store.read_list(name) for name in sorted(lists)}
        readable = {name: frozenset(names) for name, names in known.items() if names is not None}
        if any(name in lost for name in lists):
            packs.update(self._store.index.packs())
        packs = packs.union(*readable.values()) - unneeded - frozenset(lost)
        unreadable = {name for name, names in known.items() if names is None and name not in lost}
        return self._arrange(packs, {name: names for name, names in readable.items() if name not in lost}, unreadable)

    def _arrange(self, packs: set[bytes], readable: Mapping[bytes, frozenset[bytes]],
                 unreadable: set[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Cover the packs with lists that are there already, and put the rest into the head or into a new list."""
        rest, lists = set(packs), set(unreadable)
        for name, names in sorted(readable.items(), key=lambda row: (-len(row[1]), row[0])):
            if names <= packs and not names.isdisjoint(rest):
                lists.add(name)
                rest -= names
        if len(rest) > packs_inline_max and len(lists) < pack_lists_max:
            lists |= self._write_lists(rest)
            rest = set()
        if len(rest) > packs_inline_max or len(lists) > pack_lists_max:
            rest, lists = set(), unreadable | self._write_lists(packs)
        return rest, lists

    def _write_lists(self, packs: Iterable[bytes]) -> set[bytes]:
        ordered = sorted(packs)
        made = set()
        for at in range(0, len(ordered), pack_list_names_max):
            raw = encode_pack_list(ordered[at:at + pack_list_names_max])
            name = pack_name(raw)
            self._store.add_whole(name, raw)
            made.add(name)
        return made

    def reached_again(self, unneeded: Collection[bytes]) -> set[bytes]:
        """Of packs that were found not to be needed, those that are by now: what changed in the view since, and the
        trees of the heads as they are, refer to a chunk of which no other copy opens. If that can't be told, all of
        them."""
        marker, found = self._marker(), set[bytes]()
        try:
            for name in sorted(self._view.changed_names()):
                for chunk_id in marker.file(name, self._view.tree.get(name, ())):
                    found |= self._only_there(chunk_id, unneeded, found)
            for head in self._heads.current():
                if head.hash not in self._view.unreadable:
                    for chunk_id in marker.tree(head):
                        found |= self._only_there(chunk_id, unneeded, found)
        except NodeError:
            return set(unneeded)
        self._view.forget_changed_names()
        return found

    def _only_there(self, chunk_id: bytes, unneeded: Collection[bytes], found: Collection[bytes]) -> set[bytes]:
        places = self._store.index.places(chunk_id)
        spare = [place for place in places if place.pack in unneeded and place.pack not in found]
        if not spare:
            return set()
        # A footer may say anything: another copy counts only if it opens.
        kept = [place for place in places if place.pack not in unneeded or place.pack in found]
        if any(self._reader.opens(place) for place in kept):
            return set()
        return {next((place for place in spare if self._reader.opens(place)), spare[0]).pack}
