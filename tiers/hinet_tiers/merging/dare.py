"""DARE: drop entries of each delta at random, scale the rest up by what was dropped, and sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet_tiers.merging import blocks, draws
from hinet_tiers.merging.blocks import Doubles, Part, Positions
from hinet_tiers.merging.draws import Draws
from hinet_tiers.merging.method import Method, Run, Setting, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor

DENSITY = Setting("density", 0.2, 1e-6, 1.0, "1 - p: the chance that an entry stays; it is then divided by it")


def dropped(tensor: SparseTensor, stream: Draws, density: float) -> Part:
    """What stays of a tensor, divided by `density`."""
    slices = blocks.Slices(tensor)

    def part(first: int, end: int) -> tuple[Positions, Doubles]:
        at, values = slices.part(first, end)
        stays = np.flatnonzero(draws.below(stream.take(len(values)), density))
        return at[stays], values[stays] / np.float64(density)

    return part


def parts(run: Run, name: str, inputs: Sequence[SparseTensor | None]) -> list[Part | None]:
    """What stays of each input of one tensor. A kept entry that is zero draws no number."""
    return [None if tensor is None else dropped(tensor, stream, run.settings["density"])
            for tensor, stream in zip(map(blocks.nonzero, inputs), draws.streams(run, name), strict=True)]


def start(run: Run) -> Step:
    """M = scale · Σ w_i m_i ∘ τ_i / (1 - p), m_i ~ Bernoulli(1 - p)."""
    factor = run.settings["scale"]

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        return blocks.sum_parts(parts(run, name, inputs), run.weights, blocks.size(run.shapes[name]), factor)

    return step


METHOD = Method(
    name="dare",
    title="DARE: drop at random and rescale",
    source="Yu et al. 2024, arXiv 2311.03099; scale 0.4 as task arithmetic's",
    start=start,
    settings=(DENSITY, scale(0.4)),
)
