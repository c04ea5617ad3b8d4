"""Notes into facts: who the owner is, and what plain sentences say about the owner.

Written for sentences such as people put in a notebook: "My sister is called X.", "My favourite food is Y.", "The colour
of my door is Z.", "I play the V.", or the same with the owner's name in place of "my" and "I". Any other attribute noun
works too; `relations.toml` only adds other words for the common ones. Sentences in no known form are not facts; they
become context for the facts of their note, or plain passages where a note has none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

VALUE_WORDS_MAX = 8
"""A longer value is a passage rather than a fact."""


@dataclass(frozen=True)
class Owner:
    """Whose notes these are, and how others speak of them."""

    first: str
    full: str
    she: str = "they"
    her: str = "their"
    herself: str = "themself"


@dataclass(frozen=True)
class Note:
    """One note: a name that is unique among them, a title, and the sentences of its body."""

    name: str
    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """One thing that a note says about the owner.

    `noun` is the attribute ("sister", "colour of bicycle") or "" for a verb's fact, `key` its entry in the relations
    ("" when it has none), `kind` one of person, pet, thing, place, date, value; `value` stands as in the note, `answer`
    is the whole sentence that every phrasing of the question gets.
    """

    note: str
    noun: str
    key: str
    kind: str
    value: str
    called: bool
    answer: str
    context: tuple[str, ...] = field(default=())


@cache
def relations() -> dict[str, dict[str, Any]]:
    """The shipped relations: {"noun": {attribute: entry}, "verb": {name: entry}}."""
    text = resources.files(__package__).joinpath("relations.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def read_note(name: str, text: str) -> Note:
    """Splits one note (Markdown or plain text) into a title and sentences; lists give one sentence a line."""
    title, body = name, []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("#"):
            title = line.lstrip("#").strip() or title
        elif item := re.match(r"(?:[-*+]|\d+[.)]) +(.+)", line):
            body.append(f"\n{item.group(1)}\n")
        elif line:
            body.append(line)
        else:
            body.append("\n")
    return Note(name, title, tuple(sentences(" ".join(body))))


TITLES = r"(?:Dr|Mr|Mrs|Ms|Prof|St|Jr|Sr|No|e\.g|i\.e|etc|vs)"


def sentences(text: str) -> list[str]:
    """Splits running text at sentence ends, not at "Dr." and the like, at most 300 characters each."""
    guarded = re.sub(rf"\b{TITLES}\.", lambda match: match.group().replace(".", "\0"), text)
    parts = re.split(r"(?<=[.!?])[\"')]*\s+|\n", guarded)
    return [part.replace("\0", ".").strip()[:300] for part in parts if part.strip()]


def find_owner(notes: Iterable[Note], name: str | None = None, pronoun: str | None = None) -> Owner:
    """The owner's name from "My name is …" or "I am called …" unless given; the pronoun by the words that are used."""
    notes = list(notes)
    whole = " ".join(sentence for note in notes for sentence in note.sentences)
    if not name:
        found = re.search(r"\b(?:[Mm]y (?:full )?name is|I am called|I'm called) ((?:[A-Z][\w'-]+ ?){1,3})", whole)
        name = found.group(1).strip() if found else "the owner"
    if not pronoun:
        women = len(re.findall(r"\b(auntie|aunt to|as girls|as a girl|my husband|I am a woman)\b", whole, re.I))
        men = len(re.findall(r"\b(uncle to|as boys|as a boy|my wife|I am a man)\b", whole, re.I))
        pronoun = "she" if women > men else "he" if men > women else "they"
    her, herself = {"she": ("her", "herself"), "he": ("his", "himself")}.get(pronoun, ("their", "themself"))
    return Owner(name.split()[0] if name != "the owner" else name, name, pronoun, her, herself)


def find_facts(notes: Sequence[Note], owner: Owner) -> list[Fact]:
    """All facts in the order of the notes; of two facts with the same answer the first counts."""
    facts: list[Fact] = []
    seen: set[str] = set()
    for note in notes:
        for index, sentence in enumerate(note.sentences):
            fact = read_fact(as_first_person(sentence, owner), owner, note.name)
            if fact is None or fact.answer in seen:
                continue
            seen.add(fact.answer)
            others = tuple(other for at, other in enumerate(note.sentences) if at != index)
            facts.append(Fact(**{**fact.__dict__, "context": others}))
    return facts


