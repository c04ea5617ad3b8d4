"""What two devices tell each other to find the entries that one of them lacks. SPEC.md, 3.6."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from hinet_protocol import limits
from hinet_protocol.chain.graph import Graph


def locator(graph: Graph, heads: Sequence[bytes], received: Iterable[bytes]) -> tuple[bytes, ...]:
    """The tips of the batch that came last, the heads, then entries at growing distances back to genesis."""
    ordered = graph.ordered()
    nodes = [node for name in received if (node := graph.get(name)) is not None]
    parents = {parent for node in nodes for parent in node.entry.parents}
    found = [node.hash for node in nodes if node.hash not in parents][: limits.locator_hashes_max // 3]
    found += heads[: limits.locator_hashes_max // 3]
    step, at = 1, len(ordered) - 1
    while at > 0 and len(found) < limits.locator_hashes_max - 1:
        found.append(ordered[at].hash)
        at -= step
        step *= 2
    found.append(graph.genesis.hash)
    return tuple(dict.fromkeys(found))


def entries_for(
    graph: Graph, have: Iterable[bytes], bytes_max: int, given: Container[bytes]
) -> tuple[tuple[bytes, ...], bool]:
    """The entries that are not in the pasts of `have` and not in `given`, parents first, up to a batch; and whether
    more would follow. At least one if any is missing."""
    known = 0
    for name in have:
        node = graph.get(name)
        known |= 0 if node is None else node.past
    batch: list[bytes] = []
    size = 0
    for node in graph.ordered():
        if known >> node.index & 1 or node.hash in given:
            continue
        size += len(node.entry.raw) + 5
        if batch and (size > bytes_max or len(batch) >= limits.chain_batch_entries_max):
            return tuple(batch), True
        batch.append(node.entry.raw)
    return tuple(batch), False
