"""Invitations: at most one joiner for each.

SPEC section 4. Counted is what can't be hidden: certificates in the chain by the device that signed them, against the
invitations that this device was asked for (trace events `call` of the verb `invite`) and the devices that a scenario put
in directly (`joined`, how "direct"). Where the inviting agent runs in this process its records are looked at too: one
that was certified for one joiner never names another. A device that lied may have signed anything and is left out.
Where devices are processes the chain's signers are not seen; there each inviting device is counted by the joins that
the run saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hinet_protocol.chain import Chain
from hinet_simnet.checkers.views import View, Views
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

COUNTS_KEPT = 512


class Invitations:
    """See the module."""

    name = "invitations"

    def __init__(self) -> None:
        self._views = Views()
        self._allowed: dict[str, int] = {}
        self._joined: dict[str, int] = {}
        self._certified: dict[tuple[str, str, int], bytes] = {}
        self._counts: dict[tuple[bytes, ...], Mapping[bytes, int]] = {}
        self._names: dict[bytes, str] = {}
        self._looked: dict[str, Chain] = {}
        self._told: dict[str, None] = {}

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind == "send":
            return ()
        self._views.observe(kind, node)
        if kind == "call" and fields.get("verb") == "invite" and "error" not in fields:
            self._allowed[node] = self._allowed.get(node, 0) + 1
        elif kind == "joined":
            by = str(fields["by"])
            self._joined[by] = self._joined.get(by, 0) + 1
            if fields.get("how") == "direct":
                self._allowed[by] = self._allowed.get(by, 0) + 1
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        found: list[Finding] = []
        for view in await self._views.honest(stage):
            self._names.setdefault(view.public, view.name)
            if view.agent is None or view.chain is None or self._looked.get(view.name) is view.chain:
                continue
            self._looked[view.name] = view.chain
            found += self._count(stage, view.chain)
            found += self._records(stage, view)
        for name, joined in self._joined.items():
            if self._names and stage.agent(name) is None:
                found += self._too_many(stage, name, joined)
        return found

    async def settled(self, stage: Stage) -> Sequence[str]:
        return ()

    def _count(self, stage: Stage, chain: Chain) -> list[Finding]:
        counts = self._counts.get(chain.heads)
        if counts is None:
            made: dict[bytes, int] = {}
            for device in chain.devices():
                made[device.added_by] = made.get(device.added_by, 0) + 1
            if len(self._counts) >= COUNTS_KEPT:
                del self._counts[next(iter(self._counts))]
            counts = self._counts[chain.heads] = made
        return [finding for public, count in counts.items() if (name := self._names.get(public)) is not None
                for finding in self._too_many(stage, name, count)]

    def _too_many(self, stage: Stage, name: str, count: int) -> list[Finding]:
        allowed = self._allowed.get(name, 0)
        if count <= allowed or name in self._told or name in self._views.liars:
            return []
        self._told[name] = None
        return [Finding(self.name, f"{name} let {count} devices join and was asked for {allowed} invitations",
                        stage.now_s(), name)]

    def _records(self, stage: Stage, view: View) -> list[Finding]:
        found = []
        assert view.agent is not None
        for selector, record in view.agent.inviter._store._records.items():
            key = (view.name, selector, record.expires_at_s)
            if record.joiner is None:
                continue
            first = self._certified.get(key)
            if first is not None and first != record.joiner:
                found.append(Finding(self.name, f"{view.name}: one invitation was used by two joiners", stage.now_s(),
                                     view.name))
            elif record.state == "certified":
                self._certified[key] = record.joiner
        return found
