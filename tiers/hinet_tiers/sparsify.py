"""Choosing which entries of a dense delta to keep, and `.tau` files on disk.

Selection is exact and deterministic: larger magnitude first, then the lower index; an entry that is zero is never kept.
The file format itself is `hinet_protocol.taskvectors`. Everything streams: one tensor is held at a time.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hinet_protocol import taskvectors
from hinet_tiers.errors import BaseMismatch

Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]

CHUNK = 4096
KEEP = 64
BLOCK_CHUNKS = 256
"""Chunks that are selected from at a time: bounds the scratch memory to a few MB."""


@dataclass(frozen=True)
class SparseTensor:
    """Kept entries of one tensor: `positions` (int64, ascending, into the flattened tensor) and float32 `values`."""

    name: str
    shape: tuple[int, ...]
    positions: Positions
    values: Values


def select_chunked(values: Values, keep: int = KEEP, chunk: int = CHUNK) -> Positions:
    """Positions of the `keep` largest magnitudes in every `chunk` entries of a flat array; a shorter last chunk keeps
    its share, rounded up. Raises ValueError for values that are not finite or a keep outside 1 to chunk."""
    if not 1 <= keep <= chunk:
        raise ValueError(f"keep {keep} of {chunk}")
    magnitudes = _magnitudes(values)
    whole = len(magnitudes) // chunk
    parts: list[Positions] = []
    for first in range(0, whole, BLOCK_CHUNKS):
        rows = magnitudes[first * chunk : min(first + BLOCK_CHUNKS, whole) * chunk].reshape(-1, chunk)
        parts.append(np.flatnonzero(_largest(rows, keep)) + first * chunk)
    rest = magnitudes[whole * chunk :]
    if len(rest):
        share = min(len(rest), -(-keep * len(rest) // chunk))
        parts.append(np.flatnonzero(_largest(rest[None], share)) + whole * chunk)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def select_top(values: Values, count: int) -> Positions:
    """Positions of the `count` largest magnitudes of a flat array."""
    magnitudes = _magnitudes(values)
    count = min(count, len(magnitudes))
    return np.flatnonzero(_largest(magnitudes[None], count)) if count else np.zeros(0, np.int64)


def select_threshold(
    names: Sequence[str], read: Callable[[str], Values], density: float
) -> Iterator[tuple[str, Positions, Values]]:
    """The globally largest magnitudes over several tensors: yields (name, positions, values) in the order of `names`.

    `read(name)` gives a flat float32 array and is called three times per tensor, so that one tensor is held at a time.
    `density` is the kept share of all entries, above 0 and at most 1. Ties at the threshold go to the earlier entry.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density {density}")
    coarse = np.zeros(1 << 16, np.int64)
    total = 0
    for name in names:
        bits = _magnitudes(read(name)).view(np.uint32)
        total += len(bits)
        coarse += np.bincount(bits >> 16, minlength=1 << 16)
    wanted = max(1, round(density * total))
    upper, above = _cut(coarse, wanted)
    fine = np.zeros(1 << 16, np.int64)
    for name in names:
        bits = _magnitudes(read(name)).view(np.uint32)
        fine += np.bincount(bits[bits >> 16 == upper] & 0xFFFF, minlength=1 << 16)
    lower, above_fine = _cut(fine, wanted - above)
    threshold, ties = (upper << 16) | lower, wanted - above - above_fine
    for name in names:
        values = read(name)
        bits = _magnitudes(values).view(np.uint32)
        equal = np.flatnonzero(bits == threshold)[: max(0, ties)] if threshold else np.zeros(0, np.int64)
        ties -= len(equal)
        mask = bits > threshold
        mask[equal] = True
        positions = np.flatnonzero(mask)
        yield name, positions, values[positions]


def _cut(histogram: npt.NDArray[np.int64], wanted: int) -> tuple[int, int]:
    """The bin that the `wanted`-th largest falls into, and how many lie above that bin."""
    down = np.cumsum(histogram[::-1])
    index = int(np.searchsorted(down, wanted))
    index = min(index, len(histogram) - 1)
    return len(histogram) - 1 - index, int(down[index] - histogram[::-1][index])


def _magnitudes(values: Values) -> Values:
    magnitudes = np.abs(np.asarray(values, np.float32)).reshape(-1)
    if not np.isfinite(magnitudes).all():
        raise ValueError("a value of the delta is not finite")
    return magnitudes


def _largest(rows: Values, keep: int) -> npt.NDArray[np.bool_]:
    """A mask of the `keep` largest in each row, ties to the lower index, zeros never."""
    width = rows.shape[1]
    threshold = np.partition(rows, width - keep, axis=1)[:, width - keep, None]
    mask = rows >= threshold
    mask &= rows > 0
    surplus = np.flatnonzero(np.count_nonzero(mask, axis=1) > keep)
    for row in surplus:
        equal = np.flatnonzero(rows[row] == threshold[row])
        room = keep - int(np.count_nonzero(rows[row] > threshold[row]))
        mask[row, equal[room:]] = False
    return mask


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
