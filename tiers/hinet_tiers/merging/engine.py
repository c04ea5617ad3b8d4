"""Merging, one tensor at a time: what is refused, what streams through a method, how far the result lies from the base.

The engine opens the inputs, checks that they fit together, and hands each tensor of all of them to the method's step.
It measures displacement (the L2 distance from the base) of every input and of the merge on decoded values, in float64,
and refuses what lies above the bound. Results depend neither on the number of threads nor on what was read before.
Leaves to others: the methods (`registry`), writing the result (`outputs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.errors import BaseMismatch, MergeRefused, MergeSetting, MergeTooFar
from hinet_tiers.merging import blocks, deltas, registry
from hinet_tiers.merging.deltas import Delta
from hinet_tiers.merging.method import Method, Run, Step, Values
from hinet_tiers.sparsify import SparseTensor

if TYPE_CHECKING:
    from hinet_tiers.weights import Weights

INPUTS_MAX = 64
BOUND = 50.0
BOUND_PARAMETERS = 1e9
BOUND_SHARE_MIN = 0.5


def default_bound(parameters: int) -> float:
    """The displacement above which a merge is refused: 50 for a billion parameters and more, never below 25."""
    return BOUND * min(1.0, max(BOUND_SHARE_MIN, math.sqrt(parameters / BOUND_PARAMETERS)))


@dataclass(frozen=True)
class Merged:
    """One tensor of the result: entries at `positions` (None: all of them, in order) and float32 `values`."""

    name: str
    shape: tuple[int, ...]
    positions: npt.NDArray[np.int64] | None
    values: Values

    def sparse(self) -> SparseTensor:
        """The entries as a sparse tensor: without zeros, where a method gave all entries."""
        if self.positions is not None:
            return SparseTensor(self.name, self.shape, self.positions, self.values)
        positions = np.flatnonzero(self.values != 0)
        every = len(positions) == len(self.values)
        return SparseTensor(self.name, self.shape, positions, self.values if every else self.values[positions])

    def add_to(self, base: Values) -> None:
        """base += delta, in place; `base` is flat."""
        if self.positions is None:
            base += self.values
        else:
            base[self.positions] += self.values


@dataclass
class Merge:
    """A merge that was checked and can begin. `tensors()` does it; afterwards the displacements are known."""

    method: Method
    run: Run
    bound: float
    missing: Mapping[str, list[str]]
    """By label, the tensors that an input leaves as they are while another one changes them."""
    left_out: Sequence[str] = ()
    """Labels of the inputs whose weight is 0."""
    squares: list[float] = field(default_factory=list)
    """Σ τ² of each input so far."""
    square: float = 0.0
    """Σ of the merge's squares so far."""

    @property
    def displacements(self) -> list[float]:
        """The L2 norm of each input's decoded values, as far as it was read."""
        return [math.sqrt(square) for square in self.squares]

    @property
    def displacement(self) -> float:
        """The L2 norm of the merged delta, as far as it was made."""
        return math.sqrt(self.square)

    def stream(self) -> Iterator[Merged]:
        """The merged delta, tensor by tensor in name order; one input alone comes back entry for entry.

        Raises MergeRefused for a value that is not finite, MergeTooFar above the bound: a writer throws away what it
        has then.
        """
        self.squares, self.square = [0.0] * len(self.run.deltas), 0.0
        step = None if len(self.run.deltas) == 1 else self.method.start(self.run)
        for at, (name, shape) in enumerate(self.run.shapes.items()):
            self.run.progress(at, len(self.run.shapes), f"merging {name}")
            inputs = self.run.inputs(name)
            self._measure_inputs(name, inputs)
            merged = self._alone(inputs[0]) if step is None else self._stepped(step, name, shape, inputs)
            del inputs
            self.square += _square(merged.values)
            if not math.isfinite(self.square):
                raise MergeRefused(
                    f"Tensor {name} of the merge holds a value that is not finite: choose smaller weights."
                )
            self._judge("The merge", self.displacement, "choose smaller weights or another method")
            yield merged
        self.run.progress(len(self.run.shapes), len(self.run.shapes), "merged")

    def tensors(self) -> Iterator[SparseTensor]:
        """`stream` as sparse tensors without entries that are zero."""
        for merged in self.stream():
            yield merged.sparse()

    def _alone(self, tensor: SparseTensor | None) -> Merged:
        assert tensor is not None, "the only input lists every tensor of the union"
        weight, values = self.run.weights[0], tensor.values
        if weight != 1.0:
            with np.errstate(over="ignore"):
                values = (values * np.float64(weight)).astype(np.float32)
        return Merged(tensor.name, tensor.shape, tensor.positions, values)

    def _stepped(
        self, step: Step, name: str, shape: tuple[int, ...], inputs: Sequence[SparseTensor | None]
    ) -> Merged:
        with np.errstate(over="ignore", invalid="ignore"):
            merged = step(name, inputs)
        assert merged.dtype == np.float32, f"{self.method.name} gave {merged.dtype}"
        merged = merged.reshape(-1)
        assert len(merged) == blocks.size(shape), f"{self.method.name} gave {len(merged)} entries of {name}"
        return Merged(name, shape, None, merged)

    def _measure_inputs(self, name: str, inputs: Sequence[SparseTensor | None]) -> None:
        for at, (delta, tensor) in enumerate(zip(self.run.deltas, inputs, strict=True)):
            if tensor is None:
                continue
            self.squares[at] += _square(tensor.values)
            if not math.isfinite(self.squares[at]):
                raise MergeRefused(f"{delta.label}: tensor {name} holds a value that is not finite.")
            self._judge(delta.label, math.sqrt(self.squares[at]), "it is no delta that merges well; leave it out")

    def _judge(self, what: str, displacement: float, advice: str) -> None:
        if displacement > self.bound:
            raise MergeTooFar(
                f"{what} lies at least {displacement:.4g} from the base, above the bound of {self.bound:.4g}: "
                f"{advice}, or raise --bound if you mean it."
            )

    def report(self) -> dict[str, Any]:
        """What the merge was made of and how far everything lies, in plain values; whole after `tensors()`."""
        rows = zip(self.run.deltas, self.run.weights, self.displacements, strict=True)
        return {
            "method": self.method.name, "settings": dict(self.run.settings), "seed": self.run.seed,
            "base": self.run.deltas[0].base.hex(), "tensors": len(self.run.shapes),
            "parameters": sum(blocks.size(shape) for shape in self.run.shapes.values()),
            "inputs": [{"label": delta.label, "digest": delta.digest.hex(), "weight": weight,
                        "displacement": displacement, "missing": len(self.missing.get(delta.label, []))}
                       for delta, weight, displacement in rows],
            "left_out": list(self.left_out), "displacement": self.displacement, "bound": self.bound,
        }  # fmt: skip


