"""Breadcrumbs: of each row leave out the largest entries (outliers) and the small ones, keep what lies between; sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet_tiers.merging import blocks, ranks
from hinet_tiers.merging.blocks import Part, Positions
from hinet_tiers.merging.method import Method, Run, Setting, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor


def between(tensor: SparseTensor, length: int, outliers: int, keep: int) -> Part:
    """The entries of a row that rank behind the `outliers` largest, and no more than `keep` of them."""

    slices = blocks.Slices(tensor, ranks.row_block(length))

    def part(first: int, end: int) -> tuple[Positions, Values]:
        at, values = slices.part(first, end)
        ranked = ranks.Ranked(at, values, length, end - first)
        stays = np.flatnonzero((ranked.from_top > outliers) & (ranked.from_top <= outliers + keep))
        index = ranked.index(stays)
        return at[index], values[index]

    return part


def counts(length: int, density: float, outliers: float) -> tuple[int, int]:
    """How many entries of a row are left out as outliers, and how many of the others are kept (at least one)."""
    removed = round(outliers * length)
    return removed, max(1, min(round(density * length), length - removed))


def start(run: Run) -> Step:
    """M = scale · Σ w_i m_i ∘ τ_i."""
    factor = run.settings["scale"]

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        length = ranks.row_length(run.shapes[name])
        removed, keep = counts(length, run.settings["density"], run.settings["outliers"])
        given = [blocks.nonzero(tensor) for tensor in inputs]
        parts = [None if tensor is None else between(tensor, length, removed, keep) for tensor in given]
        entries, at_once = blocks.size(run.shapes[name]), ranks.row_block(length)
        return blocks.sum_parts(parts, run.weights, entries, factor, at_once)

    return step


METHOD = Method(
    name="breadcrumbs",
    title="Breadcrumbs: without outliers and without small entries",
    source="Davari and Belilovsky 2023, arXiv 2312.06795",
    start=start,
    settings=(
        Setting("density", 0.15, 1e-6, 1.0, "β: the share of a row's entries that is kept"),
        Setting("outliers", 0.006, 0.0, 0.5, "γ: the share of a row's largest entries that is left out first"),
        scale(0.2),
    ),
)
