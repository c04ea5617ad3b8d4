"""A PEFT adapter folder (LoRA, rsLoRA or DoRA) as the GGUF LoRA that llama.cpp swaps in.

llama.cpp knows no DoRA: its change of each matrix, magnitudes included, is written as a truncated singular value
decomposition, and how much of the change that loses is measured and returned. A plain LoRA that fits the wanted rank is
taken over as it is. One matrix is held at a time; the same folder gives the same bytes (a fixed seed drives the
decomposition).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_tiers import gguf_names, safetensors_file
from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.base import Base, verify_base
from hinet_tiers.errors import AdapterInert, AdapterRefused, BadRequest, BaseMismatch, BaseRefused
from hinet_tiers.pocket.llamacpp import BASE_KEY, RANK_MAX, check_adapter
from hinet_tiers.safetensors_file import Entry

if TYPE_CHECKING:
    import torch

RANK = 32
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
CONFIG_BASE_KEY = "base_model_name_or_path"
"""The field of adapter_config.json that names the base, as `base:<digest>`."""
CONFIG_BYTES_MAX = 1 << 20
PREFIX = "base_model.model."
SVD_SEED = 0x48694E65
SVD_OVERSAMPLING = 8
SVD_ROUNDS = 3


@dataclass(frozen=True)
class Module:
    """The parts of one adapted matrix. `magnitude` is there for DoRA only. `name` is the base's tensor name."""

    name: str
    down: Entry
    up: Entry
    magnitude: Entry | None
    keys: tuple[str, str, str]


def export_adapter(
    base: Base, adapter_dir: Path, out: Path, rank: int = RANK, progress: Progress = no_progress
) -> dict[str, Any]:
    """Write `adapter_dir` as a GGUF LoRA to `out`, whole or not at all. Returns its metrics.

    Metrics: rank, tensors, bytes, delta (L2 norm of the change), delta_error (share of it that was lost, as L2).
    Raises BaseMismatch, AdapterRefused (naming the tensor) or AdapterInert when the adapter changes nothing.
    """
    import torch

    if type(rank) is not int or not 1 <= rank <= RANK_MAX:
        raise BadRequest(f"rank is {rank!r}; 1 to {RANK_MAX} are allowed.")
    config = read_config(adapter_dir, base.digest)
    modules = read_modules(adapter_dir, base.shapes, config["r"], bool(config.get("use_dora")))
    root = config["r"] ** 0.5 if config.get("use_rslora") else config["r"]
    scale = config["lora_alpha"] / root
    weights = safetensors_file.read_header(base.weights)
    pairs: dict[str, Any] = {}
    total = lost = 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SVD_SEED)
        for step, module in enumerate(modules):
            progress(step, len(modules), "converting the adapter")
            delta, factors = _delta(base, weights, adapter_dir / WEIGHTS, module, scale)
            if module.magnitude is not None or config["r"] > rank:
                factors = _decompose(delta, rank)
            total += float(delta.double().square().sum())
            lost += float((delta - factors[1] @ factors[0]).double().square().sum())
            pairs[module.name] = factors
    if not math.isfinite(total):
        raise AdapterRefused(f"{adapter_dir.name} holds values that are not finite.")
    if total == 0:
        raise AdapterInert(f"The adapter {adapter_dir.name} changes nothing: all of its matrices are zero.")
    _write(base, pairs, out)
    progress(len(modules), len(modules), "converted the adapter")
    return {
        "rank": max(int(down.shape[0]) for down, _ in pairs.values()), "tensors": len(pairs),
        "bytes": out.stat().st_size, "delta": math.sqrt(total), "delta_error": math.sqrt(lost / total),
    }  # fmt: skip


def read_config(adapter_dir: Path, base_digest: str) -> dict[str, Any]:
    """`adapter_config.json`, checked. Raises BaseMismatch for another base, AdapterRefused for what is unknown."""
    path = adapter_dir / CONFIG
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ValueError("too long")
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterRefused(f"{path} is missing or damaged.") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterRefused(f"{path} describes no LoRA or DoRA adapter.")
    named = str(config.get(CONFIG_BASE_KEY) or "")
    if named != f"base:{base_digest}":
        theirs = f"base {named[5:17]}" if named.startswith("base:") else "a base that it does not name"
        raise BaseMismatch(f"The adapter {adapter_dir.name} belongs to {theirs}, not to {base_digest[:12]}.")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= RANK_MAX:
        raise AdapterRefused(f"{path}: the rank {rank!r} is outside 1 to {RANK_MAX}.")
    if type(alpha) not in (int, float) or not math.isfinite(alpha) or alpha == 0:
        raise AdapterRefused(f"{path}: lora_alpha is {alpha!r}.")
    for key in ("rank_pattern", "alpha_pattern", "fan_in_fan_out", "modules_to_save", "layer_replication"):
        if config.get(key):
            raise AdapterRefused(f"{path} sets {key}, which the pocket's form can't express.")
    if config.get("bias", "none") != "none":
        raise AdapterRefused(f"{path} trains biases, which the pocket's form can't express.")
    return config


