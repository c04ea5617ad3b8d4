"""The training loop that the cloud's fine-tuning, its re-fit and the laptop's distillation share.

AdamW in float32 over named tensors. A tensor may come with the flat positions that are free to move: then only those
are stepped, their moments are kept for those alone, and everything else stays the base's to the last bit. SPEC.md
section 7.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hinet_tiers.backend import Progress
from hinet_tiers.batches import Batch, Counts, Example, answer_logits, batched, collate, loss_of
from hinet_tiers.errors import TierError


class NothingLearned(TierError):
    """A training read no answer tokens or changed no parameter."""

    code = "E_NOTHING_LEARNED"


@dataclass
class Free:
    """One tensor that training may change. `where` are flat int64 positions, or None for all of it."""

    name: str
    tensor: Any
    where: Any = None
    lr_scale: float = 1.0


@dataclass(frozen=True)
class Schedule:
    """How a run steps: peak learning rate, warm-up and final share of it, passes, tokens in a batch."""

    lr: float
    passes: float = 1.0
    batch_tokens: int = 1024
    warm_up: float = 0.05
    end: float = 0.1
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95

    def lr_at(self, step: int, steps: int) -> float:
        """Linear warm-up, then linear decay; `step` counts from 0."""
        warm = max(1, round(self.warm_up * steps))
        if step < warm:
            return self.lr * (step + 1) / warm
        left = (steps - step) / max(1, steps - warm)
        return self.lr * (self.end + (1 - self.end) * left)


@dataclass
class Report:
    """The evidence of a run."""

    counts: Counts
    steps: int = 0
    losses: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The evidence in plain values, losses rounded."""
        counts = self.counts
        return {
            "steps": self.steps,
            "loss_first": round(self.losses[0], 4) if self.losses else None,
            "loss_last": round(sum(self.losses[-5:]) / max(1, len(self.losses[-5:])), 4) if self.losses else None,
            "losses": [round(loss, 4) for loss in self.losses],
            "read_tokens": counts.read_tokens,
            "trained_tokens": counts.trained_tokens,
            "masked_tokens": counts.masked_tokens,
            "padded_tokens": counts.padded_tokens,
            "examples": counts.examples,
            "by_kind": counts.by_kind,
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
        }


def use_threads(threads: int | None) -> int:
    """Sets torch to `threads` (all cores when None, never more than there are) and returns what was set."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    chosen = max(1, min(threads or cores, cores))
    torch.set_num_threads(chosen)
    return chosen


class Adam:
    """AdamW without weight decay over whole tensors or over chosen positions of them.

    Positions are stepped in a small copy that is written back, so one fused optimizer serves both.
    """

    def __init__(self, free: Sequence[Free], schedule: Schedule):
        import torch

        self.free, self.schedule = list(free), schedule
        self.stepped = [
            item.tensor if item.where is None else item.tensor.detach().view(-1)[item.where].clone()
            for item in self.free
        ]
        groups = [
            {"params": [stepped], "scale": item.lr_scale} for stepped, item in zip(self.stepped, self.free, strict=True)
        ]
        betas = (schedule.beta1, schedule.beta2)
        self.optimizer = torch.optim.AdamW(groups, lr=schedule.lr, betas=betas, weight_decay=0.0, fused=True)

    def step(self, lr: float) -> float:
        """Clips by the norm over what is free, steps, clears the gradients; returns the norm."""
        import torch

        with torch.no_grad():
            for item, stepped in zip(self.free, self.stepped, strict=True):
                if item.where is not None:
                    stepped.grad = item.tensor.grad.view(-1)[item.where]
                    item.tensor.grad = None
            norm = float(torch.nn.utils.clip_grad_norm_(self.stepped, self.schedule.clip))
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group["scale"]
            self.optimizer.step()
            for item, stepped in zip(self.free, self.stepped, strict=True):
                stepped.grad = None
                if item.where is not None:
                    item.tensor.view(-1)[item.where] = stepped
        return norm


def fit(
    model: Any,
    free: Sequence[Free],
    examples: Sequence[Example],
    schedule: Schedule,
    *,
    pad: int,
    seed: int,
    progress: Progress,
    note: str,
    logits_of: Callable[[Any, Batch], Any] = answer_logits,
) -> Report:
    """Trains the free tensors of `model` in place on `examples` and returns the evidence.

    A fractional number of passes ends within a pass. Raises NothingLearned when there is nothing to train on.
    """
    report = Report(Counts())
    groups = planned(examples, schedule, seed)
    if not groups or not free:
        raise NothingLearned("There is nothing to train: no pairs, or no tensor that may change.")
    for item in free:
        item.tensor.requires_grad_(True)
    adam = Adam(free, schedule)
    wall, cpu = time.perf_counter(), time.process_time()
    for step, group in enumerate(groups):
        batch = collate(group, pad)
        loss = loss_of(logits_of(model, batch), batch)
        loss.backward()
        adam.step(schedule.lr_at(step, len(groups)))
        report.losses.append(float(loss.detach()))
        report.counts.add(batch)
        report.steps += 1
        progress(step + 1, len(groups), note, loss=round(report.losses[-1], 4))
    report.wall_s, report.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    for item in free:
        item.tensor.requires_grad_(False)
    return report


def planned(examples: Sequence[Example], schedule: Schedule, seed: int) -> list[list[Example]]:
    """All batches of a run in order: whole passes, then the started one."""
    groups: list[list[Example]] = []
    whole = math.ceil(schedule.passes)
    for index in range(whole):
        groups.extend(batched(examples, schedule.batch_tokens, seed + index))
    if whole:
        groups = groups[: max(1, round(len(groups) * schedule.passes / whole))]
    return groups
