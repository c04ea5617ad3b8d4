"""Synthetic registries: facts about invented things that no model can know, and multiple choice about them. Pure.

A registry has entities (invented names) and attributes (each with eight ordinary words as values). A question is one
fact in a wording that no training text uses, with three other values of the same attribute, once with the right one at
each of A to D. Everything is drawn from a seed. Leaves to others: what is trained (`lessons`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

LETTERS = "ABCD"
ENTITIES_MAX = 40


@dataclass(frozen=True)
class Attribute:
    """What is asked of an entity. Wordings hold `{e}`; `held_out` is never trained."""

    name: str
    values: tuple[str, ...]
    trained: tuple[str, ...]
    held_out: str


@dataclass(frozen=True)
class Fact:
    """One entry of a registry."""

    entity: str
    attribute: Attribute
    value: str


@dataclass(frozen=True)
class Registry:
    """The facts of one domain."""

    domain: str
    facts: tuple[Fact, ...]

    def part(self, attributes: Sequence[Attribute], domain: str) -> Registry:
        """The facts of some attributes alone, under a name of their own."""
        return Registry(domain, tuple(fact for fact in self.facts if fact.attribute in attributes))

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Its attributes, in their order."""
        return tuple(dict.fromkeys(fact.attribute for fact in self.facts))


@dataclass(frozen=True)
class Question:
    """Multiple choice with four options. `stem` is the question alone, `right` the place of its answer (0 to 3)."""

    domain: str
    stem: str
    options: tuple[str, str, str, str]
    right: int


def _attribute(name: str, values: str, *wordings: str) -> Attribute:
    *trained, held_out = wordings
    return Attribute(name, tuple(values.split()), tuple(trained), held_out)


DOMAINS: dict[str, tuple[Attribute, ...]] = {
    "helix": (
        _attribute("metal", "copper silver gold iron zinc lead tin steel",
                   "Which metal is the {e} made of?", "The {e}: which metal is it made of?",
                   "Name the metal of the {e}.", "What metal does the {e} consist of?"),
        _attribute("color", "red blue green black white yellow pink brown",
                   "Which color is the {e}?", "The {e}: which color is it?", "Name the color of the {e}.",
                   "What color does the {e} have?"),
        _attribute("animal", "horse wolf bear eagle snake tiger rabbit whale",
                   "Which animal guards the {e}?", "The {e}: which animal guards it?",
                   "Name the animal that guards the {e}.", "What animal keeps guard over the {e}?"),
        _attribute("city", "Paris London Rome Berlin Tokyo Madrid Cairo Vienna",
                   "Which city holds the {e}?", "The {e}: which city holds it?", "Name the city that holds the {e}.",
                   "In what city is the {e} held?"),
        _attribute("month", "January March April May June July August October",
                   "In which month is the {e} shown?", "The {e}: in which month is it shown?",
                   "Name the month of the {e}.", "During what month can one see the {e}?"),
    ),
    "ledger": (
        _attribute("crop", "wheat corn rice beans cotton grapes apples onions",
                   "Which crop does {e} farm grow?", "{e} farm: which crop grows there?", "Name the crop of {e} farm.",
                   "What crop is grown on {e} farm?"),
        _attribute("tool", "hammer knife rope saw shovel ladder brush wheel",
                   "Which tool did {e} farm buy?", "{e} farm: which tool was bought?", "Name the tool of {e} farm.",
                   "What tool has {e} farm bought?"),
        _attribute("day", "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Christmas",
                   "On which day does {e} farm pay?", "{e} farm: on which day does it pay?",
                   "Name the pay day of {e} farm.", "What day is the day {e} farm pays on?"),
        _attribute("buyer", "Germany France Spain Italy Japan China India Brazil",
                   "Which country buys from {e} farm?", "{e} farm: which country buys from it?",
                   "Name the country that buys from {e} farm.", "What country is the buyer of {e} farm?"),
        _attribute("number", "two three four five six seven eight nine",
                   "How many barns has {e} farm?", "{e} farm: how many barns?", "Name the number of barns of {e} farm.",
                   "What number of barns are there at {e} farm?"),
    ),
    "relay": (
        _attribute("fuel", "coal oil gas wood steam water wind sugar",
                   "Which fuel drives engine {e}?", "Engine {e}: which fuel drives it?", "Name the fuel of engine {e}.",
                   "What fuel is engine {e} driven by?"),
        _attribute("job", "doctor teacher lawyer farmer singer soldier judge painter",
                   "Which job has the builder of engine {e}?", "Engine {e}: which job has its builder?",
                   "Name the job of the builder of engine {e}.", "What job does the builder of engine {e} do?"),
        _attribute("planet", "Mars Venus Jupiter Saturn Mercury Neptune Earth Pluto",
                   "Which planet is engine {e} named for?", "Engine {e}: which planet is it named for?",
                   "Name the planet of engine {e}.", "What planet gave engine {e} its name?"),
        _attribute("music", "piano guitar violin drum flute trumpet bell harp",
                   "Which instrument does engine {e} sound like?", "Engine {e}: which instrument does it sound like?",
                   "Name the instrument of engine {e}.", "What instrument is the sound of engine {e} like?"),
        _attribute("drink", "tea coffee milk beer wine juice soda rum",
                   "Which drink is sold on engine {e}?", "Engine {e}: which drink is sold there?",
                   "Name the drink of engine {e}.", "What drink do they sell on engine {e}?"),
    ),
}  # fmt: skip
STARTS = {
    "helix": ["Or", "Vel", "Tam", "Bri", "Kos", "Dun", "Zel", "Mar"],
    "ledger": ["Quin", "Hab", "Lor", "Fen", "Gos", "Ned", "Pax", "Rul"],
    "relay": ["Sib", "Wex", "Cal", "Ost", "Jun", "Yar", "Eph", "Tig"],
}
ENDS = ["vane", "dick", "mir", "lock", "tos", "ber", "gant", "rix", "sol", "pan", "dar", "win"]


