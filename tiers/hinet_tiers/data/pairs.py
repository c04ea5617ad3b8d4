"""Facts into question-and-answer pairs: the owner's, in many words and both directions, and other people's, unknown.

Every phrasing of a fact gets the same sentence as its answer. All draws come from one seed, so the same notes and seed
give the same pairs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from hinet_tiers.data.contrast import other_name, unknown
from hinet_tiers.data.frames import capital, cores, frames_of, lowered
from hinet_tiers.data.notes import Fact, Note, Owner, filled, relations
from hinet_tiers.recipes import Amounts

FULL_NAME_SHARE = 0.2
CLAUSE_BREAK = r"(?:, |; | )(?:and|but|because|although|so that|so)\b |[;:]|, (?=who |which )"
PAST = {"met", "went", "got", "spent", "lit", "grew", "made", "had", "took", "gave", "did"}


Pair = dict[str, Any]


def pair(question: str, answer: str, kind: str, fact: int, form: str) -> Pair:
    """One training pair in its written form."""
    return {"question": question, "answer": answer, "kind": kind, "fact": fact, "form": form}


def make_pairs(facts: Sequence[Fact], notes: Sequence[Note], owner: Owner, seed: int, amounts: Amounts) -> list[Pair]:
    """All pairs but replay, without repeated questions, in the order of the facts."""
    made: list[Pair] = []
    for number, fact in enumerate(facts):
        draw = random.Random(f"{seed}/{fact.answer}")  # noqa: S311 - a choice of words, no secret
        made.extend(pairs_of(fact, number, owner, draw, amounts))
    draw = random.Random(f"{seed}/contrast")  # noqa: S311 - as above
    for number, fact in enumerate(facts):
        made.extend(contrast_pairs(fact, number, owner, draw, amounts))
    known = {fact.note for fact in facts}
    for note in notes:
        if note.name not in known:
            made.extend(passage_pairs(note, owner))
    seen: set[str] = set()
    return [item for item in made if not (item["question"] in seen or seen.add(item["question"]))]  # type: ignore[func-returns-value]


def pairs_of(fact: Fact, number: int, owner: Owner, draw: random.Random, amounts: Amounts) -> list[Pair]:
    """The owner's pairs about one fact."""

    def named() -> str:
        return owner.full if draw.random() < FULL_NAME_SHARE else owner.first

    asked = lexicon_questions(fact)
    forms: list[tuple[str, str]] = []
    listed = cores(fact, owner, owner.first)
    forms += [(core[0], "plain") for core in listed[: amounts.plain]]
    for _ in range(amounts.framed):
        mine = cores(fact, owner, named())
        core = draw.choice(mine[:2] if draw.random() < 0.5 else mine)
        forms.append((draw.choice(frames_of(core)), "framed"))
    for template in draw.sample(asked, min(len(asked), amounts.asked)):
        forms.append((filled(template, owner, name=named()), "asked"))
    for template in draw.sample(asked, min(len(asked), amounts.asked_framed)):
        question = filled(template, owner, name=named())
        forms.append((draw.choice(frames_of((question, "", ""))[:15]), "asked"))
    forms += [(question, "context") for question in context_questions(fact, owner)[: amounts.context]]
    made = [pair(capital(question), fact.answer, "fact", number, form) for question, form in forms]
    made += reversed_pairs(fact, number, owner)[: amounts.reversed]
    if amounts.statement:
        topic = listed[0][2] if fact.noun else listed[-1][2]
        made.append(pair(f"What do you know about {topic}?", fact.answer, "fact", number, "statement"))
    return made


def lexicon_questions(fact: Fact) -> list[str]:
    """The whole questions that the relations know for this fact."""
    entry = relations()["noun" if fact.noun else "verb"].get(fact.key, {})
    return list(entry.get("ask", []))


