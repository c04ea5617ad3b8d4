"""Every merge method a second time: dense, in float64, from its page in docs/merging alone, with nothing but numpy.

None of this project's code is used, so that a mistake of the library can't be shared here; only the random numbers of
DARE and DELLA come in from outside (`draws`), since a page can't say them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Dense = dict[str, np.ndarray]
Numbers = Callable[[int, str, np.ndarray], np.ndarray]
"""(input, tensor, order) -> a 32-bit number for each place in `order`, which lists the entries that are not zero in the
order in which they draw."""


def joined(tensors: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([tensors[name].reshape(-1) for name in names]) if names else np.zeros(0)


def split(vector: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> Dense:
    found, at = {}, 0
    for name in sorted(shapes):
        size = int(np.prod(shapes[name]))
        found[name] = vector[at : at + size].reshape(shapes[name])
        at += size
    return found


def trim(vector: np.ndarray, density: float) -> np.ndarray:
    """The round(density · n) largest, at least one; of equal ones the earlier; zeros never."""
    order = sorted(range(len(vector)), key=lambda at: (-abs(vector[at]), at))[: max(1, round(density * len(vector)))]
    kept = np.zeros_like(vector)
    for at in order:
        kept[at] = vector[at]
    return kept


def elect(rows: np.ndarray, mean: bool) -> np.ndarray:
    """Sign of the sum; where it is zero, that of most entries; the mean or the sum of what has it."""
    signs = np.sign(rows.sum(axis=0))
    lead = 1.0 if (signs > 0).sum() >= (signs < 0).sum() else -1.0
    out = np.zeros(rows.shape[1])
    for at in range(rows.shape[1]):
        sign = signs[at] or lead
        chosen = [value for value in rows[:, at] if value * sign > 0]
        out[at] = sum(chosen) / (len(chosen) if mean and chosen else 1)
    return out


def ranks(row: np.ndarray) -> np.ndarray:
    """1 the smallest; of equal magnitudes the earlier ranks higher."""
    order = sorted(range(len(row)), key=lambda at: (-abs(row[at]), at))
    found = np.zeros(len(row))
    for place, at in enumerate(order):
        found[at] = len(row) - place
    return found


class Formulas:
    """`inputs` are dense float64 tensors by name, every one with every tensor; `weights` as the pages call w_i."""

    def __init__(self, inputs: Sequence[Dense], weights: Sequence[float], numbers: Numbers) -> None:
        self.inputs, self.weights, self.numbers = inputs, weights, numbers
        self.names = sorted(inputs[0])
        self.shapes = {name: inputs[0][name].shape for name in self.names}

    def sum(self, name: str) -> np.ndarray:
        total = np.zeros(self.shapes[name])
        for weight, one in zip(self.weights, self.inputs, strict=True):
            total = total + weight * one[name]
        return total

    def task_arithmetic(self, scale: float) -> Dense:
        return {name: scale * self.sum(name) for name in self.names}

    def ties(self, density: float, mean: float, scale: float) -> Dense:
        rows = [weight * trim(joined(one, self.names), density)
                for weight, one in zip(self.weights, self.inputs, strict=True)]  # fmt: skip
        return split(scale * elect(np.stack(rows), bool(mean)), self.shapes)

    def _dropped(self, chances: Callable[[np.ndarray], np.ndarray], *, by_rank: bool = False) -> list[Dense]:
        found = []
        for index, one in enumerate(self.inputs):
            tensors = {}
            for name in self.names:
                flat, chance = one[name].reshape(-1), chances(one[name]).reshape(-1)
                stays = np.zeros(len(flat))
                at = np.flatnonzero(flat)
                if by_rank:  # row by row, each from its smallest entry up
                    row = np.concatenate([ranks(one) for one in one[name].reshape(-1, one[name].shape[-1])])
                    at = at[np.lexsort((row[at], at // one[name].shape[-1]))]
                stays[at] = self.numbers(index, name, at) < np.rint(chance[at] * 2.0**32)
                tensors[name] = np.where(stays > 0, flat / chance, 0).reshape(self.shapes[name])
            found.append(tensors)
        return found

    def dare(self, density: float, scale: float) -> Dense:
        left = Formulas(self._dropped(lambda tensor: np.full(tensor.shape, density)), self.weights, self.numbers)
        return left.task_arithmetic(scale)

    def dare_ties(self, density: float, mean: float, scale: float) -> Dense:
        left = self._dropped(lambda tensor: np.full(tensor.shape, density))
        rows = [weight * joined(one, self.names) for weight, one in zip(self.weights, left, strict=True)]
        return split(scale * elect(np.stack(rows), bool(mean)), self.shapes)

    def della(self, density: float, window: float, mean: float, scale: float) -> Dense:
        def chances(tensor: np.ndarray) -> np.ndarray:
            length = tensor.shape[-1]
            if length == 1:
                return np.full(tensor.shape, density)
            rows = [density - window / 2 + window * (ranks(row) - 1) / (length - 1)
                    for row in tensor.reshape(-1, length)]  # fmt: skip
            return np.stack(rows).reshape(tensor.shape)

        left = self._dropped(chances, by_rank=True)
        rows = [weight * joined(one, self.names) for weight, one in zip(self.weights, left, strict=True)]
        return split(scale * elect(np.stack(rows), bool(mean)), self.shapes)

    def breadcrumbs(self, density: float, outliers: float, scale: float) -> Dense:
        def crumbs(tensor: np.ndarray) -> np.ndarray:
            length = tensor.shape[-1]
            kept = []
            for row in tensor.reshape(-1, length):
                from_top = length - ranks(row)
                out = round(outliers * length)
                stay = max(1, round(density * length))
                kept.append(np.where((from_top >= out) & (from_top < out + stay), row, 0))
            return np.stack(kept).reshape(tensor.shape)

        left = [{name: crumbs(one[name]) for name in self.names} for one in self.inputs]
        return Formulas(left, self.weights, self.numbers).task_arithmetic(scale)

    def localize_stitch(self, density: float, scale: float) -> Dense:
        kept = [trim(joined(one, self.names), density) for one in self.inputs]
        total, count = np.zeros(len(kept[0])), np.zeros(len(kept[0]))
        for weight, one in zip(self.weights, kept, strict=True):
            total, count = total + weight * one, count + (one != 0)
        return split(scale * total / np.maximum(1, count), self.shapes)

    def tall_masks(self, threshold: float, consensus: float, scale: float) -> Dense:
        found = {}
        for name in self.names:
            total = (scale * self.sum(name)).astype(np.float32).astype(np.float64)
            votes = sum((np.abs(one[name]) > threshold * np.abs(total - one[name])).astype(int) for one in self.inputs)
            found[name] = np.where(votes >= consensus, total, 0) if consensus else total
        return found

    def _mean(self, name: str, scale: float) -> np.ndarray:
        return np.asarray(scale * self.sum(name) / len(self.inputs))

    def tsv_m(self, scale: float) -> Dense:
        found = {}
        for name, shape in self.shapes.items():
            if len(shape) != 2 or min(shape) == 1:
                found[name] = self._mean(name, scale)
                continue
            lefts, sizes, rights = [], [], []
            for weight, one in zip(self.weights, self.inputs, strict=True):
                u, s, v = thin(weight * one[name])
                k = max(1, min(shape) // len(self.inputs))
                lefts.append(u[:, :k])
                sizes.append(s[:k])
                rights.append(v[:, :k])
            u, s, v = np.concatenate(lefts, 1), np.concatenate(sizes), np.concatenate(rights, 1)
            found[name] = scale * procrustes(u) @ np.diag(s) @ procrustes(v).T if len(s) else np.zeros(shape)
        return found

    def iso_c(self, scale: float) -> Dense:
        found = {}
        for name, shape in self.shapes.items():
            if len(shape) != 2 or min(shape) == 1:
                found[name] = self._mean(name, scale)
                continue
            u, s, v = thin(self.sum(name))
            found[name] = scale * s.mean() * u @ v.T if len(s) else np.zeros(shape)
        return found

    def knots(self, density: float, scale: float) -> Dense:
        found = {}
        for name, shape in self.shapes.items():
            if len(shape) != 2 or min(shape) == 1:
                found[name] = self._mean(name, scale)
                continue
            live = [weight * one[name] for weight, one in zip(self.weights, self.inputs, strict=True)
                    if one[name].any()]  # fmt: skip
            if not live:
                found[name] = np.zeros(shape)
                continue
            u, s, v = thin(np.concatenate(live, 1), 1e-6)
            least_live, parts = max(shape[0], shape[1] * len(live)) * 2.2e-16 * (s[0] if len(s) else 0), []
            for at in range(len(live)):
                part = s[:, None] * v[at * shape[1] : (at + 1) * shape[1]].T
                part = np.where(np.abs(part) > least_live, part, 0)
                least = np.sort(np.abs(part).reshape(-1))[::-1][max(1, round(density * part.size)) - 1]
                parts.append(np.where(np.abs(part) >= least, part, 0).reshape(-1))
            found[name] = scale * u @ elect(np.stack(parts), True).reshape(len(s), shape[1])
        return found

    def fedex(self, scale: float) -> Dense:
        return {name: scale * self.sum(name) / sum(self.weights) for name in self.names}


def thin(matrix: np.ndarray, least: float | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """U, S, V with only the directions above `least` of the largest (default: above rounding)."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    bound = max(matrix.shape) * 2.2e-16 if least is None else least
    live = (s > 0) & (s >= bound * (s[0] if len(s) else 0))
    return u[:, live], s[live], vt[live].T


def procrustes(matrix: np.ndarray) -> np.ndarray:
    """P Q^T; directions that several inputs share count once."""
    p, _, q = thin(matrix)
    return np.asarray(p @ q.T)
