"""Which entries of a dense delta are kept: the largest of every chunk, or the largest of all tensors together.

Selection is exact and deterministic. Larger magnitude comes first, then the lower index; an entry that is zero is never
kept. The order of non-negative floats is the order of their bits, so magnitudes are compared as int32. Most work goes
into leaving entries out early: `_lower_bound` gives a magnitude that at least `keep` entries of a chunk reach and few
more do, and `find_threshold` counts only between two magnitudes that a sample suggests. Neither bound decides anything:
the first holds by construction, the second is checked against exact counts and widened where it fails.

Everything goes in pieces that fit the processor's cache, so that scratch memory does not grow with the tensor. Leaves
to others: where values come from, and files (`sparsify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int32]

CHUNK = 4096
KEEP = 64
PIECE = 1 << 18
"""Entries looked at together: 1 MiB of float32."""
WITHOUT_SIGN = np.int32(0x7FFF_FFFF)
INFINITE = 0x7F80_0000
"""Bits of infinity: those of a number are below, those of a NaN above."""
GROUPS_FOR_ONE = 4
"""Groups of a chunk for each entry to keep: 4 leave some 14 % more entries than wanted."""
MEMBERS_MIN = 6
"""Groups of fewer entries save nothing over partitioning the chunk itself."""
GROUPS_MIN = 32
SAMPLE_STEP = 31
"""Every so manieth entry is sampled. Odd, so that all columns of a matrix are met."""
SAMPLES_MAX = 1 << 22
SPREAD = 5.0
"""Standard deviations to each side of the sampled rank."""
BINS_BITS_MAX = 20
"""8 MiB of counts, for large models; a small one has a bin for each 128 entries."""


def select_chunked(
    values: Values, keep: int = KEEP, chunk: int = CHUNK, dtype: type[np.integer[Any]] = np.int64
) -> npt.NDArray[Any]:
    """Positions of the `keep` largest magnitudes in every `chunk` entries of a flat array; a shorter last chunk keeps
    its share, rounded up. Ascending, of `dtype`. Raises ValueError for values that are not finite or a keep outside 1
    to chunk."""
    if not 1 <= keep <= chunk:
        raise ValueError(f"keep {keep} of {chunk}")
    flat = _flat(values)
    whole, rest = divmod(len(flat), chunk)
    last = min(rest, -(-keep * rest // chunk))
    chosen = np.empty(whole * keep + last, dtype)
    filled = 0
    for start, width, count in _spans(whole, rest, keep, last, chunk):
        span = flat[start : start + width]
        if chunk > PIECE:
            found = select_top(span, count, dtype)
        else:
            found = _largest(_bits(span).reshape(-1, min(chunk, width)), count)
        np.add(found, start, out=chosen[filled : filled + len(found)], casting="unsafe")
        filled += len(found)
    return chosen[:filled]


def _spans(whole: int, rest: int, keep: int, last: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    """Start, width and the number to keep of each row: of as many chunks as fit a piece, then of the rest."""
    together = max(1, PIECE // chunk)
    for first in range(0, whole, together):
        yield first * chunk, min(together, whole - first) * chunk, keep
    if rest:
        yield whole * chunk, rest, last


def select_top(values: Values, count: int, dtype: type[np.integer[Any]] = np.int64) -> npt.NDArray[Any]:
    """Positions of the `count` largest magnitudes of a flat array, ascending, of `dtype`."""
    flat = _flat(values)
    if count <= 0 or not len(flat):
        return np.zeros(0, dtype)
    return _find([""], lambda _: flat, lambda total: min(count, total)).positions(flat, dtype)


def select_threshold(
    names: Sequence[str], read: Callable[[str], Values], density: float
) -> Iterator[tuple[str, Positions, Values]]:
    """The globally largest magnitudes over several tensors: yields (name, positions, values) in the order of `names`.

    `read(name)` gives a flat float32 array; one tensor is held at a time. It is called three or four times per tensor,
    once for a density of 1, and up to seven times where the tensors are so made that a sample of them misleads.
    `density` is the kept share of all entries, above 0 and at most 1. Ties at the threshold go to the earlier entry.
    """
    threshold = find_threshold(names, read, density)
    for name in names:
        values = read(name)
        positions = threshold.positions(values)
        yield name, positions, values[positions]


class Threshold:
    """Where a global cut lies: entries above `bits` are kept, and of those equal to it the first `ties`."""

    def __init__(self, bits: int, ties: int) -> None:
        self.bits, self.ties = bits, ties

    def positions(self, values: Values, dtype: type[np.integer[Any]] = np.int64) -> npt.NDArray[Any]:
        """Positions kept of the next tensor, ascending. To be asked once for each tensor, in order: it uses up ties."""
        flat = _flat(values)
        masks = np.empty(len(flat), np.bool_)
        for at, bits in _pieces(flat):
            mask = np.greater(bits, self.bits, out=masks[at : at + len(bits)])
            if self.ties:
                equal = np.flatnonzero(bits == self.bits)[: self.ties]
                mask[equal] = True
                self.ties -= len(equal)
        chosen = np.empty(np.count_nonzero(masks), dtype)
        filled = 0
        for at in range(0, len(masks), PIECE):
            found = np.flatnonzero(masks[at : at + PIECE])
            np.add(found, at, out=chosen[filled : filled + len(found)], casting="unsafe")
            filled += len(found)
        return chosen


def find_threshold(names: Sequence[str], read: Callable[[str], Values], density: float) -> Threshold:
    """The threshold that keeps the share `density` of all entries of several tensors (SPEC section 7.2, `threshold`).

    At least one entry is kept; zeros never are. Raises ValueError for a density outside (0, 1] or values not finite.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density {density}")
    if density == 1:
        return Threshold(0, 0)
    return _find(names, read, lambda total: max(1, round(density * total)))


