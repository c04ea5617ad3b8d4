"""A question that the owner puts in the first person, as training asks it: "Where do I live?" → "Where does X live?".

Training speaks of the owner by name only; people ask their own machine about "my dentist". What the asker says of the
asking itself ("tell me", "I wonder", "I forgot") stays, as in training's frames. Turning notes into the third person is
`pairs`' business.
"""

from __future__ import annotations

import re

from hinet_tiers.data.notes import Owner
from hinet_tiers.data.pairs import ADVERBS, PLAIN_VERBS, inflected

FIRST_PERSON = re.compile(r"\b(?:i|me|my|mine|myself)\b", re.I)
ASKING = (
    r"would like|would love|want to know|need to know|wonder|wish I knew|forgot|forget|have forgotten|never learned|"
    r"ask|(?:can't|cannot|can not|could not|couldn't|do not|don't|no longer) (?:remember|recall|know|think of)|"
    r"have a question|was (?:asked|wondering)|am (?:trying|looking|asking|not sure|curious|wondering)"
)
"""What follows an "I" that only asks."""
ASKED = r"tell|told|remind|help|give|show|let|ask|asked|answer|inform|with|to|for|assist"
"""Words after which "me" is who asks."""
INVERTED = {"do": "does", "am": "is", "have": "has", "don't": "doesn't", "haven't": "hasn't"}
SHORT = {"'m": " am", "'ve": " have", "'d": " would", "'ll": " will"}


def in_third_person(question: str, owner: Owner) -> str:
    """The question with the owner's first name for "I" and "my"; unchanged where it is asked about somebody by name."""
    if not FIRST_PERSON.search(question) or re.search(rf"\b{re.escape(owner.first)}\b", question, re.I):
        return question
    name = owner.first
    text = re.sub(r"\bi('m|'ve|'d|'ll)\b", lambda at: f"I{SHORT[at.group(1).lower()]}", question, flags=re.I)
    turned = "|".join(INVERTED)
    text = re.sub(rf"\b({turned}) i\b", lambda at: _inverted(at.group(1), name), text, flags=re.I)
    text = re.sub(rf"\b({PLAIN_VERBS}|shall) i\b(?! ask\b)", rf"\1 {name}", text, flags=re.I)
    text = re.sub(
        rf"\bi (?!(?:{ASKING})\b)((?:{ADVERBS}) )?(\w+)",
        lambda at: f"{name} {at.group(1) or ''}{_of_third_person(at.group(2))}",
        text,
        flags=re.I,
    )
    text = re.sub(r"\b(?:my(?! (?:asking|question)\b)|mine)\b", f"{name}'s", text, flags=re.I)
    return re.sub(r"\b(?:me|myself)\b", lambda at: _me(at, name), text, flags=re.I)


def _inverted(verb: str, name: str) -> str:
    turned = INVERTED[verb.lower()]
    return f"{turned.capitalize() if verb[0].isupper() else turned} {name}"


def _of_third_person(verb: str) -> str:
    """A verb that followed "I" as it follows a name."""
    if verb.lower() in ("am", "have"):
        return INVERTED[verb.lower()]
    return verb if re.fullmatch(PLAIN_VERBS, verb) else inflected(verb)


def _me(at: re.Match[str], name: str) -> str:
    """The word "me" as it stands where it is who asks, else the name."""
    return at.group() if re.search(rf"\b(?:{ASKED}) $", at.string[: at.start()], re.I) else name
