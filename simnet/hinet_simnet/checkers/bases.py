"""Bases: all adopters hold one base digest.

SPEC section 7. What can be seen today, before a commune adopts bases by the chain (`base.adopt` is reserved):

- devices that serve one revision (an adapter) do so on one base, the one that its passport names;
- devices that hold a base of one digest say the same of it: name, parameters, architecture.

Looked at are devices whose owner called a verb of models, a few each time. What really answers is seen only where the
agent runs in this process; of processes the second rule is checked, by `base.show`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hinet_node.agent import Agent
from hinet_node.errors import NodeError
from hinet_simnet.checkers.views import Views
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

DEVICES_A_LOOK_MAX = 16
VERBS = ("train", "ask", "ask.many", "evaluate", "adapters.promote", "adapters.rollback", "base.import", "base.use")


class Bases:
    """See the module."""

    name = "bases"

    def __init__(self) -> None:
        self._views = Views()
        self._devices: dict[str, None] = {}
        self._turn = 0
        self._served: dict[str, tuple[str, str]] = {}
        """Revision -> base digest and the device that was first seen to serve it."""
        self._said: dict[str, tuple[str, str]] = {}
        self._told: dict[str, None] = {}

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind == "send":
            return ()
        self._views.observe(kind, node)
        if kind == "call" and fields.get("verb") in VERBS:
            self._devices[node] = None
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        names = list(self._devices)
        found: list[Finding] = []
        for at in range(min(DEVICES_A_LOOK_MAX, len(names))):
            name = names[(self._turn + at) % len(names)]
            if name in self._views.liars or name in self._views.frozen or not stage.running(name):
                continue
            for what in (*await self._manifests(stage, name), *self._serving(name, stage.agent(name))):
                if what not in self._told:
                    self._told[what] = None
                    found.append(Finding(self.name, what, stage.now_s(), name))
        self._turn += DEVICES_A_LOOK_MAX
        return found

    async def settled(self, stage: Stage) -> Sequence[str]:
        return ()

    async def _manifests(self, stage: Stage, name: str) -> list[str]:
        try:
            bases = (await stage.call(name, "base.show"))["bases"]
        except NodeError:
            return []
        wrong = []
        for base in bases:
            said = f"{base['name']}, {base['parameters']} parameters, {base['architecture']}"
            first, by = self._said.setdefault(base["digest"], (said, name))
            if first != said:
                wrong.append(f"{name} says of base {base['digest'][:12]} that it is {said}, and {by}: {first}")
        return wrong

    def _serving(self, name: str, agent: Agent | None) -> list[str]:
        hot = None if agent is None else agent.learning.serving._hot
        if agent is None or hot is None or hot.adapter is None:
            return []
        served = next((row for row in agent.learning.adapters.history() if row.revision in hot.adapter), None)
        if served is None:
            return []
        first, by = self._served.setdefault(served.revision, (hot.base_digest, name))
        if hot.base_digest != served.base:
            return [f"{name} serves revision {served.revision} of base {served.base[:12]} on base "
                    f"{hot.base_digest[:12]}"]
        if first != hot.base_digest:
            return [f"{name} serves revision {served.revision} on base {hot.base_digest[:12]}, and {by} on "
                    f"{first[:12]}"]
        return []