def _find(names: Sequence[str], read: Callable[[str], Values], wanted_of: Callable[[int], int]) -> Threshold:
    """Narrow two magnitudes, between which the wanted-th largest lies, down to one. The first two come from a sample;
    counting shows whether it lies between them, and if not, on which side."""
    sample, total = _sampled(names, read)
    if not total:
        return Threshold(0, 0)
    wanted, bins_bits = wanted_of(total), min(BINS_BITS_MAX, total.bit_length() - 7)
    floor, ceiling = 1, INFINITE - 1
    low, high = _bracket(sample, wanted / total)
    while True:
        shift = max(0, (high - low).bit_length() - max(8, bins_bits))
        above, counts = _counted(names, read, low, high, shift)
        if above >= wanted:
            floor = low = high + 1
            high = ceiling
        elif above + int(counts.sum()) < wanted:
            if low == floor:
                return Threshold(0, 0)  # fewer than wanted are not zero
            high = ceiling = low - 1
            low = floor
        else:
            up = np.cumsum(counts[::-1])
            index = int(np.searchsorted(up, wanted - above))
            above += int(up[index] - counts[::-1][index])
            low += (len(counts) - 1 - index) << shift
            if not shift:
                return Threshold(low, wanted - above)
            high = ceiling = min(high, low + (1 << shift) - 1)
            floor = low


def _sampled(names: Sequence[str], read: Callable[[str], Values]) -> tuple[Bits, int]:
    """Magnitudes of every so manieth entry, counted through all tensors, ascending; and how many entries there are."""
    step, total, sampled = SAMPLE_STEP, 0, 0
    samples: list[Bits] = []
    for name in names:
        flat = _flat(read(name))
        samples.append(flat[-total % step :: step].view(np.int32) & WITHOUT_SIGN)
        total += len(flat)
        sampled += len(samples[-1])
        while sampled > SAMPLES_MAX:
            samples, step = [np.concatenate(samples)[::3]], step * 3
            sampled = len(samples[0])
    sample = np.concatenate([np.zeros(0, np.int32), *samples])
    sample.sort()
    return sample, total


def _bracket(sample: Bits, share: float) -> tuple[int, int]:
    """Bits of two magnitudes, between which the entry that ends the largest `share` of all very likely lies."""
    rank = share * len(sample)
    spread = SPREAD * (rank * (1 - share)) ** 0.5 + 2
    low, high = int(len(sample) - rank - spread), int(len(sample) - rank + spread) + 1
    return (
        max(1, min(int(sample[low]), INFINITE - 1)) if low >= 0 else 1,
        max(1, min(int(sample[high]), INFINITE - 1)) if high < len(sample) else INFINITE - 1,
    )


