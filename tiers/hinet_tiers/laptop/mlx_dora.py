"""The laptop's distillation on Apple silicon: base + task vector → DoRA adapter, with mlx-lm.

The same contract as `hinet_tiers.laptop.dora` (which hands over to this where `available()` allows it), and the same
product: an adapter folder in the PEFT layout. Pairs, batches and the loss are those of `hinet_tiers.batches`, said again
in MLX; layers and optimiser are mlx-lm's own. MLX also runs on Linux processors, slowly: that is what the tests use.
SPEC.md section 7.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hinet_tiers.backend import Progress
from hinet_tiers.base import Base, verify_base
from hinet_tiers.batches import SOFT_TOKENS, Batch, Counts, Example, batched, collate, encode
from hinet_tiers.errors import AdapterInert, AdapterRefused
from hinet_tiers.fit import Report, Schedule, planned
from hinet_tiers.sparsify import densify, read_tau

ADAPTER_LEAVES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}
"""A DoRA layer's trained arrays in mlx-lm, and what PEFT calls them. A and B are stored transposed there."""
PEFT_PREFIX = "base_model.model."


def available(system: str = sys.platform, machine: str = platform.machine()) -> str | None:
    """None where this engine trains the laptop's adapters, else one line that says why not. Imports no engine."""
    if (system, machine) != ("darwin", "arm64"):
        return "MLX trains on Apple silicon only; elsewhere torch and PEFT do."
    if find_spec("mlx") is None or find_spec("mlx_lm") is None:
        return "mlx-lm is not installed: `pip install 'hinet-node[laptop]'`."
    return None


def load_base(base: Base) -> Any:
    """The base as an mlx-lm model, widened to float32 and frozen."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    config = json.loads((base.dir / "config.json").read_bytes())
    rope = config["rope_parameters"]
    # mlx-lm's Llama reads these two keys and silently takes a theta of 10000 where they are missing.
    settings = {"rope_theta": rope["rope_theta"], "rope_scaling": rope}
    model, _ = load_model(base.dir, lazy=True, strict=True, model_config=settings)
    model.set_dtype(mx.float32)
    model.freeze()
    mx.eval(model.parameters())
    return model.eval()


def answer_logits(model: Any, ids: Any, places: Any) -> Any:
    """Logits float32 [answer tokens, vocabulary], computed only where answers are predicted."""
    hidden = model.model(ids)
    hidden = hidden.reshape(-1, hidden.shape[-1])[places]
    return model.lm_head(hidden) if "lm_head" in model else model.model.embed_tokens.as_linear(hidden)


def add_soft_targets(
    model: Any, base: Base, tau: Path, examples: Sequence[Example], pad: int, tokens_max: int = 2048
) -> None:
    """Makes `model` the teacher (base + task vector), stores its likeliest answer tokens in each example, and makes it
    the base again, to the last bit. Raises BaseMismatch for a task vector of another base."""
    import mlx.core as mx
    import numpy as np
    from mlx.utils import tree_flatten

    frozen = dict(tree_flatten(model.parameters()))
    changed = [
        (tensor.name, frozen[tensor.name] + mx.array(densify(tensor))) for tensor in read_tau(tau, base.digest, base.shapes)
    ]
    model.load_weights(changed, strict=False)
    try:
        for group in batched(examples, tokens_max, seed=0):
            ids, places, *_ = arrays(collate(group, pad))
            logits = answer_logits(model, ids, places)
            logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            kept = mx.argsort(-logs, axis=-1)[:, :SOFT_TOKENS]
            soft_ids, soft_logs = np.array(kept), np.array(mx.take_along_axis(logs, kept, axis=-1))
            start = 0
            for example in group:
                end = start + len(example.answer)
                example.soft_ids, example.soft_logs = soft_ids[start:end].copy(), soft_logs[start:end].copy()
                start = end
            mx.clear_cache()
    finally:
        model.load_weights([(name, frozen[name]) for name, _ in changed], strict=False)


def arrays(batch: Batch) -> tuple[Any, ...]:
    """A batch as MLX arrays: ids, places, targets, hard, and soft targets (rows, weights, ids, logs)."""
    import mlx.core as mx
    import numpy as np

    plain = [mx.array(tensor.numpy()) for tensor in (batch.ids, batch.places, batch.targets, batch.hard)]
    taught = [example for example in batch.examples if example.soft > 0 and example.soft_ids is not None]
    if not taught:
        return (*plain, None)
    soft = batch.soft.numpy()
    rows = np.flatnonzero(soft > 0)
    stacked = (np.concatenate([getattr(example, name) for example in taught]) for name in ("soft_ids", "soft_logs"))
    return (*plain, tuple(mx.array(array) for array in (rows, soft[rows], *stacked)))


def loss_of(model: Any, ids: Any, places: Any, targets: Any, hard: Any, soft: Any) -> Any:
    """The loss of `hinet_tiers.batches.loss_of`, in nats per answer token."""
    import mlx.core as mx

    logits = answer_logits(model, ids, places)
    logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    loss = -(hard * mx.take_along_axis(logs, targets[:, None], axis=-1)[:, 0]).sum()
    if soft is not None:
        rows, weights, kept, theirs = soft
        loss = loss + (weights * divergence(theirs, mx.take_along_axis(logs[rows], kept, axis=-1))).sum()
    return loss / targets.shape[0]


def divergence(theirs: Any, ours: Any) -> Any:
    """KL(theirs || ours) in nats per row, over the kept tokens and one bucket for all others."""
    import mlx.core as mx

    tiny = 1e-6
    their_rest = mx.maximum(1 - mx.exp(theirs).sum(axis=1), tiny)
    our_rest = mx.maximum(1 - mx.exp(ours).sum(axis=1), tiny)
    kept = (mx.exp(theirs) * (theirs - ours)).sum(axis=1)
    return kept + their_rest * (mx.log(their_rest) - mx.log(our_rest))


def add_dora(model: Any, rank: int, alpha: float, seed: int) -> None:
    """Puts a DoRA layer around every linear layer of every block; only those layers' own arrays are trained."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.random.seed(seed)
    config = {"rank": rank, "scale": alpha / rank, "dropout": 0.0}
    linear_to_lora_layers(model, len(model.layers), config, use_dora=True)
    trained = tree_flatten(model.trainable_parameters())
    assert trained, "nothing would be trained"
    assert all(name.rpartition(".")[2] in ADAPTER_LEAVES for name, _ in trained), "the base would be trained"


