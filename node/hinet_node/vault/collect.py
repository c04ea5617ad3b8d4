"""Collecting: finding the packs that nothing needs, saying so in a head, and deleting what everybody has given up.
SPEC.md, 6.10.

`plan` marks and chooses, and may run beside edits; `give_up` publishes the smaller set, what changed meanwhile looked
at once more; `sweep` deletes. All three block on the disk; the last two are used under the vault's writing lock. A
keeper only sweeps. Leaves marking to `marking`, who counts to `counting`, when to do it to `upkeep`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hinet_node.errors import ConflictError
from hinet_node.vault.choosing import Choice, PackUse, choose, chosen, elsewhere, measure, move_home
from hinet_node.vault.counting import Retained, count, retained
from hinet_node.vault.headcheck import aside_heads
from hinet_node.vault.marking import DAY_S, Lost, Marker, Marks, Retention, incomplete
from hinet_node.vault.repack import SMALL_BYTES, Mover
from hinet_protocol.heads import Head
from hinet_protocol.reconcile import needs_of

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

_NAMES_AT_ONCE = 4_096
_RESTATED = (1, 24, 48, 96, 192, 384, 768, 1_536)
"""When what was given up is said again, in units of `confirm_s`."""
_RESTATED_MAX = len(_RESTATED)
Pause = Callable[[], None]
Rewrite = Callable[[Marks, Choice], Mover | None]


@dataclass(frozen=True)
class Plan:
    """What a marking found."""

    choice: Choice
    lost: Lost
    retention: Retention
    unneeded: frozenset[bytes]
    """Packs, of those that some head retains, that this device does not need."""
    own: frozenset[bytes]
    """Packs that its own newest head retains."""
    mover: Mover | None = None
    """What was rewritten: its packs are pinned as long as the plan is there."""

    @property
    def dropped(self) -> frozenset[bytes]:
        """What giving up takes out of this device's set."""
        return self.unneeded & self.own


@dataclass
class Swept:
    """What a sweep deleted, and what it had to leave although this device does not need it."""

    packs: int = 0
    size_bytes: int = 0
    retained_by: dict[bytes, int] = field(default_factory=dict)
    """Device -> bytes of unneeded packs that it still retains, or has given up only once."""
    younger: int = 0
    """Packs that everybody has given up, and not for long enough."""
    younger_bytes: int = 0
    left_s: float = 0.0
    """Running seconds until the first of them may go."""
    pinned: int = 0
    last_copies: int = 0
    blocked: str = ""
    """Why nothing at all may be deleted now."""


