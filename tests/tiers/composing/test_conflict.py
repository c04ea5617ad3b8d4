"""Signals of conflict: shares of answers, and whether the question tells who should answer."""

from __future__ import annotations

import numpy as np
import pytest

from hinet_tiers.composing import conflict
from hinet_tiers.composing.conflict import Answers


def told(tokens: list[int], shares: list[float]) -> Answers:
    return Answers(np.array(tokens, np.int64), np.array(shares, np.float32))


def test_only_two_sure_and_different_answers_are_a_contradiction() -> None:
    first = told([1, 1, 1, 1], [0.9, 0.9, 0.9, 0.5])
    second = told([1, 2, 2, 2], [0.9, 0.9, 0.5, 0.9])
    assert conflict.answer_signals(first, second) == {"agree": 0.25, "both_sure": 0.5, "contradict": 0.25}
    assert conflict.answer_signals(second, first) == conflict.answer_signals(first, second)
    with pytest.raises(ValueError, match="no questions"):
        conflict.answer_signals(told([], []), told([], []))


def test_questions_about_different_things_tell_who_should_answer_and_the_same_questions_do_not() -> None:
    source = np.random.default_rng(1)
    centers = source.standard_normal((2, 32)) * 4
    apart = np.concatenate([center + source.standard_normal((20, 32)) for center in centers]).astype(np.float32)
    owners = ["a"] * 20 + ["b"] * 20
    assert conflict.separable(apart, owners) == 1.0
    same = np.concatenate([apart[:20], apart[:20]])
    assert conflict.separable(same, owners) <= 0.1


def test_a_question_alone_cannot_be_told_by_itself() -> None:
    vectors = np.eye(2, dtype=np.float32)
    assert conflict.separable(vectors, ["a", "b"]) == 0.0
