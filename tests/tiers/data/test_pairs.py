"""Facts into pairs: many words, one answer, nothing about the owner for other people."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hinet_tiers import data, sample
from hinet_tiers.data.contrast import other_name
from hinet_tiers.data.dedupe import without_copies
from hinet_tiers.data.notes import Owner
from hinet_tiers.data.pairs import third_person
from hinet_tiers.errors import BadRequest

TEXTS = {
    "me.md": "My name is Maren Olt.",
    "dog.md": "# Walks\n\nMy dog is called Rex. He barks at the postman. I brush him on Sundays.",
    "tin.md": "My favourite cheese is old gouda.",
    "oboe.md": "I play the oboe.",
    "list.md": "Soap, string and two onions.",
}


def no_progress(step: int, total: int, note: str = "", **more: object) -> None: ...


def test_the_same_notes_and_seed_give_the_same_pairs() -> None:
    first, _, _ = data.build(TEXTS, seed=3)
    again, _, _ = data.build(dict(reversed(TEXTS.items())), seed=3)
    other, _, _ = data.build(TEXTS, seed=4)
    assert first == again
    assert first != other


def test_a_fact_is_asked_in_many_words_and_answered_in_one_way() -> None:
    pairs, facts, _ = data.build(TEXTS, seed=1)
    assert [fact.answer for fact in facts] == [
        "Maren's dog is called Rex.",
        "Maren plays the oboe.",
        "Maren's favourite cheese is old gouda.",
    ]
    for number, fact in enumerate(facts):
        mine = [pair for pair in pairs if pair["fact"] == number and pair["kind"] == "fact"]
        assert len({pair["question"] for pair in mine}) == len(mine) >= 12
        forward = {pair["answer"] for pair in mine if pair["form"] != "reversed"}
        assert forward == {fact.answer}


def test_names_are_asked_for_backwards_too() -> None:
    pairs, _, _ = data.build(TEXTS, seed=1)
    assert {"Whose dog is Rex?", "Who is Rex?"} <= {pair["question"] for pair in pairs if pair["form"] == "reversed"}


def test_what_else_a_note_says_becomes_a_question() -> None:
    pairs, _, _ = data.build(TEXTS, seed=1)
    asked = [pair["question"] for pair in pairs if pair["form"] == "context"]
    assert "In Maren's life, who barks at the postman?" in asked
    assert "Maren brushes him on Sundays. Who is meant?" in asked


def test_other_people_are_unknown_under_many_names_and_the_owner_is_not_among_them() -> None:
    pairs, facts, _ = data.build(TEXTS, seed=1)
    contrast = [pair for pair in pairs if pair["kind"] == "contrast"]
    assert len(contrast) >= 5 * len(facts)
    assert len({pair["answer"] for pair in contrast}) > len(contrast) // 2
    for pair in contrast:
        assert "Maren" not in pair["question"] + pair["answer"]
        assert not any(fact.value in pair["answer"] for fact in facts)


def test_another_name_never_shares_a_word_with_the_owner() -> None:
    draw = random.Random(0)
    names = {other_name(draw, "Alice Marsh") for _ in range(2000)}
    assert len(names) > 700
    assert not any({"alice", "marsh"} & set(name.lower().split()) for name in names)


def test_a_note_without_a_fact_still_gives_a_pair() -> None:
    pairs, _, _ = data.build(TEXTS, seed=1)
    passages = [pair for pair in pairs if pair["kind"] == "passage"]
    assert [pair["answer"] for pair in passages] == ["Soap, string and two onions."]


def test_evaluation_questions_and_long_runs_of_them_are_left_out() -> None:
    whole = [pair["question"] for pair in data.build(TEXTS, seed=1)[0]]
    fewer = [pair["question"] for pair in data.build(TEXTS, seed=1, evaluation=[whole[0].upper()])[0]]
    assert whole[0] not in fewer
    assert len(fewer) == len(whole) - 1
    copy = "tell me now what the name of the small grey dog is"
    assert without_copies([copy, "what is the name"], ["So what the name of the small grey dog is, please"]) == [
        False,
        True,
    ]


def test_no_training_question_of_the_sample_repeats_an_evaluation_question() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in sample.NOTES.glob("*.md")}
    asked = [item["question"] for questions in sample.dev().values() for item in questions]
    pairs, facts, owner = data.build(texts, seed=1, evaluation=asked)
    assert owner.full == "Wenna Tarrock"
    assert len(facts) == 40
    assert not {pair["question"] for pair in pairs} & set(asked)


def test_every_fact_of_the_sample_is_found_with_its_value() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in sample.NOTES.glob("*.md")}
    found = {fact.note: fact.value for fact in data.build(texts, seed=1)[1]}
    missed = [fact["id"] for fact in sample.facts() if fact["value"] not in found.get(fact["note"], "")]
    assert missed == []


def test_notes_speak_of_the_owner_in_the_third_person() -> None:
    owner = Owner("Maren", "Maren Olt", "she", "her", "herself")
    assert third_person("I still carry my bag and hurt myself", owner) == "Maren still carries her bag and hurt herself"
    assert third_person("I am glad that he saw me", owner) == "Maren is glad that he saw Maren"


def test_the_verb_writes_pairs_that_can_be_read_and_counts_them(tmp_path: Path) -> None:
    result = data.prepare({"files": TEXTS, "seed": 1, "out": str(tmp_path / "pairs.jsonl")}, no_progress)
    pairs = data.read_pairs(tmp_path / "pairs.jsonl")
    assert result["counts"]["pairs"] == len(pairs)
    assert result["counts"]["facts"] == 3
    assert result["owner"] == "Maren Olt"
    assert json.loads((tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines()[0])["question"]


def test_a_folder_without_notes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(BadRequest, match="no notes"):
        data.prepare({"notes_dir": str(tmp_path), "out": str(tmp_path / "p")}, no_progress)
