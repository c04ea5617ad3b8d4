"""KnOTS: bring the deltas of a matrix into one basis by a joint decomposition, and merge them there by TIES."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hinet_tiers.merging import blocks, spectra
from hinet_tiers.merging.method import Method, Run, Setting, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor

RANK_SHARE = 1e-6
"""Directions below this share of the largest singular value are left out: float32 deltas are not known better."""


def start(run: Run) -> Step:
    """[w_1 τ_1 … w_T τ_T] = U S [V_1^T … V_T^T]; M = scale · U · TIES(S V_1^T, …, S V_T^T)."""

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        shape = run.shapes[name]
        if not spectra.is_matrix(shape):
            return spectra.mean(run, inputs, blocks.size(shape))
        side_by_side = np.concatenate(
            [spectra.dense(tensor, weight) for tensor, weight in zip(inputs, run.weights, strict=True)
             if tensor is not None and tensor.values.any()] or [np.zeros(shape)], 1,
        )  # fmt: skip
        u, s, vt = spectra.svd(side_by_side)
        rank = int(np.count_nonzero(s > RANK_SHARE * s[0])) if len(s) else 0
        if not rank:
            return np.zeros(blocks.size(shape), np.float32)
        scaled = (s[:rank, None] * vt[:rank]).reshape(rank, -1, shape[1]).transpose(1, 0, 2)
        # What is zero in the common basis too comes out of the library as rounding, whose sign would be counted.
        scaled[np.abs(scaled) <= max(side_by_side.shape) * np.finfo(np.float64).eps * s[0]] = 0.0
        made = u[:, :rank] @ ties(scaled, run.settings["density"])
        made *= run.settings["scale"]
        return made.astype(np.float32).reshape(-1)

    return step


def ties(parts: npt.NDArray[np.float64], density: float) -> npt.NDArray[np.float64]:
    """Trim each of the parts [T, r, n] to its largest entries, elect a sign, average what has it.

    The round(density · r · n) largest stay, at least one, and those as large as the smallest of them. A sum of zero
    takes the sign that most entries were given; as many of both, plus.
    """
    wanted = max(1, round(density * parts[0].size))
    if wanted < parts[0].size:
        magnitudes = np.abs(parts).reshape(len(parts), -1)
        least = np.partition(magnitudes, -wanted, axis=1)[:, -wanted]
        parts = np.where(np.abs(parts) >= least[:, None, None], parts, 0.0)
    sign = np.sign(parts.sum(0))
    sign[sign == 0] = -1.0 if sign.sum() < 0 else 1.0
    agree = parts * sign > 0
    merged: npt.NDArray[np.float64] = np.where(agree, parts, 0.0).sum(0) / np.maximum(agree.sum(0), 1)
    return merged


METHOD = Method(
    name="knots",
    title="KnOTS: TIES in the common basis of a joint decomposition",
    source="Stoica et al. 2024, arXiv 2410.19735",
    start=start,
    settings=(
        Setting("density", 1.0, 1e-6, 1.0, "the share of each input's entries in the common basis that is kept"),
        scale(0.5),
    ),
    needs=frozenset({"matrix"}),
)
