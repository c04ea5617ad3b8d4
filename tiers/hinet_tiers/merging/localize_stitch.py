"""Localize-and-Stitch without data: each delta's largest entries alone, averaged only where several are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet_tiers.merging import blocks, trim
from hinet_tiers.merging.method import Method, Run, Setting, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor


def start(run: Run) -> Step:
    """M = scale · Σ w_i m_i ∘ τ_i / Σ m_i, with m_i the largest entries of τ_i over the flat vector."""
    trims = [trim.Trim(threshold) for threshold in trim.thresholds(run, run.settings["density"])]
    factor = run.settings["scale"]

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        entries = blocks.size(run.shapes[name])
        parts = [None if tensor is None else one.of(tensor)
                 for one, tensor in zip(trims, map(blocks.nonzero, inputs), strict=True)]  # fmt: skip
        out = np.empty(entries, np.float32)
        for first, end in blocks.spans(entries):
            total, count = np.zeros(end - first), np.zeros(end - first, np.uint8)
            for part, weight in zip(parts, run.weights, strict=True):
                if part is not None:
                    at, values = part(first, end)
                    total[at] += values * np.float64(weight)
                    count[at] += 1
            np.maximum(count, 1, out=count)
            total /= count
            total *= factor
            out[first:end] = total
        return out

    return step


METHOD = Method(
    name="localize-stitch",
    title="Localize-and-Stitch, dataless: each delta's largest entries, averaged where they overlap",
    source="He et al. 2024, arXiv 2408.13656",
    start=start,
    settings=(
        Setting("density", 0.05, 1e-6, 1.0, "s: the share of the flat vector that each input keeps (text 0.05)"),
        scale(1.0),
    ),
)
