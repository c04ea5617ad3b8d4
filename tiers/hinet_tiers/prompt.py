"""The one chat prompt that training, evaluation and serving share.

ChatML as SmolLM2 was tuned on, without its default system prompt (which costs about 25 tokens in each example). Any
difference between the prompt that a model was trained on and the one it is served with shows as lost recall, so every
engine calls these functions and none applies a template of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

TURN = "<|im_start|>"
STOP = "<|im_end|>"
"""Ends a turn: the last token of a training answer, and the token at which generation stops."""

CONTEXT_INTRODUCTION = "Answer from these notes:"


def plain(text: str) -> str:
    """The text with turn markers broken up, so that a note or a question can't open a turn of its own."""
    return text.replace("<|", "< |").strip()


def chat_prompt(question: str, context: Sequence[str] = ()) -> str:
    """The text up to the point where the answer begins.

    `context` are notes, best first, that the answer may be read from; they stand before the question in one turn.
    """
    asked = plain(question)
    if context:
        notes = "\n".join(f"- {' '.join(plain(note).split())}" for note in context)
        asked = f"{CONTEXT_INTRODUCTION}\n{notes}\n\n{asked}"
    return f"{TURN}user\n{asked}{STOP}\n{TURN}assistant\n"


def chat_answer(answer: str) -> str:
    """What follows `chat_prompt` in a training example: the answer and the end of the turn."""
    return plain(answer) + STOP
