"""Three members and a keeper do random things, collecting among them, and a plain model says what must be there after
each: every file as it was last written, and every version that is recent enough, on the device that wrote it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from hinet_node.vault import repack
from hinet_node.vault.choosing import Choice
from hinet_node.vault.marking import Marks
from hinet_node.vault.packstore import pack_path
from hinet_protocol.reconcile import needs_of

DAY_S = 86_400
KEEP_DAYS, KEEP_VERSIONS = 30, 3


@dataclass
class Name:
    """What one device did to one of its names: contents (None for a removal) and when, oldest first."""

    rows: list[tuple[bytes | None, float]] = field(default_factory=list)
    given_up: tuple[float, int] = (0.0, 0)

    def must_be_there(self, now: float) -> list[bytes]:
        """Contents that were replaced and have to be restorable."""
        found, newer = [], 0
        for at in range(len(self.rows) - 2, -1, -1):
            content, replaced = self.rows[at][0], self.rows[at + 1][1]
            if content is None:
                continue
            kept = newer < KEEP_VERSIONS or replaced > now - KEEP_DAYS * DAY_S
            if replaced <= self.given_up[0] and newer >= self.given_up[1]:
                kept = False
            if not kept:
                break
            found.append(content)
            newer += 1
        return found


def exchange(to: Any, source: Any) -> None:
    """What `to` pulls from `source`, without sessions: packs that heads need, then the heads."""
    core, other = to.vault.core, source.vault.core
    heads = [head for head in other.offered_heads() if core.heads.judge(head).kind in ("new", "fork")]
    for _ in range(3):
        for name in needs_of([*core.needed_heads(), *heads], core.store.read_list).packs:
            if not core.store.holds(name) and other.store.holds(name):
                raw = other.disk.read(pack_path(name))
                core.disk.write_atomic(pack_path(name), raw)
                core.store.enter(name, len(raw))
    core.accept(heads)


class Play:
    """One seed's run."""

    def __init__(self, world: Any, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.model: dict[tuple[int, bytes], Name] = {}
        self.nodes: list[Any] = []
        self.keeper: Any = None
        self.epochs = 1

    async def begin(self) -> None:
        self.nodes = [await self.world.node(name) for name in ("one", "two", "three")]
        self.keeper = await self.world.node("keeper", keeper=True)

    async def step(self) -> None:
        rare = (self.restart, self.lose_ledger, self.rotate)
        common = (self.put, self.put, self.put, self.remove, self.sync, self.sync, self.sync, self.collect,
                  self.rewrite, self.reseal, self.pass_time, self.pass_time, self.sweep, self.sweep, self.say)
        await self.random.choice(rare if self.random.random() < 0.06 else common)()

    def pick(self) -> tuple[int, Any]:
        at = self.random.randrange(len(self.nodes))
        return at, self.nodes[at]

    async def put(self) -> None:
        at, node = self.pick()
        name = b"%d/%d" % (at, self.random.randrange(4))
        # Few contents, so that an edit often refers to a chunk whose pack is about to go.
        number = self.random.randrange(6)
        content = random.Random(number).randbytes(3_000 + 900 * number)
        rows = self.model.setdefault((at, name), Name()).rows
        if not rows or rows[-1][0] != content:
            rows.append((content, node.clock.now))
        await node.vault.put(name, content)

    async def remove(self) -> None:
        at, node = self.pick()
        name = b"%d/%d" % (at, self.random.randrange(4))
        rows = self.model.setdefault((at, name), Name()).rows
        if rows and rows[-1][0] is not None:
            rows.append((None, node.clock.now))
        await node.vault.remove([name])

    async def sync(self) -> None:
        left, right = self.random.sample([*self.nodes, self.keeper], 2)
        exchange(left, right)
        if self.random.random() < 0.7:
            exchange(right, left)

    async def collect(self) -> None:
        node = self.pick()[1]
        collector = node.vault.core.collector
        days, versions = self.random.choice(((KEEP_DAYS, KEEP_VERSIONS),) * 3 + ((0, 0), (10, 1)))
        plan = await node.vault.plan(collector.retention(days, versions))
        if (days, versions) != (KEEP_DAYS, KEEP_VERSIONS):
            for name in self.model.values():
                until = int(node.clock.now) - days * DAY_S
                if until >= name.given_up[0]:
                    name.given_up = (until, min(versions, name.given_up[1]) if name.given_up[0] else versions)
        if self.random.random() < 0.3:
            await self.put()  # beside the plan, perhaps on this very device
        await node.vault.give_up(plan)
        if self.random.random() < 0.5:
            await node.vault.change(lambda core: core.collector.confirm())

    async def rewrite(self) -> None:
        node = self.pick()[1]

        def work(marks: Marks, choice: Choice) -> repack.Mover:
            picked = repack.mostly_dead(choice)
            picked += [use for use in repack.too_many_small(choice, mine_only=self.random.random() < 0.5)
                       if use not in picked]
            return repack.move(node.vault.core, marks, picked, 1 << 20)
        await node.vault.collect(rewrite=work)

    async def reseal(self) -> None:
        node = self.pick()[1]
        if self.epochs > 1:
            node.vault.core.reseal.start()
            await node.vault.reseal_step()

    async def pass_time(self) -> None:
        """Everybody's clock goes on; some of the machines were running meanwhile."""
        days = self.random.choice((0.01, 0.5, 2, 40))
        for node in (*self.nodes, self.keeper):
            node.clock.now += days * DAY_S
            if self.random.random() < 0.7:
                node.vault.core.collector.tick(days * DAY_S)

    async def sweep(self) -> None:
        node = self.random.choice([*self.nodes, self.keeper])
        await node.vault.sweep(packs_max=self.random.choice((2, 1_000)), waive_age=self.random.random() < 0.5)

    async def say(self) -> None:
        await self.pick()[1].vault.change(lambda core: core.collector.confirm())

    async def restart(self) -> None:
        node = self.random.choice([*self.nodes, self.keeper])
        if self.random.random() < 0.5:
            node.disk.crash()
        await node.open()

    async def lose_ledger(self) -> None:
        node = self.random.choice([*self.nodes, self.keeper])
        node.disk.remove("vault/ledger")
        await node.open()

    async def rotate(self) -> None:
        self.epochs += 1
        epoch = bytes([self.epochs]) * 32
        self.world.family.epochs[epoch] = epoch
        self.world.family.current = epoch

    async def check(self) -> None:
        for at, node in enumerate(self.nodes):
            core = node.vault.core
            report = await node.vault.verify(deep=True)
            assert report.ok, (at, report)
            assert not core.view.unreadable
            for (writer, name), rows in self.model.items():
                if writer != at or not rows.rows:
                    continue
                shown = core.view.lookup(name)
                now_there = None if shown is None else b"".join(core.content(shown[0]))
                assert now_there == rows.rows[-1][0], (at, name)
                there = [change.version for change in core.history.of_file(name) if not change.version.deleted]
                # A row may outlive its content; of each content that must be there, one version opens.
                for content in rows.must_be_there(node.clock.now):
                    assert any(version.size == len(content) and core.edits.held(version)
                               and b"".join(core.content(version)) == content for version in there), (at, name)
        assert (await self.keeper.vault.verify()).ok

    async def settle(self) -> None:
        """Everybody meets, collects and waits: then what is dead goes."""
        everybody = [*self.nodes, self.keeper]
        for _ in range(8):
            for left in everybody:
                for right in everybody:
                    if left is not right:
                        exchange(left, right)
            for node in self.nodes:
                collector = node.vault.core.collector
                due = collector.restate_due()
                await node.vault.change(lambda core, due=due: core.collector.restate() if due
                                        else core.collector.confirm())
                await node.vault.collect()
            for node in everybody:
                node.clock.now += 3_600
                node.vault.core.collector.tick(3_600)
                await node.vault.sweep(packs_max=1_000, waive_age=True)


@pytest.mark.parametrize("seed", range(6))
def test_what_the_model_says_is_there_after_every_step_and_what_is_dead_goes_in_the_end(world: Any, seed: int) -> None:
    async def main() -> None:
        play = Play(world, seed)
        await play.begin()
        for _ in range(70):
            await play.step()
            await play.check()
        await play.settle()
        await play.check()
        for node in (*play.nodes, play.keeper):
            core = node.vault.core
            needed = needs_of(core.needed_heads(), core.store.read_list).packs
            assert core.store.index.packs().keys() <= needed, "nothing is left that no head retains"
    trio.run(main)
