"""The laptop's distillation on Apple silicon: base + task vector → DoRA adapter, with mlx-lm.

The same contract as `hinet_tiers.laptop.dora` (which hands over to this where `available()` allows it), and the same
product: an adapter folder in the PEFT layout. Pairs, batches and the loss are those of `hinet_tiers.batches`, the loss
said again in MLX; layers and optimiser are mlx-lm's own. MLX also runs on Linux processors, slowly: the tests use that.
SPEC.md section 7.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hinet_tiers import recipes
from hinet_tiers.backend import Progress
from hinet_tiers.base import Base, verify_base
from hinet_tiers.batches import SOFT_TOKENS, Batch, Counts, Example, batched, collate, encode
from hinet_tiers.data import read_pairs
from hinet_tiers.distill import chosen
from hinet_tiers.errors import AdapterRefused
from hinet_tiers.fit import NothingLearned, Report, Schedule, planned
from hinet_tiers.prompt import STOP
from hinet_tiers.sparsify import densify, read_tau

ADAPTER_LEAVES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}
"""A DoRA layer's trained arrays in mlx-lm, and what PEFT calls them. A and B are stored transposed there."""
SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE_KEY = "hinet_base"
"""Where the tensor file's metadata name the base digest; in the settings it is the `base_model_name_or_path`."""
PEFT_PREFIX = "base_model.model."


def available(system: str = sys.platform, machine: str = platform.machine()) -> str | None:
    """None where this engine trains the laptop's adapters, else one line that says why not. Imports no engine."""
    if (system, machine) != ("darwin", "arm64"):
        return "MLX trains on Apple silicon only; elsewhere torch and PEFT do."
    if find_spec("mlx") is None or find_spec("mlx_lm") is None:
        return "mlx-lm is not installed: `pip install 'hinet-node[laptop]'`."
    return None


