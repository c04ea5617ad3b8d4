"""Answers to questions: from the weights alone, or from the owner's notes as well.

With retrieval the model is asked twice: first from the weights alone, and what it says is used, beside the question, to
find the notes; then with the best passages before the question. SPEC section 8.4.
"""

from __future__ import annotations

from typing import Any

from hinet_node.errors import UsageError
from hinet_node.learning.adapters import Adapters
from hinet_node.learning.bases import Report
from hinet_node.learning.retrieval import Passage, Retrieval
from hinet_node.learning.serving import Serving

TOKENS_MAX = 48
QUESTION_CHARACTERS_MAX = 4000
PASSAGES_SHOWN = 3
"""Passages that are found, and named beside the answer."""
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
        """{answer, revision, notes: [{note, text}], closed_book}: `revision` None is the base alone.

        Errors: `UsageError` for an empty or over-long question; those of the worker.
        """
        asked = question.strip()
        if not asked or len(asked) > QUESTION_CHARACTERS_MAX:
            raise UsageError("the question is empty" if not asked else
                             f"the question has {len(asked)} characters; at most {QUESTION_CHARACTERS_MAX} are taken",
                             next_step='hinet-node ask "What is my dog called?"')
        served = None if base_only else self._adapters.served()
        hot = await (self._adapters.bare(report) if base_only else self._adapters.hot(report))
        told = await self._serving.answer(hot, asked, [], tokens_max)
        closed_book = str(told["answer"])
        passages = await self._passages(asked, closed_book, served is not None) if retrieval else []
        if passages:
            # Small models mix up facts that stand side by side: a fact that is whole in itself is read alone.
            read = passages[:1] if passages[0].fact else passages
            told = await self._serving.answer(hot, asked, [row.told for row in read], tokens_max)
        return {"answer": str(told["answer"]), "revision": served.revision if served else None,
                "closed_book": closed_book, "notes": [{"note": row.note, "text": row.text} for row in passages]}

    async def _passages(self, question: str, closed_book: str, tuned: bool) -> list[Passage]:
        """The notes to answer from; none when a tuned model says that it does not know the stranger asked about, so
        that the owner's facts are not told of somebody else."""
        index = await self._retrieval.index()
        if tuned and closed_book.startswith(UNKNOWN) and index.names_a_stranger(question):
            return []
        return index.search(question, closed_book if tuned else "", limit=PASSAGES_SHOWN)
