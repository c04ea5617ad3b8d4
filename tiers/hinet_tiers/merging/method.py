"""The form of a merge method: its settings, what it needs, and a step that merges one tensor.

A method is a module with one constant, `METHOD`, and a row in `registry.METHODS`. `METHOD.start(run)` makes what has to
be known over all tensors (thresholds, Gram matrices) and gives back the step; the engine then calls
`step(name, inputs)` for each tensor, in the order of `run.shapes`. One input alone never reaches a method: the engine
gives it back as it is, times its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.errors import MergeSetting
from hinet_tiers.merging.deltas import Delta
from hinet_tiers.sparsify import SparseTensor

if TYPE_CHECKING:
    from hinet_tiers.weights import Weights

Values = npt.NDArray[np.float32]
Step = Callable[[str, Sequence[SparseTensor | None]], Values]
"""`step(name, inputs)`: one tensor of every input (None: it doesn't change that tensor, so it counts as zeros) → the
merged delta of that tensor, float32 with `prod(shape)` entries, fresh."""
KeepMask = Callable[[int, str, npt.NDArray[np.int64]], None]
"""`keep_mask(input, name, positions)`: a method that serves by masks tells which entries that input takes."""
NEEDS = frozenset({"matrix", "adapters", "base", "data"})


@dataclass(frozen=True)
class Setting:
    """A number that a method can be given, from `low` to `high` (both allowed); `whole` ones have no fraction."""

    name: str
    default: float
    low: float
    high: float
    help: str
    whole: bool = False


SCALE = Setting("scale", 1.0, -10.0, 10.0, "λ: the merged delta is multiplied by it")


def scale(default: float, source: str = "") -> Setting:
    """The setting `scale` with a method's own default."""
    return Setting("scale", default, SCALE.low, SCALE.high, SCALE.help + (f" ({source})" if source else ""))


def no_mask(index: int, name: str, positions: npt.NDArray[np.int64]) -> None:
    """A run whose masks nobody wants."""


@dataclass
class Run:
    """What a method works with. `weights` has one factor for each delta (negative ones too, never zero)."""

    deltas: Sequence[Delta]
    weights: Sequence[float]
    settings: Mapping[str, float]
    seed: int
    shapes: Mapping[str, tuple[int, ...]]
    """Every tensor that at least one input lists, in name order."""
    base: Weights | None = None
    data: Path | None = None
    progress: Progress = no_progress
    keep_mask: KeepMask = no_mask

    def inputs(self, name: str) -> list[SparseTensor | None]:
        """One tensor of every input; for methods that look at all tensors before the first step."""
        return [delta.read(name) if name in delta.shapes else None for delta in self.deltas]


@dataclass(frozen=True)
class Method:
    """A way to merge. `needs` is a subset of NEEDS: `matrix` (tensors of two dimensions are decomposed), `adapters`
    (every input is a PEFT adapter), `base` (the base's weights), `data` (a file or folder given with --data)."""

    name: str
    title: str
    source: str
    start: Callable[[Run], Step]
    settings: tuple[Setting, ...] = ()
    needs: frozenset[str] = field(default_factory=frozenset)

    def settle(self, given: Mapping[str, float]) -> dict[str, float]:
        """All settings of a run: the given ones, checked, and defaults. Raises MergeSetting."""
        known = {setting.name: setting for setting in self.settings}
        for name, value in given.items():
            setting = known.get(name)
            if setting is None:
                names = ", ".join(known) or "none"
                raise MergeSetting(f"{self.name} has no setting {name}; it has: {names}.")
            if not setting.low <= value <= setting.high:
                raise MergeSetting(
                    f"{self.name}: {name} is {value:g}, and must lie from {setting.low:g} to {setting.high:g}."
                )
            if setting.whole and value != int(value):
                raise MergeSetting(f"{self.name}: {name} is {value:g}, and must be a whole number.")
        return {name: float(given.get(name, setting.default)) for name, setting in known.items()}