def distill(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `train.distill {base_dir, tau, pairs, recipe, out_dir}` → {adapter_dir, metrics}, as `dora.distill`.

    `adapter` in `out_dir` is written whole or not at all. Raises BaseMismatch for a task vector of another base,
    NothingLearned or AdapterRefused for an adapter that is of no use.
    """
    from transformers import PreTrainedTokenizerFast

    recipe = recipes.given(args["recipe"])
    base, tau = verify_base(Path(args["base_dir"])), Path(args["tau"])
    read_tau(tau, base.digest, base.shapes)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base.dir, local_files_only=True)
    pad = tokenizer.convert_tokens_to_ids(STOP)
    examples = chosen(encode(read_pairs(Path(args["pairs"])), tokenizer), recipe)
    if not examples:
        raise NothingLearned("There are no pairs to distil with: prepare the notes first.")
    progress(0, 1, "asking the teacher")
    model = load_base(base)
    told = taught(model, base, tau, examples, recipe, pad)
    add_dora(model, recipe)
    report = fit(model, examples, recipe, pad=pad, progress=progress)
    tensors = peft_tensors(model)
    folder = Path(args["out_dir"]) / "adapter"
    write_adapter(folder, tensors, recipe, base.digest)
    changed = sum(int((array != 0).sum()) for name, array in tensors.items() if name.endswith("lora_B.weight"))
    metrics = report.as_dict() | told | {
        "engine": "mlx-lm", "recipe": recipe.digest, "base": base.digest, "changed_parameters": changed,
        "adapter_bytes": (folder / WEIGHTS).stat().st_size, "rank": recipe.distill.rank,
    }  # fmt: skip
    return {"adapter_dir": str(folder), "metrics": metrics}


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


def taught(
    model: Any, base: Base, tau: Path, examples: Sequence[Example], recipe: recipes.Recipe, pad: int
) -> dict[str, Any]:
    """Gives `examples` soft targets as `hinet_tiers.distill.taught` does: the teacher's, or for replay the base's.

    `model` is the base, and is the base again afterwards, to the last bit.

    Returns the evidence {teacher_changed, teacher_wall_s, teacher_cpu_s}. Raises BaseMismatch.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    wall, cpu = time.perf_counter(), time.process_time()
    distinct = list({id(example): example for example in examples}.values())
    add_soft_targets(model, [example for example in distinct if example.kind == "replay"], pad)
    frozen = dict(tree_flatten(model.parameters()))
    changed, teacher = 0, []
    for tensor in read_tau(tau, base.digest, base.shapes):
        teacher.append((tensor.name, frozen[tensor.name] + mx.array(densify(tensor))))
        changed += len(tensor.values)
    model.load_weights(teacher, strict=False)
    add_soft_targets(model, [example for example in distinct if example.kind != "replay"], pad)
    model.load_weights([(name, frozen[name]) for name, _ in teacher], strict=False)
    for example in examples:
        example.soft = recipe.distill.replay if example.kind == "replay" else recipe.distill.soft
        example.hard = 0.0 if example.kind == "replay" else recipe.distill.hard
    return {
        "teacher_changed": changed,
        "teacher_wall_s": round(time.perf_counter() - wall, 1),
        "teacher_cpu_s": round(time.process_time() - cpu, 1),
    }


def add_soft_targets(model: Any, examples: Sequence[Example], pad: int, tokens_max: int = 2048) -> None:
    """Runs `model` once over `examples` and stores its likeliest answer tokens in each (numpy, in no order)."""
    import mlx.core as mx
    import numpy as np

    for group in batched(examples, tokens_max, seed=0):
        ids, places, *_ = arrays(collate(group, pad))
        logits = answer_logits(model, ids, places)
        logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        kept = mx.argpartition(-logs, SOFT_TOKENS - 1, axis=-1)[:, :SOFT_TOKENS]
        soft_ids, soft_logs = np.array(kept), np.array(mx.take_along_axis(logs, kept, axis=-1))
        start = 0
        for example in group:
            end = start + len(example.answer)
            example.soft_ids, example.soft_logs = soft_ids[start:end].copy(), soft_logs[start:end].copy()
            start = end
        mx.clear_cache()


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


def add_dora(model: Any, recipe: recipes.Recipe) -> None:
    """Puts a DoRA layer around every linear layer of every block; only those layers' own arrays will be trained."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.random.seed(recipe.seed)
    config = {"rank": recipe.distill.rank, "scale": recipe.distill.alpha / recipe.distill.rank, "dropout": 0.0}
    linear_to_lora_layers(model, len(model.layers), config, use_dora=True)
    trained = tree_flatten(model.trainable_parameters())
    assert trained, "nothing would be trained"
    assert all(name.rpartition(".")[2] in ADAPTER_LEAVES for name, _ in trained), "the base would be trained"


def fit(model: Any, examples: Sequence[Example], recipe: recipes.Recipe, *, pad: int, progress: Progress) -> Report:
    """Trains the adapter layers of `model` in place on `examples`, once each, and returns the evidence.

    The counterpart of `hinet_tiers.fit.fit`. Raises NothingLearned when there are none.
    """
    import mlx.core as mx
    from mlx import nn, optimizers

    wanted = recipe.distill
    schedule = Schedule(lr=wanted.lr, passes=1.0, batch_tokens=wanted.batch_tokens)
    groups = planned(examples, schedule, recipe.seed + 2000)
    if not groups:
        raise NothingLearned("There is nothing to train: no pairs.")
    report = Report(Counts())
    scales = (wanted.lr_b_scale, 1.0)
    adams = [optimizers.Adam(wanted.lr, betas=[schedule.beta1, schedule.beta2], bias_correction=True) for _ in scales]
    optimizer = optimizers.MultiOptimizer(adams, [lambda name, _: name.endswith("lora_b")])
    loss_and_grads = nn.value_and_grad(model, loss_of)
    wall, cpu = time.perf_counter(), time.process_time()
    model.train()
    for step, group in enumerate(groups):
        batch = collate(group, pad)
        loss, grads = loss_and_grads(model, *arrays(batch))
        grads, _ = optimizers.clip_grad_norm(grads, schedule.clip)
        for adam, scale in zip(adams, scales, strict=True):
            adam.learning_rate = schedule.lr_at(step, len(groups)) * scale
        optimizer.update(model, grads)
        mx.eval(loss, model.trainable_parameters(), optimizer.state)
        # Batches differ in shape, so freed buffers are seldom of use again.
        mx.clear_cache()
        report.losses.append(loss.item())
        report.counts.add(batch)
        report.steps += 1
        loss_now = round(report.losses[-1], 4)
        progress(step + 1, len(groups), "distilling into the adapter", loss=loss_now)
    model.eval()
    report.wall_s, report.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return report


def peft_tensors(model: Any) -> dict[str, Any]:
    """The trained arrays under PEFT's names and in its shapes: A float32 [rank, in], B [out, rank], magnitude [out].

    Raises AdapterRefused for values that are not finite, NothingLearned when every B is still zero.
    """
    import numpy as np
    from mlx.utils import tree_flatten

    tensors = {}
    for name, array in tree_flatten(model.trainable_parameters()):
        module, _, leaf = name.rpartition(".")
        values = np.array(array, dtype=np.float32)
        if not np.isfinite(values).all():
            raise AdapterRefused(
                f"Training diverged: {name} holds values that are not finite. Use a lower learning rate."
            )
        tensors[f"{PEFT_PREFIX}{module}.{ADAPTER_LEAVES[leaf]}"] = np.ascontiguousarray(values.T)
    if not any(tensors[name].any() for name in tensors if name.endswith("lora_B.weight")):
        raise NothingLearned("The distillation changed no parameter of the adapter.")
    return dict(sorted(tensors.items()))


def write_adapter(folder: Path, tensors: Mapping[str, Any], recipe: recipes.Recipe, base_digest: str) -> None:
    """Writes an adapter folder as `dora.save` does: PEFT's layout, with the base digest in settings and metadata."""
    from peft import LoraConfig
    from safetensors.numpy import save_file

    targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    config = LoraConfig(
        r=recipe.distill.rank, lora_alpha=recipe.distill.alpha, use_dora=True, lora_dropout=0.0, bias="none",
        target_modules=targets, task_type="CAUSAL_LM", base_model_name_or_path=f"base:{base_digest}",
    )  # fmt: skip
    settings = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
    settings["inference_mode"] = True
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        (part / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        # One key only: safetensors writes several in an order that differs from run to run.
        save_file(dict(tensors), str(part / WEIGHTS), metadata={BASE_KEY: base_digest})
        for path in part.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
