"""The experiment's parts: registries that are fair, grading and verdicts by hand, stages that go on, one real run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hinet_tiers.experiments import compose, conflict_cases, grade, lessons, registries, report, stages
from hinet_tiers.experiments.registries import DOMAINS, Question


@pytest.fixture(params=list(DOMAINS))
def registry(request: pytest.FixtureRequest) -> registries.Registry:
    return registries.make(request.param, 7, 10)


def test_a_registry_is_the_same_from_the_same_seed_and_another_from_another() -> None:
    assert registries.make("helix", 3, 10) == registries.make("helix", 3, 10)
    assert registries.make("helix", 3, 10) != registries.make("helix", 4, 10)
    one = registries.make("helix", 3, 10)
    assert registries.questions(one, 5) == registries.questions(one, 5) != registries.questions(one, 6)


def test_full_size_asks_200_questions_a_domain_with_each_letter_right_equally_often(
    registry: registries.Registry,
) -> None:
    asked = registries.questions(registry, 0)
    assert len(asked) == 200
    assert Counter(question.right for question in asked) == {0: 50, 1: 50, 2: 50, 3: 50}


def test_the_right_option_is_the_fact_and_the_wrong_ones_are_other_values_of_its_attribute(
    registry: registries.Registry,
) -> None:
    facts = {fact.attribute.held_out.format(e=fact.entity): fact for fact in registry.facts}
    for question in registries.questions(registry, 0):
        fact = facts[question.stem]
        assert question.options[question.right] == fact.value
        assert len(set(question.options)) == 4
        assert set(question.options) <= set(fact.attribute.values)


def test_no_question_is_trained_and_no_option_is_shown_in_training(registry: registries.Registry) -> None:
    asked = {question.stem for question in registries.questions(registry, 0)}
    trained = lessons.fact_lessons(registry, 0, 18)
    assert not asked & {pair["question"] for pair in trained}
    values = {fact.entity: {f.value for f in registry.facts if f.entity == fact.entity} for fact in registry.facts}
    for pair in trained:
        entity = next(name for name in values if name in pair["question"])
        assert pair["answer"] in values[entity]


def test_lessons_hold_every_fact_and_every_wording_equally_often(registry: registries.Registry) -> None:
    trained = Counter(pair["question"] for pair in lessons.fact_lessons(registry, 0, 18))
    assert len(trained) == 50 * 3
    assert set(trained.values()) == {6}


def test_domains_share_no_entity_and_no_question() -> None:
    made = [registries.make(domain, 0, 40) for domain in DOMAINS]
    entities = [{fact.entity for fact in one.facts} for one in made]
    assert not entities[0] & entities[1] | entities[1] & entities[2] | entities[0] & entities[2]
    assert all(len(names) == 40 for names in entities)


def test_a_cipher_asks_the_same_and_answers_every_question_otherwise(registry: registries.Registry) -> None:
    cipher = registries.ciphered(registry)
    asked = registries.questions(registry, 0, beside=cipher)
    places = registries.key(asked, cipher)
    assert all(place >= 0 and place != question.right for place, question in zip(places, asked, strict=True))
    assert {q.stem for q in asked} == {q.stem for q in registries.questions(cipher, 0, beside=registry)}


def test_halves_complete_each_other(registry: registries.Registry) -> None:
    first, second = registries.halves(registry)
    assert set(first.facts) | set(second.facts) == set(registry.facts)
    assert not set(first.facts) & set(second.facts)
    assert {fact.entity for fact in first.facts} == {fact.entity for fact in second.facts}


def test_more_entities_than_there_are_names_are_refused() -> None:
    with pytest.raises(ValueError, match="41 entities"):
        registries.make("helix", 0, 41)


def rows(*letters: int) -> grade.Shares:
    return (np.eye(4)[list(letters)] * 0.6 + 0.1).astype(np.float32)


def test_grading_counts_the_likeliest_option_by_domain_and_a_tie_goes_to_the_earlier() -> None:
    asked = [Question("a", "x", ("p", "q", "r", "s"), 0), Question("a", "y", ("p", "q", "r", "s"), 1),
             Question("b", "z", ("p", "q", "r", "s"), 2)]  # fmt: skip
    assert grade.by_domain(rows(0, 2, 2), asked) == {"a": 0.5, "b": 1.0, "macro": 0.75}
    assert grade.accuracy(np.full((2, 4), 0.25, np.float32), [0, 1]) == 0.5


def test_options_that_begin_with_the_same_token_are_refused() -> None:
    letters = SimpleNamespace(encode=lambda text, add_special_tokens: [ord(letter) for letter in text])
    assert grade.first_tokens(letters, Question("a", "x", ("pa", "qa", "ra", "sa"), 0)) == [ord(c) for c in "pqrs"]
    with pytest.raises(ValueError, match="begin with the same token"):
        grade.first_tokens(letters, Question("a", "x", ("pa", "pb", "ra", "sa"), 0))


def test_a_committee_takes_the_majority_and_the_mean_where_there_is_none() -> None:
    sure, torn, other = rows(1), np.array([[0.4, 0.3, 0.2, 0.1]], np.float32), np.array([[0.4, 0.3, 0.2, 0.1]])
    assert compose.majority([sure, torn, other.astype(np.float32)]).argmax() == 0
    assert compose.mean([sure, torn, other.astype(np.float32)]).argmax() == 1
    assert compose.majority([rows(2), rows(1), rows(1)]).argmax() == 1
    tied = [rows(2), np.array([[0.2, 0.5, 0.2, 0.1]], np.float32)]
    assert compose.majority(tied).argmax() == 2


def test_a_routed_question_is_answered_by_whom_it_goes_to_and_by_the_base_where_that_is_nobody() -> None:
    answers = {"a": rows(0, 0, 0), "b": rows(1, 1, 1)}
    found = compose.routed([("a",), ("b",), ()], answers, rows(3, 3, 3))
    assert found.argmax(1).tolist() == [0, 1, 3]
    assert compose.routing_accuracy([("a", "b"), ("b",), ()], ["a", "b", "b"]) == pytest.approx(2 / 3)
    split = compose.routing_split([("a",), ("a", "b"), ("b", "a"), ()], ["a"] * 4)
    assert split == {"right_alone": 0.25, "right_and_another": 0.25, "others": 0.25, "base": 0.25}


def test_opt_out_measures_its_own_domain_against_the_base_and_the_others_against_before() -> None:
    full, base = {"a": 0.9, "b": 0.8, "c": 0.7, "macro": 0.8}, {"a": 0.25, "b": 0.25, "c": 0.25, "macro": 0.25}
    moved = compose.opt_out(full, {"a": 0.3, "b": 0.75, "c": 0.71, "macro": 0.6}, base, "a")
    assert moved == {"own_from_base": pytest.approx(0.05), "others_moved": pytest.approx(0.05)}


def result(**changed: Any) -> dict[str, Any]:
    """A run in which everything passes, just."""
    flat = {"helix": 0.25, "ledger": 0.25, "relay": 0.25, "macro": 0.25}
    own = {name: flat | {name: 0.30, "macro": 0.30} for name in ("helix", "ledger", "relay")}
    scores = {"base": flat, **own, "route": flat | {"macro": 0.38}, "average": flat | {"macro": 0.37}}
    kept = {name: {"own_from_base": -0.03, "others_moved": 0.02} for name in own}
    whole = {"scores": scores, "domains": list(own), "merges": ["average"], "opt_out": kept, "routing": 0.9,
             "fold": {"same": 1.0}}  # fmt: skip
    return whole | changed


def test_bounds_that_are_just_reached_are_passed() -> None:
    assert [row["name"] for row in report.judge(result()) if not row["passed"]] == []


@pytest.mark.parametrize(
    ("failing", "change"),
    [
        ("specialise", {"scores": result()["scores"] | {"relay": {"helix": 0.25, "ledger": 0.25, "relay": 0.299,
                                                                  "macro": 0.3}}}),
        ("compose", {"scores": result()["scores"] | {"route": {"macro": 0.379}}}),
        ("opt-out-own", {"opt_out": result()["opt_out"] | {"relay": {"own_from_base": 0.031, "others_moved": 0.0}}}),
        ("opt-out-others", {"opt_out": result()["opt_out"] | {"relay": {"own_from_base": 0.0, "others_moved": 0.021}}}),
        ("routing", {"routing": 0.899}),
        ("not-more", {"scores": result()["scores"] | {"average": {"macro": 0.38}}}),
        ("fold", {"fold": {"same": 0.999}}),
    ],
)  # fmt: skip
def test_each_criterion_fails_alone_just_beyond_its_bound(failing: str, change: dict[str, Any]) -> None:
    assert [row["name"] for row in report.judge(result(**change)) if not row["passed"]] == [failing]


def test_the_bounds_are_those_that_were_registered() -> None:
    assert {one.name: one.bound for one in report.REGISTERED} == {
        "specialise": 0.05, "compose": 0.08, "opt-out-own": 0.03, "opt-out-others": 0.02, "routing": 0.9,
        "not-more": 0.0, "fold": 1.0,
    }  # fmt: skip


def test_a_signal_separates_only_when_the_conflicting_pair_lies_outside_the_others() -> None:
    cases = {"independent": {"x": 0.2}, "complementary": {"x": 0.4}}

    def told(value: float) -> str:
        return conflict_cases.verdict(cases | {"conflicting": {"x": value}}, "x")

    assert told(0.5) == "separates: 0.500 against at most 0.400"
    assert told(0.1) == "separates: 0.100 against at least 0.200"
    assert told(0.3).startswith("does not separate")
    assert conflict_cases.verdict(cases, "x") == "not measured"


def test_what_a_merge_keeps_is_counted_above_chance() -> None:
    assert conflict_cases.retained([0.25, 0.25], [1.0, 1.0]) == 0.0
    assert conflict_cases.retained([1.0, 0.25], [1.0, 1.0]) == 0.5
    assert conflict_cases.retained([1.0, 0.25], [0.25, 0.25]) is None


def test_a_stage_is_done_once_and_another_plan_is_refused(tmp_path: Path) -> None:
    done: list[str] = []
    told: list[tuple[int, int]] = []

    def runner(plan: dict[str, Any]) -> stages.Stages:
        return stages.Stages(tmp_path / "run", plan, {"one": 1.0, "two": 1.0},
                             lambda step, total, note="", **more: told.append((step, total)))  # fmt: skip

    for _ in range(2):
        these = runner({"seed": 1})
        found = these.run("one", lambda progress: done.append("one") or {"x": 1}, lambda row: f"x is {row['x']}")
        assert found == {"x": 1}
        assert these.said[0].startswith("one: x is 1")
    assert done == ["one"]
    assert told[-1] == (5000, 10_000)
    with pytest.raises(stages.OtherPlan, match="another run"):
        runner({"seed": 2})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(stages.OtherPlan, match="something else"):
        stages.Stages(tmp_path / "other", {}, {}, lambda *_, **__: None)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]


def test_a_stage_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    these = stages.Stages(tmp_path / "run", {}, {"one": 1.0}, lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        these.run("one", lambda progress: (_ for _ in ()).throw(KeyboardInterrupt), str)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plan.json"]


@pytest.mark.slow
def test_the_smallest_size_runs_from_end_to_end_and_goes_on_from_what_is_there(tmp_path: Path) -> None:
    """Specialists learn, routes and merges are graded, the fold is exact; a second run computes nothing."""
    from hinet_tiers.experiments.e1 import e1

    heard: list[str] = []
    args = {"size": "tiny", "seed": 1, "out": str(tmp_path / "run")}
    found = e1(args, lambda step, total, note="", **more: heard.append(note))
    assert {row["name"] for row in found["criteria"]} == {one.name for one in report.REGISTERED}
    for domain in DOMAINS:
        assert found["scores"][domain][domain] > found["scores"]["base"][domain] + 0.3, found["scores"]
    assert found["scores"]["route"]["macro"] > 0.8
    assert found["fold"]["same"] == 1.0
    assert found["fold"]["largest_difference"] == 0.0
    moved = {
        name: json.loads((tmp_path / "run" / "stages" / f"merge-{name}.json").read_bytes())["result"]["displacement"]
        for name in ("sum", "average", "task-arithmetic")
    }
    assert moved["sum"] / moved["average"] == pytest.approx(3, rel=1e-4), "an average has no scale of its own"
    assert moved["task-arithmetic"] / moved["sum"] == pytest.approx(0.4, rel=1e-4)
    text = (tmp_path / "run" / "report.md").read_text()
    assert "| task-arithmetic |" in text
    kept = json.loads((tmp_path / "run" / "report.json").read_bytes())
    assert kept["scores"] == found["scores"]
    again = e1(args, lambda *_, **__: None)
    assert again["scores"] == found["scores"]
    assert all("kept from before" in line for line in again["said"])
