"""Collecting: nothing that is needed ever goes, and what nobody needs goes in the end."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from hinet_node.api import drop
from hinet_node.errors import UsageError
from hinet_node.local.vault_gc_verbs import vault_gc_verbs
from hinet_node.vault.collect import Swept

DAY_S = 86_400.0


def in_trio(test: Callable[[Any], Awaitable[None]]) -> Callable[[Any], None]:
    @functools.wraps(test)
    def run(world: Any) -> None:
        trio.run(test, world)
    return run


def settle_age(node: Any, days: float = 1.01) -> None:
    """So much running time passes on this device."""
    node.clock.now += days * DAY_S
    node.vault.core.collector.tick(days * DAY_S)


def give_up(node: Any, days: int = 0, versions: int = 0) -> bool:
    collector = node.vault.core.collector
    return bool(collector.give_up(collector.plan(collector.retention(days, versions))))


def sweep(node: Any, **how: Any) -> Swept:
    swept: Swept = node.vault.core.collector.sweep(packs_max=1_000, **how)
    return swept


def agree_at_once(*nodes: Any, days: int = 0, versions: int = 0) -> None:
    """All of these give up what they don't need, twice, and hear of each other."""
    for node in nodes:
        give_up(node, days, versions)
    meet(*nodes)
    for node in nodes:
        node.vault.core.collector.confirm()
    meet(*nodes)


def meet(*nodes: Any) -> None:
    """Everybody hears of everybody's heads, packs aside: those are held already."""
    for node in nodes:
        for other in nodes:
            node.vault.core.accept(other.vault.core.offered_heads())


def packs(node: Any) -> set[bytes]:
    return set(node.vault.core.store.index.packs())


@in_trio
async def test_a_removed_file_goes_from_the_disk_after_two_sets_and_a_day(world: Any) -> None:
    one = await world.node("one")
    await one.vault.put(b"kept", b"k" * 3_000)
    await one.vault.put(b"gone", bytes(range(256)) * 200)
    await one.vault.remove([b"gone"])
    before = packs(one)
    assert sweep(one, waive_age=True).packs == 0, "a head retains everything"
    assert give_up(one)
    settle_age(one)
    assert sweep(one).packs == 0, "only one set leaves them out"
    assert one.vault.core.collector.confirm()
    assert sweep(one).packs == 0, "it was not seen so for a day"
    settle_age(one, 0.9)
    assert sweep(one).packs == 0
    settle_age(one, 0.2)
    swept = sweep(one)
    assert swept.packs == len(before - packs(one)) > 0
    assert await one.vault.get(b"kept") == b"k" * 3_000
    await one.open()
    assert await one.names() == [b"kept"]
    assert await one.vault.get(b"kept") == b"k" * 3_000
    assert (await one.vault.verify(deep=True)).ok


@in_trio
async def test_a_sibling_that_has_not_agreed_keeps_the_packs_everywhere(world: Any) -> None:
    one, two = await world.node("one"), await world.node("two")
    await one.vault.put(b"kept", b"k" * 3_000)
    await one.vault.put(b"gone", bytes(range(256)) * 200)
    async with world.running(one, two):
        await world.until(lambda: world.in_step(one, two))
        await one.vault.remove([b"gone"])
        await world.until(lambda: world.in_step(one, two) and one.vault.core.heads.forks() == [])
    agree_at_once(one)
    meet(one, two)
    settle_age(one, 40)
    swept = sweep(one)
    assert swept.packs == 0
    assert set(swept.retained_by) == {two.member.public}, "the report names who still retains it"
    assert two.vault.core.collector.follow_due()
    agree_at_once(two, one)
    assert sweep(one).packs == 0, "its time begins when everybody agrees"
    settle_age(one)
    assert sweep(one).packs > 0
    assert await one.vault.get(b"kept") == b"k" * 3_000
    async with world.running(one, two):
        await world.until(lambda: world.in_step(one, two))
    assert one.vault.core.store.index.packs().keys() < two.vault.core.store.index.packs().keys(), "not pulled again"


@in_trio
async def test_what_was_replaced_lately_and_the_newest_versions_stay(world: Any) -> None:
    one = await world.node("one")
    for number in range(6):
        await one.vault.put(b"note", b"%d" % number * 5_000)
        one.clock.now += 10 * DAY_S
    agree_at_once(one, days=30, versions=2)
    sweep(one, waive_age=True)
    # Versions 0 to 4 were replaced 50, 40, 30, 20 and 10 days ago.
    core = one.vault.core
    versions = [change.version for change in core.history.of_file(b"note") if core.edits.held(change.version)]
    assert [b"".join(core.content(version))[:1] for version in versions] == [b"5", b"4", b"3"]
    agree_at_once(one, days=365, versions=0)
    assert sweep(one, waive_age=True).packs == 0, "what is left was all replaced within a year"


@in_trio
async def test_a_keeper_deletes_what_the_heads_have_given_up_and_knows_of_no_versions(world: Any) -> None:
    keeper = await world.node("keeper", keeper=True)
    gc = vault_gc_verbs(keeper.vault, keeper.member.names, keeper.member)["vault.gc"]
    found = await gc({"apply": True}, drop)
    assert (found["keeper"], found["due_packs"], found["blocked"]) == (True, 0, "no device's head is here")
    with pytest.raises(UsageError, match="keeper"):
        await gc({"keep_days": 1}, drop)
    for wrong in ({"keep_days": -1}, {"keep_versions": 10**9}, {"keep_days": "3"}):
        with pytest.raises(UsageError):
            await gc(wrong, drop)
