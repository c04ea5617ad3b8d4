"""TSV-M: keep each task's leading singular directions, make those of all tasks orthogonal to each other, and sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet_tiers.merging import blocks, spectra
from hinet_tiers.merging.method import Method, Run, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor


def start(run: Run) -> Step:
    """For matrices: concatenate the leading triples, U and V by their polar factors, M = scale · U S V^T."""
    share = len(run.deltas)

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        shape = run.shapes[name]
        if not spectra.is_matrix(shape):
            return spectra.mean(run, inputs, blocks.size(shape))
        kept = max(1, min(shape) // share)
        parts = [spectra.svd(spectra.dense(tensor, weight))
                 for tensor, weight in zip(inputs, run.weights, strict=True) if tensor is not None]  # fmt: skip
        left = np.concatenate([u[:, :kept] for u, _, _ in parts], 1)
        values = np.concatenate([s[:kept] for _, s, _ in parts])
        right = np.concatenate([vt[:kept] for _, _, vt in parts])
        del parts
        if not len(values):
            return np.zeros(blocks.size(shape), np.float32)
        made = (spectra.polar(left) * values) @ spectra.polar(np.ascontiguousarray(right.T)).T
        made *= run.settings["scale"]
        return made.astype(np.float32).reshape(-1)

    return step


METHOD = Method(
    name="tsv-m",
    title="TSV-M: leading singular directions of each task, made orthogonal",
    source="Gargiulo et al. 2024, arXiv 2412.00081",
    start=start,
    settings=(scale(1.0),),
    needs=frozenset({"matrix"}),
)
