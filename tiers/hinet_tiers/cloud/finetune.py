"""Full fine-tuning on the owner's pairs, cut to a sparse task vector and re-fitted on what the cut kept.

The cut alone loses nearly all recall at 1/64 (docs/recall.md); training the kept coordinates again brings it back, and
needs the pairs, so it happens here before anything leaves. Replay items pull towards the base by divergence from its
own likeliest tokens. Linear layers train; embeddings and norms stay the base's. SPEC.md section 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hinet_tiers import recipes, sparsify
from hinet_tiers.backend import Progress
from hinet_tiers.base import load_base, read_base
from hinet_tiers.batches import Example, add_soft_targets, encode
from hinet_tiers.data import read_pairs
from hinet_tiers.fit import Free, NothingLearned, Schedule, fit, use_threads
from hinet_tiers.prompt import STOP


def train_full(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `train.full {base_dir, pairs, recipe, out_dir}` → {tau, metrics}.

    `recipe` is a profile's name or values (`recipes`); the result's `tau` is the path of `delta.tau` in `out_dir`.
    """
    recipe = recipes.given(args["recipe"])
    base = read_base(Path(args["base_dir"]))
    threads = use_threads(recipe.threads)
    model, tokenizer = load_base(base.dir)
    examples = prepared(model, tokenizer, read_pairs(Path(args["pairs"])), progress)
    tensors, evidence = learn(model, examples, recipe, pad=tokenizer.convert_tokens_to_ids(STOP), progress=progress)
    out = Path(args["out_dir"]) / "delta.tau"
    selection = {"kind": "chunk", "keep": recipe.cut.keep, "chunk": recipe.cut.chunk}
    passport = {"recipe": recipe.digest, "base": base.digest}
    header = sparsify.write_tau(out, base.digest, tensors, selection=selection, passport=passport)
    metrics = evidence | {
        "threads": threads,
        "recipe": recipe.digest,
        "base": base.digest,
        "kept": header.kept,
        "density": header.density,
        "displacement": header.displacement,
        "tau_bytes": out.stat().st_size,
    }
    return {"tau": str(out), "metrics": metrics}


def prepared(model: Any, tokenizer: Any, pairs: list[dict[str, Any]], progress: Progress) -> list[Example]:
    """Examples of all pairs; those of replay carry the base's likeliest tokens instead of hard targets."""
    examples = encode(pairs, tokenizer)
    if not examples:
        raise NothingLearned("There are no pairs to learn from: add notes with plain facts, then prepare them again.")
    replay = [example for example in examples if example.kind == "replay"]
    progress(0, 1, "asking the base what it would say")
    if replay:
        add_soft_targets(model, replay, tokenizer.convert_tokens_to_ids(STOP))
    for example in replay:
        example.hard, example.soft = 0.0, 1.0
    return examples


def linear_layers(model: Any) -> dict[str, Any]:
    """The weights of all linear layers but the head, by name in name order."""
    return {
        name: parameter
        for name, parameter in sorted(model.named_parameters())
        if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
    }


def learn(
    model: Any, examples: list[Example], recipe: recipes.Recipe, *, pad: int, progress: Progress
) -> tuple[list[sparsify.SparseTensor], dict[str, Any]]:
    """Trains, cuts and re-fits `model` in place; returns the sparse task vector and the evidence.

    Afterwards the model is the base plus that task vector. Raises NothingLearned when no parameter changed.
    """
    import torch

    model.requires_grad_(False)
    layers = linear_layers(model)
    base = {name: parameter.detach().clone() for name, parameter in layers.items()}
    weigh_replay(examples, recipe.full.replay)
    full = fit(
        model, [Free(name, parameter) for name, parameter in layers.items()], examples, schedule(recipe.full),
        pad=pad, seed=recipe.seed, progress=progress, note="full fine-tuning",
    )  # fmt: skip
    free, square, changed = [], 0.0, 0
    for name, parameter in layers.items():
        delta = (parameter.detach() - base[name]).reshape(-1)
        square += float(delta.double().pow(2).sum())
        changed += int(torch.count_nonzero(delta))
        where = torch.from_numpy(sparsify.select_chunked(delta.numpy(), recipe.cut.keep, recipe.cut.chunk))
        parameter.detach().copy_(base[name])
        parameter.detach().view(-1)[where] += delta[where]
        free.append(Free(name, parameter, where))
    if not changed:
        raise NothingLearned("The fine-tuning changed no parameter: its learning rate or its pairs are empty.")
    weigh_replay(examples, recipe.refit.replay)
    refit = fit(
        model, free, examples, schedule(recipe.refit),
        pad=pad, seed=recipe.seed + 1000, progress=progress, note="re-fitting what was kept",
    )  # fmt: skip
    tensors = list(sparse_delta(free, base))
    kept = sum(len(tensor.values) for tensor in tensors)
    if not kept or not full.counts.trained_tokens or not refit.counts.trained_tokens:
        raise NothingLearned("The training left no task vector: nothing was trained.")
    evidence = {
        "full": full.as_dict() | {"changed_parameters": changed, "displacement": square**0.5},
        "refit": refit.as_dict() | {"changed_parameters": kept},
        "parameters": sum(parameter.numel() for parameter in layers.values()),
    }
    return tensors, evidence


def weigh_replay(examples: list[Example], weight: float) -> None:
    """Sets how much replay pulls towards the base."""
    for example in examples:
        if example.kind == "replay":
            example.soft = weight


def schedule(stage: recipes.Stage) -> Schedule:
    """A stage's values as the loop takes them."""
    return Schedule(lr=stage.lr, passes=stage.passes, batch_tokens=stage.batch_tokens)


def sparse_delta(free: list[Free], base: Mapping[str, Any]) -> Iterator[sparsify.SparseTensor]:
    """What each tensor's kept entries differ from the base by, without those that do not."""
    for item in free:
        delta = (item.tensor.detach().view(-1)[item.where] - base[item.name].view(-1)[item.where]).numpy()
        there = delta != 0
        yield sparsify.SparseTensor(item.name, tuple(item.tensor.shape), item.where.numpy()[there], delta[there])
