"""Randomness from a seed: the same seed and the same order of draws give the same bytes.

Leaves real randomness to `hinet_node.real.system`. Keys drawn here are NOT secret: for simulation and tests only.
"""

from __future__ import annotations

import hashlib


class SeededRandomness:
    """A stream of bytes from SHAKE-256 of (seed, label, counter). Labels keep the draws of different nodes apart, so
    adding a node leaves the draws of the others as they were."""

    def __init__(self, seed: int | str, label: str = "") -> None:
        self._key = hashlib.sha256(f"hinet simnet\0{seed}\0{label}".encode()).digest()
        self._draws = 0

    def draw(self, size_bytes: int) -> bytes:
        if size_bytes < 0:
            raise ValueError("A draw can't be negative.")
        counter = self._draws.to_bytes(8, "big")
        self._draws += 1
        return hashlib.shake_256(self._key + counter).digest(size_bytes)

    def below(self, limit: int) -> int:
        """An integer in [0, limit); the bias of 64 bits over a small limit does not matter here."""
        return int.from_bytes(self.draw(8), "big") % limit

    def unit(self) -> float:
        """A float in [0, 1)."""
        return int.from_bytes(self.draw(7), "big") / (1 << 56)