class Collector:
    """See the module. One plan at a time."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core
        self._busy = False
        self.listed: dict[bytes, set[bytes]] = {}
        """Device -> packs, of those whose last copy is to be kept, that it said it holds."""
        self.judged: frozenset[bytes] = frozenset()
        """Packs that somebody gave up and this device has found that it needs."""

    # ---- marking -------------------------------------------------------------------------------------------------

    def marker(self, retention: Retention | None = None) -> Marker:
        """A marker for the vault as it is."""
        core = self._core
        return Marker(core.reader, core.store.index, retention or self.retention(), core.publisher.now(),
                      whole=self._whole())

    def retention(self, days: int | None = None, versions: int | None = None) -> Retention:
        """The settings, or what the owner asks for this once; what was given up before stays given up."""
        settings = self._core.settings
        return Retention(settings.keep_days if days is None else days,
                         settings.keep_versions if versions is None else versions, *self._core.ledger.given_up)

    def _whole(self) -> bool:
        core = self._core
        if core.store.index.unopened() or core.view.unreadable:
            return False
        needs = needs_of(core.needed_heads(), core.store.read_list)
        return not needs.unknown_lists and needs.packs <= core.store.index.packs().keys()

    def plan(self, retention: Retention, pause: Pause = lambda: None, *, rewrite: Rewrite | None = None) -> Plan:
        """Mark and choose. `pause` is called now and then and may raise to stop; `rewrite` may move chunks into new
        packs before it is decided what can go. Errors: `IntegrityError` when what is needed can't be told;
        `ConflictError` while another plan is made; `NoSpace`, `NotAuthorised` of rewriting."""
        core = self._core
        if self._busy:
            raise ConflictError("Another collection is under way on this device.", next_step="Wait for it to end.")
        self._busy = True
        try:
            core.view.follow_changes()
            known = self._packs_of(count(core.heads, core.household, core.ledger).heads)
            marker = self.marker(retention)
            marks = Marks(core.store.index)
            marks.add(self._needed(marker, pause), pause)
            choice = choose(marks, core.household.current_epoch() or b"", core.ledger.unneeded)
            mover = rewrite(marks, choice) if rewrite is not None else None
            if mover is not None:
                choice = chosen(marks, measure(marks))
            plan = self._plan(marker, marks, choice, known, pause)
            marks.close()
            return replace(plan, mover=mover)
        finally:
            self._busy = False

    def _needed(self, marker: Marker, pause: Pause) -> Iterator[bytes]:
        core = self._core
        for head in core.heads.current():
            if head.hash not in core.view.unreadable:
                yield from marker.tree(head)
            elif head.device == core.household.device_public and head.hash not in core.heads.settled:
                raise incomplete("a newer state that this device wrote itself can't be read.")
        names = core.view.names()
        for at in range(0, len(names), _NAMES_AT_ONCE):
            pause()
            for name, versions in core.view.versions(names[at:at + _NAMES_AT_ONCE]):
                yield from marker.file(name, versions)

    def _plan(self, marker: Marker, marks: Marks, choice: Choice, known: frozenset[bytes], pause: Pause) -> Plan:
        """`known` are the packs that the heads retained before the marking began."""
        core = self._core
        own_head = core.heads.own()
        own = self._packs_of([own_head] if own_head else [])
        homes, uses = set(choice.homes), choice.uses
        # A copy counts only if it opens, or a member's footer could make everybody give up the one that does.
        for use in sorted(uses.values(), key=lambda use: use.name):
            if use.live and use.name not in homes and use.name in own and use.name not in core.ledger.unneeded:
                pause()
                if not self._proved(marks, use):
                    homes.add(use.name)
        free = {name for name in known if self._may_go(uses.get(name), name in own, choice.missing)}
        somewhere = uses.keys() | self._packs_of(core.heads.current())
        unneeded = frozenset((free | core.ledger.unneeded) - homes) & somewhere
        return Plan(replace(choice, homes=frozenset(homes)), marker.lost, marker.retention, unneeded, own)

    def _proved(self, marks: Marks, use: PackUse) -> bool:
        """Whether all needed chunks of this pack open where they are to stay; those that don't stay here."""
        core, proved = self._core, True
        for chunk_id, home in elsewhere(marks.index, use.number):
            place = next((place for place in core.store.index.places(chunk_id) if place.pack == home), None)
            if place is None or not core.reader.opens(place):
                move_home(marks.index, chunk_id, use.number)
                proved = False
        return proved

    def _may_go(self, use: PackUse | None, own: bool, missing: int) -> bool:
        if use is None:
            # Not held: damaged, or collected. Nobody knows what is in it, so all that is needed must be here.
            return own and not missing
        return use.opened and bool(use.epoch)

    def _packs_of(self, heads: Iterable[Head]) -> frozenset[bytes]:
        """Packs that heads retain, pack lists left out."""
        found = list(heads)
        lists = {name for head in found for name in head.lists}
        return needs_of(found, self._core.store.read_list).packs - lists

    # ---- giving up -----------------------------------------------------------------------------------------------

    def give_up(self, plan: Plan) -> bool:
        """Publish a head that retains what the plan found needed; whether one was due. Edits that came after the plan
        was made are looked at when the head is made. Errors: `NoSpace`, `NotAuthorised`."""
        core = self._core
        own = core.heads.own()
        core.publisher.epoch()
        core.ledger.set_unneeded(plan.unneeded)
        self._remember(plan.retention)
        self.judged |= self._given_up_by_others() - core.ledger.unneeded
        mine = self._packs_of([own]) if own is not None else frozenset()
        homes = {name for name in plan.choice.homes if core.store.holds(name)}
        if own is None or not (mine & core.ledger.unneeded or homes - mine):
            return False
        writer = core.publisher.writer()
        writer.packs |= homes
        core.publisher.publish(writer, lambda seq: [])
        core.ledger.set_restated(core.ledger.ran_s, 0)
        return True

    def _remember(self, retention: Retention) -> None:
        """What the owner gives up beyond the settings stays given up, though later plans go by the settings again."""
        core = self._core
        until_s = core.publisher.now() - retention.days * DAY_S
        more = (retention.days < core.settings.keep_days or retention.versions < core.settings.keep_versions)
        if more and until_s >= core.ledger.given_up[0]:
            core.ledger.set_given_up(until_s, retention.versions)

    def confirm(self) -> bool:
        """Publish the set once more, so that others have seen it twice; whether one was due."""
        core = self._core
        own = core.heads.own()
        if own is None or not core.may_write():
            return False
        found = self._retained()
        gone = core.store.index.packs().keys() - found.newest.get(own.device, frozenset())
        before = found.before.get(own.device)
        if not gone or not (before is None or gone & before or core.heads.reserved != own.seq):
            return False
        core.publisher.publish(core.publisher.writer(), lambda seq: [])
        return True

    def restate_due(self) -> bool:
        """Whether it is time to say again what was given up: after an hour, a day, and at doubling distances. Who was
        away and sees only the newest head has then two to go by in the end."""
        since_s, times = self._core.ledger.restated
        return (since_s > 0.0 and times < _RESTATED_MAX and self._core.may_write()
                and self._core.ledger.ran_s - since_s >= self._core.settings.confirm_s * _RESTATED[times])

    def restate(self) -> None:
        """Publish a head that changes nothing. Errors: `NoSpace`, `NotAuthorised`."""
        core = self._core
        core.publisher.publish(core.publisher.writer(), lambda seq: [])
        core.ledger.set_restated(core.ledger.restated[0], core.ledger.restated[1] + 1)

    def _given_up_by_others(self) -> frozenset[bytes]:
        """Packs of this device's own set that a counted device knew of and does not retain."""
        core = self._core
        own = core.heads.own()
        if own is None:
            return frozenset()
        mine, found = self._packs_of([own]), set[bytes]()
        for device, head in count(core.heads, core.household, core.ledger).counted.items():
            if device != own.device and dict(head.vector).get(own.device, 0) >= own.seq:
                found |= mine - self._packs_of([head])
        return frozenset(found)

    def follow_due(self) -> bool:
        """Whether somebody gave up what this device has not judged yet."""
        return bool(self._given_up_by_others() - self.judged)

    def small_packs(self) -> int:
        """How many small packs this device has made and still retains."""
        unneeded = self._core.ledger.unneeded
        rows = self._core.store.index.run(lambda db: db.execute(
            "SELECT name FROM packs WHERE mine = 1 AND size < ? AND length(epoch) = 32", (SMALL_BYTES,)).fetchall())
        return sum(name not in unneeded for (name,) in rows)

    # ---- deleting ------------------------------------------------------------------------------------------------

    def tick(self, passed_s: float) -> None:
        """Count running time."""
        core = self._core
        core.ledger.tick(passed_s, {device: head.hash for device, head in core.heads.newest().items()})

    def sweep(self, *, packs_max: int, waive_age: bool = False, dry_run: bool = False,
              unneeded: Collection[bytes] | None = None) -> Swept:
        """Delete packs that everybody has given up, at most so many, and say who keeps the others of `unneeded` (by
        default, of what this device has given up). Errors: `NoSpace` for a read-only disk."""
        core, swept = self._core, Swept()
        swept.blocked = self._blocked()
        if swept.blocked:
            return swept
        found = self._retained()
        if not found.whole:
            swept.blocked = "a pack list is not here, so what it names is not known"
            return swept
        held = core.store.index.packs()
        agreed = {name for name in held if found.agree(name)}
        ages = core.ledger.keep_idle(agreed)
        age_s = self.idle_s()
        pinned = core.pins.pinned()
        for name in sorted(agreed, key=lambda name: (-ages[name], name)):
            if name in pinned:
                swept.pinned += 1
            elif name in found.claimed and not self._elsewhere(name):
                swept.last_copies += 1
            elif ages[name] < age_s and not waive_age:
                swept.younger += 1
                swept.younger_bytes += held[name]
                left_s = age_s - ages[name]
                swept.left_s = min(swept.left_s or left_s, left_s)
            elif swept.packs < packs_max:
                if not dry_run:
                    self._delete(name)
                swept.packs += 1
                swept.size_bytes += held[name]
        self._count_holders(swept, found, held, agreed, core.ledger.unneeded if unneeded is None else unneeded)
        return swept

    def idle_s(self) -> float:
        """For how long nobody must have retained a pack."""
        core = self._core
        writes = core.household.device_public in core.household.members()
        return core.settings.idle_s if writes else core.settings.keeper_idle_s

    def last_copies(self) -> list[bytes]:
        """Packs that only overruled heads retain, so that a copy has to stay somewhere."""
        core = self._core
        found = self._retained()
        return sorted(name for name in found.claimed if core.store.holds(name) and found.agree(name))

    def _retained(self) -> Retained:
        core = self._core
        return retained(core.heads, core.household, core.ledger, core.store.read_list)

    def _blocked(self) -> str:
        """Why this device can't know enough to delete anything; empty when it can."""
        core = self._core
        if not core.heads.current():
            return "no device's head is here"
        if core.heads.closed:
            return "some of the heads can't be read"
        if any(core.heads.misses(device, seq, head_hash) for device, seq, head_hash, _ in aside_heads(core.disk)):
            return "a head that was damaged has not come again, and it may retain anything"
        device = core.household.device_public
        if device in core.household.members():
            own = core.heads.own()
            if own is None or own.seq != core.heads.reserved:
                return "this device's newest head is not here, or was not finished; its next one mends that"
        elif core.household.epoch_keys():
            return "this device was removed from the household"
        return ""

    def _elsewhere(self, pack: bytes) -> bool:
        """Whether a device with a lower key is known to hold it: so of all that hold one, one keeps it."""
        own = self._core.household.device_public
        return any(device < own and pack in packs for device, packs in self.listed.items())

    def _delete(self, name: bytes) -> None:
        core = self._core
        core.reader.forget(name)
        core.store.remove(name)

    def _count_holders(self, swept: Swept, found: Retained, held: dict[bytes, int], agreed: set[bytes],
                       unneeded: Collection[bytes]) -> None:
        """Which devices keep the packs that this one does not need."""
        for name in sorted(unneeded):
            if name not in held or name in agreed:
                continue
            for device in sorted({*found.newest, *found.before}):
                before = found.before.get(device, frozenset())
                if name in found.newest.get(device, ()) or before is None or name in before:
                    swept.retained_by[device] = swept.retained_by.get(device, 0) + held[name]
