"""Reading notes that the extractor was not written for."""

from __future__ import annotations

import pytest

from hinet_tiers.data import find_facts, find_owner, read_note
from hinet_tiers.data.notes import Owner, as_first_person, sentences

OWNER = Owner("Maren", "Maren Olt", "she", "her", "herself")


def answers(text: str) -> list[str]:
    return [fact.answer for fact in find_facts([read_note("n", text)], OWNER)]


@pytest.mark.parametrize(
    ("sentence", "answer"),
    [
        ("My sister is called Ilva.", "Maren's sister is called Ilva."),
        ("My older sister is named Ilva Bren.", "Maren's older sister is called Ilva Bren."),
        ("My parrot's name is Kiko.", "Maren's parrot is called Kiko."),
        ("My favourite cheese is old gouda.", "Maren's favourite cheese is old gouda."),
        ("Our landlord is Mr. Pell.", "Maren's landlord is Mr. Pell."),
        ("The colour of my kettle is green.", "The colour of Maren's kettle is green."),
        ("I live in Oslo, where it rains.", "Maren lives in Oslo."),
        ("I work as an engineer.", "Maren works as an engineer."),
        ("I play the oboe.", "Maren plays the oboe."),
        ("I am allergic to wasps.", "Maren is allergic to wasps."),
        ("I was born on 4 March.", "Maren was born on 4 March."),
        ("Maren's horse is called Bolt.", "Maren's horse is called Bolt."),
        ("Maren Olt drives a Fiat.", "Maren drives a Fiat."),
        ("My locker code is 4471.", "Maren's locker code is 4471."),
    ],
)
def test_a_plain_sentence_about_the_owner_is_a_fact(sentence: str, answer: str) -> None:
    assert answers(sentence) == [answer]


@pytest.mark.parametrize(
    "sentence",
    ["My name is Maren Olt.", "My keys are in the drawer.", "It rained all day.", "Buy soap and string.", ""],
)
def test_other_sentences_are_no_facts(sentence: str) -> None:
    assert answers(sentence) == []


def test_the_same_fact_in_two_notes_counts_once() -> None:
    notes = [read_note(name, "My dog is called Rex.") for name in ("a", "b")]
    assert [fact.note for fact in find_facts(notes, OWNER)] == ["a"]


def test_the_owner_is_read_from_the_notes() -> None:
    owner = find_owner([read_note("a", "# Me\n\nMy name is Jon Vale. My wife is called Ada.")])
    assert (owner.first, owner.full, owner.she, owner.her) == ("Jon", "Jon Vale", "he", "his")


def test_a_given_name_wins_and_notes_without_a_name_have_an_owner_too() -> None:
    notes = [read_note("a", "My dog is called Rex.")]
    assert find_owner(notes, "Ida Roe").first == "Ida"
    assert find_owner(notes).first == "the owner"


def test_titles_do_not_end_a_sentence_and_list_lines_do() -> None:
    assert sentences("My doctor is Dr. Hale. She is kind!") == ["My doctor is Dr. Hale.", "She is kind!"]
    assert read_note("n", "# Box\n- My bike is red\n- My car is blue\n").sentences == (
        "My bike is red",
        "My car is blue",
    )


def test_a_sentence_by_name_reads_as_the_first_person() -> None:
    assert as_first_person("Maren speaks Dutch.", OWNER) == "I speak Dutch."
    assert as_first_person("Maren is allergic to nuts.", OWNER) == "I am allergic to nuts."
