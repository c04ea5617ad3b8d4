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

Part = Callable[[int, int], tuple[Positions, Values | Doubles]]
"""`part(first, end)`: what is left of one input between two entries: positions counted from `first` in
any order, none twice, and values before the input's weight. It is called for consecutive blocks."""

BLOCK = 1 << 15
"""Entries worked on at a time: a quarter of a MiB in float64."""


def size(shape: Sequence[int]) -> int:
    """How many entries a tensor has."""
    return math.prod(shape)


def spans(entries: int, step: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Blocks of a flat array: (first entry, the one behind the last)."""
    for first in range(0, entries, step):
        yield first, min(first + step, entries)


class Slices:
    """The kept entries of a tensor, block by block: `part(first, end)` for the blocks of `spans(entries, step)`."""

    def __init__(self, tensor: SparseTensor, step: int = BLOCK) -> None:
        self._positions, self._values, self._step = tensor.positions, tensor.values, step
        edges = np.arange(0, size(tensor.shape) + step, step)
        self._bounds: list[int] = np.searchsorted(tensor.positions, edges).tolist()

    def part(self, first: int, end: int) -> tuple[Positions, Values]:
        """Positions counted from `first`, and values (a view)."""
        at = first // self._step
        assert first == at * self._step, "blocks are those of `spans`"
        low, high = self._bounds[at], self._bounds[at + 1]
        return self._positions[low:high] - first, self._values[low:high]


def nonzero(tensor: SparseTensor | None) -> SparseTensor | None:
    """A tensor without kept entries that are zero; the same one where there are none."""
    if tensor is None or (mask := tensor.values != 0).all():
        return tensor
    return SparseTensor(tensor.name, tensor.shape, tensor.positions[mask], tensor.values[mask])


def weighted_sum(
    inputs: Sequence[SparseTensor | None], weights: Sequence[float], entries: int, scale: float = 1.0
) -> Values:
    """scale · Σ weight · delta, in float64, as a fresh flat float32 array of `entries`."""
    parts = [None if tensor is None else Slices(tensor).part for tensor in inputs]
    return sum_parts(parts, weights, entries, scale)


def sum_parts(
    parts: Sequence[Part | None], weights: Sequence[float], entries: int, scale: float = 1.0, step: int = BLOCK
) -> Values:
    """The same of what `part(first, end)` leaves of each input; it is called for consecutive blocks of `step`."""
    out = np.empty(entries, np.float32)
    total = np.empty(min(step, entries))
    for first, end in spans(entries, step):
        block = total[: end - first]
        block.fill(0.0)
        for one, weight in zip(parts, weights, strict=True):
            if one is not None:
                at, values = one(first, end)
                block[at] += values * np.float64(weight)
        block *= scale
        out[first:end] = block
    return out
