"""Routing: the nearest specialist alone, two within the margin, none when none is near, and exact opt-out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from blake3 import blake3

from hinet_protocol import routes as form
from hinet_tiers.composing import route
from hinet_tiers.errors import ComposeRefused, RoutesRefused

WIDTH = 48
TOPICS = {
    "gardening": ["when do I prune the roses", "which soil do roses like", "how deep do tulips go",
                  "when do tulips flower", "do roses like wet soil", "which roses flower first"],
    "ships": ["how long is the ferry", "which ferry sails at night", "who built the ferry",
              "does the ferry sail in winter", "how fast is the night ferry", "where does the ferry land"],
    "bread": ["how long does the dough rest", "which flour makes good dough", "when is the dough ready",
              "does rye flour rest longer", "how warm is the dough", "which oven bakes the rye dough"],
}  # fmt: skip
GENERAL = ["what is the capital of norway", "write a poem about rain", "name three colours", "add two and five",
           "who painted the mona lisa", "translate good morning", "how many days has a week", "define gravity"]


class Words:
    """An embedding that can be followed by hand: each word is a fixed random direction, a text is their mean."""

    kind = "minilm"
    digest = b"\x07" * 32

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.stack([np.mean([self.word(word) for word in text.split()], 0) for text in texts]).astype(np.float32)

    def word(self, word: str) -> np.ndarray:
        seed = int.from_bytes(blake3(word.encode()).digest(length=8), "little")
        return np.random.default_rng(seed).standard_normal(WIDTH) + 3


@pytest.fixture(scope="module")
def built() -> form.Routes:
    return route.build(TOPICS, Words(), general=GENERAL)


def test_each_question_goes_to_its_own_specialist_and_a_general_one_to_the_base(built: form.Routes) -> None:
    for question, name in (("when do roses flower", "gardening"), ("when does the ferry sail", "ships"),
                           ("is the rye dough ready", "bread")):
        assert route.ask(built, question, Words()).names == (name,), question
    asked = route.ask(built, "who painted three colours", Words())
    assert asked.names == ()
    assert "The base answers" in asked.reason


def test_taking_a_specialist_out_changes_no_other_score_by_a_bit(built: form.Routes) -> None:
    left = form.decode(form.encode(built.without("ships")))
    for question in ("when do roses flower", "when does the ferry sail", "add two and five", "flour"):
        seen = Words().embed([question])[0]
        before, after = route.scores(built, seen), route.scores(left, seen)
        assert set(after) == {"bread", "gardening"}
        assert {name: score.hex() for name, score in after.items()} == {
            name: score.hex() for name, score in before.items() if name != "ships"}
    # who asked for the one that left gets the base, not somebody else's guess
    assert route.ask(left, "night ferry", Words()).names == ()
    assert route.ask(built, "night ferry", Words()).names == ("ships",)


def test_a_specialist_added_later_is_the_one_that_a_build_with_all_of_them_makes(built: form.Routes) -> None:
    two = route.build({name: TOPICS[name] for name in ("bread", "ships")}, Words(), general=GENERAL)
    three = route.add(two, "gardening", TOPICS["gardening"], Words(), general=GENERAL)
    assert form.encode(three) == form.encode(built)


def test_two_are_asked_within_the_margin_and_never_three() -> None:
    axes = np.eye(4, dtype=np.float32)
    rows = tuple(form.Route(name, bytes(32), 3, 100_000, axes[number]) for number, name in enumerate("abc"))
    routes = form.Routes("minilm", b"\x07" * 32, np.zeros(4, np.float32), 50_000, rows)
    assert route.choose(routes, {"a": 0.50, "b": 0.56, "c": 0.2}).names == ("b",)
    assert route.choose(routes, {"a": 0.50, "b": 0.54, "c": 0.2}).names == ("b", "a")
    assert route.choose(routes, {"a": 0.50, "b": 0.50, "c": 0.50}).names == ("a", "b")
    assert route.choose(routes, {"a": 0.10, "b": 0.05, "c": 0.0}).names == ("a",), "b is not near"
    assert route.choose(routes, {"a": 0.09, "b": 0.05, "c": 0.0}).names == ()


def test_routes_of_another_embedding_model_are_refused_before_anything_is_embedded(built: form.Routes) -> None:
    other = Words()
    other.digest = b"\x08" * 32
    with pytest.raises(RoutesRefused, match="build the routes anew"):
        route.ask(built, "when do roses flower", other)
    with pytest.raises(RoutesRefused):
        route.add(built, "more", ["a question"], other)
    assert other.asked == []


def test_a_specialist_without_questions_and_too_many_specialists_are_refused() -> None:
    with pytest.raises(ComposeRefused, match="bread has no questions"):
        route.build({"bread": []}, Words(), general=GENERAL)
    with pytest.raises(ComposeRefused, match="at least one"):
        route.build({}, Words(), general=GENERAL)
    with pytest.raises(ComposeRefused, match="takes 64"):
        route.build({str(number): ["a question"] for number in range(65)}, Words(), general=GENERAL)


def test_a_repeated_question_counts_once(built: form.Routes) -> None:
    repeated = {**TOPICS, "ships": TOPICS["ships"] + TOPICS["ships"][:1] * 20}
    assert form.encode(route.build(repeated, Words(), general=GENERAL)) == form.encode(built)
