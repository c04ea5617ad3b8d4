"""The interface of a checker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage


class Checker(Protocol):
    """One rule. Made anew for each run."""

    name: str

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        """Called for each trace event of the run, at once; must be cheap."""

    async def look(self, stage: Stage) -> Sequence[Finding]:
        """Called every few simulated seconds: what is wrong *now* and could never be right."""

    async def settled(self, stage: Stage) -> Sequence[str]:
        """Called repeatedly after the faults have ended: what has not converged yet, in words; empty when content.
        What is still said when `settle_s` is over becomes a finding."""
