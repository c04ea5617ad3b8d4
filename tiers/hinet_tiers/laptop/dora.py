"""A DoRA adapter on the laptop: the teacher (base + task vector) is rebuilt and distilled into it by PEFT.

`distill` is the worker's verb; on Apple silicon it hands over to `mlx_dora`. The product is a folder in PEFT's layout
whose settings name the base digest. An unmerged DoRA recomputes weight norms at every token, so it is merged before
anything is generated with it. SPEC.md section 7.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_tiers import recipes
from hinet_tiers.backend import Progress
from hinet_tiers.base import load_base, read_base
from hinet_tiers.batches import Batch, Example, answer_logits, encode
from hinet_tiers.data import read_pairs
from hinet_tiers.distill import chosen, taught
from hinet_tiers.errors import BaseMismatch
from hinet_tiers.fit import Free, NothingLearned, Schedule, fit, use_threads
from hinet_tiers.laptop import mlx_dora
from hinet_tiers.laptop.dora_forward import rearranged
from hinet_tiers.prompt import STOP

SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE_KEY = "hinet_base"
"""Where the tensor file's metadata names the base digest, as the settings do in `base_model_name_or_path`."""


def distill(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `train.distill {base_dir, tau, pairs, recipe, out_dir}` → {adapter_dir, metrics}."""
    if mlx_dora.available() is None:
        return mlx_dora.distill(args, progress)
    recipe = recipes.given(args["recipe"])
    base = read_base(Path(args["base_dir"]))
    threads = use_threads(recipe.threads)
    model, tokenizer = load_base(base.dir)
    pad = tokenizer.convert_tokens_to_ids(STOP)
    examples = chosen(encode(read_pairs(Path(args["pairs"])), tokenizer), recipe)
    if not examples:
        raise NothingLearned("There are no pairs to distil with: prepare the notes first.")
    taught_s = taught(model, Path(args["tau"]), base.digest, examples, recipe, pad, progress)
    student, report = train_adapter(model, examples, recipe, pad=pad, progress=progress)
    changed = changed_parameters(student)
    if not changed or not report.counts.trained_tokens:
        raise NothingLearned("The distillation changed no parameter of the adapter.")
    folder = Path(args["out_dir"]) / "adapter"
    save(student, folder, base.digest)
    metrics = report.as_dict() | taught_s | {
        "threads": threads, "recipe": recipe.digest, "base": base.digest, "changed_parameters": changed,
        "adapter_bytes": (folder / WEIGHTS).stat().st_size, "rank": recipe.distill.rank,
    }  # fmt: skip
    return {"adapter_dir": str(folder), "metrics": metrics}


def train_adapter(
    model: Any, examples: list[Example], recipe: recipes.Recipe, *, pad: int, progress: Progress
) -> tuple[Any, Any]:
    """Wraps `model` (the base) with DoRA on all linear layers and trains it on soft targets; returns both."""
    import torch
    from peft import LoraConfig, get_peft_model

    values = recipe.distill
    torch.manual_seed(recipe.seed)
    settings = LoraConfig(
        r=values.rank, lora_alpha=values.alpha, lora_dropout=0.0, use_dora=True, target_modules="all-linear",
        bias="none", task_type="CAUSAL_LM",
    )  # fmt: skip
    student = get_peft_model(model, settings)
    student.eval()
    free = [
        Free(name, parameter, lr_scale=values.lr_b_scale if "lora_B" in name else 1.0)
        for name, parameter in student.named_parameters()
        if parameter.requires_grad
    ]
    inner = student.get_base_model()

    def logits_of(_: Any, batch: Batch) -> Any:
        return answer_logits(inner, batch)

    schedule = Schedule(lr=values.lr, passes=1.0, batch_tokens=values.batch_tokens)
    with rearranged(student):
        report = fit(
            student,
            free,
            examples,
            schedule,
            pad=pad,
            seed=recipe.seed + 2000,
            progress=progress,
            note="distilling into the adapter",
            logits_of=logits_of,
        )
    return student, report


def changed_parameters(student: Any) -> int:
    """How many numbers of the adapter's B matrices are not zero, which they all are before training."""
    import torch

    return sum(int(torch.count_nonzero(p)) for name, p in student.named_parameters() if "lora_B" in name)


def save(student: Any, folder: Path, base_digest: str) -> None:
    """Writes the adapter in PEFT's layout, whole or not at all, with the base digest in its settings and metadata."""
    from safetensors.torch import load_file, save_file

    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    student.save_pretrained(str(part), save_embedding_layers=False)
    tensors = load_file(part / WEIGHTS)
    save_file(tensors, part / WEIGHTS, metadata={"format": "pt", BASE_KEY: base_digest})
    settings = json.loads((part / SETTINGS).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = f"base:{base_digest}"
    (part / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (part / "README.md").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def merged(model: Any, folder: Path, base_digest: str) -> Any:
    """`model` (the base) with an adapter merged into its weights. Raises BaseMismatch for another base's adapter."""
    from peft import PeftModel

    named = json.loads((folder / SETTINGS).read_text(encoding="utf-8")).get("base_model_name_or_path", "")
    if named != f"base:{base_digest}":
        raise BaseMismatch(
            f"The adapter in {folder} belongs to {named or 'no named base'}, not to base {base_digest[:12]}."
        )
    whole = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    return whole.eval().requires_grad_(False)
