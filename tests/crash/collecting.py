"""Collecting and resealing, as the agent does them, with all waiting left out.

Leaves which states a crash in the middle leaves to `matrix`.
"""

from __future__ import annotations

from typing import Any

from hinet_node.vault import repack
from hinet_node.vault.choosing import Choice
from hinet_node.vault.collect import Rewrite
from hinet_node.vault.core import VaultCore
from hinet_node.vault.marking import Marks

NEW_EPOCH = b"2" * 32


def rotate(world: Any) -> None:
    """From now on another epoch is in force."""
    world.family.epochs[NEW_EPOCH] = b"n" * 32
    world.family.current = NEW_EPOCH


def rewrite_dead(core: VaultCore) -> Rewrite:
    """Move what is needed out of packs that are mostly dead."""
    def work(marks: Marks, choice: Choice) -> repack.Mover | None:
        picked = repack.mostly_dead(choice)
        return repack.move(core, marks, picked, 1 << 30) if picked else None
    return work


def give_up(core: VaultCore, rewrite: Rewrite | None = None) -> None:
    """Find what nothing needs, the past included, and say so in a head."""
    collector = core.collector
    collector.give_up(collector.plan(collector.retention(0, 0), rewrite=rewrite))


def delete(core: VaultCore) -> int:
    """Say it a second time, and delete what may go; how many packs."""
    core.collector.confirm()
    core.collector.tick(100.0)
    return core.collector.sweep(packs_max=1_000, waive_age=True).packs
