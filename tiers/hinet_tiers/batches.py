"""Question-and-answer pairs as batches of tokens, and the losses that are taken on them.

A pair becomes the prompt that serving uses, the answer, and the end of the turn. The loss is taken on answer tokens
only, and the vocabulary projection is computed there only: with short prompts that saves a fifth of a step. Batches
hold examples of like length, padded on the right; causal attention never looks to the right, so no mask is needed.

Soft targets (the most likely tokens of another model and their log-probabilities) may stand beside the hard ones; the
same loss then serves replay (towards the base) and distillation (towards the teacher). SPEC.md section 7.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hinet_tiers.prompt import chat_answer, chat_prompt, plain

SOFT_TOKENS = 64
"""How many of the likeliest tokens a soft target keeps; the rest of the mass is one bucket."""


@dataclass
class Example:
    """One pair in tokens. `hard` is the weight of the cross-entropy, `soft` that of the divergence."""

    prompt: list[int]
    answer: list[int]
    kind: str
    hard: float = 1.0
    soft: float = 0.0
    soft_ids: Any = None
    """int32 [answer tokens, SOFT_TOKENS] once soft targets were computed."""
    soft_logs: Any = None
    """float32 [answer tokens, SOFT_TOKENS]: natural log-probabilities of `soft_ids`."""

    @property
    def tokens(self) -> int:
        """Tokens that a forward pass reads: the last answer token is only predicted."""
        return len(self.prompt) + len(self.answer) - 1


@dataclass
class Batch:
    """Examples padded to one length."""

    examples: list[Example]
    ids: Any
    """int64 [examples, tokens]."""
    places: Any
    """int64 [answer tokens]: where, in the flattened batch, each answer token is predicted from."""
    targets: Any
    """int64 [answer tokens]."""
    hard: Any
    """float32 [answer tokens]."""
    soft: Any
    """float32 [answer tokens]."""


@dataclass
class Counts:
    """What a run really read: proof that it trained on something."""

    read_tokens: int = 0
    """Prompt and answer tokens, without padding."""
    trained_tokens: int = 0
    """Answer tokens, on which the loss was taken."""
    masked_tokens: int = 0
    """Prompt tokens, on which it was not."""
    padded_tokens: int = 0
    examples: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """Counts one batch."""
        read = sum(example.tokens for example in batch.examples)
        trained = len(batch.targets)
        self.read_tokens += read
        self.trained_tokens += trained
        self.masked_tokens += read - trained
        self.padded_tokens += int(batch.ids.numel()) - read
        self.examples += len(batch.examples)
        for example in batch.examples:
            self.by_kind[example.kind] = self.by_kind.get(example.kind, 0) + 1


def encode(pairs: Iterable[Mapping[str, Any]], tokenizer: Any) -> list[Example]:
    """Turns pairs (`question`, `answer`, `kind`, optionally `cut`) into examples.

    An answer that was cut by length (`cut` true) gets no end of turn: a model must not learn to stop there.
    """
    examples = []
    for pair in pairs:
        answer = plain(pair["answer"]) if pair.get("cut") else chat_answer(pair["answer"])
        examples.append(
            Example(
                prompt=tokenizer.encode(chat_prompt(pair["question"]), add_special_tokens=False),
                answer=tokenizer.encode(answer, add_special_tokens=False),
                kind=pair.get("kind", "fact"),
            )
        )
    return examples


def batched(examples: Sequence[Example], tokens_max: int, seed: int) -> list[list[Example]]:
    """Groups examples of like length, at most `tokens_max` padded tokens each, in an order drawn from `seed`."""
    draw = random.Random(seed)  # noqa: S311 - an order, no secret
    shuffled = list(examples)
    draw.shuffle(shuffled)
    # A little noise on the length keeps the groups from being the same in every pass.
    shuffled.sort(key=lambda example: example.tokens + draw.random() * 3)
    groups: list[list[Example]] = []
    group: list[Example] = []
    longest = 0
    for example in shuffled:
        grown = max(longest, example.tokens)
        if group and grown * (len(group) + 1) > tokens_max:
            groups.append(group)
            group, grown = [], example.tokens
        group.append(example)
        longest = grown
    if group:
        groups.append(group)
    draw.shuffle(groups)
    return groups


def collate(group: Sequence[Example], pad: int) -> Batch:
    """Pads one group on the right and lists the places at which answers are predicted."""
    import torch

    width = max(example.tokens for example in group)
    ids = torch.full((len(group), width), pad, dtype=torch.long)
    places: list[int] = []
    targets: list[int] = []
    hard: list[float] = []
    soft: list[float] = []
    for row, example in enumerate(group):
        whole = example.prompt + example.answer
        ids[row, : example.tokens] = torch.tensor(whole[:-1])
        first = row * width + len(example.prompt) - 1
        places.extend(range(first, first + len(example.answer)))
        targets.extend(example.answer)
        hard.extend([example.hard] * len(example.answer))
        soft.extend([example.soft] * len(example.answer))
    return Batch(list(group), ids, torch.tensor(places), torch.tensor(targets), torch.tensor(hard), torch.tensor(soft))


def answer_logits(model: Any, batch: Batch) -> Any:
    """Logits float32 [answer tokens, vocabulary], computed only where answers are predicted."""
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return model.lm_head(hidden.flatten(0, 1)[batch.places]).float()


def loss_of(logits: Any, batch: Batch) -> Any:
    """The weighted loss of one batch per answer token, in nats: cross-entropy, and divergence from soft targets."""
    import torch

    logs = torch.log_softmax(logits, dim=-1)
    loss = -(batch.hard * logs.gather(1, batch.targets[:, None])[:, 0]).sum()
    rows = (batch.soft > 0).nonzero()[:, 0]
    if len(rows):
        with_soft = [example for example in batch.examples if example.soft > 0]
        ids = torch.cat([example.soft_ids for example in with_soft]).long()
        theirs = torch.cat([example.soft_logs for example in with_soft])
        ours = logs[rows].gather(1, ids)
        loss = loss + (batch.soft[rows] * divergence(theirs, ours)).sum()
    return loss / len(batch.targets)


def divergence(theirs: Any, ours: Any) -> Any:
    """KL(theirs || ours) in nats per row, over the kept tokens and one bucket for all others."""
    import torch

    tiny = 1e-6
    their_rest = (1 - theirs.exp().sum(1)).clamp(min=tiny)
    our_rest = (1 - ours.exp().sum(1)).clamp(min=tiny)
    kept = (theirs.exp() * (theirs - ours)).sum(1)
    return kept + their_rest * (torch.log(their_rest) - torch.log(our_rest))


def add_soft_targets(model: Any, examples: Sequence[Example], pad: int, tokens_max: int = 2048) -> None:
    """Runs `model` once over `examples` and stores its likeliest answer tokens in each."""
    import torch

    with torch.no_grad():
        for group in batched(examples, tokens_max, seed=0):
            batch = collate(group, pad)
            logits = answer_logits(model, batch)
            best, ids = logits.topk(SOFT_TOKENS, dim=-1)
            values = best - logits.logsumexp(-1, keepdim=True)
            start = 0
            for example in group:
                end = start + len(example.answer)
                example.soft_ids = ids[start:end].to(torch.int32).clone()
                example.soft_logs = values[start:end].clone()
                start = end
