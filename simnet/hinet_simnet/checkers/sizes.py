"""Sizes: what must stay bounded stays bounded.

SPEC sections 3 to 5 and `hinet_protocol.limits`. Of each device that is looked at: one open session for each peer (two
for as long as a clone is being judged), what a session has queued to send and the questions it is answering, greetings
under way, calls under way, kept invitations, segments of the chain, troubles of the vault. A few devices are looked at
each time, in turn, so that a run with thousands pays the same as one with ten. Needs the agent in this process; of
processes it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hinet_node.agent import Agent
from hinet_node.api import CALLS_MAX
from hinet_node.belonging import chain_store, invitation_store
from hinet_node.sessions import peers, session
from hinet_node.vault import core
from hinet_protocol import limits
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

DEVICES_A_LOOK_MAX = 32
DOUBLES_S_MAX = 2 * limits.clone_probe_ms / 1000 + session.GOODBYE_S
"""So long two sessions with one peer may be open: one probe, answered late, and a goodbye."""
TROUBLES_PER_DEVICE_MAX = 16
TROUBLES_BASE = 1_024


class Sizes:
    """See the module."""

    name = "sizes"

    def __init__(self) -> None:
        self._turn = 0
        self._doubles: dict[str, tuple[float, list[session.Session]]] = {}
        """Device -> its open sessions with one peer that are more than one, and since when."""
        self._told: dict[tuple[str, str], None] = {}

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        names = stage.names()
        found = []
        picked = list(dict.fromkeys(
            [*(names[(self._turn + at) % len(names)] for at in range(min(DEVICES_A_LOOK_MAX, len(names)))),
             *self._doubles])) if names else []
        self._turn += DEVICES_A_LOOK_MAX
        for name in picked:
            agent = stage.agent(name) if stage.running(name) else None
            if agent is None:
                self._doubles.pop(name, None)
                continue
            for what, count, most in (*sizes_of(agent), *self._sessions(agent, name, stage.now_s())):
                if count > most and (name, what) not in self._told:
                    self._told[name, what] = None
                    found.append(Finding(self.name, f"{name} has {count} {what}, at most {most} are allowed",
                                         stage.now_s(), name))
        return found

    async def settled(self, stage: Stage) -> Sequence[str]:
        return ()

    def _sessions(self, agent: Agent, name: str, now_s: float) -> Iterator[tuple[str, int, int]]:
        by_peer: dict[bytes, list[session.Session]] = {}
        for one in agent.peers._all:
            if one.is_open and one.shown:
                by_peer.setdefault(one.public, []).append(one)
        most = max(by_peer.values(), key=len, default=[])
        since_s, before = self._doubles.pop(name, (now_s, most))
        if len(most) > 1:
            same = len([one for one in before if one in most]) > 1
            self._doubles[name] = (since_s if same else now_s, most)
            if now_s - self._doubles[name][0] > DOUBLES_S_MAX:
                yield "open sessions with one device", len(most), 1


def sizes_of(agent: Agent) -> Iterator[tuple[str, int, int]]:
    """What is counted, how many there are, how many there may be."""
    for one in agent.peers._all:
        yield "bytes to send in one session", one._outgoing_bytes, session.QUEUE_BYTES_MAX
        yield "notices under way in one session", one._notices, session.NOTICES_MAX
        yield "questions under answer in one session", len(one._machine.answering), limits.requests_outstanding_max
        yield "questions asked in one session", len(one._waiting), limits.requests_outstanding_max
    yield "greetings of devices under way", len(agent.peers._greetings), peers.GREETINGS_MAX
    yield "greetings of strangers under way", len(agent.peers._strangers), peers.GREETINGS_MAX
    bulk = agent.replicator._bulk
    if bulk is not None:
        yield "bulk connections served", bulk._serving.total(), limits.bulk_connections_max
        yield "bulk connections served to one device", max(bulk._serving.values(), default=0), \
            limits.bulk_connections_each_max
    yield "calls under way", agent.api._calls, CALLS_MAX
    yield "kept invitations", len(agent.inviter._store._records), _invitations_max(agent)
    yield "segments of the chain", len(agent.ports.disk.list("chain")), chain_store.SEGMENTS_MAX + 3
    devices = len(agent.membership.chain().devices())
    yield "packs noted with where they came from", len(agent.vault.core.arrived_from), core.ARRIVALS_MAX
    yield "troubles of the vault", len(agent.vault.core.trouble), TROUBLES_BASE + TROUBLES_PER_DEVICE_MAX * devices


def _invitations_max(agent: Agent) -> int:
    """Open ones are never forgotten, the others beyond the bound are."""
    return invitation_store.RECORDS_MAX + len(agent.inviter._store.open_records()) + 1
