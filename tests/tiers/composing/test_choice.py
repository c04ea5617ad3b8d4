"""From signals to a choice, and into groups: what is measured decides, in whatever order it is given."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from hinet_tiers.composing import choice
from hinet_tiers.composing.choice import Pair, Thresholds

BOUNDS = Thresholds(contradict=0.6, separable=0.9, inputs=8, method="ties")


def pairs(names: list[str], contradict: dict[str, float] | None, cosine: float = 0.2) -> list[Pair]:
    """Every pair; those not named contradict each other on 10 %."""
    return [Pair(one, two, None if contradict is None else contradict.get(one + two, 0.1), cosine)
            for one, two in combinations(names, 2)]


def test_what_does_not_contradict_is_merged_and_what_does_is_routed_or_looked_up() -> None:
    names = ["a", "b", "c"]
    assert choice.choose(names, pairs(names, {}), 1.0, BOUNDS).kind == "merge"
    conflict = pairs(names, {"bc": 0.7})
    routed = choice.choose(names, conflict, 1.0, BOUNDS)
    assert (routed.kind, routed.groups) == ("route", (("a",), ("b",), ("c",)))
    assert "b and c contradict each other on 70%" in routed.reason
    assert choice.choose(names, conflict, 0.5, BOUNDS).kind == "retrieve"


def test_the_threshold_itself_is_too_much() -> None:
    assert choice.choose(["a", "b"], pairs(["a", "b"], {"ab": 0.6}), 1.0, BOUNDS).kind == "route"
    assert choice.choose(["a", "b"], pairs(["a", "b"], {"ab": 0.599}), 1.0, BOUNDS).kind == "merge"


def test_without_probes_nothing_is_merged_however_far_weights_are_apart() -> None:
    for cosine in (-1.0, 0.0, 0.9):
        chosen = choice.choose(["a", "b"], pairs(["a", "b"], None, cosine), None, BOUNDS)
        assert chosen.kind == "route"
        assert "Nothing was asked" in chosen.reason


def test_more_than_eight_are_put_into_groups_that_do_not_contradict() -> None:
    names = [f"{letter}{number}" for letter in "xyz" for number in range(4)]
    apart = {one + two: 0.95 for one, two in combinations(names, 2) if one[0] != two[0]}
    expected = tuple(tuple(name for name in names if name[0] == letter) for letter in "xyz")
    for seed in range(5):
        shuffled, rows = list(names), pairs(names, apart)
        random.Random(seed).shuffle(shuffled)
        random.Random(seed).shuffle(rows)
        chosen = choice.choose(shuffled, rows, 1.0, BOUNDS)
        assert (chosen.kind, chosen.groups) == ("cluster", expected)


def test_a_group_holds_no_more_than_eight_even_where_all_agree() -> None:
    names = [f"n{number:02}" for number in range(20)]
    for rows in (pairs(names, {}), pairs(names, None)):
        groups = choice.choose(names, rows, 1.0, BOUNDS).groups
        assert sorted(name for group in groups for name in group) == names
        assert max(len(group) for group in groups) <= 8


def test_the_shipped_thresholds_can_be_read_and_make_sense() -> None:
    bounds = choice.shipped()
    assert 0 < bounds.contradict < 1
    assert 0 < bounds.separable <= 1
    assert bounds.inputs == 8


@pytest.mark.parametrize("method", [choice.shipped().method])
def test_the_method_that_is_proposed_exists(method: str) -> None:
    from hinet_tiers.merging import registry

    assert not registry.find(method).needs
