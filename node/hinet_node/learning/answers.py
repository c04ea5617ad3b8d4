"""Answers to questions: from the weights alone, or from the owner's notes as well.

A tuned model is asked first what it says from its weights alone, which also tells whether the question is about the
owner at all; what is not, the base answers without the adapter. With retrieval the notes are searched, and of the facts
found there the model chooses the likeliest answer: that fact's sentence is given, so nothing is told that stands in no
note. A bare base reads the best passages instead. What is found is `retrieval`'s business. SPEC section 8.4.
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
        """{answer, revision, notes: [{note, text}], closed_book, left_out: [{note, why}]}: `revision` None is the
        base's own answer, `notes` what the answer was taken from, `left_out` the notes that could not be read.

        "I" and "my" mean the owner. Errors: `UsageError` for an empty or over-long question; those of the worker.
        """
        asked = question.strip()
        if not asked or len(asked) > QUESTION_CHARACTERS_MAX:
            raise UsageError("the question is empty" if not asked else
                             f"the question has {len(asked)} characters; at most {QUESTION_CHARACTERS_MAX} are taken",
                             next_step='hinet-node ask "What is my dog called?"')
        served = None if base_only else self._adapters.served()
        hot = await (self._adapters.bare(report) if base_only else self._adapters.hot(report))
        if served is None and not retrieval:
            told = await self._serving.answer(hot, asked, [], tokens_max)
            return {"answer": str(told["answer"]), "revision": None, "closed_book": str(told["answer"]), "notes": [],
                    "left_out": []}
        index = await self._retrieval.index()
        asked = index.in_third_person(asked)
        closed_book = str((await self._serving.answer(hot, asked, [], tokens_max))["answer"])
        about = concerns_the_owner(index, asked, closed_book, tuned=served is not None)
        answer = closed_book
        if served is not None and not about and index.owner_is_known:
            # An adapter trained on a few notes turns some general answers over: the base gives those (docs/recall.md).
            answer, served = str((await self._serving.answer(hot, asked, [], tokens_max, bare=True))["answer"]), None
        read: list[Passage] = []
        if retrieval and about:
            found = fitting(index, asked, closed_book, tuned=served is not None)
            # Small models mix up facts that stand side by side: a fact that is whole in itself is read alone.
            read = found[:1] if found and found[0].fact else found[:PASSAGES_READ]
            if read and read[0].fact and served is not None:
                read = [await self._likeliest(hot, asked, found)]
                answer = read[0].told
            elif read:
                answer = str((await self._serving.answer(hot, asked, [row.told for row in read], tokens_max))["answer"])
        return {"answer": answer, "revision": served.revision if served else None, "closed_book": closed_book,
                "notes": [{"note": row.note, "text": row.text} for row in read],
                "left_out": self._retrieval.left_out}

    async def _likeliest(self, hot: Hot, question: str, passages: list[Passage]) -> Passage:
        """The fact among the passages that fits the question and that the model finds likely."""
        facts = [row for row in passages if row.fact]
        scores = await self._serving.score(hot, question, [row.told for row in facts])
        return facts[max(range(len(facts)), key=lambda number: FIT_WEIGHT * facts[number].score + scores[number])]


def concerns_the_owner(index: NotesIndex, question: str, closed_book: str, *, tuned: bool) -> bool:
    """Whether a question is about the owner, or about somebody else who might be: by the names in it, by those in the
    model's own answer, or because the notes know all of its telling words together."""
    if index.names_the_owner(question) or index.knows(question):
        return True
    return tuned and (index.names_the_owner(closed_book) or closed_book.startswith(UNKNOWN))


def fitting(index: NotesIndex, question: str, closed_book: str, *, tuned: bool) -> list[Passage]:
    """The notes to answer from, best first; none about somebody whom neither notes nor model know."""
    known = index.names_the_owner(question) or index.knows(question)
    if tuned and closed_book.startswith(UNKNOWN) and (index.names_a_stranger(question) or not known):
        return []
    return index.search(question, closed_book if tuned else "", limit=PASSAGES_WEIGHED)
