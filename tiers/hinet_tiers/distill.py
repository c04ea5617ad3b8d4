"""What every distillation shares, whichever engine trains the student: which pairs are used, and what the teacher says.

The teacher is the base plus the sparse task vector; for replay it is the base itself, so that what the teacher lost in
general ability is not handed down. The likeliest tokens and their log-probabilities are computed once, for the pairs
that will be read and no others: a forward pass costs a third of a training step. SPEC.md section 7.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from hinet_tiers import recipes, sparsify
from hinet_tiers.backend import Progress
from hinet_tiers.batches import Example, add_soft_targets


def chosen(examples: list[Example], recipe: recipes.Recipe) -> list[Example]:
    """The examples that `passes` over all of them read, in a drawn order; whole passes repeat them."""
    values = recipe.distill
    draw = random.Random(recipe.seed + 2000)  # noqa: S311 - an order, no secret
    listed: list[Example] = []
    left = round(values.passes * len(examples))
    while left > 0:
        order = list(examples)
        draw.shuffle(order)
        listed.extend(order[:left])
        left -= len(order)
    return listed


def taught(
    model: Any,
    tau: Path,
    base_digest: str,
    examples: list[Example],
    recipe: recipes.Recipe,
    pad: int,
    progress: Progress,
) -> dict[str, Any]:
    """Gives `examples` the teacher's soft targets. `model` is the base, and is the base again afterwards.

    Returns the evidence {teacher_changed, teacher_wall_s, teacher_cpu_s}. Raises BaseMismatch.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    progress(0, 1, "asking the teacher")
    distinct = list({id(example): example for example in examples}.values())
    add_soft_targets(model, [example for example in distinct if example.kind == "replay"], pad)
    names = {row.name for row in sparsify.read_tau_header(tau).tensors}
    before = {name: value.detach().clone() for name, value in model.named_parameters() if name in names}
    changed = sparsify.apply_tau(tau, base_digest, model)
    add_soft_targets(model, [example for example in distinct if example.kind != "replay"], pad)
    for name, value in model.named_parameters():
        if name in before:
            value.data.copy_(before[name])
    for example in examples:
        example.soft = recipe.distill.replay if example.kind == "replay" else recipe.distill.soft
        example.hard = 0.0 if example.kind == "replay" else recipe.distill.hard
    return {
        "teacher_changed": changed,
        "teacher_wall_s": round(time.perf_counter() - wall, 1),
        "teacher_cpu_s": round(time.process_time() - cpu, 1),
    }
