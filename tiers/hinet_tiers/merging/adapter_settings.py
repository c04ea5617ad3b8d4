"""What `adapter_config.json` of a PEFT adapter says, as far as the adapter's delta depends on it.

Everything that would change the delta and is not understood here is refused by its name: PEFT has many kinds of
adapters in the same files, and reading one as another is silently wrong. Leaves to others: the tensors (`adapters`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hinet_tiers.errors import AdapterRefused

SETTINGS = "adapter_config.json"
SETTINGS_BYTES_MAX = 1 << 20
RANK_MAX = 1 << 16
BASE_PREFIX = "base:"
READ = {"r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "peft_type",
        "base_model_name_or_path", "init_lora_weights", "bias", "lora_bias", "modules_to_save"}  # fmt: skip
HARMLESS = {
    "task_type", "inference_mode", "auto_mapping", "revision", "peft_version", "target_modules", "exclude_modules",
    "lora_dropout", "layers_to_transform", "layers_pattern", "megatron_core",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config", "qalora_group_size",
    "ensure_weight_tying", "use_bdlora", "velora_config",
}  # fmt: skip
"""Keys that say which tensors there are (these speak for themselves) or how training began."""
SHIFTED = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin that change the base's own weights: such an adapter is no delta of the base it names."""
_PLAIN = re.compile(r"\^?[A-Za-z0-9_.]{1,512}", re.ASCII)


@dataclass(frozen=True)
class Settings:
    """What a delta depends on. `base` is the digest (hex) of the base that it names, None for a foreign one."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    rank_stabilised: bool
    dora: bool
    transposed: bool
    biased: bool
    """Whether the B of every layer has a bias."""
    trained_biases: bool
    saved: tuple[str, ...]
    """Ends of the names of modules that were saved whole."""
    base: str | None

    def scale_of(self, module: str, rank: int) -> float:
        """alpha / r, or alpha / sqrt(r) for rsLoRA."""
        alpha = _matched(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)

    def stores(self, tensor: str) -> bool:
        """Whether the adapter holds this tensor whole, with values of its own."""
        return (self.trained_biases and tensor.endswith(".bias")) or is_within(tensor, self.saved)

    def rank_of(self, module: str) -> int:
        """The rank that the settings give a module."""
        return int(_matched(self.ranks, module, self.rank))


def is_within(tensor: str, modules: tuple[str, ...]) -> bool:
    """Whether a tensor is of a module (or of one in it) whose name ends as one of these: PEFT's modules_to_save."""
    parts = tensor.split(".")[:-1]
    return any(".".join(parts[: end + 1]).endswith(modules) for end in range(len(parts)))


def _matched(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """PEFT's rule: the first pattern that is the module's name or its end, after a dot."""
    for key, value in pattern.items():
        plain = key.removeprefix("^")
        if module == plain or (not key.startswith("^") and module.endswith(f".{plain}")):
            return value
    return default


def read(folder: Path) -> Settings:
    """Read a folder's settings. Raises AdapterRefused, naming the key that is wrong or not understood."""
    where = f"{folder.name}/{SETTINGS}"
    path = folder / SETTINGS
    if path.stat().st_size > SETTINGS_BYTES_MAX:
        raise AdapterRefused(f"{where} has {path.stat().st_size} bytes and is no file of settings.")
    try:
        given = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(f"{where} is not JSON, so it is foreign or damaged.") from error
    if not isinstance(given, dict) or given.get("peft_type") != "LORA":
        kind = given.get("peft_type") if isinstance(given, dict) else None
        raise AdapterRefused(f"{where}: an adapter of kind {kind!r}; LoRA, rsLoRA and DoRA can be read.")
    for key, value in given.items():
        if value and key not in READ | HARMLESS:
            raise AdapterRefused(f"{where}: {key} is set, and an adapter with it can't be taken for a delta.")
    _refuse_shifted(where, given.get("init_lora_weights"))
    if given.get("use_bdlora") or given.get("velora_config"):
        raise AdapterRefused(f"{where}: use_bdlora or velora_config is set, which can't be taken for a delta.")
    named = given.get("base_model_name_or_path")
    named = named if isinstance(named, str) else ""
    return Settings(
        rank=int(_number(where, "r", given.get("r"), RANK_MAX)),
        alpha=_number(where, "lora_alpha", given.get("lora_alpha"), 1e9),
        ranks={key: int(value) for key, value in _pattern(where, "rank_pattern", given, RANK_MAX).items()},
        alphas=_pattern(where, "alpha_pattern", given, 1e9),
        rank_stabilised=bool(given.get("use_rslora")), dora=bool(given.get("use_dora")),
        transposed=bool(given.get("fan_in_fan_out")), biased=bool(given.get("lora_bias")),
        trained_biases=_biases(where, given.get("bias")), saved=_saved(where, given.get("modules_to_save")),
        base=named.removeprefix(BASE_PREFIX) if named.startswith(BASE_PREFIX) else None,
    )  # fmt: skip


def _refuse_shifted(where: str, begun: Any) -> None:
    if isinstance(begun, str) and begun.lower().startswith(SHIFTED):
        raise AdapterRefused(
            f"{where}: it began as {begun}, which moves the base's own weights, so it is no delta of that base. Save "
            "it with PEFT's path_initial_model_for_weight_conversion, which makes it one."
        )


def _biases(where: str, value: Any) -> bool:
    if value not in (None, "none", "all", "lora_only"):
        raise AdapterRefused(f"{where}: bias is {value!r}; none, all and lora_only are known.")
    return value in ("all", "lora_only")


def _saved(where: str, value: Any) -> tuple[str, ...]:
    names = value or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise AdapterRefused(f"{where}: modules_to_save is no list of names.")
    return tuple(names)


def _number(where: str, key: str, value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise AdapterRefused(f"{where}: {key} is {value!r}, and must be a number above 0.")
    return float(value)


def _pattern(where: str, key: str, given: Mapping[str, Any], most: float) -> dict[str, float]:
    found = given.get(key) or {}
    if not isinstance(found, dict):
        raise AdapterRefused(f"{where}: {key} is no table.")
    for name in found:
        if not _PLAIN.fullmatch(name):
            raise AdapterRefused(f"{where}: {key} has the expression {name!r}; only plain module names can be read.")
    return {name: _number(where, f"{key} of {name}", value, most) for name, value in found.items()}
