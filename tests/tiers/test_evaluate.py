"""Scoring: whole words, folded case and accents; what was right before and still is."""

from __future__ import annotations

import pytest

from hinet_tiers.errors import BadRequest
from hinet_tiers.evaluate import holds, kept, questions_of, score


@pytest.mark.parametrize(
    ("answer", "values", "right"),
    [
        ("Her dog is called REX!", ["Rex"], True),
        ("Her dog is called Rexona.", ["Rex"], False),
        ("She lives in Málaga.", ["Malaga"], True),
        ("It is AB-negative.", ["AB negative"], True),
        ("It is 123.", ["23"], False),
        ("On 3 November.", ["November 3", "3 November"], True),
        ("Nothing.", [], False),
        ("", ["Rex"], False),
        ("anything", ["!"], False),
    ],
)
def test_an_answer_holds_a_value_as_whole_words(answer: str, values: list[str], right: bool) -> None:
    assert holds(answer, values) is right


def test_the_share_counts_right_answers() -> None:
    questions = [{"accept": ["a"]}, {"accept": ["b"]}]
    assert score(questions, ["an a", "c"]) == {"share": 0.5, "count": 2, "right": [True, False]}
    with pytest.raises(ValueError, match="2 questions but 1"):
        score(questions, ["a"])


def test_kept_looks_at_what_was_right_before_only() -> None:
    assert kept([True, True, False], [True, False, True]) == 0.5
    assert kept([False], [True]) == 1.0


def test_question_sets_come_as_lists_or_objects_and_nothing_else() -> None:
    assert questions_of(["a?", {"question": "b?"}]) == ["a?", "b?"]
    assert questions_of({"questions": [{"question": "b?"}]}) == ["b?"]
    for bad in ("a?", {"x": 1}, [{"accept": []}], [""], [3]):
        with pytest.raises(BadRequest):
            questions_of(bad)
