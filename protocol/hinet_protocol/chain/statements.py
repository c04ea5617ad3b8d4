"""What a household says of communes: consents and adopted bases. SPEC.md, 3.4. What follows from them in a round is
left to others."""

from __future__ import annotations

from dataclasses import dataclass

from hinet_protocol.chain.bodies import BASE_ADOPT, CONSENT
from hinet_protocol.chain.graph import Graph, Node
from hinet_protocol.chain.standing import Standing


@dataclass(frozen=True)
class Consent:
    """Whether the household takes part in a commune, by the entry that says so. `agreed` is the chain's word: by a
    device's own clock a consent ends when `expires_s` (unix seconds, 0 for never) has passed."""

    commune: bytes
    agreed: bool
    terms: bytes
    round: int
    expires_s: int
    entry: bytes
    signer: bytes
    time_s: int

    def agreed_at(self, now_s: int) -> bool:
        """The household takes part, by this clock."""
        return self.agreed and (self.expires_s == 0 or now_s < self.expires_s)


@dataclass(frozen=True)
class AdoptedBase:
    """The base that the household has for a commune (None: for itself), from a round on."""

    commune: bytes | None
    base: bytes
    previous: bytes | None
    round: int
    entry: bytes


def consents_of(graph: Graph, settled: Standing) -> dict[bytes, Consent]:
    """By commune. An `in` counts if it stands and follows every `out`; without one the household is out."""
    said: dict[bytes, list[Node]] = {}
    for node in graph.of_kind(CONSENT, graph.everything):
        if settled.counts(node):
            said.setdefault(node.entry.body["commune"], []).append(node)
    found = {}
    for commune, nodes in sorted(said.items()):
        outs = [node for node in nodes if node.entry.reduces]
        agreed = [node for node in nodes if not node.entry.reduces and all(node.follows(out) for out in outs)]
        if agreed:
            node = min(_last(agreed), key=settled.order)
        else:
            node = min(_last(outs or nodes), key=lambda one: (one.entry.body["round"], one.hash))
        body = node.entry.body
        found[commune] = Consent(
            commune, bool(agreed), body["terms"], body["round"], body["expires"], node.hash, node.entry.signer,
            node.entry.time_s,
        )  # fmt: skip
    return found


def bases_of(graph: Graph, settled: Standing) -> dict[bytes | None, AdoptedBase]:
    """By commune: of the standing adoptions the last; of several made apart the root-signed, then the senior's."""
    said: dict[bytes | None, list[Node]] = {}
    for node in graph.of_kind(BASE_ADOPT, graph.everything):
        if settled.stands(node):
            said.setdefault(node.entry.body["commune"], []).append(node)
    found = {}
    for commune in sorted(said, key=lambda name: name or b""):
        node = min(_last(said[commune]), key=settled.order)
        body = node.entry.body
        found[commune] = AdoptedBase(commune, body["base"], body["previous"], body["round"], node.hash)
    return found


def _last(nodes: list[Node]) -> list[Node]:
    """Those that no other one of them follows."""
    covered = 0
    for node in nodes:
        covered |= node.past & ~(1 << node.index)
    return [node for node in nodes if not covered >> node.index & 1]
