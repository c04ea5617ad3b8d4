"""The largest entries of each input over all of its tensors at once: exact, streamed, in two passes at most.

Of a vector of n entries (the tensors that any of the inputs changes) the round(density · n) largest magnitudes stay, at
least one. At the threshold the earlier entry stays (tensors in name order); an entry that is zero never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from hinet_tiers.merging import blocks
from hinet_tiers.merging.blocks import Part, Positions, Values
from hinet_tiers.merging.method import Run
from hinet_tiers.sparsify import SparseTensor

COARSE_BITS = 16
FINE_BITS = 15
"""A magnitude has 31 bits."""


@dataclass(frozen=True)
class Threshold:
    """Entries whose magnitude has more bits than `bits` stay, and of those equal to it the first `ties`."""

    bits: int
    ties: int


class Trim:
    """One pass over the tensors of one input, in order."""

    def __init__(self, threshold: Threshold) -> None:
        self._bits, self._ties = np.uint32(threshold.bits), threshold.ties

    def of(self, tensor: SparseTensor) -> Part:
        """What stays of a tensor; its blocks must be asked for in order, each once."""
        slices = blocks.Slices(tensor)
        return partial(self._part, slices) if self._bits else slices.part

    def _part(self, slices: blocks.Slices, first: int, end: int) -> tuple[Positions, Values]:
        at, values = slices.part(first, end)
        bits = np.abs(values).view(np.uint32)
        stays = bits > self._bits
        if self._ties:
            equal = np.flatnonzero(bits == self._bits)[: self._ties]
            stays[equal] = True
            self._ties -= len(equal)
        chosen = np.flatnonzero(stays)
        return at[chosen], values[chosen]


def thresholds(run: Run, density: float) -> list[Threshold]:
    """The threshold of each input."""
    total = sum(blocks.size(shape) for shape in run.shapes.values())
    wanted = max(1, round(density * total))
    coarse = _histograms(run, [None] * len(run.deltas), "finding thresholds")
    cuts = [_cut(histogram, wanted) for histogram in coarse]
    # Fewer than wanted are not zero: everything stays, and the cut is in the lowest bin, with the zeros.
    bins = [None if above + int(histogram[upper]) <= wanted else upper
            for histogram, (upper, above) in zip(coarse, cuts, strict=True)]  # fmt: skip
    found: list[Threshold] = []
    fine = _histograms(run, bins, "refining thresholds") if any(one is not None for one in bins) else coarse
    for (upper, above), bin_, histogram in zip(cuts, bins, fine, strict=True):
        if bin_ is None:
            # The whole bin stays: the threshold lies just under it.
            found.append(Threshold(max(0, (upper << FINE_BITS) - 1), 0))
            continue
        lower, above_fine = _cut(histogram, wanted - above)
        found.append(Threshold((upper << FINE_BITS) | lower, wanted - above - above_fine))
    return found


def _cut(histogram: npt.NDArray[np.int64], wanted: int) -> tuple[int, int]:
    """The bin that the `wanted`-th largest falls into (the lowest, if there are fewer), and how many lie above it."""
    down = np.cumsum(histogram[::-1])
    index = min(int(np.searchsorted(down, wanted)), len(histogram) - 1)
    return len(histogram) - 1 - index, int(down[index] - histogram[::-1][index])


def _histograms(run: Run, within: Sequence[int | None], note: str) -> list[npt.NDArray[np.int64]]:
    """For each input how many magnitudes fall into each bin: of the upper bits, or of the lower ones in one bin."""
    fine = any(bin_ is not None for bin_ in within)
    counts = [np.zeros(1 << COARSE_BITS, np.int64) for _ in within]
    for at, name in enumerate(run.shapes):
        run.progress(at, len(run.shapes), f"{note}: {name}")
        for delta, histogram, bin_ in zip(run.deltas, counts, within, strict=True):
            if name not in delta.shapes or (fine and bin_ is None):
                continue
            values = delta.read(name).values
            for first, end in blocks.spans(len(values)):
                bits = np.abs(values[first:end]).view(np.uint32)
                upper = bits >> np.uint32(FINE_BITS)
                if bin_ is not None:
                    upper = bits[upper == bin_] & np.uint32((1 << FINE_BITS) - 1)
                histogram += np.bincount(upper, minlength=1 << COARSE_BITS)
    return counts
