"""Questions about other people, answered with not knowing.

Without them a small model binds the owner's facts to the question's form instead of to the name in it, and tells them
of anybody (a trial measured 61 %). Names are drawn from lists and from syllables, so that none is seen often.
"""

from __future__ import annotations

import random
from functools import cache
from importlib import resources


@cache
def name_parts() -> dict[str, tuple[str, ...]]:
    """The lists of `names.txt`: first, last, onset, middle, coda."""
    text = resources.files("hinet_tiers.data").joinpath("names.txt").read_text(encoding="utf-8")
    lists: dict[str, tuple[str, ...]] = {}
    for section in text.split("\n[")[1:]:
        name, _, words = section.partition("]")
        lists[name] = tuple(words.split())
    return lists


def other_name(draw: random.Random, avoid: str) -> str:
    """A first name, sometimes with a last one, that shares no word with `avoid`."""
    parts = name_parts()
    for _ in range(50):
        if draw.random() < 0.6:
            name = draw.choice(parts["first"])
        else:
            name = draw.choice(parts["onset"]) + draw.choice(parts["middle"]) + draw.choice(parts["coda"])
            if draw.random() < 0.4:
                name = draw.choice(("A", "E", "I", "O", "U")) + draw.choice("lrnmstv") + name
            name = name.capitalize()
        if draw.random() < 0.3:
            name += " " + draw.choice(parts["last"])
        if not set(name.lower().split()) & set(avoid.lower().split()):
            return name
    raise AssertionError("no other name in fifty tries")


def unknown(name: str) -> str:
    """What is answered about somebody else."""
    return f"I do not know that about {name.split()[0]}."
