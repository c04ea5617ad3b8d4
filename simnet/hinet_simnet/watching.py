"""The checkers at work in a test's household: told each event, asked every few seconds, and at the end until content.

Leaves the rules to `checkers`, the failing to `house`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio

from hinet_node.errors import NodeError
from hinet_simnet.checkers.base import Checker
from hinet_simnet.findings import Finding
from hinet_simnet.trace import Trace
from hinet_simnet.world import World

LOOK_EVERY_S = 10.0
SETTLE_EVERY_S = 5.0
FINDINGS_MAX = 100


class Watch:
    """The checkers of one household and what they found, crashes included."""

    def __init__(self, checkers: Sequence[Checker], trace: Trace) -> None:
        self._checkers = tuple(checkers)
        self._trace = trace
        self._ended = False
        self.findings: list[Finding] = []

    def begin(self, world: World) -> None:
        """From now on, inside the world."""
        world.on_crash.append(lambda finding: self._take([finding]))
        if self._checkers:
            self._trace.observers.append(self._observe)
            world._nursery.start_soon(self._look, world)

    async def settle(self, world: World, seconds: float) -> None:
        """End all faults, then ask until nobody has anything to say; what is still said becomes a finding."""
        if not self._checkers:
            return
        await self._mend(world)
        end_s = world.now_s() + seconds
        while True:
            await self._look_once(world)
            said = [(checker.name, line) for checker in self._checkers for line in await checker.settled(world)]
            if not said or world.now_s() >= end_s or self.findings:
                break
            await trio.sleep(SETTLE_EVERY_S)
        self._ended = True
        self._take([Finding(name, line, world.now_s()) for name, line in said])

    async def _mend(self, world: World) -> None:
        world.heal()
        for name in world.names():
            machine = world.machines[name]
            world.free_disk(name)
            if machine.frozen:
                await world.thaw(name)
            if not world.running(name):
                try:
                    await world.start(name)
                except NodeError as error:
                    self._take([Finding("start", f"it does not start again: {error}", world.now_s(), name)])

    async def _look(self, world: World) -> None:
        while not self._ended:
            await trio.sleep(LOOK_EVERY_S)
            await self._look_once(world)

    async def _look_once(self, world: World) -> None:
        for checker in self._checkers:
            self._take(await checker.look(world))

    def _observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> None:
        for checker in self._checkers:
            self._take(checker.observe(kind, node, fields))

    def _take(self, findings: Sequence[Finding]) -> None:
        self.findings += findings[:max(0, FINDINGS_MAX - len(self.findings))]
