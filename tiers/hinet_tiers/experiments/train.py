"""Fully fine-tuning a copy of a model on pairs: float32 weights, bf16 products, linear layers; and its task vector.

Pure bf16 stalls (docs/recall.md), so weights and moments stay float32 and only the passes are cast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hinet_tiers.backend import Progress
from hinet_tiers.batches import Batch, answer_logits, encode
from hinet_tiers.cloud.finetune import linear_layers
from hinet_tiers.fit import Free, Report, Schedule, fit
from hinet_tiers.prompt import STOP
from hinet_tiers.sparsify import SparseTensor


def mixed_precision(kind: str = "cpu") -> Any:
    """A context in which products are made in bf16."""
    import torch

    return torch.autocast(kind, torch.bfloat16)


def learn(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Mapping[str, str]],
    schedule: Schedule,
    *,
    seed: int,
    progress: Progress,
    note: str,
) -> Report:
    """Train all linear layers of `model` in place, once over `pairs` as often as the schedule says."""

    def logits_of(trained: Any, batch: Batch) -> Any:
        with mixed_precision():
            return answer_logits(trained, batch)

    free = [Free(name, tensor) for name, tensor in linear_layers(model).items()]
    pad = tokenizer.convert_tokens_to_ids(STOP)
    return fit(model, free, encode(pairs, tokenizer), schedule, pad=pad, seed=seed, progress=progress, note=note,
               logits_of=logits_of)  # fmt: skip


def snapshot(model: Any) -> dict[str, Any]:
    """Copies of all linear layers by name."""
    return {name: tensor.detach().clone() for name, tensor in linear_layers(model).items()}


def restore(model: Any, kept: Mapping[str, Any]) -> None:
    """Put a snapshot back."""
    for name, tensor in linear_layers(model).items():
        tensor.detach().copy_(kept[name])


def delta(model: Any, kept: Mapping[str, Any]) -> Iterator[SparseTensor]:
    """What every linear layer differs from the snapshot by, entries that do not left out; in name order."""
    for name, tensor in sorted(linear_layers(model).items(), key=lambda row: row[0].encode()):
        values = (tensor.detach() - kept[name]).numpy().reshape(-1)
        positions = np.flatnonzero(values)
        yield SparseTensor(name, tuple(tensor.shape), positions, values[positions])
