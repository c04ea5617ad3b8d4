"""A household of real vaults under any order of acts: writing, removing, moving, settling, partitions, transfers that
are cut, crashes, restarts, restored old disks, clones, clocks that jump, new epochs, devices that are lost or come new.

What must hold is said against a model of writes: each one knows which earlier ones its writer saw on the screen and
replaced. `sure` is what a device has certainly taken up, `maybe` what it may have, where a transfer or a write was cut.

    HINET_STATEFUL=400,60 … --hypothesis-seed=1     examples and steps of a long run
    HINET_STATEFUL_SHRINK=1                         make a failing run as short as can be, which takes minutes
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import trio
import trio.testing
from blake3 import blake3
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from hinet_node.errors import IntegrityError
from hinet_node.vault import Replicator, Vault
from hinet_protocol.reconcile import needs_of
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness

EXAMPLES, STEPS = (int(part) for part in os.environ.get("HINET_STATEFUL", "100,40").split(","))
NAMES = [b"note.md", b"letters/a", b"letters/b.txt", b"A", b"a", b"\xff\xfe"]
DEVICES_MAX = 5
PHASES = (Phase.generate, *((Phase.shrink,) if os.environ.get("HINET_STATEFUL_SHRINK") else ()))
MARK = b"plain-to-be-seen-"
IN_STEP_S = 600.0

picks = st.integers(0, 59)
names = st.sampled_from(NAMES)


class PowerCut(BaseException):
    """No `Exception`: nobody may catch it and go on."""


class Disk(MemoryDisk):
    """Loses power at the write that `fuse` counts down to, and then answers nothing until `crash`."""

    fuse: int | None = None
    dead = False

    def _burn(self) -> None:
        if self.dead:
            raise PowerCut
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.dead = True
                raise PowerCut

    def write_atomic(self, name: str, data: bytes, *, private: bool = False) -> None:
        self._burn()
        super().write_atomic(name, data, private=private)

    def append(self, name: str, data: bytes) -> None:
        self._burn()
        super().append(name, data)

    def commit(self, part: str, name: str) -> None:
        self._burn()
        super().commit(part, name)

    def remove(self, name: str) -> None:
        self._burn()
        super().remove(name)

    def crash(self, keep: Callable[[int], int] | None = None) -> None:
        self.fuse, self.dead = None, False
        super().crash(keep)

    def twin(self) -> Disk:
        """A second disk with the same bytes."""
        plain, made = self.copy(), Disk(self.label)
        made.__dict__.update(plain.__dict__)
        return made


@dataclass(frozen=True)
class Write:
    """One edit, or with `content` None one removal. `replaces` is what was shown to the writer and went; `may_replace`
    what it may have replaced besides."""

    number: int
    name: bytes
    content: bytes | None
    author: bytes
    replaces: frozenset[int]
    may_replace: frozenset[int]


@dataclass
class Knows:
    """What somebody has taken up, by numbers of writes. `sure` is always within `maybe`."""

    sure: frozenset[int] = frozenset()
    maybe: frozenset[int] = frozenset()

    def join(self, *others: Knows) -> Knows:
        return Knows(self.sure.union(*(one.sure for one in others)), self.maybe.union(*(one.maybe for one in others)))


@dataclass
class Device:
    """A node of the test's world, and what the model says of it. `heads` is what the heads that it holds bring, by
    author: all that a keeper has, and a device that waits for a key."""

    node: Any
    keeper: bool = False
    gone: bool = False
    knows: Knows = field(default_factory=Knows)
    heads: dict[bytes, Knows] = field(default_factory=dict)

    @property
    def public(self) -> bytes:
        return bytes(self.node.member.public)

    @property
    def late(self) -> bool:
        return bool(self.node.member.lacks_epochs)

    @property
    def reads(self) -> bool:
        return not self.keeper and not self.late


@dataclass
class Backup:
    """An old copy of a device's disk, and what that device knew then."""

    device: Device
    disk: Disk
    knows: Knows
    heads: dict[bytes, Knows]


