"""Contributions: nothing that was learned leaves a device after its owner opted out, or before they opted in.

Communal rounds are not there yet: their message kinds and the chain's `consent` entries are reserved and nothing sends
them. So this checker judges the trace's events which the rounds' code has to emit, and is proved by a test that emits
them wrongly:

- `consent` {node: the device that now holds the entry, member: whose consent, state: "in" or "out"};
- `contribution` {node: the device that sends, member: whose contribution it carries}.

The device that sends must hold an opt-in of that member, and no later opt-out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage


class Contributions:
    """See the module."""

    name = "contributions"

    def __init__(self) -> None:
        self._state: dict[tuple[str, str], str] = {}
        self._wrong: list[tuple[str, str]] = []

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind == "consent":
            self._state[node, str(fields["member"])] = str(fields["state"])
        elif kind == "contribution":
            member = str(fields.get("member", node))
            state = self._state.get((node, member), "never given")
            if state != "in":
                self._wrong.append((node, f"{node} sent a contribution of {member}, whose consent is: {state}"))
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        wrong, self._wrong = self._wrong, []
        return [Finding(self.name, what, stage.now_s(), node) for node, what in wrong]

    async def settled(self, stage: Stage) -> Sequence[str]:
        return ()
