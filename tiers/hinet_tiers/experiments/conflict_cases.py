"""How far two specialists are from each other, in weights and in answers, and what merging them costs: three cases.

Independent: other entities and other attributes. Conflicting: the same questions with other answers, by a cipher.
Complementary: the same entities, other attributes. Which signal tells them apart is what the experiment is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.experiments.grade import Shares

SURE = 0.8
"""A model is sure of an answer from this probability on (of A to D)."""
CHANCE = 0.25
WEIGHTS = ("cosine", "sign_conflict", "overlap", "displacement_first", "displacement_second")


def weight_signals(first: Path, second: Path, progress: Progress = no_progress) -> dict[str, float | None]:
    """Cosine, sign conflict and overlap of two task vectors over all entries, and how far each moves the base."""
    from hinet_tiers.vectors.diff import diff_taus

    found = diff_taus(first, second, progress)
    return {key: found[key] for key in WEIGHTS}


def answer_signals(first: Shares, second: Shares) -> dict[str, float]:
    """How two specialists answer the same questions (each other's probes).

    `agree`: likeliest letters are the same. `both_sure`: both reach SURE. `contradict`: both do, with different
    letters, as a share of all questions.
    """
    same = first.argmax(1) == second.argmax(1)
    sure = (first.max(1) >= SURE) & (second.max(1) >= SURE)
    return {
        "agree": float(same.mean()), "both_sure": float(sure.mean()), "contradict": float((sure & ~same).mean()),
        "sure_first": float(first.max(1).mean()), "sure_second": float(second.max(1).mean()),
    }  # fmt: skip


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
