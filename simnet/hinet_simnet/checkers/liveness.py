"""Liveness: once the faults have ended, the members of each household have sessions with one another again, and each
that may write holds the key that new files are sealed with (seen where the agent runs in this process).

SPEC section 5. Counted are honest devices that run and that nobody's chain has put out; a copied disk's two machines
are left out, because the household refuses both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hinet_simnet.checkers.views import Views, households
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

NAMED_MAX = 8


class Liveness:
    """See the module."""

    name = "liveness"

    def __init__(self) -> None:
        self._views = Views()

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind != "send":
            self._views.observe(kind, node)
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        return ()

    async def settled(self, stage: Stage) -> Sequence[str]:
        groups = households(await self._views.honest(stage))
        apart = [f"{view.name} has no session with {other.name}" for group in groups
                 for view in group for other in group if other is not view and not view.connected(other.public)]
        apart += [f"{view.name} holds no key of the current epoch" for group in groups for view in group
                  if view.agent is not None and view.role != "keeper" and view.agent.membership.current_epoch() is None]
        more = [f"and {len(apart) - NAMED_MAX} more such"] if len(apart) > NAMED_MAX else []
        return apart[:NAMED_MAX] + more