def _square(values: Values) -> float:
    """Σ v² in float64, the same whatever the number of threads."""
    total = 0.0
    for first, end in blocks.spans(len(values)):
        block = values[first:end].astype(np.float64)
        total += float(np.einsum("i,i->", block, block))
    return total


def prepare(
    method: str,
    inputs: Sequence[Delta],
    *,
    weights: Sequence[float] | None = None,
    settings: Mapping[str, float] | None = None,
    seed: int = 0,
    base: Weights | None = None,
    data: Path | None = None,
    bound: float | None = None,
    progress: Progress = no_progress,
) -> Merge:
    """Check that inputs, weights and settings fit together. An input of weight 0 is left out.

    Raises MergeSetting for an unknown method or setting or unfit weights, MergeRefused for inputs that the method can't
    take, BaseMismatch for inputs of different bases or shapes, MergeTooFar for an input above the bound.
    """
    found = registry.find(method)
    settled = found.settle(settings or {})
    factors = [1.0] * len(inputs) if weights is None else [float(weight) for weight in weights]
    _check_counts(inputs, factors, seed)
    left_out = [delta.label for delta, weight in zip(inputs, factors, strict=True) if weight == 0]
    kept = [(delta, weight) for delta, weight in zip(inputs, factors, strict=True) if weight != 0]
    if not kept:
        raise MergeSetting("Every weight is 0, so nothing is left to merge.")
    _check_needs(found, [delta for delta, _ in kept], base, data)
    chosen = [delta for delta, _ in kept]
    digest = None if base is None else base.digest(progress)
    if digest is not None and digest != chosen[0].base:
        raise BaseMismatch(
            f"{chosen[0].label} belongs to base {chosen[0].base.hex()[:12]}, and the base given is "
            f"{digest.hex()[:12]}: give the base that it was made from."
        )
    shapes = deltas.union(chosen, None if base is None else base.shapes)
    known = shapes if base is None else base.shapes
    parameters = sum(blocks.size(shape) for shape in known.values())
    merge = Merge(
        found,
        Run(chosen, [weight for _, weight in kept], settled, seed, shapes, base, data, progress),
        default_bound(parameters) if bound is None else bound,
        deltas.absent(chosen, shapes),
        left_out,
    )
    if not merge.bound > 0:
        raise MergeSetting(f"--bound is {merge.bound:g}, and must be above 0.")
    return merge