class Clock:
    """One device's clocks: the wall clock jumps as it likes, the other one follows the run's virtual time."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.ran_s = 0.0

    def now_unix_s(self) -> float:
        return self.wall

    def monotonic_s(self) -> float:
        return self.ran_s


class Household(RuleBasedStateMachine):
    """`make_world` is set by the test."""

    make_world: Callable[[], Any]

    @initialize(readers=st.integers(2, 3))
    def found(self, readers: int) -> None:
        self.world = type(self).make_world()
        self.writes: list[Write] = []
        self.devices: list[Device] = []
        self.backups: list[Backup] = []
        self.numbers: dict[tuple[bytes, int], set[bytes]] = {}
        self.opened = self.serial = 0
        self.collected = False
        self.copied: set[bytes] = set()
        for number in range(readers):
            self.add(f"reader-{number}")
        self.add("keeper", keeper=True)

    # --- what the rules are made of ----------------------------------------------------------------------------------

    def add(self, name: str, keeper: bool = False) -> None:
        async def make() -> Any:
            node = await self.world.node(name, Disk(name), keeper=keeper)
            node.clock = Clock()
            return node
        device = Device(trio.run(make), keeper)
        self.devices.append(device)
        self.reopen(device)

    def reopen(self, device: Device) -> None:
        """What was in memory is gone. The salts of packs are fresh each time, on a copied disk too."""
        self.opened += 1
        node = device.node

        async def work() -> None:
            randomness = SeededRandomness(node.member.name, f"stateful {self.opened}")
            node.vault = await Vault.open(node.disk, randomness, node.clock, node.member, node.settings)
        trio.run(work)
        self.look(device)

    def pick(self, at: int, of: Iterable[Device]) -> Device:
        them = list(of)
        return them[at % len(them)]

    def alive(self) -> list[Device]:
        return [device for device in self.devices if not device.gone]

    def readers(self) -> list[Device]:
        return [device for device in self.alive() if device.reads]

    def shown(self, device: Device, name: bytes) -> dict[bytes, bytes]:
        """Shown name -> content of what competes for a name, on this device."""
        async def read() -> dict[bytes, bytes]:
            vault = device.node.vault
            return {item.name: await vault.get(item.name) for item in await vault.list()
                    if (item.conflict_of or item.name) == name}
        found: dict[bytes, bytes] = trio.run(read)
        return found

    def living(self, name: bytes, known: frozenset[int], replaced_by: frozenset[int], may: bool) -> set[int]:
        """Writes of a name among `known` that none of `replaced_by` replaces, or with `may` could have replaced."""
        gone: set[int] = set()
        for number in replaced_by:
            gone |= self.writes[number].replaces | (self.writes[number].may_replace if may else frozenset())
        return {number for number in known if self.writes[number].name == name} - gone

    def write(self, device: Device, name: bytes, content: bytes | None, settled: frozenset[bytes] = frozenset(),
              ) -> Write:
        """Enter what the owner is about to do at this device, given what it shows there now."""
        here = self.shown(device, name)
        possible = self.living(name, device.knows.maybe, device.knows.sure, may=False)
        certain = self.living(name, device.knows.sure, device.knows.maybe, may=True)
        seen = {here[name]} if name in here else set()
        seen |= {here[beside] for beside in settled if beside in here}
        gone = {number for number in possible if self.writes[number].content in {*seen, None}}
        # Of two writes with the content shown, one may not have come here yet.
        alone = {number for number in gone if sum(
            self.writes[number].content == self.writes[other].content is not None for other in gone) == 1}
        replaces, maybe = frozenset(gone & (certain | alone)), frozenset(gone)
        made = Write(len(self.writes), name, content, device.public, replaces, maybe)
        self.writes.append(made)
        return made

    def acknowledged(self, device: Device, *made: Write) -> None:
        numbers = frozenset(one.number for one in made)
        device.knows = Knows(device.knows.sure | numbers, device.knows.maybe | numbers)
        device.heads[device.public] = device.knows
        self.look(device)

    def cut(self, device: Device, *made: Write) -> None:
        """Power was lost before the answer came."""
        device.knows = device.knows.join(Knows(frozenset(), frozenset(one.number for one in made)))
        device.heads[device.public] = device.knows

    def fresh(self) -> bytes:
        self.serial += 1
        return MARK + b"%d-" % self.serial * (1 + self.serial * 7 % 400)

    # --- what must hold ----------------------------------------------------------------------------------------------

    def look(self, device: Device) -> None:
        """One device's view against the model; its numbers against all that were ever seen."""
        for head in device.node.vault.core.heads.current():
            self.numbers.setdefault((head.device, head.seq), set()).add(head.hash)
        for (author, seq), hashes in self.numbers.items():
            assert len(hashes) == 1 or author in self.copied, ("a number was used twice", author.hex()[:8], seq)
        if device.keeper:
            assert not any(MARK in raw or b"letters" in raw for raw in self.bytes_of(device.node.disk))
            return
        if not device.reads:
            return
        for name in NAMES:
            self.look_at(device, name, list(self.shown(device, name).values()))

    def look_at(self, device: Device, name: bytes, contents: list[bytes]) -> None:
        certain = self.living(name, device.knows.sure, device.knows.maybe, may=True)
        possible = self.living(name, device.knows.maybe, device.knows.sure, may=False)
        must = {self.writes[number].content for number in certain} - {None}
        can = {self.writes[number].content for number in possible} - {None}
        tree = device.node.vault.core.view.tree.get(name, ())
        where = (device.node.member.name, name, [
            (one.device.hex()[:4], one.counter, [(key.hex()[:4], number) for key, number in one.seen], one.generation,
             one.digest.hex()[:4]) for one in tree])
        assert len(set(contents)) == len(contents), (where, "the same content is a conflict")
        assert must <= set(contents), (where, "lost", [short(one) for one in must - set(contents)])
        assert set(contents) <= can, (where, "came back", [short(one) for one in set(contents) - can])

    def in_step(self, group: list[Device]) -> None:
        """All can talk, and have: the same view, the same bytes, and every pack that a head needs on keepers too."""
        views = {tuple(sorted(self.all_shown(device).items())) for device in group if device.reads}
        assert len(views) <= 1, "views differ"
        told = {device.node.member.name: [(head.device.hex()[:4], head.seq, head.hash.hex()[:4])
                                          for head in device.node.vault.core.offered_heads()] for device in group}
        assert len({device.node.vault.core.digest() for device in group}) == 1, told
        for device in group:
            core = device.node.vault.core
            needs = needs_of(core.needed_heads(), core.store.read_list)
            assert not needs.unknown_lists
            assert needs.packs <= core.store.index.packs().keys(), (device.node.member.name, "lacks packs")
            trouble = [(code, what.what) for (code, _), what in core.trouble.items()
                       if code not in ("E_FORK", "E_NETWORK", "E_TREE_UNREADABLE" if device.late else "")]
            assert not trouble, (device.node.member.name, trouble)

    def restorable(self, device: Device) -> None:
        """Whatever was written and taken up is in the history of its name, and can be read."""
        async def look() -> dict[bytes, dict[bytes, bytes]]:
            def work(core: Any) -> dict[bytes, dict[bytes, bytes]]:
                return {name: {change.version.digest: b"".join(core.content(change.version))
                               for change in core.history.of_file(name) if not change.version.deleted}
                        for name in NAMES if core.history.holds(name)}
            found: dict[bytes, dict[bytes, bytes]] = await device.node.vault.look(work)
            return found
        past = trio.run(look)
        for number in device.knows.sure:
            write = self.writes[number]
            if write.content is not None:
                assert blake3(write.content).digest() in past[write.name], (
                    "no past", device.node.member.name, write.name, short(write.content),
                    "by a copied device" if write.author in self.copied else "")

    def all_shown(self, device: Device) -> dict[bytes, bytes]:
        async def read() -> dict[bytes, bytes]:
            return {item.name: item.digest for item in await device.node.vault.list()}
        found: dict[bytes, bytes] = trio.run(read)
        return found

    def bytes_of(self, disk: Disk) -> Iterable[bytes]:
        return (name.encode() if isinstance(name, str) else bytes(raw)
                for name, raw in [(name, b"") for parts in disk._files for name in parts]
                + [("", raw) for raw in disk._files.values()])

    # --- writing -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.readers())
    @rule(at=picks, chosen=st.sets(names, min_size=1, max_size=3))
    def put(self, at: int, chosen: set[bytes]) -> None:
        self.put_all(self.pick(at, self.readers()), chosen)

    def put_all(self, device: Device, chosen: set[bytes]) -> None:
        sources = {name: self.fresh() for name in sorted(chosen)}
        made = [self.write(device, name, content) for name, content in sources.items()]
        if sources:
            trio.run(device.node.vault.put_many, sources)
        self.acknowledged(device, *made)

    @precondition(lambda self: self.readers())
    @rule(at=picks, name=names)
    def remove(self, at: int, name: bytes) -> None:
        device = self.pick(at, self.readers())
        if name in self.shown(device, name):
            made = self.write(device, name, None)
            assert trio.run(device.node.vault.remove, [name]) == 1
            self.acknowledged(device, made)

    @precondition(lambda self: self.readers())
    @rule(at=picks, name=names, to=names)
    def move(self, at: int, name: bytes, to: bytes) -> None:
        device = self.pick(at, self.readers())
        here = self.shown(device, name)
        if name == to or name not in here or to in self.shown(device, to):
            return
        content = here[name]
        made = [self.write(device, to, content), self.write(device, name, None)]
        assert trio.run(device.node.vault.move, {name: to}) == 1
        self.acknowledged(device, *made)

    @precondition(lambda self: self.readers())
    @rule(at=picks, name=names)
    def put_back(self, at: int, name: bytes) -> None:
        """A removed file comes back as it was last."""
        device = self.pick(at, self.readers())
        if name not in device.node.vault.core.view.tree or name in self.shown(device, name):
            return

        async def work() -> bytes:
            version = await device.node.vault.look(lambda core: core.history.last_content(name))
            content = b"".join(device.node.vault.core.content(version))
            assert await device.node.vault.put_back({name: version}) == [name]
            return content
        # What it will replace are removals alone, whatever the content.
        made = self.write(device, name, b"")
        content = None
        with suppress(*((IntegrityError,) if self.collected else ())):
            content = trio.run(work)
        if content is None:  # collected: nothing happened
            self.writes[made.number] = replace(made, content=None, replaces=frozenset(), may_replace=frozenset())
            return
        assert content in {one.content for one in self.writes if one.name == name}
        self.writes[made.number] = replace(made, content=content)
        self.acknowledged(device, made)

    @precondition(lambda self: self.readers())
    @rule(at=picks, name=names, which=picks)
    def settle_all(self, at: int, name: bytes, which: int) -> None:
        device = self.pick(at, self.readers())
        here = self.shown(device, name)
        if len(here) > 1:
            kept = sorted(here)[which % len(here)]
            made = self.write(device, name, here[kept], frozenset(here))
            trio.run(device.node.vault.settle, name, kept.decode("utf-8", "surrogateescape"))
            self.acknowledged(device, made)

    @precondition(lambda self: self.readers())
    @rule(at=picks, name=names, which=picks)
    def settle_one(self, at: int, name: bytes, which: int) -> None:
        """Remove one concurrent edit by its own name: what is shown under the plain name is written again."""
        device = self.pick(at, self.readers())
        here = self.shown(device, name)
        beside = sorted(set(here) - {name})
        if not beside or name not in here:
            return
        chosen = beside[which % len(beside)]
        made = self.write(device, name, here[name], frozenset((chosen,)))
        trio.run(device.node.vault.remove, [chosen])
        self.acknowledged(device, made)

    @precondition(lambda self: self.readers())
    @rule(at=picks, name=names, fuse=st.integers(0, 8), kept=st.integers(0, 4))
    def put_and_lose_power(self, at: int, name: bytes, fuse: int, kept: int) -> None:
        device = self.pick(at, self.readers())
        content = self.fresh() * 3
        made = self.write(device, name, content)
        device.node.disk.fuse = fuse
        try:
            trio.run(device.node.vault.put, name, content)
        except PowerCut:
            self.cut(device, made)
        else:
            self.acknowledged(device, made)
        device.node.disk.crash(lambda count: count * kept // 4)
        self.reopen(device)

    # --- collecting --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.readers())
    @rule(at=picks, days=st.sampled_from([0, 30]), versions=st.sampled_from([1, 3]))
    def collect(self, at: int, days: int, versions: int) -> None:
        """Give up all that is not needed; what stands now stays. Where something is missing nothing is given up."""
        vault = self.pick(at, self.readers()).node.vault
        with suppress(IntegrityError):
            trio.run(vault.collect, vault.core.collector.retention(days, versions))
            self.collected = True

    @rule(days=st.integers(0, 40), waive=st.booleans())
    def time_passes_and_all_sweep(self, days: int, waive: bool) -> None:
        for device in self.alive():
            for _ in range(days * 24):
                device.node.vault.core.collector.tick(3_600.0)
            trio.run(partial(device.node.vault.sweep, packs_max=1_000, waive_age=waive))
            self.look(device)

    @precondition(lambda self: self.readers())
    @rule(at=picks)
    def reseal(self, at: int) -> None:
        device = self.pick(at, self.readers())
        with suppress(IntegrityError):
            for _ in range(3):
                trio.run(device.node.vault.reseal_step)
        self.look(device)

    # --- talking -----------------------------------------------------------------------------------------------------

    def group(self, chosen: set[int]) -> list[Device]:
        them = [device for at, device in enumerate(self.devices) if at in chosen and not device.gone]
        by_key = {device.public: device for device in them}  # of two copies of a device one is online
        return list(by_key.values())

    @rule(chosen=st.sets(st.integers(0, DEVICES_MAX), min_size=2, max_size=DEVICES_MAX), line=st.booleans())
    def talk(self, chosen: set[int], line: bool) -> None:
        self.talk_until_quiet(self.group(chosen), line)

    def talk_until_quiet(self, group: list[Device], line: bool) -> None:
        """All of the group meet, each with each or in a line, until they have nothing to tell each other."""
        if len(group) < 2:
            return

        async def meet() -> None:
            async with trio.open_nursery() as nursery:
                await self.start(nursery, group)
                for left, right in pairs(group, line):
                    self.world.connect(left.node, right.node)
                with trio.move_on_after(IN_STEP_S):
                    while len({device.node.vault.core.digest() for device in group}) > 1:
                        await trio.sleep(0.1)
                await trio.sleep(1.0)
                nursery.cancel_scope.cancel()
        trio.run(meet, clock=trio.testing.MockClock(autojump_threshold=0))
        self.met(group)
        self.in_step(group)
        for device in group:
            self.look(device)

    @rule(at=picks, to=picks, answers=st.integers(1, 12), fuse=st.one_of(st.none(), st.integers(0, 12)))
    def talk_and_be_cut(self, at: int, to: int, answers: int, fuse: int | None) -> None:
        """Two meet, and the session ends, or one loses power, in the middle."""
        left, right = self.pick(at, self.alive()), self.pick(to, self.alive())
        if left.public == right.public:
            return
        left.node.disk.fuse = fuse

        async def meet() -> None:
            async with trio.open_nursery() as nursery:
                await self.start(nursery, [left, right])
                for side in self.world.connect(left.node, right.node):
                    side.cut_after = answers
                await trio.sleep(2.0)
                nursery.cancel_scope.cancel()
        try:
            trio.run(meet, clock=trio.testing.MockClock(autojump_threshold=0))
        except (PowerCut, BaseExceptionGroup):
            assert left.node.disk.dead
        came = [left.knows, *left.heads.values()], [right.knows, *right.heads.values()]
        authors = {*left.heads, *right.heads, *(one.public for one in (left, right) if not one.keeper)}
        for device, brought in ((left, came[1]), (right, came[0])):
            maybe = Knows(frozenset(), frozenset().union(*(one.maybe for one in brought)))
            device.knows = device.knows.join(maybe)
            if device.reads:
                device.heads[device.public] = device.knows
            else:
                device.heads = {author: device.heads.get(author, Knows()).join(maybe) for author in authors}
        if fuse is not None:
            left.node.disk.crash()
            self.reopen(left)
        self.look(left)
        self.look(right)

    async def start(self, nursery: trio.Nursery, group: list[Device]) -> None:
        for device in group:
            device.node.peers = self.world.quiet_peers()
            device.node.replicator = Replicator(device.node.vault, device.node.peers)
            await nursery.start(device.node.replicator.run)

    def met(self, group: list[Device]) -> None:
        """The model's side of `talk`."""
        revoked = self.world.family.revoked
        brought = [device.knows for device in group if device.reads]
        for device in group:
            brought += [known for author, known in device.heads.items() if author not in revoked]
        together = Knows().join(*brought)
        heads: dict[bytes, Knows] = {}
        for device in group:
            for author, known in device.heads.items():
                heads[author] = heads.get(author, Knows()).join(known)
        for device in group:
            if device.reads:
                device.knows = heads[device.public] = together
        for device in group:
            if not device.reads:
                device.knows = Knows(device.knows.sure, device.knows.maybe | together.maybe)
            device.heads = dict(heads)

    # --- what happens to devices -------------------------------------------------------------------------------------

    @rule(at=picks)
    def restart(self, at: int) -> None:
        device = self.pick(at, self.alive())
        device.node.disk.crash()
        self.reopen(device)

    @rule(at=picks, by=st.sampled_from([-40_000_000, -3_600, 5, 86_400, 10**9]))
    def clock_jumps(self, at: int, by: int) -> None:
        self.pick(at, self.alive()).node.clock.wall += by

    @precondition(lambda self: len(self.backups) < 3 and self.readers())
    @rule(at=picks)
    def back_up(self, at: int) -> None:
        device = self.pick(at, self.readers())
        self.backups.append(Backup(device, device.node.disk.twin(), device.knows, dict(device.heads)))

    @precondition(lambda self: self.backups)
    @rule(at=picks, chosen=st.sets(names, max_size=2))
    def restore(self, at: int, chosen: set[bytes]) -> None:
        """The disk is replaced by an old copy of it, which may be written to before it meets anybody. What only this
        device had since the copy was made is gone with the disk."""
        backup = self.backups.pop(at % len(self.backups))
        device = backup.device
        if device.gone or device.late:
            return
        device.node.disk = backup.disk
        device.knows, device.heads = backup.knows, backup.heads
        self.copied.add(device.public)
        self.reopen(device)
        self.put_all(device, chosen)

    @precondition(lambda self: self.backups and len(self.devices) <= DEVICES_MAX)
    @rule(at=picks)
    def clone(self, at: int) -> None:
        """A copied card begins to live beside its original."""
        backup = self.backups.pop(at % len(self.backups))
        if backup.device.gone or backup.device.late:
            return
        of = backup.device.node
        node = type(of).__new__(type(of))
        node.__dict__.update(of.__dict__, disk=backup.disk, clock=Clock())
        device = Device(node, knows=backup.knows, heads=backup.heads)
        self.devices.append(device)
        self.copied.add(device.public)
        self.reopen(device)

    @precondition(lambda self: len(self.alive()) < DEVICES_MAX and len(self.devices) <= DEVICES_MAX)
    @rule()
    def a_new_device_joins(self) -> None:
        self.add(f"new-{len(self.devices)}")

    @precondition(lambda self: len({device.public for device in self.readers()}) > 1)
    @rule(at=picks, late=st.sets(picks, max_size=1))
    def a_device_is_revoked(self, at: int, late: set[int]) -> None:
        """It leaves, its copies with it, and the rest get a new epoch."""
        lost = self.pick(at, self.readers())
        self.world.family.revoked.add(lost.public)
        for device in self.devices:
            if device.public == lost.public:
                device.gone = True
            dropped = device.heads.pop(lost.public, None)
            if dropped is not None and not device.gone:
                device.knows = device.knows.join(Knows(frozenset(), dropped.maybe))
        self.rotate(late)

    @precondition(lambda self: self.readers())
    @rule(late=st.sets(picks, max_size=1))
    def rotate(self, late: set[int]) -> None:
        """A new epoch; one device may hear of its key later."""
        family = self.world.family
        epoch = b"%032d" % (len(family.epochs) + 1)
        family.epochs[epoch], family.current = epoch[::-1], epoch
        for at in late:
            readers = self.readers()
            if len(readers) > 1:
                device = self.pick(at, readers)
                if sum(one.public == device.public for one in self.alive()) == 1:
                    device.node.member.lacks_epochs.add(epoch)

    @rule()
    def keys_come(self) -> None:
        for device in self.alive():
            if device.late:
                device.node.member.lacks_epochs.clear()
                trio.run(device.node.vault.keys_changed)
                device.knows = device.knows.join(*device.heads.values())
                device.heads[device.public] = device.knows
                self.look(device)

    def teardown(self) -> None:
        """At last all meet, and each starts once more."""
        if not hasattr(self, "devices"):
            return
        self.keys_come()
        group = self.group(set(range(len(self.devices))))
        self.talk_until_quiet(group, line=False)
        for device in group:
            self.reopen(device)
        self.in_step(group)
        for device in group:
            if device.reads and not self.collected:
                self.restorable(device)


def pairs(group: list[Device], line: bool) -> list[tuple[Device, Device]]:
    if line:
        return list(itertools.pairwise(group))
    return [(left, right) for at, left in enumerate(group) for right in group[at + 1:]]


def short(content: bytes | None) -> str:
    return "removal" if content is None else content[:24].decode()


def test_whatever_happens_to_a_household_nothing_is_lost_and_all_agree(world: Any) -> None:
    machine = type("Household", (Household,), {"make_world": staticmethod(type(world))})
    run_state_machine_as_test(machine, settings=settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, print_blob=True, database=None,
        derandomize="HINET_STATEFUL" not in os.environ, phases=PHASES, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck)))
