"""Answers put together: committees, routed answers, and a specialist taken out. Pure arithmetic on letter shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hinet_tiers.experiments.grade import Shares


def mean(answers: Sequence[Shares]) -> Shares:
    """The committee's mean: letters by the average probability."""
    summed: Shares = np.mean(np.stack(answers).astype(np.float64), 0).astype(np.float32)
    return summed


def majority(answers: Sequence[Shares]) -> Shares:
    """The committee's majority: one voice each for its likeliest letter; a tie goes to the higher mean probability."""
    voices = sum(np.eye(one.shape[1])[one.argmax(1)] for one in answers)
    return (voices + 0.5 * mean(answers)).astype(np.float32)


def routed(picks: Sequence[tuple[str, ...]], answers: Mapping[str, Shares], base: Shares) -> Shares:
    """Each question answered by those it goes to (their mean), by the base where it goes to nobody."""
    found = base.copy()
    for at, names in enumerate(picks):
        if names:
            found[at] = np.mean([answers[name][at] for name in names], 0)
    return found


def routing_accuracy(picks: Sequence[tuple[str, ...]], owners: Sequence[str]) -> float:
    """The share of questions whose first choice is the specialist that they belong to."""
    return sum(names[:1] == (owner,) for names, owner in zip(picks, owners, strict=True)) / len(owners)


def routing_split(picks: Sequence[tuple[str, ...]], owners: Sequence[str]) -> dict[str, float]:
    """Where questions went, as shares: to the right one alone, to it and another, to others alone, to the base."""
    kinds = {"right_alone": 0, "right_and_another": 0, "others": 0, "base": 0}
    for names, owner in zip(picks, owners, strict=True):
        kind = "base" if not names else "others" if names[0] != owner else "right_and_another"
        kinds["right_alone" if names == (owner,) else kind] += 1
    return {kind: count / len(owners) for kind, count in kinds.items()}


def opt_out(
    full: Mapping[str, float], left: Mapping[str, float], base: Mapping[str, float], gone: str
) -> dict[str, float]:
    """What taking one specialist out moved: its own domain against the base, the others' worst against before."""
    return {
        "own_from_base": left[gone] - base[gone],
        "others_moved": max(
            (abs(left[name] - full[name]) for name in full if name not in (gone, "macro")), default=0.0
        ),
    }
