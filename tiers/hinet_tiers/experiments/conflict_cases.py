"""What merging a pair of specialists costs, and whether a signal tells conflicting pairs from others. Pure.

Independent: other entities and other attributes. Conflicting: the same questions with other answers, by a cipher.
Complementary: the same entities, other attributes. The signals themselves are `composing.conflict`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CHANCE = 0.25


def retained(merged: Sequence[float], own: Sequence[float]) -> float | None:
    """Of what the specialists know above chance on their own questions, the share that the merge still knows."""
    known = sum(score - CHANCE for score in own)
    return None if known <= 0 else float(np.sum(np.asarray(merged) - CHANCE) / known)


def verdict(cases: Mapping[str, Mapping[str, Any]], signal: str) -> str:
    """Whether a signal puts the conflicting pair outside the range of the others, and by how much."""
    values = {case: row[signal] for case, row in cases.items()}
    if "conflicting" not in values or len(values) < 2 or any(value is None for value in values.values()):
        return "not measured"
    odd = values.pop("conflicting")
    low, high = min(values.values()), max(values.values())
    if odd > high:
        return f"separates: {odd:.3f} against at most {high:.3f}"
    if odd < low:
        return f"separates: {odd:.3f} against at least {low:.3f}"
    return f"does not separate: {odd:.3f} lies within {low:.3f} to {high:.3f}"
