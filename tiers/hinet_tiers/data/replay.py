"""Replay: the base's own answers to general prompts, so that training on notes does not cost what the base could do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import resources
from typing import Any

from hinet_tiers.backend import Progress, no_progress

BATCH = 80
ANSWER_TOKENS_MAX = 14
"""General answers are judged by their first words, and a longer one costs as much as another prompt."""


def prompts() -> list[str]:
    """The shipped general prompts."""
    text = resources.files(__package__).joinpath("general.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def chosen(count: int, seed: int, among: Sequence[str] | None = None) -> list[str]:
    """`count` prompts drawn from `seed`, in a drawn order; all of them when there are not as many."""
    listed = list(among if among is not None else prompts())
    random.Random(seed).shuffle(listed)  # noqa: S311 - an order, no secret
    return listed[:count]


def own_answers(
    model: Any,
    tokenizer: Any,
    questions: Sequence[str],
    progress: Progress = no_progress,
    tokens_max: int = ANSWER_TOKENS_MAX,
) -> list[dict[str, Any]]:
    """Replay pairs {question, answer, kind, cut}: the greedy answers of `model`; `cut` when the length ended one."""
    from hinet_tiers.generate import generate
    from hinet_tiers.prompt import chat_prompt

    made: list[dict[str, Any]] = []
    encoded = {text: tokenizer.encode(chat_prompt(text), add_special_tokens=False) for text in questions}
    ordered = sorted(questions, key=lambda text: (len(encoded[text]), text))
    for start in range(0, len(ordered), BATCH):
        progress(start, len(ordered), "asking the base for replay")
        group = ordered[start : start + BATCH]
        for question, ids in zip(
            group, generate(model, tokenizer, [encoded[text] for text in group], tokens_max), strict=True
        ):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            if text.strip():
                made.append({"question": question, "answer": text, "kind": "replay", "cut": len(ids) >= tokens_max})
    return made
