"""Liveness: once the faults have ended, the members of each household have sessions with one another again.

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
        apart = [f"{view.name} has no session with {other.name}"
                 for group in households(await self._views.honest(stage))
                 for view in group for other in group if other is not view and not view.connected(other.public)]
        more = [f"and {len(apart) - NAMED_MAX} more such pairs"] if len(apart) > NAMED_MAX else []
        return apart[:NAMED_MAX] + more
