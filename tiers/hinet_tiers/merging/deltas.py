"""What can be merged: task vectors over one base, read one tensor at a time.

A `Delta` is a tuned model minus its base, wherever it comes from: a `.tau` file (`TauDelta`), a PEFT adapter
(`adapters.PeftDelta`). Leaves to others: combining them (`engine` and the methods), the file format
(`hinet_protocol.taskvectors`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from hinet_protocol import taskvectors
from hinet_tiers.errors import BaseMismatch, MergeRefused
from hinet_tiers.sparsify import SparseTensor, read_tau_header

if TYPE_CHECKING:
    from hinet_tiers.weights import Weights

Values = npt.NDArray[np.float32]


class Delta(Protocol):
    """One input of a merge. Tensors have their Hugging Face names."""

    label: str
    """What messages and reports call it: the file's or folder's name."""
    base: bytes
    """The digest of the base that it is added to, 32 bytes (SPEC 7.1)."""
    digest: bytes
    """32 bytes that name the content, whoever signed it: random masks are keyed by it."""
    shapes: Mapping[str, tuple[int, ...]]
    """The tensors that it lists, and their shapes; every other tensor is as in the base."""

    def read(self, name: str) -> SparseTensor:
        """The kept entries of a listed tensor. Raises KeyError for one that isn't listed."""

    def dense(self, name: str) -> Values:
        """A listed tensor as a fresh flat float32 array."""

    def close(self) -> None:
        """Let go of files."""


class TauDelta:
    """A `.tau` file of kind `delta`, or of kind `replacement` where the base is at hand to take the difference from.

    Raises TauMalformed for a bad file, MergeRefused for a file of masks, of nothing, or of replacements without a base.
    """

    def __init__(self, path: Path, base: Weights | None = None) -> None:
        self.label, self._path, self._base = path.name, path, base
        self.header = read_tau_header(path)
        self.kind = str(getattr(self.header, "kind", "delta"))
        self._refuse_unfit()
        self.base = self.header.base
        self.digest = taskvectors.signing_message(self.header)
        self.shapes: dict[str, tuple[int, ...]] = {row.name: row.shape for row in self.header.tensors}

    def _refuse_unfit(self) -> None:
        if self.kind == "mask":
            raise MergeRefused(f"{self.label} holds masks, not values: give the task vectors themselves.")
        if self.kind == "replacement" and self._base is None:
            raise MergeRefused(
                f"{self.label} holds tuned values, whose difference from the base is needed: add --base PATH."
            )
        if not self.header.kept:
            raise MergeRefused(f"{self.label} is empty: it changes nothing. Leave it out.")

    def read(self, name: str) -> SparseTensor:
        """The kept entries of a listed tensor. Raises KeyError, TauDamaged, TauMalformed."""
        with self._path.open("rb") as file:
            positions, values = taskvectors.read_tensor(file, self.header, name)
        if self.kind == "replacement":
            assert self._base is not None
            values = values - self._base.read(name).reshape(-1)[positions]
        return SparseTensor(name, self.shapes[name], positions, values)

    def dense(self, name: str) -> Values:
        """A listed tensor as a fresh flat float32 array."""
        return spread(self.read(name))

    def close(self) -> None:
        """Nothing is held: the file is opened for each read, and its blocks must match the header read first."""


def spread(tensor: SparseTensor) -> Values:
    """A tensor's entries as a fresh flat float32 array, zero where nothing was kept."""
    flat = np.zeros(math.prod(tensor.shape), np.float32)
    flat[tensor.positions] = tensor.values
    return flat


def open_delta(path: Path, base: Weights | None = None) -> Delta:
    """A `.tau` file, or the folder of a PEFT adapter (which needs the base). Raises MergeRefused, BaseMismatch."""
    if path.is_dir():
        if not (path / "adapter_config.json").is_file():
            raise MergeRefused(
                f"{path.name} is a folder without adapter_config.json: give a .tau file (`hinet-node tau make` makes "
                "one from a model folder) or a PEFT adapter's folder."
            )
        if base is None:
            raise MergeRefused(f"{path.name} is an adapter, which needs the base that it was trained on: add --base.")
        return _open_adapter(path, base)
    if not path.is_file():
        raise MergeRefused(f"There is no file {path}.")
    return TauDelta(path, base)


def _open_adapter(path: Path, base: Weights) -> Delta:
    from hinet_tiers.merging.adapters import PeftDelta

    return PeftDelta(path, base)


def union(deltas: list[Delta], base: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, tuple[int, ...]]:
    """Every tensor that an input lists, in name order (by UTF-8 bytes), with its shape.

    Raises BaseMismatch when two inputs belong to different bases or disagree about a shape, or when one lists a tensor
    that the base (its shapes, if known) doesn't have or has in another shape.
    """
    shapes: dict[str, tuple[int, ...]] = dict(base or {})
    owner = dict.fromkeys(shapes, "the base")
    for delta in deltas:
        if delta.base != deltas[0].base:
            raise BaseMismatch(
                f"{delta.label} belongs to base {delta.base.hex()[:12]}, {deltas[0].label} to "
                f"{deltas[0].base.hex()[:12]}: only task vectors of one base can be merged."
            )
        for name, shape in delta.shapes.items():
            if base is not None and name not in base:
                raise BaseMismatch(f"{delta.label} changes tensor {name}, which the base does not have.")
            if shapes.setdefault(name, tuple(shape)) != tuple(shape):
                raise BaseMismatch(
                    f"{delta.label}: tensor {name} is {list(shape)}, where {owner[name]} has {list(shapes[name])}."
                )
            owner.setdefault(name, delta.label)
    listed = {name for delta in deltas for name in delta.shapes}
    return {name: shapes[name] for name in sorted(listed, key=str.encode)}


def absent(deltas: list[Delta], shapes: Mapping[str, Any]) -> dict[str, list[str]]:
    """By label, the tensors that others list and this input doesn't: there it counts as zeros, which a report says."""
    return {delta.label: missing for delta in deltas if (missing := [n for n in shapes if n not in delta.shapes])}
