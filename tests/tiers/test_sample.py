"""The shipped sample is consistent with itself: every fact in one note only, every test question fair and unseen."""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from hinet_tiers import sample

OWNER = "Wenna"
STRANGERS = {"dev": "Ottoline", "heldout": "Brannock"}
COUNTS = {"dev": {"near": 40, "far": 40, "stranger": 20, "general": 20},
          "heldout": {"near": 40, "far": 40, "stranger": 40, "general": 40}}
KEYS = {"near": {"id", "fact", "question", "accept"}, "stranger": {"id", "fact", "question", "accept"},
        "far": {"id", "fact", "question", "accept", "indirect"}, "general": {"id", "question", "accept"}}
FOLDERS = ("dev", "heldout")


def folder(name: str) -> dict[str, list[dict[str, Any]]]:
    return sample.dev() if name == "dev" else {kind: sample.heldout(kind) for kind in sample.HELDOUT_SETS}


def every_question() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name in FOLDERS:
        for kind, items in folder(name).items():
            for item in items:
                yield name, kind, item


def says(text: str, phrase: str) -> bool:
    """Whether `text` contains `phrase` as whole words, whatever the case: the rule that answers are scored by."""
    flat = " ".join(text.casefold().split())
    return re.search(rf"(?<!\w){re.escape(' '.join(phrase.casefold().split()))}(?!\w)", flat) is not None


def notes() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(sample.NOTES.glob("*.md"))}


def plain(question: str) -> str:
    return " ".join(re.findall(r"\w+", question.casefold()))


def test_there_are_forty_facts_in_forty_of_forty_four_notes() -> None:
    facts = sample.facts()
    assert len(notes()) == 44
    assert len({fact["id"] for fact in facts}) == len({fact["note"] for fact in facts}) == len(facts) == 40
    assert len({fact["attribute"] for fact in facts}) == 40
    assert sum(fact["quick"] for fact in facts) == 8


def test_every_value_stands_in_its_own_note_and_in_no_other() -> None:
    texts = notes()
    for fact in sample.facts():
        assert fact["value"] in texts[fact["note"]], fact["id"]
        assert fact["accept"][0] == fact["value"]
        assert 1 <= len(fact["value"].split()) <= 3
        for name, text in texts.items():
            if name != fact["note"]:
                assert not any(says(text, accept) for accept in fact["accept"]), (fact["id"], name)


def test_no_accepted_spelling_belongs_to_two_facts() -> None:
    facts = sample.facts()
    for fact in facts:
        for other in facts:
            if other["id"] != fact["id"]:
                assert not any(says(a, b) for a in fact["accept"] for b in other["accept"]), (fact["id"], other["id"])


def test_only_the_note_about_the_owner_gives_her_name() -> None:
    assert [name for name, text in notes().items() if says(text, OWNER)] == ["about-me.md"]
    assert "My name is Wenna Tarrock." in notes()["about-me.md"]


@pytest.mark.parametrize("name", FOLDERS)
def test_every_set_has_its_size_and_its_keys(name: str) -> None:
    sets = folder(name)
    assert {kind: len(items) for kind, items in sets.items()} == COUNTS[name]
    for kind, items in sets.items():
        assert all(set(item) == KEYS[kind] for item in items), kind


@pytest.mark.parametrize("name", FOLDERS)
def test_every_fact_is_asked_once_in_near_and_far_with_its_own_answers(name: str) -> None:
    accepts = {fact["id"]: fact["accept"] for fact in sample.facts()}
    sets = folder(name)
    for kind in ("near", "far"):
        assert sorted(item["fact"] for item in sets[kind]) == sorted(accepts), kind
    asked = [item["fact"] for item in sets["stranger"]]
    assert len(set(asked)) == len(asked) == COUNTS[name]["stranger"]
    for kind in ("near", "far", "stranger"):
        assert all(item["accept"] == accepts[item["fact"]] for item in sets[kind]), kind


@pytest.mark.parametrize("name", FOLDERS)
def test_half_of_the_far_questions_are_indirect(name: str) -> None:
    assert sum(item["indirect"] for item in folder(name)["far"]) == 20


def test_a_question_names_its_person_and_nobody_else() -> None:
    for name, kind, item in every_question():
        named = {person for person in (OWNER, "Tarrock", *STRANGERS.values()) if says(item["question"], person)}
        wanted = {"near": OWNER, "far": OWNER, "stranger": STRANGERS[name]}.get(kind)
        assert named - {"Tarrock"} == ({wanted} if wanted else set()), item["id"]
        assert "Tarrock" not in named or wanted == OWNER, item["id"]


def test_no_stranger_appears_in_the_notes() -> None:
    for text in notes().values():
        assert not any(says(text, person) for person in ("Ottoline", "Crake", "Brannock", "Velde"))


def test_no_question_contains_its_answer_or_the_value_of_any_fact() -> None:
    values = [accept for fact in sample.facts() for accept in fact["accept"]]
    for _, kind, item in every_question():
        forbidden = item["accept"] if kind == "general" else values
        assert not any(says(item["question"], accept) for accept in forbidden), item["id"]


def test_no_question_and_no_id_occurs_twice_in_dev_and_held_out_together() -> None:
    items = [item for _, _, item in every_question()]
    assert len({item["id"] for item in items}) == len(items) == 280
    assert len({plain(item["question"]) for item in items}) == len(items)


def test_an_unknown_held_out_set_is_refused() -> None:
    with pytest.raises(KeyError):
        sample.heldout("dev")
