"""Task arithmetic: the weighted sum of the deltas. The control that every other method is held against."""

from __future__ import annotations

from collections.abc import Sequence

from hinet_tiers.merging import blocks
from hinet_tiers.merging.method import Method, Run, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor


def start(run: Run) -> Step:
    """M = scale · Σ w_i τ_i."""
    factor = run.settings["scale"]

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        return blocks.weighted_sum(inputs, run.weights, blocks.size(run.shapes[name]), factor)

    return step


METHOD = Method(
    name="task-arithmetic",
    title="Task arithmetic: a weighted sum",
    source="Ilharco et al. 2023, arXiv 2212.04089; scale 0.4 as in MergeBench",
    start=start,
    settings=(scale(0.4),),
)
