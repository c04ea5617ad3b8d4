"""Iso-C: the sum of the deltas with all its singular values made equal, so that no task's directions drown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet_tiers.merging import blocks, spectra
from hinet_tiers.merging.method import Method, Run, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor


def start(run: Run) -> Step:
    """For matrices: M = scale · mean(s) · U V^T of the singular value decomposition of Σ w_i τ_i."""

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        shape = run.shapes[name]
        if not spectra.is_matrix(shape):
            return spectra.mean(run, inputs, blocks.size(shape))
        total = np.zeros(shape)
        for tensor, weight in zip(inputs, run.weights, strict=True):
            if tensor is not None:
                total += spectra.dense(tensor, weight)
        u, s, vt = spectra.svd(total)
        if not len(s):
            return np.zeros(blocks.size(shape), np.float32)
        made = u @ vt
        made *= s.mean() * run.settings["scale"]
        return made.astype(np.float32).reshape(-1)

    return step


METHOD = Method(
    name="iso-c",
    title="Iso-C: the sum with a flat spectrum",
    source="Marczak et al. 2025, arXiv 2502.04959",
    start=start,
    settings=(scale(1.0),),
    needs=frozenset({"matrix"}),
)
