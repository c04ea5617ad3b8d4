"""`.tau` files on disk, and the tensors in them.

The file format itself is `hinet_protocol.taskvectors`, the choice of entries `hinet_tiers.selection` (whose functions
can be had from here too). Everything streams: one tensor is held at a time.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hinet_protocol import taskvectors
from hinet_tiers.errors import BaseMismatch
from hinet_tiers.selection import (
    CHUNK,
    KEEP,
    PIECE,
    Positions,
    Values,
    find_threshold,
    select_chunked,
    select_threshold,
    select_top,
)  # fmt: skip

__all__ = [
    "CHUNK", "KEEP", "SparseTensor", "apply_tau", "check_base", "densify", "find_threshold", "gathered", "read_tau",
    "read_tau_header", "select_chunked", "select_threshold", "select_top", "write_tau",
]  # fmt: skip


@dataclass(frozen=True)
class SparseTensor:
    """Kept entries of one tensor: `positions` (int64, ascending, into the flattened tensor) and float32 `values`."""

    name: str
    shape: tuple[int, ...]
    positions: Positions
    values: Values


def gathered(values: Values, positions: npt.NDArray[np.integer[Any]]) -> Values:
    """The values at ascending `positions`, moved to the front of `values` itself, which is used up: no second array."""
    for at in range(0, len(positions), PIECE):
        end = min(at + PIECE, len(positions))
        values[at:end] = values[positions[at:end]]  # reads no place before `at`, since positions[at] >= at
    return values[: len(positions)]


def write_tau(
    path: Path,
    base_digest: str,
    tensors: Iterable[SparseTensor],
    *,
    codec: str = "fp16",
    selection: Mapping[str, Any] | None = None,
    passport: Mapping[str, Any] | None = None,
) -> taskvectors.TauHeader:
    """Write a task vector to `path`, whole or not at all. `tensors` come in name order; empty ones are left out.

    `base_digest` is 64 hex digits. The file is unsigned; the agent signs it (`taskvectors.with_signature`).
    Raises TauRefused for values or positions that can't be written, or when nothing at all was kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with tempfile.TemporaryFile(dir=path.parent) as spool, part.open("wb") as out:
            writer = taskvectors.TauWriter(spool, bytes.fromhex(base_digest), selection or {"kind": "given"}, passport)
            count = 0
            for tensor in tensors:
                if len(tensor.values):
                    writer.add(tensor.name, tensor.shape, tensor.positions, tensor.values, codec)
                    count += len(tensor.values)
            if not count:
                raise taskvectors.TauRefused("The task vector is empty: nothing differs from the base.")
            header = writer.finish(out)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return header


def read_tau_header(path: Path) -> taskvectors.TauHeader:
    """The header of a `.tau` file. Raises TauMalformed."""
    with path.open("rb") as file:
        return taskvectors.read_header(file, path.stat().st_size)


def read_tau(
    path: Path, base_digest: str | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Iterator[SparseTensor]:
    """The tensors of a `.tau` file, one at a time, in name order.

    With `base_digest` (64 hex digits) and `shapes` the whole table is checked against the base before a block is read.
    Raises BaseMismatch for another base, TauMalformed or TauDamaged for a bad file.
    """
    header = read_tau_header(path)
    check_base(path.name, header, base_digest, shapes)
    return _blocks(path, header)


def check_base(
    label: str, header: taskvectors.TauHeader, base_digest: str | None, shapes: Mapping[str, tuple[int, ...]] | None
) -> None:
    """Whether a task vector is for this base (64 hex digits) and these tensors. Raises BaseMismatch naming what is not.
    """
    if base_digest is not None and header.base.hex() != base_digest:
        raise BaseMismatch(
            f"{label} belongs to base {header.base.hex()[:12]}, not to {base_digest[:12]}: install that base, "
            "or make the task vector anew from this one."
        )
    for row in header.tensors if shapes is not None else ():
        assert shapes is not None
        if row.name not in shapes:
            raise BaseMismatch(f"{label} changes tensor {row.name}, which the base does not have.")
        if row.shape != tuple(shapes[row.name]):
            raise BaseMismatch(
                f"{label}: tensor {row.name} is {list(row.shape)}, the base's is {list(shapes[row.name])}."
            )


def _blocks(path: Path, header: taskvectors.TauHeader) -> Iterator[SparseTensor]:
    with path.open("rb") as file:
        for row in header.tensors:
            positions, values = taskvectors.read_tensor(file, header, row.name)
            yield SparseTensor(row.name, row.shape, positions, values)


def densify(tensor: SparseTensor) -> Values:
    """The tensor as a dense float32 array."""
    dense = np.zeros(math.prod(tensor.shape), np.float32)
    dense[tensor.positions] = tensor.values
    return dense.reshape(tensor.shape)


def apply_tau(path: Path, base_digest: str, model: Any) -> int:
    """Add a task vector to a torch model's parameters in place. Returns how many entries changed.

    The model must be the base: names and shapes are checked for all tensors before the first is changed.
    """
    import torch

    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    changed = 0
    with torch.no_grad():
        for tensor in read_tau(path, base_digest, shapes):
            parameter = parameters[tensor.name]
            flat = parameter.data.view(-1)
            index = torch.from_numpy(tensor.positions)
            flat[index] += torch.from_numpy(tensor.values.copy()).to(flat.dtype)
            changed += len(tensor.values)
    return changed