def _counted(
    names: Sequence[str], read: Callable[[str], Values], low: int, high: int, shift: int
) -> tuple[int, npt.NDArray[np.int64]]:
    """How many entries are above `high`, and a histogram of those from `low` to `high`, 2^shift magnitudes a bin."""
    above = 0
    counts = np.zeros(((high - low) >> shift) + 1, np.int64)
    for name in names:
        for _, bits in _pieces(_flat(read(name))):
            above += np.count_nonzero(bits > high)
            bits -= low
            inside = bits[np.flatnonzero(bits.view(np.uint32) <= high - low)]
            if len(inside):
                found = np.bincount(inside >> shift)
                counts[: len(found)] += found
    return above, counts


def _flat(values: Values) -> Values:
    return np.ascontiguousarray(values, np.float32).reshape(-1)


def _pieces(flat: Values) -> Iterator[tuple[int, Bits]]:
    """Start and magnitudes of each piece; the array is used again for the next one."""
    scratch = np.empty(min(PIECE, len(flat)), np.int32)
    for at in range(0, len(flat), PIECE):
        piece = flat[at : at + PIECE]
        yield at, _bits(piece, scratch[: len(piece)])


def _bits(flat: Values, out: Bits | None = None) -> Bits:
    """Magnitudes as int32 in the order of the numbers. Raises ValueError when one is not finite."""
    bits = np.bitwise_and(flat.view(np.int32), WITHOUT_SIGN, out=out)
    if bits.max(initial=0) >= INFINITE:
        raise ValueError("a value of the delta is not finite")
    return bits


def _largest(rows: Bits, keep: int) -> Positions:
    """Positions in the flattened `rows` of the `keep` largest in each row, ties to the lower index, zeros never."""
    width = rows.shape[1]
    bound, is_exact = _lower_bound(rows, keep)
    where = np.flatnonzero(rows >= np.maximum(bound, 1)[:, None])
    starts = np.searchsorted(where, np.arange(len(rows) + 1) * width)
    counts = np.diff(starts)
    if counts.max() <= keep:
        return where
    left = rows.reshape(-1)[where]
    last = np.repeat(bound if is_exact else _kth_largest(left, starts, keep), counts)
    chosen = left >= last
    wanted = np.minimum(counts, keep)
    if np.count_nonzero(chosen) > int(wanted.sum()):
        above = np.concatenate([[0], np.cumsum(left > last)])[starts]
        ties = np.cumsum(left == last)
        before = np.concatenate([[0], ties])[starts[:-1]]
        room = before + wanted - np.diff(above)
        chosen &= (left > last) | (ties <= np.repeat(room, counts))
    return where[chosen]


def _lower_bound(rows: Bits, keep: int) -> tuple[Bits, bool]:
    """For each row a magnitude that at least `keep` of its entries reach, and few more; whether it is the keep-th.

    A row is dealt into groups; each of the `keep` groups with the largest maxima holds an entry that reaches the
    keep-th largest maximum. So only a fraction of the row has to be partitioned.
    """
    width = rows.shape[1]
    members = width // (GROUPS_FOR_ONE * keep)
    if members < MEMBERS_MIN or width // members < GROUPS_MIN:
        return np.partition(rows, width - keep, axis=1)[:, width - keep], True
    groups = width // members
    maxima = rows[:, : members * groups].reshape(len(rows), members, groups).max(axis=1)
    return np.partition(maxima, groups - keep, axis=1)[:, groups - keep], False


def _kth_largest(left: Bits, starts: Positions, keep: int) -> Bits:
    """The `keep`-th largest of each run of `left` that begins at `starts`, 0 where a run is shorter."""
    counts = np.diff(starts)
    width = max(keep, int(counts.max()))
    table = np.zeros((len(counts), width), np.int32)
    table.reshape(-1)[np.arange(len(left)) + np.repeat(np.arange(len(counts)) * width - starts[:-1], counts)] = left
    return np.partition(table, width - keep, axis=1)[:, width - keep]
