"""The gate promotes what improves and costs nothing, for exactly what it was measured on."""

from __future__ import annotations

import pytest

from hinet_tiers.gate import Binding, Leg, decide, holds_for

BINDING = Binding("r", "d", "b")


def test_an_improvement_that_costs_nothing_is_promoted() -> None:
    verdict = decide([Leg("facts", 0.0, 0.9, task=True), Leg("general", 0.6, 0.55)], BINDING)
    assert verdict.promoted
    assert verdict.reasons == ()


def test_no_improvement_is_refused() -> None:
    verdict = decide([Leg("facts", 0.5, 0.5, task=True)], BINDING)
    assert not verdict.promoted
    assert "did not improve" in verdict.reasons[0]


def test_an_improvement_within_the_noise_is_refused() -> None:
    assert not decide([Leg("facts", 0.50, 0.53, task=True, noise=0.04)], BINDING).promoted


def test_a_retained_ability_may_not_drop_by_more_than_five_hundredths() -> None:
    verdict = decide([Leg("facts", 0.0, 1.0, task=True), Leg("general", 0.60, 0.54)], BINDING)
    assert not verdict.promoted
    assert verdict.reasons == ("general fell from 0.60 to 0.54, more than 0.05",)


def test_measured_noise_widens_what_a_drop_may_be() -> None:
    assert decide([Leg("facts", 0.0, 1.0, task=True), Leg("general", 0.60, 0.54, noise=0.08)], BINDING).promoted


def test_a_leak_is_an_ability_that_may_not_rise() -> None:
    legs = [Leg("facts", 0.0, 1.0, task=True), Leg("leak", 0.0, 0.2, lower_is_better=True)]
    assert decide(legs, BINDING).reasons == ("leak rose from 0.00 to 0.20, more than 0.05",)


def test_a_verdict_holds_for_its_own_digests_only() -> None:
    verdict = decide([Leg("facts", 0.0, 1.0, task=True)], BINDING)
    assert holds_for(verdict, BINDING)
    assert holds_for(verdict.as_dict(), BINDING)
    for stale in (Binding("x", "d", "b"), Binding("r", "x", "b"), Binding("r", "d", "x")):
        assert not holds_for(verdict, stale)
    assert not holds_for(decide([Leg("facts", 0.0, 0.0, task=True)], BINDING), BINDING)


@pytest.mark.parametrize(
    "legs",
    [
        [],
        [Leg("general", 0.5, 0.5)],
        [Leg("facts", 0.0, 1.0, task=True), Leg("facts", 0.0, 1.0)],
        [Leg("facts", 0.0, 1.5, task=True)],
    ],
)
def test_measurements_that_make_no_sense_are_an_error(legs: list[Leg]) -> None:
    with pytest.raises(ValueError, match=r"legs|shares"):
        decide(legs, BINDING)
