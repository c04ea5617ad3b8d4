"""Sign election and disjoint merging, which TIES, DARE-TIES and DELLA share (Yadav et al. 2023, arXiv 2306.01708).

Over what a method left of the deltas (trimmed, dropped, rescaled) and multiplied by their weights:

    elected sign    s = sgn(Σ v_i); where the sum is zero, the sign that most entries of the whole vector were given;
                    if as many were given plus as minus, plus
    merge           the values whose sign is s: their mean (divided by how many they are) or their sum

An entry that nobody changes stays zero whatever its sign. The sign that most entries have is known only after a pass
over all tensors; everything is a float64 sum in the order of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hinet_tiers.merging import blocks
from hinet_tiers.merging.blocks import Doubles, Part, Positions
from hinet_tiers.merging.method import Run, Setting, Step, Values
from hinet_tiers.sparsify import SparseTensor

Parts = Callable[[str, Sequence[SparseTensor | None]], list[Part | None]]
"""What a method leaves of each input of one tensor, of entries that are not zero. Called for the tensors in order."""


def mean_setting(default: bool) -> Setting:
    """Whether values of the elected sign are averaged or summed."""
    return Setting("mean", float(default), 0, 1, "1: the mean of the inputs that agree with the sign; 0: their sum",
                   whole=True)  # fmt: skip


def elect(
    run: Run, begin: Callable[[], Parts], step_entries: Callable[[Sequence[int]], int] = lambda shape: blocks.BLOCK
) -> Step:
    """The step that merges by election. `begin()` starts a pass over the tensors in order; `step_entries(shape)` is how
    many entries of a tensor are worked on at a time. Uses the settings `scale` and `mean`."""
    majority = _majority(run, begin(), step_entries)
    parts = begin()
    factor, mean = run.settings["scale"], bool(run.settings["mean"])

    def step(name: str, inputs: Sequence[SparseTensor | None]) -> Values:
        entries, at_once = blocks.size(run.shapes[name]), step_entries(run.shapes[name])
        out = np.empty(entries, np.float32)
        left = parts(name, [blocks.nonzero(tensor) for tensor in inputs])
        room = np.empty((2, min(entries, at_once)))
        counts = np.empty(min(entries, at_once), np.uint8)
        for first, end in blocks.spans(entries, at_once):
            total, merged, count = room[0, : end - first], room[1, : end - first], counts[: end - first]
            _elected(_weighted(run, left, first, end), majority, total, merged, count)
            if mean:
                np.maximum(count, 1, out=count)
                merged /= count
            merged *= factor
            out[first:end] = merged
        return out

    return step


def _weighted(run: Run, left: list[Part | None], first: int, end: int) -> list[tuple[Positions, Doubles]]:
    """What is left of every input in a block, times its weight."""
    found = []
    for part, weight in zip(left, run.weights, strict=True):
        if part is not None:
            at, values = part(first, end)
            found.append((at, values * np.float64(weight)))
    return found


def _sum(rows: list[tuple[Positions, Doubles]], total: Doubles) -> None:
    total.fill(0.0)
    for at, values in rows:
        total[at] += values


def _elected(
    rows: list[tuple[Positions, Doubles]], majority: float, total: Doubles, merged: Doubles,
    count: npt.NDArray[np.uint8],
) -> None:
    """Into `merged` the sum of the values that agree with the elected sign, into `count` how many they are."""
    _sum(rows, total)
    merged.fill(0.0)
    count.fill(0)
    plus = total >= 0 if majority > 0 else total > 0
    for at, values in rows:
        agrees = plus[at] == (values > 0)
        values *= agrees
        merged[at] += values
        count[at] += agrees.view(np.uint8)


def _majority(run: Run, parts: Parts, step_entries: Callable[[Sequence[int]], int]) -> float:
    """The sign that more entries are given than the other one; plus when they are as many."""
    balance = 0
    for at, (name, shape) in enumerate(run.shapes.items()):
        run.progress(at, len(run.shapes), f"electing signs in {name}")
        entries, at_once = blocks.size(shape), step_entries(shape)
        left = parts(name, [blocks.nonzero(tensor) for tensor in run.inputs(name)])
        room = np.empty(min(entries, at_once))
        for first, end in blocks.spans(entries, at_once):
            total = room[: end - first]
            _sum(_weighted(run, left, first, end), total)
            balance += int(np.count_nonzero(total > 0)) - int(np.count_nonzero(total < 0))
    return -1.0 if balance < 0 else 1.0
