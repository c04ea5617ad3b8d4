"""Ranks by magnitude within the rows of a tensor (its last dimension; a tensor of one dimension is one row).

Entries that are zero come last and are not ranked; of equal magnitudes the earlier entry ranks higher.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hinet_tiers.merging.blocks import BLOCK, Positions, Values

INDEX_BITS = 20
ROW_BITS = 13


def row_length(shape: Sequence[int]) -> int:
    """How many entries a row has."""
    return shape[-1]


def row_block(length: int) -> int:
    """How many entries to work on at a time: whole rows, at least one, no more than the sort's keys can hold."""
    return length * max(1, min(BLOCK // length, 1 << ROW_BITS))


def from_top(at: Positions, values: Values, length: int) -> npt.NDArray[np.int64]:
    """The rank of each entry in its row, 1 for the largest magnitude. `at` are ascending positions within a block that
    begins with a row; `values` are not zero."""
    rows = at // length
    bits = np.abs(values).view(np.uint32)
    count = len(values)
    if count < 1 << INDEX_BITS and (not count or rows[-1] < 1 << ROW_BITS):
        # One sort of one number for each entry: row, magnitude, and the index, turned round so that ties go to the
        # earlier entry. It is a quarter of the time of sorting indices.
        keys = rows.astype(np.uint64) << np.uint64(31 + INDEX_BITS)
        keys |= bits.astype(np.uint64) << np.uint64(INDEX_BITS)
        keys |= np.arange((1 << INDEX_BITS) - 1, (1 << INDEX_BITS) - 1 - count, -1).astype(np.uint64)
        keys.sort()
        order = ((1 << INDEX_BITS) - 1) - (keys & np.uint64((1 << INDEX_BITS) - 1)).astype(np.int64)
    else:
        order = np.lexsort((-np.arange(count), bits, rows))
    ends = np.cumsum(np.bincount(rows))
    ranks = np.empty(count, np.int64)
    ranks[order] = ends[rows] - np.arange(count)
    return ranks
