"""What checkers see of a device, the same at every level: its place in its household's chain and its open sessions.

Where the agent runs in this process, everything is read from it without asking, and what follows from a chain is worked
out once for all devices that hold the same one. Where it is a process, `status` tells: height and number of the chain's
heads instead of the heads themselves. Leaves judging to the checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hinet_node.agent import Agent
from hinet_node.errors import NodeError
from hinet_protocol.chain import Chain
from hinet_simnet.stage import Stage

FACTS_KEPT = 512


@dataclass(frozen=True)
class Facts:
    """What one chain says. `heads` are the chain's own where they can be seen, else a text that stands for them."""

    identity: str
    heads: tuple[Any, ...]
    height: int
    live: Mapping[bytes, str]
    """Public key -> role."""
    revoked: Mapping[bytes, str]
    """Public key -> name, of devices that were put out."""


@dataclass(frozen=True)
class View:
    """One running device as it is now. `agent` and `chain` are None where the device is a process."""

    name: str
    public: bytes
    facts: Facts
    connected: Callable[[bytes], bool] = field(repr=False)
    agent: Agent | None = None
    chain: Chain | None = None

    @property
    def belongs(self) -> bool:
        """By its own chain."""
        return self.public in self.facts.live

    @property
    def role(self) -> str:
        return self.facts.live.get(self.public, "")


class Views:
    """Made once by each checker that looks at chains. Follows who lied and who is frozen, by the trace's events."""

    def __init__(self) -> None:
        self.liars: dict[str, None] = {}
        self.frozen: dict[str, None] = {}
        self._facts: dict[tuple[bytes, ...], Facts] = {}
        self._seen: dict[str, tuple[Agent, Chain, View]] = {}

    def observe(self, kind: str, node: str) -> None:
        if kind == "lie":
            self.liars[node] = None
        elif kind == "freeze":
            self.frozen[node] = None
        elif kind in ("thaw", "kill", "start"):
            self.frozen.pop(node, None)

    async def honest(self, stage: Stage) -> list[View]:
        """The running devices that never lied and whose time goes on, in the order of their first start. A liar's key
        is a liar's, also where a copied disk runs under it."""
        found = [view for name in stage.names() if (view := await self.view(stage, name)) is not None]
        lying = {view.public for view in found if view.name in self.liars}
        return [view for view in found if view.public not in lying and view.name not in self.frozen]

    async def view(self, stage: Stage, name: str) -> View | None:
        """None for a device that does not run or does not answer."""
        if not stage.running(name):
            return None
        agent = stage.agent(name)
        if agent is None:
            return await self._asked(stage, name)
        chain = agent.membership.chain()
        seen = self._seen.get(name)
        if seen is not None and seen[0] is agent and seen[1] is chain:
            return seen[2]

        def connected(public: bytes) -> bool:
            return agent.peers.session_with(public) is not None

        view = View(name, agent.membership.device_public, self._facts_of(chain), connected, agent, chain)
        self._seen[name] = agent, chain, view
        return view

    def _facts_of(self, chain: Chain) -> Facts:
        found = self._facts.get(chain.heads)
        if found is None:
            found = facts_of(chain)
            if len(self._facts) >= FACTS_KEPT:
                del self._facts[next(iter(self._facts))]
            self._facts[chain.heads] = found
        return found

    async def _asked(self, stage: Stage, name: str) -> View | None:
        try:
            status = await stage.call(name, "status")
        except NodeError:
            return None
        rows = status["devices"]
        identity = status["identity"]
        live = {bytes.fromhex(row["public"]): row["role"] for row in rows if row["state"] != "revoked"}
        gone = {bytes.fromhex(row["public"]): row["name"] for row in rows if row["state"] == "revoked"}
        open_to = {bytes.fromhex(row["public"]) for row in rows if row["state"] == "connected"}
        heads = (identity["height"], identity["heads"], tuple(sorted(live)), tuple(sorted(gone)))
        facts = Facts(identity["id"], heads, identity["height"], live, gone)
        return View(name, bytes.fromhex(status["device"]["public"]), facts, open_to.__contains__)


def facts_of(chain: Chain) -> Facts:
    """What a chain says of its devices."""
    devices = chain.devices()
    return Facts(chain.identity_id.hex(), chain.heads, chain.height,
                 {device.public: device.role for device in devices if device.live},
                 {device.public: device.name for device in devices if not device.live})


def households(views: Sequence[View]) -> list[list[View]]:
    """The devices that belong together and should meet: of one identity, live in the chain of everybody else of them.

    Two running machines with one key are a copied disk: neither is counted, because the household refuses both.
    """
    by_identity: dict[str, list[View]] = {}
    for view in views:
        by_identity.setdefault(view.facts.identity, []).append(view)
    found = []
    for group in by_identity.values():
        gone = {public for facts in {id(view.facts): view.facts for view in group}.values() for public in facts.revoked}
        keys: dict[bytes, int] = {}
        for view in group:
            keys[view.public] = keys.get(view.public, 0) + 1
        found.append([view for view in group
                      if view.belongs and view.public not in gone and keys[view.public] == 1])
    return found
