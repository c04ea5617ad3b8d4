"""Answers to questions: from the weights alone, or from the owner's notes as well.

With retrieval a tuned model is asked three things: what it says from its weights alone (which also tells whether the
question is about the owner at all), where the notes fit the question, and which of the facts found there it finds
likeliest as an answer. That fact's sentence is the answer, so nothing is told that stands in no note. A bare base reads
the best passages instead. What is found is `retrieval`'s business. SPEC section 8.4.
"""

from __future__ import annotations

from typing import Any

from hinet_node.errors import UsageError
from hinet_node.learning.adapters import Adapters
from hinet_node.learning.bases import Report
from hinet_node.learning.retrieval import NotesIndex, Passage, Retrieval
from hinet_node.learning.serving import Hot, Serving

TOKENS_MAX = 48
QUESTION_CHARACTERS_MAX = 4000
PASSAGES_READ = 3
"""Passages that the model reads where no fact fits; what was read is named beside the answer."""
PASSAGES_WEIGHED = 5
"""Passages among whose facts the model chooses."""
FIT_WEIGHT = 0.5
"""What the fit to the question (1 for the best passage) counts beside the mean log-probability of a fact, in nats."""
UNKNOWN = "I do not know"
"""How training teaches to begin an answer about somebody whom the notes do not know."""


class Answers:
    """Questions of one device's owner."""

    def __init__(self, adapters: Adapters, serving: Serving, retrieval: Retrieval) -> None:
        self._adapters = adapters
        self._serving = serving
        self._retrieval = retrieval

    async def ask(self, question: str, *, retrieval: bool, base_only: bool = False, tokens_max: int = TOKENS_MAX,
                  report: Report) -> dict[str, Any]:
        """{answer, revision, notes: [{note, text}], closed_book}: `revision` None is the base alone, `notes` what the
        answer was taken from.

        "I" and "my" mean the owner. Errors: `UsageError` for an empty or over-long question; those of the worker.
        """
        asked = question.strip()
        if not asked or len(asked) > QUESTION_CHARACTERS_MAX:
            raise UsageError("the question is empty" if not asked else
                             f"the question has {len(asked)} characters; at most {QUESTION_CHARACTERS_MAX} are taken",
                             next_step='hinet-node ask "What is my dog called?"')
        served = None if base_only else self._adapters.served()
        hot = await (self._adapters.bare(report) if base_only else self._adapters.hot(report))
        if retrieval or (served and speaks_of_oneself(asked)):
            asked = (await self._retrieval.index()).in_third_person(asked)
        told = await self._serving.answer(hot, asked, [], tokens_max)
        answer = closed_book = str(told["answer"])
        read: list[Passage] = []
        if retrieval:
            found = fitting(await self._retrieval.index(), asked, closed_book, tuned=served is not None)
            # Small models mix up facts that stand side by side: a fact that is whole in itself is read alone.
            read = found[:1] if found and found[0].fact else found[:PASSAGES_READ]
            if read and read[0].fact and served is not None:
                read = [await self._likeliest(hot, asked, found)]
                answer = read[0].told
            elif read:
                answer = str((await self._serving.answer(hot, asked, [row.told for row in read], tokens_max))["answer"])
        return {"answer": answer, "revision": served.revision if served else None, "closed_book": closed_book,
                "notes": [{"note": row.note, "text": row.text} for row in read]}

    async def _likeliest(self, hot: Hot, question: str, passages: list[Passage]) -> Passage:
        """The fact among the passages that fits the question and that the model finds likely."""
        facts = [row for row in passages if row.fact]
        scores = await self._serving.score(hot, question, [row.told for row in facts])
        return facts[max(range(len(facts)), key=lambda number: FIT_WEIGHT * facts[number].score + scores[number])]


def fitting(index: NotesIndex, question: str, closed_book: str, *, tuned: bool) -> list[Passage]:
    """The notes to answer from, best first; none for a question about the world or about a stranger.

    A question is about the owner when it or the model's own answer names the owner; else the notes count only where
    they know all of its telling words together.
    """
    if tuned and closed_book.startswith(UNKNOWN) and index.names_a_stranger(question):
        return []
    about = index.names_the_owner(question) or (tuned and index.names_the_owner(closed_book)) or index.knows(question)
    return index.search(question, closed_book if tuned else "", limit=PASSAGES_WEIGHED) if about else []


def speaks_of_oneself(question: str) -> bool:
    """Whether a question says "I" or "my"."""
    from hinet_tiers.data.asked import FIRST_PERSON

    return bool(FIRST_PERSON.search(question))