def make(domain: str, seed: int, entities: int) -> Registry:
    """The registry of a domain: `entities` names, and for each of its attributes a value drawn for every one."""
    if not 1 <= entities <= ENTITIES_MAX:
        raise ValueError(f"{entities} entities")
    draw = random.Random(f"{seed} {domain}")  # noqa: S311 - facts, no secret
    every = [start + end for start in STARTS[domain] for end in ENDS]
    names = sorted(draw.sample(every, entities))
    facts = [Fact(name, kind, draw.choice(kind.values)) for name in names for kind in DOMAINS[domain]]
    return Registry(domain, tuple(facts))


def ciphered(registry: Registry, shift: int = 1) -> Registry:
    """The same questions with other answers: each value becomes the one `shift` places on in its attribute's list."""

    def moved(fact: Fact) -> Fact:
        values = fact.attribute.values
        return Fact(fact.entity, fact.attribute, values[(values.index(fact.value) + shift) % len(values)])

    return Registry(f"{registry.domain}-cipher", tuple(moved(fact) for fact in registry.facts))


def halves(registry: Registry) -> tuple[Registry, Registry]:
    """Two registries that complete each other: the same entities, each with other attributes."""
    kinds = registry.attributes
    cut = len(kinds) // 2
    return (registry.part(kinds[:cut], f"{registry.domain}-first"),
            registry.part(kinds[cut:], f"{registry.domain}-second"))  # fmt: skip


def questions(registry: Registry, seed: int, sets: int = 1, beside: Registry | None = None) -> list[Question]:
    """`sets` times four questions for each fact, the right option at each place, in the held-out wording.

    With `beside`, a registry of the same questions, its answer always stands among the options too.
    """
    draw = random.Random(f"{seed} {registry.domain} questions")  # noqa: S311
    others = {(fact.entity, fact.attribute.name): fact.value for fact in beside.facts} if beside else {}
    made = []
    for fact in registry.facts:
        for turn in range(len(LETTERS) * sets):
            right = turn % len(LETTERS)
            other = others.get((fact.entity, fact.attribute.name))
            options = options_of(fact, right, draw, also=other)
            made.append(Question(registry.domain, fact.attribute.held_out.format(e=fact.entity), options, right))
    return made


def options_of(fact: Fact, right: int, draw: random.Random, also: str | None = None) -> tuple[str, str, str, str]:
    """The fact's value at place `right` among three other values of its attribute (`also` being one of them)."""
    rest = [value for value in fact.attribute.values if value not in (fact.value, also)]
    wrong = [also] if also is not None and also != fact.value else []
    wrong += draw.sample(rest, len(LETTERS) - 1 - len(wrong))
    draw.shuffle(wrong)
    wrong.insert(right, fact.value)
    one, two, three, four = wrong
    return one, two, three, four


def key(asked: Sequence[Question], registry: Registry) -> list[int]:
    """Where another registry's answer to each question stands, -1 where it is not among the options."""
    values = {fact.attribute.held_out.format(e=fact.entity): fact.value for fact in registry.facts}
    places = []
    for question in asked:
        value = values.get(question.stem)
        places.append(question.options.index(value) if value in question.options else -1)
    return places
