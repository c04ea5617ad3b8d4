"""One device on a model file system: the real disk's code, the real vault, and SQLite's own file beside them.

Leaves what is done there to `scenes`, what must hold after a crash to `checks`.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import trio

from hinet_node.real.disk import RealDisk
from hinet_node.real.lanes import AtOnceLane
from hinet_node.vault import VaultSettings
from hinet_node.vault.core import VaultCore
from hinet_simnet.filesystem import ModelFilesystem
from hinet_simnet.randomness import SeededRandomness

HOME = "/home/hinet"
SMALL = VaultSettings(chunk_bytes=4096, pack_bytes=65_536, reserve_bytes=0, sync_interval_s=0.5, index_path=":memory:",
                      heads_kept=4)
WRITE_BYTES_MAX = 24_000
"""The model takes no more in one call, so that a pack is several writes: some of them may be lost and others not."""


def households() -> ModuleType:
    """The small household of the vault's tests."""
    name = "crash_households"
    if name not in sys.modules:
        place = Path(__file__).parent.parent / "node" / "vault" / "conftest.py"
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Filesystem(ModelFilesystem):
    """Takes the bytes in small bites, and says when something was synced."""

    on_sync: Callable[[], None] | None = None

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        return super().write(fd, data[:WRITE_BYTES_MAX])

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        if self.on_sync is not None:
            self.on_sync()


class Disk(RealDisk):
    """The real disk over a model. Long work is done at once, so that a run is the same each time."""

    def __init__(self, calls: Any) -> None:
        super().__init__(HOME, calls)

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    def lane(self) -> Any:
        return AtOnceLane()


_starts = itertools.count()
"""No two starts draw the same bytes, as on a real machine."""


def opened_core(world: Any, member: Any, disk: Any, index_path: str = ":memory:", *, later_s: float = 0,
                ) -> VaultCore:
    """The vault as a process that has just started sees it, at some later time."""
    randomness = SeededRandomness(member.name, f"start {next(_starts)}")
    settings = replace(SMALL, index_path=index_path)
    return VaultCore(disk, randomness, world.clock(1_800_000_000 + later_s), member, settings)
