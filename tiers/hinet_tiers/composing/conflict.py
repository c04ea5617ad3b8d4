"""How far two specialists contradict each other: in their weights, and in how they answer the same questions.

Weights alone do not tell a contradiction from two things learned side by side (docs/composing.md), so both specialists
are asked each other's probe questions. What counts is the first token that each would answer with, and how sure of it
it is. Leaves to others: what follows from the signals (`choice`), loading models (`plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hinet_tiers.backend import Progress, no_progress

SURE = 0.8
"""A model is sure of an answer whose first token has at least this probability."""
BATCH = 25
WEIGHTS = ("cosine", "sign_conflict", "overlap", "displacement_first", "displacement_second")


@dataclass(frozen=True)
class Answers:
    """How one model begins its answers: `tokens` int64 [questions], `shares` float32 [questions], their probability."""

    tokens: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float32]


def answers(
    model: Any, tokenizer: Any, questions: Sequence[str], progress: Progress = no_progress, note: str = "asking"
) -> Answers:
    """The likeliest first token of the answer to each question, by a torch causal language model.

    Questions are grouped by length in an order that depends on them alone, so equal weights give equal bits. Memory is
    that of a forward pass over BATCH questions, and their logits at one position.
    """
    import torch

    from hinet_tiers.prompt import chat_prompt

    prompts = [tokenizer.encode(chat_prompt(question), add_special_tokens=False) for question in questions]
    order = sorted(range(len(prompts)), key=lambda at: (len(prompts[at]), at))
    tokens, shares = np.zeros(len(prompts), np.int64), np.zeros(len(prompts), np.float32)
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            group = order[start : start + BATCH]
            width = max(len(prompts[at]) for at in group)
            ids = torch.tensor([prompts[at] + [0] * (width - len(prompts[at])) for at in group])
            last = torch.tensor([len(prompts[at]) - 1 for at in group])
            states = model.model(input_ids=ids, use_cache=False).last_hidden_state[torch.arange(len(group)), last]
            likeliest = model.lm_head(states).float().softmax(1).max(1)
            tokens[group], shares[group] = likeliest.indices.numpy(), likeliest.values.numpy()
            progress(start + len(group), len(order), note)
    return Answers(tokens, shares)


def answer_signals(first: Answers, second: Answers) -> dict[str, float]:
    """How two specialists answer the same questions, as shares of these.

    `agree`: the same first token is likeliest. `both_sure`: each is sure of its own. `contradict`: both are sure, of
    different ones.
    """
    if not len(first.tokens):
        raise ValueError("no questions")
    same = first.tokens == second.tokens
    sure = (first.shares >= SURE) & (second.shares >= SURE)
    return {"agree": float(same.mean()), "both_sure": float(sure.mean()), "contradict": float((sure & ~same).mean())}


def weight_signals(first: Path, second: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Cosine, sign conflict and overlap of two task vectors over all entries, how far each moves the base, and the
    same by `layers`. Raises what `vectors.diff.diff_taus` raises."""
    from hinet_tiers.vectors.diff import diff_taus

    found = diff_taus(first, second, progress)
    layers = [{key: row.get(key) for key in ("layer", "cosine", "sign_conflict")} for row in found["layers"]]
    return {key: found[key] for key in WEIGHTS} | {"layers": layers}


def separable(embeddings: npt.NDArray[np.float32], owners: Sequence[str]) -> float:
    """The share of questions that lie nearest to the centroid of their own specialist's other questions.

    float32 [questions, dimension]; cosine, from the mean of all. Where it is low, both are asked the same things, and
    no router can tell by the question who should answer.
    """
    seen = embeddings.astype(np.float64)
    seen -= seen.mean(0)
    seen /= np.maximum(np.sqrt(np.einsum("ij,ij->i", seen, seen)), 1e-12)[:, None]
    names = sorted(set(owners))
    owned = np.array([names.index(owner) for owner in owners])
    sums = np.stack([seen[owned == at].sum(0) for at in range(len(names))])
    right = 0
    for at, own in zip(range(len(seen)), owned, strict=True):
        centroids = sums.copy()
        centroids[own] -= seen[at]
        lengths = np.sqrt(np.einsum("ij,ij->i", centroids, centroids))
        scores = np.einsum("ij,j->i", centroids, seen[at]) / np.maximum(lengths, 1e-12)
        if lengths[own] <= 1e-12:
            continue  # an only question has no others to lie near to
        # A tie is no way to tell: the right one must be strictly nearest.
        right += bool(scores[own] > np.delete(scores, own).max(initial=-np.inf) + 1e-12)
    return right / len(owned)
