"""Whose heads count: what the vault needs, what it may delete. SPEC.md, 6.10.

A *counted* device may write now, and its newest head has changed within 90 days of this device's running time; this
device itself always is. The heads of all others (silent, removed, forks) count until every counted device has said, in
the vector of its newest head, that it has taken them up: from then on these speak for what is in them. While nobody is
counted, every head counts. Needs no key, so a keeper follows the same rules. Leaves deleting to `collect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hinet_node.vault.headstore import HeadStore
from hinet_node.vault.items import Household
from hinet_node.vault.ledger import Ledger
from hinet_protocol.heads import Head
from hinet_protocol.reconcile import Needs, needs_of

silent_s_max = 90 * 86_400.0
ReadList = Callable[[bytes], Sequence[bytes] | None]


@dataclass(frozen=True)
class Counting:
    """How the current heads count."""

    counted: Mapping[bytes, Head]
    """Device -> its newest head."""
    others: tuple[Head, ...]
    """Heads of devices that are not counted, and forks, which count all the same."""
    overruled: tuple[Head, ...]
    """Heads that do not count any more."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """All that count."""
        return (*self.counted.values(), *self.others)


def count(store: HeadStore, household: Household, ledger: Ledger) -> Counting:
    """Sort the current heads, each into one group."""
    members, own = household.members(), household.device_public
    newest = store.newest()
    counted = {device: head for device, head in newest.items()
               if device in members and (device == own or ledger.silent_s(device, head.hash) < silent_s_max)}
    rest = [head for head in store.current() if counted.get(head.device) is not head]
    if not rest or not counted:
        return Counting(counted, tuple(rest), ())
    vectors = [dict(head.vector) for head in counted.values()]
    others: list[Head] = []
    overruled: list[Head] = []
    for head in rest:
        # A vector names numbers, not hashes: which head of a forked number was taken up, only settling it tells.
        plain = newest[head.device] is head and head.device not in counted and not any(
            one is not head and one.device == head.device and one.seq == head.seq for one in rest)
        reached = all(vector.get(head.device, 0) >= head.seq for vector in vectors)
        (overruled if reached and (plain or head.hash in store.settled) else others).append(head)
    return Counting(counted, tuple(others), tuple(overruled))


@dataclass(frozen=True)
class Retained:
    """Who retains what, by the heads that are kept here."""

    newest: Mapping[bytes, frozenset[bytes]]
    """Device -> packs that its newest head, or another head of it that counts, retains."""
    before: Mapping[bytes, frozenset[bytes] | None]
    """Counted device -> packs that its previous kept head retains; None when no previous one is kept."""
    claimed: frozenset[bytes]
    """Packs that an overruled head of a device which still belongs retains: their last copy is not deleted."""
    whole: bool
    """Whether every pack list could be read: if not, what it names is not known, and nothing may be deleted."""

    def agree(self, pack: bytes) -> bool:
        """Whether everybody who counts has given the pack up twice."""
        return not any(pack in packs for packs in self.newest.values()) and all(
            packs is not None and pack not in packs for packs in self.before.values())


def retained(store: HeadStore, household: Household, ledger: Ledger, read_list: ReadList) -> Retained:
    """Look at the heads that count, and at the previous one of each counted device."""
    counting = count(store, household, ledger)
    whole = True

    def packs_of(heads: Sequence[Head]) -> frozenset[bytes]:
        nonlocal whole
        needs: Needs = needs_of(heads, read_list)
        whole = whole and not needs.unknown_lists
        return needs.packs
    newest: dict[bytes, frozenset[bytes]] = {}
    for head in counting.heads:
        newest[head.device] = newest.get(head.device, frozenset()) | packs_of([head])
    before: dict[bytes, frozenset[bytes] | None] = {}
    for device in counting.counted:
        previous = store.previous(device)
        before[device] = None if previous is None else packs_of([previous])
    members = household.members()
    claimed = packs_of([head for head in counting.overruled if head.device in members])
    return Retained(newest, before, claimed, whole)
