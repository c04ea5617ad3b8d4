"""From measured signals to a choice: merge, route, retrieve, or cluster first. Pure; thresholds ship beside it.

Complementary and independent specialists are merged. Those that contradict each other are routed where the question
tells who should answer; where it does not, both are told with their sources (retrieve). More than `inputs` are put
into groups first: merged inside, routed across.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

MERGE, ROUTE, RETRIEVE, CLUSTER = "merge", "route", "retrieve", "cluster"


@dataclass(frozen=True)
class Thresholds:
    """Where the choice turns (`thresholds.toml` says where each comes from)."""

    contradict: float
    separable: float
    inputs: int
    method: str


@dataclass(frozen=True)
class Pair:
    """The signals of two specialists; None: not measured."""

    first: str
    second: str
    contradict: float | None
    cosine: float | None


@dataclass(frozen=True)
class Choice:
    """What to do and why. `groups` are merged inside and routed across; one group of all where nothing is grouped."""

    kind: str
    reason: str
    groups: tuple[tuple[str, ...], ...]


def shipped() -> Thresholds:
    """The thresholds that come with this program."""
    return Thresholds(**tomllib.loads(resources.files(__package__).joinpath("thresholds.toml").read_text("utf-8")))


def choose(
    names: Sequence[str], pairs: Sequence[Pair], separable: float | None, bounds: Thresholds | None = None
) -> Choice:
    """The choice for specialists `names` (two or more, none twice), with the signals of every pair of them."""
    bounds = bounds or shipped()
    whole = (tuple(names),)
    if len(names) > bounds.inputs:
        groups = cluster(names, pairs, bounds)
        by = "how they answer" if _measured(pairs) else "the cosine of their weights, since nobody was asked"
        told = f"{len(names)} are more than {bounds.inputs}: {len(groups)} groups by {by}"
        return Choice(CLUSTER, f"{told}; merge inside each, route across.", groups)
    if not _measured(pairs):
        return Choice(ROUTE, "Nothing was asked of them, and weights alone do not tell a contradiction from two things "
                      "learned side by side: route until there are probes.", whole)  # fmt: skip
    worst = max(pairs, key=lambda pair: pair.contradict or 0.0)
    told = f"{worst.first} and {worst.second} contradict each other on {worst.contradict or 0.0:.0%} of their probes"
    if (worst.contradict or 0.0) < bounds.contradict:
        return Choice(MERGE, f"{told} at most, below {bounds.contradict:.0%}: they go together.", whole)
    if separable is not None and separable < bounds.separable:
        return Choice(RETRIEVE, f"{told} ({bounds.contradict:.0%} is too much), and the question tells who should "
                      f"answer in {separable:.0%} of the cases only: look up both, with their sources.", whole)
    return Choice(ROUTE, f"{told} ({bounds.contradict:.0%} is too much): each question goes to the one that knows.",
                  tuple((name,) for name in names))  # fmt: skip


def cluster(names: Sequence[str], pairs: Sequence[Pair], bounds: Thresholds) -> tuple[tuple[str, ...], ...]:
    """Groups of at most `bounds.inputs`, by complete linkage; the same whatever the order of names and pairs.

    The two groups whose worst pair is best are joined first, while no pair in them contradicts too much. Without
    measured answers the distance is 1 - cosine, and joining ends at the fewest groups that sizes allow.
    """
    measured = _measured(pairs)
    distance = {frozenset((pair.first, pair.second)): _distance(pair, measured) for pair in pairs}
    groups = [(name,) for name in sorted(names, key=str.encode)]
    fewest = -(-len(names) // bounds.inputs)
    while len(groups) > (1 if measured else fewest):
        best = min(_joins(groups, distance, bounds), default=None)
        if best is None or (measured and best[0] >= bounds.contradict):
            break
        _, one, two = best
        groups = sorted([group for group in groups if group not in (one, two)] + [tuple(sorted(one + two))])
    return tuple(groups)


def _joins(
    groups: Sequence[tuple[str, ...]], distance: Mapping[frozenset[str], float], bounds: Thresholds
) -> list[tuple[float, tuple[str, ...], tuple[str, ...]]]:
    return [(max(distance[frozenset((a, b))] for a in one for b in two), one, two)
            for at, one in enumerate(groups) for two in groups[at + 1 :]
            if len(one) + len(two) <= bounds.inputs]  # fmt: skip


def _distance(pair: Pair, measured: bool) -> float:
    if measured:
        return pair.contradict if pair.contradict is not None else 1.0
    return 1.0 - (pair.cosine or 0.0)


def _measured(pairs: Sequence[Pair]) -> bool:
    return any(pair.contradict is not None for pair in pairs)
