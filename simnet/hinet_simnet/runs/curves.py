"""Convergence as curves, for a run's facts: how many versions of chains there are, and how many devices are behind.

Reads agents that run in this process and asks nobody, so nothing of it is in the trace. Leaves judging to `checkers`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hinet_simnet.stage import Stage

VERSIONS = "chain versions (beyond one a household)"
BEHIND = "devices behind their household's chain"
POINTS_MAX = 2_000


class Convergence:
    """Made once for a run."""

    def sample(self, stage: Stage, at_s: float, facts: dict[str, Any]) -> None:
        """Add a point to each curve where its value has changed."""
        households: dict[str, Counter[tuple[int, Any]]] = {}
        for name in stage.names():
            agent = stage.agent(name)
            if agent is not None:
                chain = agent.membership.chain()
                households.setdefault(chain.identity_id, Counter())[chain.height, chain.heads] += 1
        if not households:
            return
        versions = sum(len(found) - 1 for found in households.values())
        behind = sum(found.total() - found[max(found, key=lambda one: one[0])] for found in households.values())
        for name, value in ((VERSIONS, versions), (BEHIND, behind)):
            points = facts.setdefault(name, [])
            if (not points or points[-1][1] != value) and len(points) < POINTS_MAX:
                points.append([round(at_s, 3), value])
