"""How two models differ in what they consist of, named exactly: the one place that compares tables of tensors.

A tool that quietly works on the names that two models share makes a wrong result that looks right, so every operation
on two models asks `require_same` first. Leaves values to others (`tau_compare`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hinet_tiers.base_layout import listed
from hinet_tiers.errors import BaseMismatch
from hinet_tiers.weights import EMBEDDINGS, HEADS, Weights

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelDifference:
    """What a second model has otherwise than the first. Names are sorted by their bytes."""

    first: str
    second: str
    missing: tuple[str, ...]
    """Tensors of the first that the second lacks."""
    extra: tuple[str, ...]
    shapes: tuple[tuple[str, Shape, Shape], ...]
    """Tensors of both with other shapes, those of `vocabulary` left out."""
    vocabulary: tuple[tuple[str, int, int], ...]
    """Embedding and head, where only their number of rows differs."""
    tied: tuple[bool, bool]

    @property
    def same(self) -> bool:
        """Whether both consist of the same tensors."""
        return not (self.missing or self.extra or self.shapes or self.vocabulary)

    def lines(self) -> list[str]:
        """One sentence for each kind of difference."""
        found = []
        if self.tied[0] != self.tied[1]:
            own, shared = (self.second, self.first) if self.tied[0] else (self.first, self.second)
            found.append(f"{shared} ties its head to the embedding and {own} has a head of its own ({_head(self)})")
        for name, ours, theirs in self.vocabulary:
            found.append(f"the vocabulary of {self.first} has {ours} rows and that of {self.second} {theirs} ({name})")
        missing, extra = list(self.missing), list(self.extra)
        if self.tied[0] != self.tied[1]:
            missing, extra = [name for name in missing if name not in HEADS], [n for n in extra if n not in HEADS]
        if missing:
            found.append(f"{self.second} lacks {listed(missing)} of {self.first}")
        if extra:
            found.append(f"{self.second} holds {listed(extra)}, which {self.first} does not have")
        for name, ours, theirs in self.shapes[:4]:
            found.append(f"tensor {name} is {list(ours)} in {self.first} and {list(theirs)} in {self.second}")
        if len(self.shapes) > 4:
            found.append(f"and {len(self.shapes) - 4} more have other shapes")
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything, by kind."""
        return {
            "same": self.same, "missing": list(self.missing), "extra": list(self.extra),
            "shapes": [{"name": name, "first": list(a), "second": list(b)} for name, a, b in self.shapes],
            "vocabulary": [{"name": name, "first": a, "second": b} for name, a, b in self.vocabulary],
            "tied": list(self.tied),
        }  # fmt: skip


def difference(first: Weights, second: Weights, labels: tuple[str, str] | None = None) -> ModelDifference:
    """Compare two models' names and shapes. `labels` are what sentences call them."""
    shapes: list[tuple[str, Shape, Shape]] = []
    vocabulary: list[tuple[str, int, int]] = []
    for name, ours in first.shapes.items():
        theirs = second.shapes.get(name, ours)
        if ours == theirs:
            continue
        if name in EMBEDDINGS + HEADS and len(ours) == len(theirs) == 2 and ours[1] == theirs[1]:
            vocabulary.append((name, ours[0], theirs[0]))
        else:
            shapes.append((name, ours, theirs))
    return ModelDifference(
        *(labels or (first.label, second.label)),
        missing=tuple(name for name in first.shapes if name not in second.shapes),
        extra=tuple(name for name in second.shapes if name not in first.shapes),
        shapes=tuple(shapes), vocabulary=tuple(vocabulary), tied=(first.tied, second.tied),
    )  # fmt: skip


def require_same(base: Weights, tuned: Weights) -> None:
    """Raise BaseMismatch, naming each difference, when the two do not consist of the same tensors."""
    labels = (base.label, tuned.label) if base.label != tuned.label else ("the base", "the other model")
    found = difference(base, tuned, labels)
    if found.same:
        return
    advice = "Only a model that was tuned from this very base can be compared with it."
    if found.vocabulary and not (found.missing or found.extra or found.shapes):
        rows = found.vocabulary[0][1]
        advice = f"Bring it to the base's rows first: model.resize_token_embeddings({rows}) in transformers."
    raise BaseMismatch(f"{'; '.join(found.lines())}. {advice}")


def _head(found: ModelDifference) -> str:
    return next((f"tensor {name}" for name in found.missing + found.extra if name in HEADS), HEADS[0])
