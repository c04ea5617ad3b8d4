"""Grading multiple choice by the first token: which option's first token is likeliest where the answer begins.

The cloze form: the question is asked without its options, and A to D stand for the four options' own words. Models of
this size do not answer with letters (docs/experiments.md has the trial), so a letter would measure the form and not
what is known. No parsing, no sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.experiments.registries import LETTERS, Question
from hinet_tiers.experiments.train import mixed_precision
from hinet_tiers.prompt import chat_prompt

Shares = npt.NDArray[np.float32]
BATCH = 25


def option_shares(
    model: Any, tokenizer: Any, asked: Sequence[Question], progress: Progress = no_progress, note: str = "grading"
) -> Shares:
    """float32 [questions, 4]: the probabilities of the options' first tokens, scaled to sum to 1.

    Each stem is read once, grouped by length in an order that depends on the questions alone, so that equal weights
    give equal bits. Raises ValueError for options that begin with the same token.
    """
    import torch

    firsts = [first_tokens(tokenizer, question) for question in asked]
    stems = list(dict.fromkeys(question.stem for question in asked))
    prompts = [tokenizer.encode(chat_prompt(stem), add_special_tokens=False) for stem in stems]
    order = sorted(range(len(prompts)), key=lambda at: (len(prompts[at]), at))
    logits: dict[str, Any] = {}
    with torch.no_grad(), mixed_precision():
        for start in range(0, len(order), BATCH):
            group = order[start : start + BATCH]
            width = max(len(prompts[at]) for at in group)
            ids = torch.tensor([prompts[at] + [0] * (width - len(prompts[at])) for at in group])
            last = torch.tensor([len(prompts[at]) - 1 for at in group])
            states = model.model(input_ids=ids, use_cache=False).last_hidden_state[torch.arange(len(group)), last]
            rows = model.lm_head(states).float()
            logits |= {stems[at]: row for at, row in zip(group, rows, strict=True)}
            progress(start + len(group), len(order), note)
    chosen = torch.stack([logits[one.stem][first] for one, first in zip(asked, firsts, strict=True)])
    shares: Shares = chosen.softmax(1).numpy()
    return shares


def first_tokens(tokenizer: Any, question: Question) -> list[int]:
    """The first token of each option as an answer begins with it. Raises ValueError when two are the same."""
    firsts = [int(tokenizer.encode(option, add_special_tokens=False)[0]) for option in question.options]
    if len(set(firsts)) != len(LETTERS):
        raise ValueError(f"two of the options {', '.join(question.options)} begin with the same token")
    return firsts


def accuracy(shares: Shares, right: Sequence[int]) -> float:
    """The share of questions whose likeliest option is the right one; ties go to the earlier option."""
    return float((shares.argmax(1) == np.asarray(right)).mean())


def by_domain(shares: Shares, asked: Sequence[Question]) -> dict[str, float]:
    """Accuracy within each domain, and under `macro` the mean of those."""
    scores = {}
    for domain in dict.fromkeys(question.domain for question in asked):
        rows = [at for at, question in enumerate(asked) if question.domain == domain]
        scores[domain] = accuracy(shares[rows], [asked[at].right for at in rows])
    return scores | {"macro": sum(scores.values()) / len(scores)}
