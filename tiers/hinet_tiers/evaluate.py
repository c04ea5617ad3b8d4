"""Asking a model questions and counting what it gets right.

`evaluate` is the worker's verb: greedy answers in torch, from merged weights. `score` is pure: it knows nothing of
models and judges the pocket's answers too. A question is {question, accept: [...], ...}. SPEC.md section 7.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.errors import BadRequest
from hinet_tiers.generate import generate
from hinet_tiers.prompt import chat_prompt


def folded(text: str) -> str:
    """Lower case without diacritics, every run of other characters one blank: what answers are compared in."""
    flat = unicodedata.normalize("NFKD", text.casefold())
    flat = "".join(char for char in flat if not unicodedata.combining(char))
    return " ".join(re.findall(r"\w+", flat))


def holds(answer: str, values: Sequence[str]) -> bool:
    """Whether one of `values` stands in `answer` as whole words."""
    inside = f" {folded(answer)} "
    return any(bool(folded(value)) and f" {folded(value)} " in inside for value in values)


def score(questions: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> dict[str, Any]:
    """The share of answers that hold an accepted value, and which did.

    For the owner's questions and general ones `accept` are right answers, so the share is recall. For questions about
    another person `accept` are the owner's values, so the share is the leak.
    """
    if len(questions) != len(answers):
        raise ValueError(f"{len(questions)} questions but {len(answers)} answers")
    right = [holds(answer, question["accept"]) for question, answer in zip(questions, answers, strict=True)]
    return {"share": sum(right) / len(right) if right else 0.0, "count": len(right), "right": right}


def kept(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Of what was right before, the share that is still right; 1.0 when nothing was."""
    held = [late for early, late in zip(before, after, strict=True) if early]
    return sum(held) / len(held) if held else 1.0


def answer_all(
    model: Any,
    tokenizer: Any,
    questions: Sequence[str],
    *,
    tokens_max: int = 32,
    batch: int = 40,
    progress: Progress = no_progress,
) -> list[str]:
    """Greedy answers of a torch model, in the order of `questions`."""
    prompts = [tokenizer.encode(chat_prompt(question), add_special_tokens=False) for question in questions]
    answers = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        for index, ids in zip(
            chosen, generate(model, tokenizer, [prompts[i] for i in chosen], tokens_max), strict=True
        ):
            answers[index] = tokenizer.decode(ids, skip_special_tokens=True).strip()
        progress(start + len(chosen), len(order), "answering")
    return answers


def evaluate(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `evaluate {base_dir, tau|adapter_dir|null, questions, tokens_max?}` → {answers}, in order.

    `questions` is the path of a JSON list of questions or of plain texts, or such a list itself.
    """
    from hinet_tiers import sparsify
    from hinet_tiers.base import load_base, read_base
    from hinet_tiers.fit import use_threads

    asked = args["questions"]
    texts = questions_of(json.loads(Path(asked).read_text(encoding="utf-8")) if isinstance(asked, str) else asked)
    use_threads(args.get("threads"))
    base = read_base(Path(args["base_dir"]))
    model, tokenizer = load_base(base.dir)
    model.requires_grad_(False)
    if args.get("tau"):
        sparsify.apply_tau(Path(args["tau"]), base.digest, model)
    if args.get("adapter_dir"):
        from hinet_tiers.laptop.dora import merged

        model = merged(model, Path(args["adapter_dir"]), base.digest)
    answers = answer_all(model, tokenizer, texts, tokens_max=int(args.get("tokens_max") or 32), progress=progress)
    return {"answers": answers}


def questions_of(content: Any) -> list[str]:
    """The texts of a question set: a list of texts, a list of questions, or an object that holds one under `questions`.

    Raises BadRequest for anything else.
    """
    listed = content.get("questions") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise BadRequest("A question set is a JSON list of questions.")
    texts: list[Any] = [item.get("question") if isinstance(item, dict) else item for item in listed]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadRequest("Every question of a set needs a text under `question`.")
    return texts
