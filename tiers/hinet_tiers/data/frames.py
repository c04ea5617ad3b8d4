"""Ways to put one question: plain, polite, asking for a noun, or inside another sentence.

A question has three cores: itself ("Where does X live?"), the same as a subordinate clause ("where X lives") and a noun
phrase ("the place where X lives"). Frames wrap a core. What is in nobody's words but the lexicon's stands in
`relations.toml`.
"""

from __future__ import annotations

from hinet_tiers.data.notes import Fact, Owner, filled, relations

Core = tuple[str, str, str]

AROUND_QUESTION = (
    "Tell me: {q}",
    "Please answer this: {q}",
    "{Q} I would like to know.",
    "Remind me, {q}",
    "Hello, {q}",
    "{Q} Do you know?",
    "My question is: {q}",
    "One question: {q}",
    "Do you remember? {Q}",
    "Well, {q}",
    "Can you help me? {Q}",
    "By the way, {q}",
    "{Q} Please tell me.",
    "Someone asked me: {q}",
    "Just to be sure, {q}",
)
AROUND_CLAUSE = (
    "Do you know {e}?",
    "Can you tell me {e}?",
    "Could you please tell me {e}?",
    "I would like to know {e}.",
    "Please tell me {e}.",
    "I wonder {e}.",
    "Do you remember {e}?",
    "I need to know {e}.",
    "Would you mind telling me {e}?",
    "I can't remember {e}. Do you know?",
    "Do you happen to know {e}?",
    "I am trying to find out {e}.",
    "Let's see if you know {e}.",
    "Someone wants to know {e}. What do I say?",
    "Could you remind me {e}?",
    "I never learned {e}. Tell me, please.",
    "Tell me {e}, will you?",
)
AROUND_NOUN = (
    "What is {n}?",
    "Tell me {n}.",
    "Give me {n}, please.",
    "I am looking for {n}. What is it?",
    "Do you know {n}?",
    "I need {n} for a form.",
    "Could you give me {n}?",
    "Please write down {n}.",
    "Which is {n}?",
    "I want to note down {n}. Can you say it?",
    "Say {n}.",
    "May I ask for {n}?",
)


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def lowered(question: str) -> str:
    """A question for the middle of a sentence: its first word small when it is a question word."""
    first = question.split(" ", 1)[0]
    known = set("What Which Who Whom Whose Where When How In On At To For With From Of By Into".split())  # noqa: SIM905
    return question[:1].lower() + question[1:] if first in known else question


def cores(fact: Fact, owner: Owner, name: str) -> list[Core]:
    """The plain forms of the question about `fact`, the note's own words first; `name` is the person asked about."""
    if not fact.noun:
        entry = relations()["verb"][fact.key]
        made = [filled_core(core, owner, name) for core in entry["core"]]
        return made + [noun_core(noun, "value", False, name) for noun in entry["also_noun"]]
    entry = relations()["noun"].get(fact.key, {})
    made = []
    for noun in [fact.noun, *entry.get("also", [])]:
        made.extend(noun_cores(noun, fact.kind, fact.called, name))
    return made


def filled_core(core: list[str], owner: Owner, name: str) -> Core:
    """One core of a verb's entry with the name in it."""
    question, clause, noun = (filled(part, owner, name=name) for part in core)
    return question, clause, noun


def possessed(noun: str, name: str) -> str:
    """The attribute as somebody's: "X's dog", "the colour of X's bicycle"."""
    if " of " in noun:
        head, tail = noun.split(" of ", 1)
        if head in ("colour", "color", "name", "make", "size", "brand", "type", "number", "title", "breed"):
            return f"the {head} of {name}'s {tail}"
    return f"{name}'s {noun}"


def noun_core(noun: str, kind: str, called: bool, name: str) -> Core:
    """The first core for an attribute noun."""
    return noun_cores(noun, kind, called, name)[0]


def noun_cores(noun: str, kind: str, called: bool, name: str) -> list[Core]:
    """The cores for an attribute noun, by the kind of thing that it is."""
    whose = possessed(noun, name)
    made: list[Core] = []
    if called or kind in ("person", "pet"):
        made.append((f"What is {whose} called?", f"what {whose} is called", f"the name of {whose}"))
    if kind == "person":
        made.append((f"Who is {whose}?", f"who {whose} is", f"the name of {whose}"))
    elif kind in ("pet", "thing") and called:
        made.append((f"What is the name of {whose}?", f"what the name of {whose} is", f"the name that {whose} has"))
    elif kind == "date":
        made.append((f"When is {whose}?", f"when {whose} is", f"the date of {whose}"))
        made.append((f"On which day is {whose}?", f"on which day {whose} is", f"the day of {whose}"))
    else:
        made.append((f"What is {whose}?", f"what {whose} is", whose))
        last = noun.split()[-1]
        if " to " in noun or " of " in noun:
            return made
        if noun.startswith(("favourite", "favorite")):
            best = (f"Which {last} does {name} like best?", f"which {last} {name} likes best")
            made.append((*best, f"the {last} that {name} likes best"))
        elif not called:
            made.append((f"What {last} does {name} have?", f"what {last} {name} has", f"the {last} that {name} has"))
    return made


def frames_of(core: Core) -> list[str]:
    """Every framing of one core, the bare question not among them."""
    question, clause, noun = core
    made = [frame.format(q=lowered(question), Q=question) for frame in AROUND_QUESTION]
    made += [frame.format(e=clause) for frame in AROUND_CLAUSE]
    return made + [frame.format(n=noun) for frame in AROUND_NOUN]
