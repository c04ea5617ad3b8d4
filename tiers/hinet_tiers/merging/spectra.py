"""Singular value decompositions for the methods that merge matrices: without what rounding made up.

Directions whose singular value is within rounding of zero are no part of a delta: which ones a library gives there is
chance, so they are left out. Everything is float64. A tensor of two dimensions, both larger than 1, is a matrix; others
are merged entry by entry, by what the method says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hinet_tiers.merging.blocks import weighted_sum
from hinet_tiers.merging.method import Run, Values
from hinet_tiers.sparsify import SparseTensor

Doubles = npt.NDArray[np.float64]


def is_matrix(shape: Sequence[int]) -> bool:
    """Whether a tensor is decomposed."""
    return len(shape) == 2 and min(shape) > 1


def dense(tensor: SparseTensor, weight: float) -> Doubles:
    """weight · τ of a matrix, float64 [rows, columns]."""
    flat = np.zeros(tensor.shape[0] * tensor.shape[1])
    flat[tensor.positions] = tensor.values
    flat *= weight
    return flat.reshape(tensor.shape)


def svd(matrix: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """U [m, r], s [r] (descending), V^T [r, n] with U diag(s) V^T = matrix, r its numerical rank.

    A singular value counts from max(m, n) · ε · the largest one on. A tall or wide matrix is made square by a QR
    decomposition first, which costs less and changes nothing else.
    """
    rows, columns = matrix.shape
    if rows < columns:
        vt_t, s, u_t = svd(np.ascontiguousarray(matrix.T))
        return u_t.T, s, vt_t.T
    if rows > 2 * columns:
        q, r = np.linalg.qr(matrix)
        u, s, vt = np.linalg.svd(r, full_matrices=False)
        u = q @ u
    else:
        u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(s > max(rows, columns) * np.finfo(np.float64).eps * s[0])) if s[0] > 0 else 0
    return u[:, :rank], s[:rank], vt[:rank]


def polar(matrix: Doubles) -> Doubles:
    """The nearest matrix with orthonormal columns, P Q^T of P D Q^T (Procrustes); where columns depend on each other,
    orthonormal on what they span."""
    u, _, vt = svd(matrix)
    return u @ vt


def mean(run: Run, inputs: Sequence[SparseTensor | None], entries: int) -> Values:
    """scale · Σ w_i τ_i / T over all T inputs: what is done with tensors that are no matrices."""
    return weighted_sum(inputs, run.weights, entries, run.settings["scale"] / len(run.weights))
