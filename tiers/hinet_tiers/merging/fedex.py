"""FedEx: the exact average of LoRA adapters, which averaging A and B by themselves is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet_tiers.errors import MergeSetting
from hinet_tiers.merging import blocks
from hinet_tiers.merging.method import Method, Run, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor


def start(run: Run) -> Step:
    """M = scale · Σ w_i s_i B_i A_i / Σ w_i, from the factors, in float64; rounded once."""
    total = sum(run.weights)
    if not abs(total) > 1e-9 * sum(map(abs, run.weights)):
        raise MergeSetting("fedex: the weights sum to 0, so there is no average.")
    shares = [weight / total * run.settings["scale"] for weight in run.weights]

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        shape = run.shapes[name]
        pairs = [delta.factors(name) if name in delta.shapes else None for delta in run.deltas]  # type: ignore[attr-defined]
        whole = [tensor if pair is None else None for tensor, pair in zip(inputs, pairs, strict=True)]
        summed = blocks.weighted_sum(whole, shares, blocks.size(shape)) if any(t is not None for t in whole) else None
        made = [(pair[0] * share, pair[1]) for pair, share in zip(pairs, shares, strict=True) if pair is not None]
        if not made:
            assert summed is not None, "some input lists the tensor"
            return summed
        product = np.concatenate([b for b, _ in made], 1) @ np.concatenate([a for _, a in made])
        if summed is not None:
            product += summed.reshape(shape)
        return product.astype(np.float32).reshape(-1)

    return step


METHOD = Method(
    name="fedex",
    title="FedEx: the exact average of LoRA adapters",
    source="Singhal et al. 2024, arXiv 2410.09432",
    start=start,
    settings=(scale(1.0),),
    needs=frozenset({"adapters", "base"}),
)
