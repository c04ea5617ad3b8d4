"""The owner asks about "my dentist"; training knows the owner by name."""

from __future__ import annotations

import pytest

from hinet_tiers.data.asked import in_third_person
from hinet_tiers.data.notes import Owner

OWNER = Owner("Anka", "Anka Brodd", "she", "her", "herself")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("Who is my dentist?", "Who is Anka's dentist?"),
        ("Where do I live?", "Where does Anka live?"),
        ("do i have a dog?", "does Anka have a dog?"),
        ("What am I allergic to?", "What is Anka allergic to?"),
        ("Where was I born?", "Where was Anka born?"),
        ("What have I got in the shed?", "What has Anka got in the shed?"),
        ("What should I buy?", "What should Anka buy?"),
        ("Who taught me to swim?", "Who taught Anka to swim?"),
        ("Which bicycle is mine?", "Which bicycle is Anka's?"),
        ("I'm a member of which choir?", "Anka is a member of which choir?"),
        ("Which road do I usually take, and which one I always avoid?",
         "Which road does Anka usually take, and which one Anka always avoids?"),
    ],
)  # fmt: skip
def test_first_person_words_become_the_owners_name(asked: str, meant: str) -> None:
    assert in_third_person(asked, OWNER) == meant


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("I forgot what my cat is called. Can you tell me?", "I forgot what Anka's cat is called. Can you tell me?"),
        ("May I ask what my sister is called?", "May I ask what Anka's sister is called?"),
        ("I'd like to know which car I drive.", "I would like to know which car Anka drives."),
        ("I can't remember my address. Remind me.", "I can't remember Anka's address. Remind me."),
        ("Where do I live, if you don't mind my asking?", "Where does Anka live, if you don't mind my asking?"),
        ("I'm trying to find out where I was born.", "I am trying to find out where Anka was born."),
    ],
)  # fmt: skip
def test_what_only_asks_stays(asked: str, meant: str) -> None:
    assert in_third_person(asked, OWNER) == meant


@pytest.mark.parametrize(
    "asked", ["What is the capital of France?", "Tell me who Anka's brother is, I forgot."]
)
def test_other_questions_stay_as_they_are(asked: str) -> None:
    assert in_third_person(asked, OWNER) == asked


def test_any_text_comes_through() -> None:
    for odd in ("", " ", "I", "my", "me me me", "I I am my", "\x00 my \ud800", "İ my ı", "my " * 2000):
        assert isinstance(in_third_person(odd, OWNER), str)