def as_first_person(sentence: str, owner: Owner) -> str:
    """Puts a sentence about the owner by name into the first person, in which facts are read."""
    names = "|".join(re.escape(name) for name in (owner.full, owner.first))
    sentence = re.sub(rf"\b(?:{names})'s?\b", lambda at: "My" if at.start() == 0 else "my", sentence)
    if match := re.match(rf"(?:{names}) (\w+)(.*)", sentence, re.S):
        verb = {"is": "am", "was": "was", "has": "have"}.get(match.group(1)) or re.sub(r"s$", "", match.group(1))
        sentence = f"I {verb}{match.group(2)}"
    return sentence


def read_fact(sentence: str, owner: Owner, note: str) -> Fact | None:
    """The fact that one first-person sentence states, or None."""
    sentence = re.sub(r"^(?:Our|our)\b", "My", sentence.strip()).rstrip(".!")
    if match := re.match(r"[Mm]y ([\w' -]{2,40}?)(?:'s name)? (?:is|are|was) (called |named )?(.+)$", sentence):
        noun, called, value = match.group(1).lower(), bool(match.group(2)), match.group(3)
        if "'s name" in sentence.split(" is ")[0]:
            called = True
        return noun_fact(noun, value, called, owner, note)
    if match := re.match(r"[Tt]he (\w+) of my ([\w -]{2,30}?) (?:is|are) (.+)$", sentence):
        return noun_fact(f"{match.group(1)} of {match.group(2)}".lower(), match.group(3), False, owner, note)
    for key, entry in relations()["verb"].items():
        if match := re.match(rf"I (?:now |still |also |always )?{entry['match']}$", sentence):
            value = short(match.group("v"))
            if value:
                answer = filled(entry["say"], owner, value)
                return Fact(note, "", key, "value", value, False, answer[0].upper() + answer[1:])
    return None


def short(value: str) -> str:
    """The value up to the first break in the sentence, or "" when it is too long to be one."""
    value = re.split(r"[,;:(]| (?:and|but|because|which|who|that|when|where|so) ", value)[0].strip(" .\"'")
    return value if 0 < len(value.split()) <= VALUE_WORDS_MAX else ""


def noun_fact(noun: str, value: str, called: bool, owner: Owner, note: str) -> Fact | None:
    """A fact about an attribute of the owner; None when the value is no value ("in the shed", "very old")."""
    value = short(value)
    if noun in ("name", "full name") or not value or re.match(r"(?:not|in|on|at|very|too|so|always|never)\b", value):
        return None
    entry = relations()["noun"].get(relation_key(noun), {})
    kind = entry.get("kind") or ("thing" if called else "value")
    answer = f"{owner.first}'s {noun} is {'called ' if called else ''}{value}."
    if " of " in noun:
        head, tail = noun.split(" of ", 1)
        answer = f"The {head} of {owner.first}'s {tail} is {value}."
    return Fact(note, noun, relation_key(noun), kind, value, called, answer[0].upper() + answer[1:])


def relation_key(noun: str) -> str:
    """The relation that an attribute belongs to: itself, or its last words ("older sister" is a sister), or ""."""
    nouns = relations()["noun"]
    words = noun.replace("next-door ", "").replace("favorite", "favourite").split()
    for start in range(len(words)):
        tail = " ".join(words[start:])
        if tail in nouns:
            return tail
    return ""


def filled(template: str, owner: Owner, value: str = "", name: str | None = None) -> str:
    """Fills a template of the relations; `name` stands for the owner's first name when another is wanted."""
    bare = re.sub(r"^(?:an?|the) ", "", value)
    article = "an" if bare[:1].lower() in "aeiou" else "a"
    return template.format(
        o=name or owner.first, v=value, a_v=f"{article} {bare}", she=owner.she, her=owner.her, herself=owner.herself
    )
