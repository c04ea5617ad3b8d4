"""The vault epochs that a chain holds, and which one to write with. SPEC.md, 3.5. Keys are opened in `keyring`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hinet_protocol.chain.bodies import EPOCH_NEW
from hinet_protocol.chain.graph import Graph
from hinet_protocol.chain.standing import Standing


@dataclass(frozen=True)
class Epoch:
    """One vault key epoch. `wraps` and `previous` are as in the entry; `standing`: its signer had the right."""

    epoch_id: bytes
    height: int
    signer: bytes
    check: bytes
    ephemeral: bytes
    wraps: Mapping[bytes, bytes] = field(repr=False)
    previous: Mapping[bytes, bytes] = field(repr=False)
    standing: bool = True


def epochs_of(graph: Graph, settled: Standing) -> dict[bytes, Epoch]:
    """All epochs by id, earlier first."""
    found = {}
    for node in sorted(graph.of_kind(EPOCH_NEW, graph.everything), key=lambda one: one.place):
        body = node.entry.body
        found[node.hash] = Epoch(
            epoch_id=node.hash,
            height=node.height,
            signer=node.entry.signer,
            check=body["check"],
            ephemeral=body["ephemeral"],
            wraps=dict(body["wraps"]),
            previous=dict(body["previous"]),
            standing=settled.stands(node),
        )
    return found


def tips_of(graph: Graph, epochs: Mapping[bytes, Epoch]) -> tuple[Epoch, ...]:
    """The standing epochs that no later standing epoch has in its past. More than one after a merge."""
    nodes = [node for name, epoch in epochs.items() if epoch.standing and (node := graph.get(name)) is not None]
    covered = 0
    for node in nodes:
        covered |= node.past & ~(1 << node.index)
    return tuple(epochs[node.hash] for node in nodes if not covered >> node.index & 1)


def current_of(graph: Graph, settled: Standing, tips: tuple[Epoch, ...]) -> Epoch | None:
    """The epoch to write with. Of several tips: the one that reaches fewest keys which no longer belong (the root in
    force aside), then the root-signed, then that of the senior signer, then the lowest hash."""
    root = settled.line[-1].entry.body["root"]

    def order(epoch: Epoch) -> tuple[object, ...]:
        node = graph.get(epoch.epoch_id)
        assert node is not None
        strays = sum(public != root and not settled.live(public) for public in epoch.wraps)
        return strays, settled.order(node)

    return min(tips, key=order, default=None)
