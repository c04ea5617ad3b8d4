"""Revoked: nobody serves a revoked device after learning of it.

SPEC section 5: whose chain holds a revocation has no session with that device and gives it no byte of the vault. A
device learns when its chain holds the entry; the checker sees that at its next look. After that `GRACE_S` of simulated
time are given: the sessions close in a task of their own, a goodbye may take a second to leave, and a batch of entries
that is just coming in is taken in first. Then an open session is a finding, and so is any piece of `VAULT_BYTES` or
more that is sent (packs have at least 64 KiB; a greeting and its refusal are far smaller). Bytes are seen only where
links are simulated in this process; where devices are processes, the session itself shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hinet_simnet.checkers.views import Views
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

GRACE_S = 5.0
VAULT_BYTES = 16_384


class Revoked:
    """See the module."""

    name = "revoked"

    def __init__(self) -> None:
        self._views = Views()
        self._names: dict[bytes, dict[str, None]] = {}
        """Public key -> machines that were seen to run under it."""
        self._keys: dict[str, bytes] = {}
        self._since_s: dict[tuple[str, bytes], float] = {}
        self._barred: dict[tuple[str, str], None] = {}
        """Pairs of machines between which nothing of the vault may pass any more."""
        self._now_s = 0.0
        self._told: dict[tuple[str, str, bool], None] = {}

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind == "send":
            if self._barred and fields["size"] >= VAULT_BYTES and (node, fields["to"]) in self._barred:
                return self._once(node, str(fields["to"]), f"sent {fields['size']} bytes to", self._now_s)
            return ()
        self._views.observe(kind, node)
        if kind == "lie":  # what it sends from now on is not its agent's
            self._barred = {pair: None for pair in self._barred if pair[0] != node}
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        self._now_s = now_s = stage.now_s()
        found: list[Finding] = []
        views = await self._views.honest(stage)
        for view in views:
            if self._keys.get(view.name) != view.public:
                self._keys[view.name] = view.public
                self._names.setdefault(view.public, {})[view.name] = None
        for view in views:
            for public in view.facts.revoked:
                since_s = self._since_s.setdefault((view.name, public), now_s)
                if public == view.public or now_s - since_s < GRACE_S:
                    continue
                for name in self._names.get(public, {}):
                    self._barred[view.name, name] = None
                if view.connected(public):
                    found += self._once(view.name, view.facts.revoked[public], "has an open session with", now_s)
        return found

    async def settled(self, stage: Stage) -> Sequence[str]:
        return ()

    def _once(self, node: str, other: str, what: str, now_s: float) -> list[Finding]:
        key = (node, other, what.startswith("sent"))
        if key in self._told:
            return []
        self._told[key] = None
        return [Finding(self.name, f"{node} {what} {other}, more than {GRACE_S:g} s after it learned that {other} was "
                        "revoked", now_s, node)]