def _check_counts(inputs: Sequence[Delta], weights: Sequence[float], seed: int) -> None:
    if not 1 <= len(inputs) <= INPUTS_MAX:
        raise MergeSetting(f"{len(inputs)} inputs; a merge takes 1 to {INPUTS_MAX}.")
    if len(weights) != len(inputs):
        raise MergeSetting(f"{len(weights)} weights for {len(inputs)} inputs: give one for each, in their order.")
    for delta, weight in zip(inputs, weights, strict=True):
        if not math.isfinite(weight):
            raise MergeSetting(f"The weight of {delta.label} is {weight}, which is no number to multiply by.")
    if not 0 <= seed < 1 << 63:
        raise MergeSetting(f"--seed is {seed}, and must lie from 0 to 2^63 - 1.")


def _check_needs(method: Method, inputs: Sequence[Delta], base: Weights | None, data: Path | None) -> None:
    if "base" in method.needs and base is None:
        raise MergeSetting(f"{method.name} needs the base's weights: add --base PATH.")
    if "data" in method.needs and data is None:
        raise MergeSetting(f"{method.name} needs data: add --data PATH (see docs/merging/{method.name}.md).")
    for delta in inputs if "adapters" in method.needs else ():
        if not hasattr(delta, "factors"):
            raise MergeRefused(f"{method.name} merges adapters by their factors, and {delta.label} is none.")


def merge_files(
    method: str,
    paths: Sequence[Path],
    *,
    out: Path | None = None,
    model: Path | None = None,
    base: Path | None = None,
    codec: str = "fp32",
    weights: Sequence[float] | None = None,
    settings: Mapping[str, float] | None = None,
    seed: int = 0,
    data: Path | None = None,
    bound: float | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Merge `.tau` files and adapter folders into a `.tau` (`out`), a model folder (`model`, which needs `base`), or
    both. Returns the report. Raises what `prepare` and `Merge.tensors` raise; nothing half-written stays."""
    from hinet_tiers.merging import outputs

    if out is None and model is None:
        raise MergeSetting("Say where the merge goes: --out FILE.tau, or --model FOLDER.")
    if model is not None and base is None:
        raise MergeSetting("A merged model folder needs the base's weights: add --base PATH.")
    with ExitStack() as stack:
        opened: Weights | None = None
        if base is not None:
            from hinet_tiers.weights import open_weights

            opened = open_weights(base)
            stack.callback(opened.close)
        inputs: list[Delta] = []
        for path in paths[: INPUTS_MAX + 1]:
            inputs.append(deltas.open_delta(path, opened))
            stack.callback(inputs[-1].close)
        merge = prepare(
            method, inputs, weights=weights, settings=settings, seed=seed, base=opened, data=data, bound=bound,
            progress=progress,
        )  # fmt: skip
        return outputs.write(merge, out=out, model=model, codec=codec)
