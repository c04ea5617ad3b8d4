"""Invitations: at most one joiner for each.

SPEC section 4. Counted is what can't be hidden: certificates in the chain by the device that signed them, against the
invitations that this device was asked for (trace events `call` of the verb `invite`) and the devices that a scenario
put in directly (`joined`, how "direct"). Where the inviting agent runs in this process its records are looked at too:
one that was certified for one joiner never names another. A device that lied may have signed anything and is left out.
Where devices are processes the signers are not seen: there a household's devices are counted against all invitations
that any of its devices was asked for.
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
        self._certified: dict[tuple[str, str, int], bytes] = {}
        self._counts: dict[tuple[bytes, ...], Mapping[bytes, int]] = {}
        self._names: dict[bytes, dict[str, None]] = {}
        """Public key -> machines that ran under it (more than one after a disk was copied)."""
        self._looked: dict[str, Chain] = {}
        self._told: dict[str, None] = {}

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind == "send":
            return ()
        self._views.observe(kind, node)
        if kind == "call" and fields.get("verb") == "invite" and "error" not in fields:
            self._allowed[node] = self._allowed.get(node, 0) + 1
        elif kind == "joined" and fields.get("how") == "direct":
            by = str(fields["by"])
            self._allowed[by] = self._allowed.get(by, 0) + 1
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        found: list[Finding] = []
        asked: dict[str, list[View]] = {}
        for view in await self._views.honest(stage):
            self._names.setdefault(view.public, {})[view.name] = None
            if view.agent is None or view.chain is None:
                asked.setdefault(view.facts.identity, []).append(view)
            elif self._looked.get(view.name) is not view.chain:
                self._looked[view.name] = view.chain
                found += self._count(stage, view.chain)
                found += self._records(stage, view)
        for views in asked.values():
            found += self._count_asked(stage, views)
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
        return [finding for public, count in counts.items() if public in self._names
                for finding in self._too_many(stage, self._names[public], count)]

    def _count_asked(self, stage: Stage, views: Sequence[View]) -> list[Finding]:
        everyone = {name: None for view in views for public in (*view.facts.live, *view.facts.revoked)
                    for name in self._names.get(public, {})}
        devices = max(len(view.facts.live) + len(view.facts.revoked) for view in views)
        return self._too_many(stage, everyone, devices - 1)  # the first one founded the household

    def _too_many(self, stage: Stage, names: Mapping[str, None], count: int) -> list[Finding]:
        allowed, first = sum(self._allowed.get(name, 0) for name in names), next(iter(names))
        if count <= allowed or first in self._told or any(name in self._views.liars for name in names):
            return []
        self._told[first] = None
        return [Finding(self.name, f"{first} let {count} devices join and was asked for {allowed} invitations",
                        stage.now_s(), first)]

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
