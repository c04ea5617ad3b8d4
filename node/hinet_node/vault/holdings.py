"""Who holds what: copies of packs and heads, and by how much each device is behind, from what siblings really said.

A sibling says which packs it holds when it is asked (`PacksGet`, ranges), or all at once by an equal vault digest. A
member's own head says that it held everything which the heads in its `vector` need. Nothing else counts as a copy.
Revoked devices do not count. Leaves the words to `inspect` and the command line. SPEC.md, 6.6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hinet_node.vault.items import DeviceState
from hinet_protocol.heads import Head
from hinet_protocol.reconcile import heads_behind, needs_of

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore


@dataclass(frozen=True)
class Spread:
    """On how many devices the packs that are held and needed here are known to be, this one included."""

    least: int = 0
    """Copies of the one that has the fewest; 0 when there is none."""
    single_packs: int = 0
    """Packs that only this device is known to hold."""
    single_bytes: int = 0


class Copies:
    """One look. `newest` are the newest heads by device."""

    def __init__(self, core: VaultCore, newest: Mapping[bytes, Head]) -> None:
        self._core = core
        self._newest = newest
        self._own = core.household.device_public
        self._members = core.household.members()
        self._live = {*self._members, *core.household.keepers(), self._own}
        held = core.store.index.packs()
        self._needed = needs_of(core.needed_heads(), core.store.read_list).packs
        self._sizes = {name: held[name] for name in self._needed if name in held}
        self._covered: dict[bytes, frozenset[bytes]] = {}

    @property
    def others(self) -> int:
        """How many other devices belong to the household now."""
        return len(self._live - {self._own})

    # ---- copies --------------------------------------------------------------------------------------------------

    def spread(self) -> Spread:
        """Of all packs that are held and needed here."""
        if not self._sizes:
            return Spread()
        everywhere, some = 1, []
        for device in sorted(self._live - {self._own}):
            known = self._known(device)
            if known.issuperset(self._sizes):
                everywhere += 1
            elif known:
                some.append(known)
        counts = {name: everywhere + sum(name in known for known in some) for name in self._sizes}
        single = [name for name, count in counts.items() if count == 1]
        return Spread(min(counts.values()), len(single), sum(self._sizes[name] for name in single))

    def of_head(self, head: Head) -> int:
        """Devices known to hold this head whole: this one, its own, those whose own head has taken it up, those that
        said so."""
        holders = {self._own, head.device}
        holders.update(device for device, other in self._newest.items()
                       if _covers(other, head) or other.tree_chunk == head.tree_chunk)
        holders.update(device for device, hashes in self._core.peers_hold.items() if head.hash in hashes)
        needs = needs_of([head], self._core.store.read_list).packs
        holders.update(device for device in self._live
                       if needs <= (self._core.store.notes.holdings(device) or frozenset()))
        return len(holders & self._live)

    def _known(self, device: bytes) -> frozenset[bytes]:
        """Packs that a device is known to hold."""
        said, head = self._core.store.notes.holdings(device), self._newest.get(device)
        if said is not None and (head is None or self._core.store.notes.said_s(device) >= head.time):
            return said  # newer than what its own head tells, if it makes any
        return (said or frozenset()) | self._by_heads(device)

    def _by_heads(self, device: bytes) -> frozenset[bytes]:
        """Packs of the heads that it says it holds, or that its own head has taken up."""
        found = self._covered.get(device)
        if found is None:
            hashes, head = self._core.peers_hold.get(device, frozenset()), self._newest.get(device)
            has = [one for one in self._core.heads.current()
                   if one.hash in hashes or (head is not None and (one.hash == head.hash or _covers(head, one)))]
            found = self._covered[device] = needs_of(has, self._core.store.read_list).packs
        return found

    # ---- who is behind -------------------------------------------------------------------------------------------

    def devices(self) -> tuple[DeviceState, ...]:
        """Every device that belongs to the household now."""
        names = self._core.household.names()
        return tuple(self._state(device, names.get(device, "")) for device in sorted(self._live))

    def _state(self, device: bytes, name: str) -> DeviceState:
        head, notes = self._newest.get(device), self._core.store.notes
        behind, since = self._behind(device, head)
        packs, size, exact = 0, 0, True
        if behind:
            said = notes.holdings(device)
            exact = said is not None or device == self._own
            lacking = self._lacking(device)
            packs, size = len(lacking), sum(self._sizes[one] for one in lacking)
        return DeviceState(device, name, head.seq if head else 0, behind, behind == 0, head.time if head else 0, packs,
                           size, head.epoch if head else b"", exact, since, notes.said_s(device),
                           device not in self._members)

    def _lacking(self, device: bytes) -> Collection[bytes]:
        if device == self._own:
            return ()
        known = self._known(device)
        return [one for one in self._sizes if one not in known]

    def _behind(self, device: bytes, head: Head | None) -> tuple[int | None, int]:
        """How many heads of others it has not taken up (None when that is not known), and when the oldest of these
        was made, by its writer's clock."""
        newest = self._newest
        if head is not None:
            lacks = [other for other in newest.values()
                     if other.tree_chunk != head.tree_chunk and not _covers(head, other)]
            # Heads that only say "I have taken this up" do not count against anyone: equal trees are in step.
            if not lacks:
                return 0, 0
            count = heads_behind(head.vector, {other.device: other.seq for other in newest.values()})
            return max(1, count), min(other.time for other in lacks)
        if device in self._core.peers_hold or device == self._own:
            its = self._core.peers_hold.get(device, self._core.head_hashes())
            lacks = [other for other in newest.values() if other.hash not in its]
        elif (said := self._core.store.notes.holdings(device)) is not None:
            lacks = [other for other in newest.values()
                     if not needs_of([other], self._core.store.read_list).packs <= said]
        else:
            return None, 0  # it never wrote, and never said what it holds
        return len(lacks), min((other.time for other in lacks), default=0)


def _covers(head: Head, other: Head) -> bool:
    return dict(head.vector).get(other.device, 0) >= other.seq
