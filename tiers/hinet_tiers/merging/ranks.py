"""Ranks by magnitude within the rows of a tensor (its last dimension; a tensor of one dimension is one row).

Entries that are zero come last and are not ranked; of equal magnitudes the earlier entry ranks higher.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hinet_tiers.merging.blocks import BLOCK, Positions, Values

INDEX_BITS = 20
INDEX_MASK = np.uint64((1 << INDEX_BITS) - 1)
ROW_BITS = 13
KEYS_MAX = 1 << INDEX_BITS
Integers = npt.NDArray[np.int64]


def row_length(shape: Sequence[int]) -> int:
    """How many entries a row has."""
    return shape[-1]


def row_block(length: int) -> int:
    """How many entries to work on at a time: whole rows, at least one, no more than a sort's keys can hold."""
    return length * max(1, min(BLOCK // length, 1 << ROW_BITS))


class Ranked:
    """The kept entries of a block of whole rows, row by row and each row from its smallest magnitude up.

    `from_top` is the rank of each in its row, 1 for the largest.
    """

    def __init__(self, at: Positions, values: Values, length: int, entries: int) -> None:
        """`at` are ascending positions in the block of `entries`; `values` are not zero."""
        starts = np.searchsorted(at, np.arange(0, entries + length, length))
        counts, count = np.diff(starts), len(values)
        bits = np.abs(values).view(np.uint32)
        self.from_top: Integers = np.repeat(starts[1:], counts) - np.arange(count)
        self._keys = self._order = None
        if count <= KEYS_MAX and len(counts) <= 1 << ROW_BITS:
            # One sort of one number for each entry: row, magnitude, and the index turned round, so that of equals the
            # earlier one ranks higher. That is a quarter of the time of sorting indices.
            rows = np.arange(len(counts), dtype=np.uint64) << np.uint64(31 + INDEX_BITS)
            keys = bits.astype(np.uint64)
            keys <<= np.uint64(INDEX_BITS)
            keys |= np.repeat(rows, counts)
            keys |= INDEX_MASK - np.arange(count, dtype=np.uint64)
            keys.sort()
            self._keys = keys
        else:
            self._order = np.lexsort((-np.arange(count), bits, np.repeat(np.arange(len(counts)), counts)))

    def index(self, chosen: Integers) -> Integers:
        """Where the chosen ones (indices into `from_top`) stand among the entries as they were given."""
        if self._keys is None:
            assert self._order is not None
            return self._order[chosen]
        return (INDEX_MASK - (self._keys[chosen] & INDEX_MASK)).astype(np.int64)
