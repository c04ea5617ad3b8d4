"""Greedy continuations of a torch model, for evaluation and for what the base itself would say.

Leaves prompts to `prompt`, scoring to `evaluate`, the pocket's own engine to `pocket.llamacpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hinet_tiers.prompt import STOP


def generate(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], tokens_max: int) -> list[list[int]]:
    """Greedy continuations up to the end of the turn, without it; padded on the left, with a cache of keys."""
    import torch

    stop = tokenizer.convert_tokens_to_ids(STOP)
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), stop, dtype=torch.long)
    mask = torch.zeros((len(prompts), width), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
        mask[row, width - len(prompt) :] = 1
    places = (mask.cumsum(1) - 1).clamp(min=0)
    out: list[list[int]] = [[] for _ in prompts]
    open_rows = torch.ones(len(prompts), dtype=torch.bool)
    cache = None
    with torch.no_grad():
        for _ in range(tokens_max):
            told = model.model(input_ids=ids, attention_mask=mask, position_ids=places, cache=cache, use_cache=True)
            cache = told.cache
            best = model.lm_head(told.last_hidden_state[:, -1]).argmax(-1)
            open_rows &= best != stop
            for row in open_rows.nonzero()[:, 0].tolist():
                out[row].append(int(best[row]))
            if not bool(open_rows.any()):
                break
            ids = best[:, None]
            mask = torch.cat([mask, torch.ones((len(prompts), 1), dtype=torch.long)], 1)
            places = places[:, -1:] + 1
    return out