def fit(model: Any, examples: Sequence[Example], schedule: Schedule, *, pad: int, seed: int, progress: Progress) -> Report:
    """Trains the adapter layers of `model` in place and returns the evidence. The counterpart of `hinet_tiers.fit.fit`."""
    import mlx.core as mx
    from mlx import nn, optimizers

    report = Report(Counts())
    groups = planned(examples, schedule, seed)
    if not groups:
        raise ValueError("there is nothing to train: no examples")
    adam = optimizers.Adam(schedule.lr, betas=[schedule.beta1, schedule.beta2], bias_correction=True)
    loss_and_grads = nn.value_and_grad(model, loss_of)
    wall, cpu = time.perf_counter(), time.process_time()
    model.train()
    for step, group in enumerate(groups):
        batch = collate(group, pad)
        loss, grads = loss_and_grads(model, *arrays(batch))
        grads, _ = optimizers.clip_grad_norm(grads, schedule.clip)
        adam.learning_rate = schedule.lr_at(step, len(groups))
        adam.update(model, grads)
        mx.eval(loss, model.trainable_parameters(), adam.state)
        # Batches differ in shape, so freed buffers are seldom of use again.
        mx.clear_cache()
        report.losses.append(loss.item())
        report.counts.add(batch)
        report.steps += 1
        progress(step + 1, len(groups), "distilling", loss=round(report.losses[-1], 4))
    model.eval()
    report.wall_s, report.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return report


def peft_tensors(model: Any) -> dict[str, Any]:
    """The trained arrays under PEFT's names and in its shapes: A float32 [rank, in], B [out, rank], magnitude [out].

    Raises AdapterRefused for values that are not finite, AdapterInert when every B is still zero.
    """
    import numpy as np
    from mlx.utils import tree_flatten

    tensors = {}
    for name, array in tree_flatten(model.trainable_parameters()):
        module, _, leaf = name.rpartition(".")
        values = np.array(array, dtype=np.float32)
        if not np.isfinite(values).all():
            raise AdapterRefused(f"Training diverged: {name} holds values that are not finite. Use a lower learning rate.")
        tensors[f"{PEFT_PREFIX}{module}.{ADAPTER_LEAVES[leaf]}"] = np.ascontiguousarray(values.T)
    if not any(tensors[name].any() for name in tensors if name.endswith("lora_B.weight")):
        raise AdapterInert("Training changed nothing: the adapter gives the base's own answers. Use more steps.")
    return dict(sorted(tensors.items()))