def read_modules(adapter_dir: Path, shapes: Mapping[str, tuple[int, ...]], rank: int, dora: bool) -> list[Module]:
    """The adapter's matrices in name order, each with its shapes checked against the base's."""
    path = adapter_dir / WEIGHTS
    if not path.is_file():
        raise AdapterRefused(f"{adapter_dir} lacks {WEIGHTS}.")
    try:
        entries = safetensors_file.read_header(path)
    except BaseRefused as error:
        raise AdapterRefused(f"The adapter can't be used: {error}") from error
    parts: dict[str, dict[str, str]] = {}
    for key in entries:
        stem, _, kind = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        if not key.startswith(PREFIX) or kind not in ("A", "B", "magnitude_vector"):
            raise AdapterRefused(f"{WEIGHTS} holds {key}, which is no part of a LoRA or DoRA.")
        parts.setdefault(f"{stem}.weight", {})[kind] = key
    if not parts:
        raise AdapterRefused(f"{WEIGHTS} holds no tensors.")
    wanted = {"A", "B", "magnitude_vector"} if dora else {"A", "B"}
    modules = []
    for name, keys in sorted(parts.items()):
        if set(keys) != wanted:
            raise AdapterRefused(f"{WEIGHTS}: {name} has the parts {sorted(keys)} where it needs {sorted(wanted)}.")
        modules.append(_module(name, keys, entries, shapes, rank))
    return modules


def _module(
    name: str, keys: dict[str, str], entries: dict[str, Entry], shapes: Mapping[str, tuple[int, ...]], rank: int
) -> Module:
    shape = shapes.get(name, ())
    if len(shape) != 2 or not name.startswith("model.layers."):
        raise AdapterRefused(f"The adapter changes {name}, which is no linear layer of the base.")
    down, up = entries[keys["A"]], entries[keys["B"]]
    magnitude = entries[keys["magnitude_vector"]] if "magnitude_vector" in keys else None
    found = [list(down.shape), list(up.shape)] + ([list(magnitude.shape)] if magnitude else [])
    needed = [[rank, shape[1]], [shape[0], rank]] + ([[shape[0]]] if magnitude else [])
    if found != needed:
        raise AdapterRefused(f"The adapter's parts for {name} have the shapes {found} where the base needs {needed}.")
    return Module(name, down, up, magnitude, (keys["A"], keys["B"], keys.get("magnitude_vector", "")))


def _delta(
    base: Base, weights: Mapping[str, Entry], path: Path, module: Module, scale: float
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """The exact change of one matrix, and the pair (down, up · scale) that a plain LoRA makes it of."""
    import torch

    def part(key: str, entry: Entry) -> torch.Tensor:
        return torch.from_numpy(safetensors_file.read_float32(path, key, entry))

    down = part(module.keys[0], module.down)
    up = part(module.keys[1], module.up) * scale
    delta = up @ down
    if module.magnitude is not None:
        magnitude = part(module.keys[2], module.magnitude)
        weight = torch.from_numpy(
            safetensors_file.read_float32(base.weights, module.name, weights[module.name])
        )
        turned = weight + delta
        norms = torch.linalg.norm(turned, dim=1)
        if not bool((norms > 0).all()):
            raise AdapterRefused(f"The adapter makes a row of {module.name} zero, which DoRA has no direction for.")
        delta = turned * (magnitude / norms)[:, None] - weight
    if not bool(torch.isfinite(delta).all()):
        raise AdapterRefused(f"The adapter's parts for {module.name} hold values that are not finite.")
    return delta, (down, up)


def _decompose(delta: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best pair (down [rank, in], up [out, rank]) whose product is the change, found by random projection."""
    import torch

    most = min(delta.shape)
    left, strengths, right = torch.svd_lowrank(delta, q=min(most, rank + SVD_OVERSAMPLING), niter=SVD_ROUNDS)
    kept = min(rank, most)
    roots = strengths[:kept].clamp_min(0).sqrt()
    return (right[:, :kept] * roots).T.contiguous(), (left[:, :kept] * roots).contiguous()


def _write(base: Base, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], out: Path) -> None:
    import gguf
    import numpy as np

    config = json.loads((base.dir / "config.json").read_bytes())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rank = max(int(down.shape[0]) for down, _ in pairs.values())
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    try:
        writer = gguf.GGUFWriter(part, "llama")
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(rank))
        writer.add_string(BASE_KEY, base.digest)
        for name, (down, up) in pairs.items():
            gguf_name = gguf_names.to_gguf(name)
            # llama.cpp scales each pair by alpha / its own rank, which is 1 only where that rank is the highest.
            rows = (up * (int(down.shape[0]) / rank)).numpy()
            permuted = gguf_names.heads_of(gguf_name, heads, kv_heads)
            if permuted is not None:
                rows = gguf_names.interleave(rows, permuted)
            for side, values in (("a", down.numpy()), ("b", rows)):
                halves = np.ascontiguousarray(values, np.float16)
                if not np.isfinite(halves).all():
                    raise AdapterRefused(f"The adapter's change of {name} is too large for 16-bit numbers.")
                writer.add_tensor(f"{gguf_name}.lora_{side}", halves)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        shapes = {gguf_names.to_gguf(name): shape for name, shape in base.shapes.items()}
        check_adapter(part, base.digest, shapes)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def to_gguf_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `adapter.to_gguf {base_dir, adapter_dir, out, rank?}` → {path, metrics}."""
    base = verify_base(Path(args["base_dir"]))
    out = Path(args["out"])
    metrics = export_adapter(base, Path(args["adapter_dir"]), out, args.get("rank") or RANK, progress)
    return {"path": str(out), "metrics": metrics}
