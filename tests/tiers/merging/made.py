"""Small task vectors, made on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hinet_tiers import sparsify
from hinet_tiers.merging.deltas import TauDelta

BASE = "b" * 64
EXACT = "bf16"


def tau(path: Path, tensors: Mapping[str, object], *, base: str = BASE) -> TauDelta:
    """A `.tau` file with these dense tensors (their nonzero entries), opened. Values must be exact in bf16."""
    kept = []
    for name in sorted(tensors):
        dense = np.asarray(tensors[name], np.float32)
        flat = dense.reshape(-1)
        at = np.flatnonzero(flat)
        kept.append(sparsify.SparseTensor(name, dense.shape, at, flat[at]))
    sparsify.write_tau(path, base, kept, codec=EXACT)
    return TauDelta(path)


def random(shape: tuple[int, ...], seed: int, density: float = 0.5, size: float = 0.25) -> np.ndarray:
    """A sparse random tensor whose values are exact in bf16."""
    source = np.random.default_rng(seed)
    values = source.integers(-127, 128, shape) / 128 * size
    return np.where(source.random(shape) < density, values, 0).astype(np.float32)
