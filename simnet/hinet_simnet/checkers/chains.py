"""Chains: nobody's verified chain goes back, nobody contradicts anybody, and in the end all hold the same heads.

SPEC section 3. A chain never loses an entry, also across a power cut. Two devices that hold the same heads say the same
of every device. Where devices are processes only height, number of heads and the table of devices can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hinet_simnet.checkers.views import View, Views, facts_of, households
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

TABLES_KEPT = 4_096
TABLES_A_LOOK_MAX = 32
"""Chains that are read device by device in one look; those of the others wait for the next."""


class Chains:
    """See the module."""

    name = "chains"

    def __init__(self) -> None:
        self._views = Views()
        self._last: dict[str, View] = {}
        self._unread: dict[str, None] = {}
        self._tables: dict[tuple[Any, ...], tuple[str, int]] = {}

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind != "send":
            self._views.observe(kind, node)
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        found = []
        for view in await self._views.honest(stage):
            last = self._last.get(view.name)
            if last is view:
                continue
            self._last[view.name] = view
            self._unread[view.name] = None
            if last is not None:
                found += self._finding(stage, view, _went_back(last, view))
        for name in list(self._unread)[:TABLES_A_LOOK_MAX]:
            del self._unread[name]
            found += self._finding(stage, self._last[name], self._contradiction(self._last[name]))
        return found

    async def settled(self, stage: Stage) -> Sequence[str]:
        waiting = []
        for group in households(await self._views.honest(stage)):
            heads = {view.facts.heads: view.name for view in group}
            if len(heads) > 1:
                waiting.append("the chains of " + ", ".join(sorted(heads.values())) + " differ")
        return waiting

    def _finding(self, stage: Stage, view: View, what: str) -> list[Finding]:
        return [Finding(self.name, f"{view.name}: {what}", stage.now_s(), view.name)] if what else []

    def _contradiction(self, view: View) -> str:
        if view.chain is None:
            return ""  # its heads are not seen, so two equal ones can't be told
        facts = facts_of(view.chain)
        table = hash((tuple(sorted(facts.live.items())), tuple(sorted(facts.revoked))))
        name, known = self._tables.setdefault(facts.heads, (view.name, table))
        if len(self._tables) > TABLES_KEPT:
            del self._tables[next(iter(self._tables))]
        return "" if known == table else f"says other things of the household than {name}, and holds the same chain"


def _went_back(last: View, view: View) -> str:
    if view.public != last.public or view.facts.identity != last.facts.identity:
        return "it has another key or household than before"
    if view.facts.height < last.facts.height:
        return f"its chain went back from height {last.facts.height} to {view.facts.height}"
    if view.chain is not None and last.chain is not None and view.chain.missing(last.chain.heads):
        return f"its chain lost entries that it held at height {last.facts.height}"
    return ""