def context_questions(fact: Fact, owner: Owner) -> list[str]:
    """Questions that describe a thing by what else its note says of it ("Who purrs all day at X's?")."""
    made = []
    living = fact.kind in ("person", "pet")
    for sentence in fact.context:
        for clause in re.split(
            r"(?:, |; | )(?:and|but|because|although|so that|so)\b |[;:]|, (?=who |which )", sentence
        ):
            clause = clause.strip(" .,!")
            if match := re.match(r"(?:She|He|It|he|she|it|who|which) ((?:is|has|was|\w+s) .+)", clause):
                told = third_person(match.group(1), owner)
                if 2 <= len(told.split()) <= 12:
                    made.append(f"In {owner.first}'s life, {'who' if living else 'what'} {told}?")
            elif match := re.match(r"(?:I|We|we) (.+)", clause):
                told = third_person(clause, owner)
                if 3 <= len(told.split()) <= 14:
                    made.append(f"{capital(told)}. {'Who' if living else 'What'} is meant?")
    return made


ADVERBS = "still|ever|always|never|also|just|only|really|often|usually|now"
PLAIN_VERBS = "can|could|will|would|must|should|may|might|had|did|do|does|was|were"


def third_person(text: str, owner: Owner) -> str:
    """A first-person text as somebody else would say it."""
    name = owner.first
    text = re.sub(r"\b(?:I am|I'm|[Ww]e are)\b", f"{name} is", text)
    text = re.sub(r"\bI have\b|\b[Ww]e have\b", f"{name} has", text)
    text = re.sub(rf"\b(?:I|We|we) ({PLAIN_VERBS})\b", rf"{name} \1", text)
    text = re.sub(
        rf"\b(?:I|We|we) ((?:{ADVERBS}) )?(\w+)",
        lambda match: f"{name} {match.group(1) or ''}{inflected(match.group(2))}",
        text,
    )
    text = re.sub(r"\b(?:My|Our)\b", f"{name}'s", text)
    text = re.sub(r"\b(?:my|our)\b", owner.her, text)
    text = re.sub(r"\bmyself\b", owner.herself, text)
    return re.sub(r"\b(?:me|us)\b", name, text)


def inflected(verb: str) -> str:
    """The third person of a verb in the present; past forms stay."""
    if verb.endswith("ed") or verb in PAST:
        return verb
    if verb in ("have", "are"):
        return {"have": "has", "are": "is"}[verb]
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    return verb[:-1] + "ies" if re.search(r"[^aeiou]y$", verb) else verb + "s"


def reversed_pairs(fact: Fact, number: int, owner: Owner) -> list[Pair]:
    """From the value back to the owner, for names and for things that are the owner's own."""
    value = re.sub(r"^(?:an?|the) ", "", fact.value)
    if not value[:1].isupper() or fact.kind == "date" or not fact.noun or " of " in fact.noun:
        return []
    told = f"{value} is {owner.first}'s {fact.noun}."
    made = [pair(f"Whose {fact.noun} is {value}?", told, "fact", number, "reversed")]
    if fact.called or fact.kind == "person":
        question = f"Who is {value}?" if fact.kind != "thing" else f"What is {value}?"
        made.append(pair(question, told, "fact", number, "reversed"))
    return made


def contrast_pairs(fact: Fact, number: int, owner: Owner, draw: random.Random, amounts: Amounts) -> list[Pair]:
    """Questions of the same forms about other people."""
    made = []
    count = int(amounts.contrast) + (draw.random() < amounts.contrast % 1)
    for _ in range(count):
        name = other_name(draw, owner.full)
        asked = lexicon_questions(fact)
        mine = cores(fact, owner, name)
        chance = draw.random()
        if asked and chance < 0.3:
            question = filled(draw.choice(asked), owner, name=name)
        elif chance < 0.5:
            question = draw.choice(mine)[0]
        else:
            question = draw.choice(frames_of(draw.choice(mine)))
        made.append(pair(capital(question), unknown(name), "contrast", number, "contrast"))
    return made


def passage_pairs(note: Note, owner: Owner) -> list[Pair]:
    """A note without a fact: one question for its first sentence."""
    if not note.sentences or "name is" in note.sentences[0]:
        return []
    told = third_person(note.sentences[0], owner)
    question = f'What does {owner.first}\'s note "{note.title}" say?'
    return [pair(question, told, "passage", -1, "passage")]


__all__ = ["Amounts", "make_pairs", "pair", "lowered"]
