"""Methods that decompose matrices, and Localize-and-Stitch, each against its formula written out in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hinet_tiers.merging import spectra
from hinet_tiers.merging.deltas import TauDelta

from . import made
from .test_elementwise import dense, flat, inputs, merged, trimmed

WEIGHTS = [1.0, -0.5, 2.0]


def procrustes(matrix: np.ndarray) -> np.ndarray:
    p, _, qt = np.linalg.svd(matrix, full_matrices=False)
    return p @ qt


def test_tsv_m_is_its_formula(tmp_path: Path) -> None:
    deltas = inputs(tmp_path)
    found, given = merged("tsv-m", deltas, weights=WEIGHTS, settings={"scale": 0.5}), dense(deltas)
    for name in ("emb", "proj"):
        triples = [np.linalg.svd(weight * one[name], full_matrices=False)
                   for one, weight in zip(given, WEIGHTS, strict=True)]  # fmt: skip
        k = min(given[0][name].shape) // 3
        u = procrustes(np.concatenate([t[0][:, :k] for t in triples], 1))
        s = np.concatenate([t[1][:k] for t in triples])
        v = procrustes(np.concatenate([t[2][:k].T for t in triples], 1))
        np.testing.assert_allclose(found[name], 0.5 * u @ np.diag(s) @ v.T, rtol=1e-5, atol=1e-7)
    for name in ("norm", "tiny"):
        want = 0.5 * sum(weight * one[name] for one, weight in zip(given, WEIGHTS, strict=True)) / 3
        np.testing.assert_allclose(found[name], want, rtol=1e-6, atol=1e-9)


def test_iso_c_is_its_formula(tmp_path: Path) -> None:
    deltas = inputs(tmp_path)
    found, given = merged("iso-c", deltas, weights=WEIGHTS), dense(deltas)
    for name in ("emb", "proj"):
        u, s, vt = np.linalg.svd(sum(weight * one[name] for one, weight in zip(given, WEIGHTS, strict=True)),
                                 full_matrices=False)
        np.testing.assert_allclose(found[name], u @ np.diag(np.full(len(s), s.mean())) @ vt, rtol=1e-5, atol=1e-7)
        flattened = np.linalg.svd(found[name], compute_uv=False)
        np.testing.assert_allclose(flattened, s.mean(), rtol=1e-5)


def low_rank(path: Path, seed: int, rank: int) -> TauDelta:
    source = np.random.default_rng(seed)
    factors = source.integers(-3, 4, (24, rank)), source.integers(-3, 4, (rank, 16))
    return made.tau(path, {"w": (factors[0] @ factors[1] / 64).astype(np.float32)})


def test_low_rank_inputs_stay_within_the_directions_that_they_have(tmp_path: Path) -> None:
    one, two = low_rank(tmp_path / "1.tau", 1, 2), low_rank(tmp_path / "2.tau", 2, 3)
    span = np.concatenate([delta.dense("w").reshape(24, 16) for delta in (one, two)], 1).astype(np.float64)
    inside = np.linalg.svd(span, full_matrices=False)[0][:, :5]
    for method in ("tsv-m", "iso-c"):
        (found,) = merged(method, [one, two]).values()
        assert np.linalg.matrix_rank(found, tol=1e-5) == 5, method
        np.testing.assert_allclose(inside @ (inside.T @ found), found, atol=1e-6)


def test_equal_inputs_give_the_input_back_in_tsv_m(tmp_path: Path) -> None:
    one, again = low_rank(tmp_path / "1.tau", 1, 3), low_rank(tmp_path / "2.tau", 1, 3)
    (found,) = merged("tsv-m", [one, again]).values()
    np.testing.assert_allclose(found.reshape(-1), one.dense("w"), atol=1e-6)


@pytest.mark.parametrize("method", ["tsv-m", "iso-c"])
def test_an_input_that_leaves_a_matrix_alone_counts_as_zeros(method: str, tmp_path: Path) -> None:
    one = made.tau(tmp_path / "1.tau", {"a": made.random((6, 8), 1), "b": made.random((6, 8), 2)})
    two = made.tau(tmp_path / "2.tau", {"a": made.random((6, 8), 3)})
    found = merged(method, [one, two])
    assert set(found) == {"a", "b"}
    assert np.isfinite(found["b"]).all()
    assert np.abs(found["b"]).sum() > 0


@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (7, 7), (3, 2), (100, 30)])
def test_a_decomposition_gives_its_matrix_back(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(1).standard_normal(shape)
    u, s, vt = spectra.svd(matrix)
    np.testing.assert_allclose(u * s @ vt, matrix, atol=1e-12)
    assert (np.diff(s) <= 0).all()
    assert [len(part) for part in spectra.svd(np.zeros(shape))] == [shape[0], 0, 0]


def test_localize_and_stitch_is_its_formula(tmp_path: Path) -> None:
    deltas = inputs(tmp_path)
    found = flat(merged("localize-stitch", deltas, weights=WEIGHTS, settings={"density": 0.2, "scale": 2}))
    kept = [trimmed(flat(one), 0.2) for one in dense(deltas)]
    count = np.maximum(1, sum((one != 0).astype(int) for one in kept))
    want = 2 * sum(weight * one for one, weight in zip(kept, WEIGHTS, strict=True)) / count
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-9)
