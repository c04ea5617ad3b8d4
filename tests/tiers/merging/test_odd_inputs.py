"""Every method against a second reading of its page (`formulas.py`), on inputs at the edges: all magnitudes equal,
stored zeros, one huge value, tensors of one entry, supports that never meet, weights that cancel, any rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet_tiers import sparsify
from hinet_tiers.merging import draws, engine
from hinet_tiers.merging.deltas import TauDelta

from . import made
from .formulas import Dense, Formulas

SHAPES = {"a.vector": (7,), "b.one": (1,), "c.matrix": (6, 9), "d.row": (1, 5), "e.column": (5, 1), "f.dot": (1, 1),
          "g.kernel": (3, 2, 4), "h.deep": (2, 1, 3, 1)}  # fmt: skip
SETTINGS: dict[str, list[dict[str, float]]] = {
    "task-arithmetic": [{"scale": 0.7}, {"scale": -3}],
    "ties": [{"density": density, "mean": mean, "scale": 0.5} for density in (1e-6, 0.1, 0.5, 1) for mean in (0, 1)],
    "dare": [{"density": 0.3, "scale": 1}, {"density": 1, "scale": 2}],
    "dare-ties": [{"density": 0.5, "mean": mean, "scale": -1} for mean in (0, 1)],
    "della": [{"density": 0.6, "window": window, "mean": mean, "scale": 1} for window in (0, 0.5) for mean in (0, 1)],
    "breadcrumbs": [{"density": d, "outliers": out, "scale": 1} for d, out in
                    ((0.15, 0.006), (1, 0), (1e-6, 0.5), (0.5, 0.5), (0.5, 0.25), (1, 0.125))],
    "tall-masks": [{"threshold": t, "consensus": k, "scale": 1} for t, k in ((0.4, 0), (0, 2), (1, 2), (0.4, 1))],
    "localize-stitch": [{"density": density, "scale": 1.5} for density in (1e-6, 0.05, 0.5, 1)],
    "tsv-m": [{"scale": 1}, {"scale": -0.5}],
    "iso-c": [{"scale": 1}, {"scale": -0.5}],
    "knots": [{"density": density, "scale": 0.5} for density in (1e-6, 0.5, 1)],
}  # fmt: skip
WIDE = {"one huge value": 1e-6, "all sizes": 1e-6}
"""Small directions beside huge ones are known to a few digits only."""
SPECTRAL: dict[str, dict[str, float]] = {"tsv-m": WIDE, "iso-c": WIDE, "knots": WIDE}


def write(path: Path, tensors: Dense) -> TauDelta:
    """A file that keeps every entry, zeros and negative zeros too."""
    kept = [sparsify.SparseTensor(name, one.shape, np.arange(one.size), one.astype(np.float32).reshape(-1))
            for name, one in sorted(tensors.items())]  # fmt: skip
    sparsify.write_tau(path, made.BASE, kept, codec=made.EXACT)
    return TauDelta(path)


def generic(seed: int) -> Dense:
    source = np.random.default_rng(seed)
    return {name: source.integers(-127, 128, shape) / 128.0 for name, shape in SHAPES.items()}


def level(seed: int) -> Dense:
    """Nothing but -1, 0 and 1."""
    source = np.random.default_rng(seed)
    return {name: source.integers(-1, 2, shape).astype(np.float64) for name, shape in SHAPES.items()}


def with_one_huge_value(seed: int) -> Dense:
    found = generic(seed)
    found["c.matrix"][seed % 6, seed % 9] = 2.0**30 * (1 + seed / 4)
    return found


def of_all_sizes(seed: int) -> Dense:
    """From float32's smallest numbers upwards."""
    source = np.random.default_rng(seed)
    return {name: one * 2.0 ** source.integers(-140, 20, one.shape) for name, one in generic(seed).items()}


def apart(seed: int) -> Dense:
    """Three supports that never meet."""
    return {name: np.where(np.arange(one.size).reshape(one.shape) % 3 == seed, one, 0)
            for name, one in generic(seed).items()}  # fmt: skip


def signed_zeros(seed: int) -> Dense:
    return {name: np.where(one > 0, 0.0, np.where(one < -0.5, one, -0.0)) for name, one in generic(seed).items()}


