"""Recipes: every value that decides how a model learns from notes, in one checked and digested form.

The shipped profiles `demo` and `quick` are for the embedded 135M model; their values are measured (docs/recall.md). A
recipe's digest goes into the passport and binds a verdict of the gate. SPEC.md section 7.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from blake3 import blake3

from hinet_tiers.errors import TierError


class RecipeRefused(TierError):
    """A recipe has an unknown field, a value of the wrong type or one out of range."""

    code = "E_RECIPE"
    exit_code = 2


@dataclass(frozen=True)
class Amounts:
    """How many phrasings of each sort are made for one fact."""

    plain: int = 4
    framed: int = 10
    asked: int = 10
    asked_framed: int = 3
    context: int = 2
    reversed: int = 2
    statement: int = 1
    contrast: float = 6.0
    """Pairs about other people for each fact."""


@dataclass(frozen=True)
class Data(Amounts):
    """Pairs for each fact, by sort, and for everything else."""

    replay: int = 320
    """General prompts, answered by the base itself."""


@dataclass(frozen=True)
class Stage:
    """One training run. `passes` over the pairs may be a fraction; `replay` weighs the divergence from the base."""

    lr: float = 1e-4
    passes: float = 1.0
    batch_tokens: int = 1024
    replay: float = 1.0


@dataclass(frozen=True)
class Cut:
    """The cut of the dense task vector: the `keep` largest of every `chunk` entries."""

    keep: int = 64
    chunk: int = 4096


@dataclass(frozen=True)
class Distill:
    """Teaching the adapter: weights of the teacher's divergence (`soft`), of the answers (`hard`) and of `replay`."""

    lr: float = 1e-3
    passes: float = 1.0
    batch_tokens: int = 1024
    rank: int = 16
    alpha: int = 32
    soft: float = 1.0
    hard: float = 0.1
    replay: float = 1.0
    lr_b_scale: float = 1.0
    """How much faster the B matrices learn than the A matrices (LoRA+)."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training, in sections."""

    name: str = "demo"
    seed: int = 1
    threads: int = 0
    """0: all cores."""
    data: Data = field(default_factory=Data)
    full: Stage = field(default_factory=Stage)
    cut: Cut = field(default_factory=Cut)
    refit: Stage = field(default_factory=Stage)
    distill: Distill = field(default_factory=Distill)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `parse` takes them."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """BLAKE3, as hex, of the recipe's values in a fixed order; the number of threads is not part of it."""
        values = self.as_dict()
        values.pop("threads")
        return blake3(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse(values: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values; what is left out has its default. Raises RecipeRefused naming the field."""
    recipe: Recipe = _section(Recipe, values, "")
    return recipe


def load(name: str) -> Recipe:
    """A shipped profile by its name, or a TOML file by its path. Raises RecipeRefused."""
    try:
        if name.endswith(".toml"):
            text = Path(name).read_text(encoding="utf-8")
        else:
            text = resources.files("hinet_tiers").joinpath("profiles", f"{name}.toml").read_text(encoding="utf-8")
        return parse(tomllib.loads(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeRefused(f"The recipe {name} can't be read ({error}): name demo, quick or a .toml file.") from error


def given(value: Any) -> Recipe:
    """The recipe of a request: a profile's name, a path or plain values."""
    if isinstance(value, str):
        return load(value)
    if isinstance(value, Mapping):
        return parse(value)
    raise RecipeRefused("A recipe is a name, a .toml file or a map of values.")


def _section(kind: Any, values: Mapping[str, Any], path: str) -> Any:
    hints = get_type_hints(kind)
    known = {item.name for item in fields(kind)}
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise RecipeRefused(f"The recipe has the unknown field {path}{key}; known are {', '.join(sorted(known))}.")
        want = hints[key]
        if want in (int, float, str):
            good = isinstance(value, want) or (want is float and isinstance(value, int))
            if not good or isinstance(value, bool) or (want is not str and not 0 <= value < 1_000_000):
                raise RecipeRefused(f"The recipe's {path}{key} is {value!r}; it must be {want.__name__}, not negative.")
            made[key] = want(value)
        elif isinstance(value, Mapping):
            made[key] = _section(want, value, f"{path}{key}.")
        else:
            raise RecipeRefused(f"The recipe's {path}{key} must be a table of values.")
    return kind(**made)
