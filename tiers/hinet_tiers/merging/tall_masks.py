"""TALL masks: one merged delta for all, and for each input a mask of the entries of it that serve that input.

Serving input i is base + mask_i ∘ merged (`masks.pick`). With the setting `consensus` there are no masks: the merged
delta keeps the entries that at least so many inputs' masks take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hinet_tiers.errors import MergeSetting
from hinet_tiers.merging import blocks
from hinet_tiers.merging.method import Method, Run, Setting, Step, Values, scale
from hinet_tiers.sparsify import SparseTensor


def taken(tensor: SparseTensor, merged: Values, threshold: float) -> npt.NDArray[np.int64]:
    """The positions where |τ_i| > λ |M - τ_i|, in float64. Where τ_i is zero that is never so."""
    found = []
    for first, end in blocks.spans(len(tensor.values)):
        at = tensor.positions[first:end]
        own = tensor.values[first:end].astype(np.float64)
        found.append(at[np.abs(own) > threshold * np.abs(merged[at] - own)])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def start(run: Run) -> Step:
    """M = scale · Σ w_i τ_i, rounded to float32; the masks come from M as it is kept in the file."""
    threshold, consensus = run.settings["threshold"], int(run.settings["consensus"])
    if consensus > len(run.deltas):
        raise MergeSetting(f"tall-masks: a consensus of {consensus} among {len(run.deltas)} inputs keeps nothing.")

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        merged = blocks.weighted_sum(inputs, run.weights, blocks.size(run.shapes[name]), run.settings["scale"])
        votes = np.zeros(len(merged), np.uint8) if consensus else None
        for index, tensor in enumerate(inputs):
            if tensor is None:
                continue
            at = taken(tensor, merged, threshold)
            if votes is None:
                run.keep_mask(index, name, at)
            else:
                votes[at] += 1
        if votes is not None:
            merged[votes < consensus] = 0
        return merged

    return step


METHOD = Method(
    name="tall-masks",
    title="TALL masks: one merged delta, a mask for each input; or their consensus",
    source="Wang et al. 2024, arXiv 2405.07813",
    start=start,
    settings=(
        Setting("threshold", 0.4, 0.0, 100.0, "λ: an input takes an entry where |τ_i| > λ |M - τ_i|"),
        Setting("consensus", 0, 0, 64, "0: a mask for each input; k: keep what at least k masks take", whole=True),
        scale(1.0),
    ),
)
