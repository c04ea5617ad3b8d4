"""Tensors in blocks that fit into the processor's cache: what entry-by-entry methods work on.

Every sum is in float64, over the inputs in the order in which they were given, and is rounded to float32 once; nothing
here calls a linear-algebra library, so the bits don't depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hinet_tiers.sparsify import SparseTensor

Values = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

BLOCK = 1 << 16
"""Entries worked on at a time: some hundred KiB in float64."""


def size(shape: Sequence[int]) -> int:
    """How many entries a tensor has."""
    return math.prod(shape)


def spans(entries: int, step: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Blocks of a flat array: (first entry, the one behind the last)."""
    for first in range(0, entries, step):
        yield first, min(first + step, entries)


def part(tensor: SparseTensor, first: int, end: int) -> tuple[Positions, Values]:
    """The kept entries from `first` to `end`: positions counted from `first`, and values (a view)."""
    low, high = np.searchsorted(tensor.positions, (first, end))
    return tensor.positions[low:high] - first, tensor.values[low:high]


def weighted_sum(
    inputs: Sequence[SparseTensor | None], weights: Sequence[float], entries: int, scale: float = 1.0
) -> Values:
    """scale · Σ weight · delta, in float64, as a fresh flat float32 array of `entries`."""
    out = np.empty(entries, np.float32)
    total = np.empty(min(BLOCK, entries))
    for first, end in spans(entries):
        block = total[: end - first]
        block.fill(0.0)
        for tensor, weight in zip(inputs, weights, strict=True):
            if tensor is not None:
                at, values = part(tensor, first, end)
                block[at] += values * np.float64(weight * scale)
        out[first:end] = block
    return out


def by_blocks(entries: int, work: Callable[[int, int], Doubles], step: int = BLOCK) -> Values:
    """A flat float32 array whose blocks `work(first, end)` gives in float64."""
    out = np.empty(entries, np.float32)
    for first, end in spans(entries, step):
        out[first:end] = work(first, end)
    return out