def mostly_nothing(seed: int) -> Dense:
    """Tensors of zeros alone, another one in each input."""
    return {name: one * (place % 3 == seed) for place, (name, one) in enumerate(generic(seed).items())}


CASES = {"generic": generic, "level": level, "one huge value": with_one_huge_value, "all sizes": of_all_sizes,
         "apart": apart, "signed zeros": signed_zeros, "mostly nothing": mostly_nothing}  # fmt: skip
WEIGHTS: list[Sequence[float]] = [(1, 1, 1), (1, -1, 0.5), (-2, 0.25, -1), (1, 0, -1), (1, 1, -2)]


def merged(method: str, deltas: Sequence[TauDelta], **more: Any) -> Dense:
    merge = engine.prepare(method, deltas, bound=1e300, **more)
    found = {name: np.zeros(shape) for delta in deltas for name, shape in delta.shapes.items()}
    for tensor in merge.tensors():
        found[tensor.name] = sparsify.densify(tensor).astype(np.float64)
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", SETTINGS)
def test_each_method_is_its_page_at_the_edges_too(method: str, case: str, tmp_path: Path) -> None:
    deltas = [write(tmp_path / f"{at}.tau", CASES[case](at)) for at in range(3)]
    for given in WEIGHTS:
        # Equal singular values would leave the choice of directions to the library.
        uneven = method in SPECTRAL and case in ("level", "all sizes", "signed zeros")
        weights = np.multiply(given, (1, 1.25, 0.75) if uneven else 1).tolist()
        live = [(delta, weight) for delta, weight in zip(deltas, weights, strict=True) if weight]
        inputs = [{name: delta.dense(name).astype(np.float64).reshape(SHAPES[name]) for name in SHAPES}
                  for delta, _ in live]  # fmt: skip
        formulas = Formulas(inputs, [weight for _, weight in live], partial(numbers, [delta for delta, _ in live]))
        for settings in SETTINGS[method]:
            found = merged(method, deltas, weights=weights, settings=settings)
            want = getattr(formulas, method.replace("-", "_"))(**settings)
            for name in SHAPES:
                slack = SPECTRAL[method].get(case, 1e-11) * np.abs(want[name]).max() if method in SPECTRAL else 0
                worst = np.abs(found[name] - want[name]) - np.abs(want[name]) * 2.0**-23 - 2.0**-149 - slack
                assert worst.max() <= 0, (weights, settings, name, found[name], want[name])


def numbers(deltas: Sequence[TauDelta], index: int, name: str, order: np.ndarray) -> np.ndarray:
    return draws.Draws(0, deltas[index].digest, name).take(len(order))


@pytest.mark.parametrize("axis", [0, 1])
def test_in_knots_inputs_that_do_not_meet_come_back_whole(axis: int, tmp_path: Path) -> None:
    """Their zeros come out of the decomposition as rounding, which must not be counted as agreeing."""
    for seed in range(20):
        source = np.random.default_rng(seed)
        whole = source.integers(-127, 128, (12, 12)) / 128.0
        deltas = []
        for at in range(3):
            mine = (np.arange(12) // 4 == at).reshape((12, 1) if axis == 0 else (1, 12))
            deltas.append(write(tmp_path / f"{at}.tau", {"w": np.where(mine, whole, 0)}))
        found = merged("knots", deltas, settings={"density": 1, "scale": 1})["w"]
        want = whole if axis == 0 else Formulas([{"w": d.dense("w").astype(float).reshape(12, 12)} for d in deltas],
                                                [1, 1, 1], lambda *_: np.zeros(0)).knots(1, 1)["w"]  # fmt: skip
        assert np.abs(found - want).max() < 1e-6, seed


def test_the_same_masks_fall_in_dare_and_in_dare_ties(tmp_path: Path) -> None:
    """A stored zero draws no number in either, so what stays of an input is the same entries."""
    one = write(tmp_path / "1.tau", {"w": np.tile([0.0, 1.0, -0.0, 2.0], 50)})
    two = write(tmp_path / "2.tau", {"w": np.tile([4.0, 0.0, 8.0, 0.0], 50)})
    plain = merged("dare", [one, two], settings={"density": 0.5, "scale": 1})["w"]
    voted = merged("dare-ties", [one, two], settings={"density": 0.5, "scale": 1})["w"]
    assert np.array_equal(plain, voted)
    assert 0 < np.count_nonzero(plain) < 200
