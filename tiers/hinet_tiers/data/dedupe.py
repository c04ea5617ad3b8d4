"""Keeping evaluation questions out of training text.

A training question goes when it equals an evaluation question or shares a long run of words with one. Both sides must
share short forms such as "what is X's dog called", so runs are judged by their length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

RUN_WORDS = 8
"""A shared run of this many words makes a training question a copy."""


def words(text: str) -> list[str]:
    """Small words of a text, without punctuation."""
    return re.findall(r"[\w']+", text.casefold())


def runs(text: str, count: int) -> set[tuple[str, ...]]:
    """All runs of `count` words."""
    listed = words(text)
    return {tuple(listed[start : start + count]) for start in range(len(listed) - count + 1)}


def without_copies(questions: Sequence[str], evaluation: Iterable[str], run_words: int = RUN_WORDS) -> list[bool]:
    """For each training question, whether it may stay."""
    whole: set[tuple[str, ...]] = set()
    shared: set[tuple[str, ...]] = set()
    for question in evaluation:
        whole.add(tuple(words(question)))
        shared |= runs(question, run_words)
    return [tuple(words(text)) not in whole and not runs(text, run_words) & shared for text in questions]
