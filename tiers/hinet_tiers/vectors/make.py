"""The verb `tau.make`: a task vector from a tuned model and its base.

Both models must consist of the same tensors (`model_difference.require_same`), and every value of both must be finite.
Differences are taken in float32, one tensor at a time. Leaves to others: which entries are kept (`selection`), how a
density is found by quality (`cloud.density`), the signature (whoever holds the key).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_protocol import base_digest, taskvectors
from hinet_tiers import selection, sparsify
from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.errors import BadRequest, BaseRefused
from hinet_tiers.model_difference import require_same
from hinet_tiers.vectors.layers import square
from hinet_tiers.weights import Weights, open_weights

if TYPE_CHECKING:
    import numpy as np

DENSITY = 0.2
"""The share that a one-off delta needs where nothing was measured: in a trial cutting alone to 20 % kept the recall."""
CODEC = "fp16"


class Deltas:
    """The differences of a tuned model and its base, one tensor at a time, each checked; counts what it has seen."""

    def __init__(self, base: Weights, tuned: Weights, progress: Progress = no_progress, passes: int = 1) -> None:
        require_same(base, tuned)
        self.base, self.tuned = base, tuned
        self.shapes = {name: shape for name, shape in base.shapes.items() if shape}
        self.energy = 0.0
        """The sum of squares of all differences, once each tensor was read."""
        self.changed = 0
        self._digests: dict[str, base_digest.TensorDigest] = {}
        self._progress, self._step, self._steps = progress, 0, passes * len(self.shapes)
        for name in base.shapes:
            if name not in self.shapes and base.read(name) != tuned.read(name):
                raise taskvectors.TauRefused(f"Tensor {name} changed and has no dimensions; a .tau can't hold it.")

    def read(self, name: str) -> np.ndarray:
        """The difference of one tensor, flat float32. Raises BaseRefused naming the tensor for values not finite."""
        import numpy as np

        self._progress(min(self._step, self._steps - 1), self._steps, "taking differences")
        self._step += 1
        tuned = np.ascontiguousarray(self.tuned.read(name))
        first = name not in self._digests
        if first:
            raw = tuned.astype("<f4", copy=False).reshape(-1).data.cast("B")
            self._digests[name] = base_digest.digest_tensor(name, self.shapes[name], [raw])
        with np.errstate(over="ignore"):
            delta = np.subtract(tuned, self.base.read(name), out=tuned).reshape(-1)
        if not np.isfinite(delta).all():
            raise BaseRefused(f"{self.tuned.label}: tensor {name} is further from its base than float32 can say.")
        if first:
            self.energy += square(delta)
            self.changed += int(np.count_nonzero(delta))
        return delta

    def tuned_digest(self) -> bytes | None:
        """The tuned model's own digest, once every tensor was read; None for one with tensors of no dimensions."""
        return base_digest.digest_base(self._digests.values()) if len(self._digests) == len(self.base.shapes) else None


def make(
    tuned: Weights,
    base: Weights,
    out: Path,
    *,
    density: float | None = None,
    chunked: tuple[int, int] | None = None,
    codec: str = CODEC,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write the task vector from `base` to `tuned`, whole or not at all, unsigned.

    `density` keeps that share of all entries by one threshold; `chunked` (keep, of) the largest of every chunk.
    Returns the header's figures and `energy_kept`, the kept share of the sum of squares. Raises BaseMismatch,
    BaseRefused, TauRefused (nothing differs).
    """
    digest = base.digest(progress)
    deltas = Deltas(base, tuned, progress, passes=1 if chunked or density == 1 else 3)
    kept = [0.0]

    def counted(tensors: Iterator[sparsify.SparseTensor]) -> Iterator[sparsify.SparseTensor]:
        for tensor in tensors:
            kept[0] += square(tensor.values)
            yield tensor

    chosen: dict[str, Any]
    if chunked:
        chosen = {"kind": "chunk", "keep": chunked[0], "chunk": chunked[1]}
        tensors = _by_chunk(deltas, *chunked)
    else:
        chosen = {"kind": "threshold", "per_million": round((density or DENSITY) * 1e6)}
        tensors = _by_threshold(deltas, density or DENSITY)
    header = sparsify.write_tau(
        out, digest.hex(), counted(tensors), codec=codec, selection=chosen, passport=passport(tuned, base)
    )
    return {
        "path": str(out), "base": digest.hex(), "kept": header.kept, "parameters": base.parameters,
        "density": header.kept / base.parameters, "changed": deltas.changed, "bytes": out.stat().st_size,
        "bytes_per_parameter": out.stat().st_size / base.parameters, "displacement": header.displacement,
        "displacement_dense": deltas.energy**0.5, "energy_kept": kept[0] / deltas.energy if deltas.energy else 0.0,
        "codec": codec, "selection": chosen, "tensors": len(header.tensors), "left_out": tuned.left_out[:100],
    }  # fmt: skip


def passport(tuned: Weights, base: Weights) -> dict[str, Any]:
    """Where a task vector comes from, as far as the models tell: their names, no time and no path."""
    return {"made_by": "tau make", "tuned_name": printable(tuned.label), "base_name": printable(base.label)}


def printable(text: str) -> str:
    """A name fit for one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:120]


def _by_chunk(deltas: Deltas, keep: int, chunk: int) -> Iterator[sparsify.SparseTensor]:
    for name in deltas.shapes:
        values = deltas.read(name)
        yield _cut(deltas, name, values, selection.select_chunked(values, keep, chunk, _index_type(values)))


def _by_threshold(deltas: Deltas, density: float) -> Iterator[sparsify.SparseTensor]:
    threshold = selection.find_threshold(list(deltas.shapes), deltas.read, density)
    for name in deltas.shapes:
        values = deltas.read(name)
        yield _cut(deltas, name, values, threshold.positions(values, _index_type(values)))


def _index_type(values: np.ndarray) -> Any:
    """Positions of half the usual width where they suffice: at high densities they are what memory goes to."""
    import numpy as np

    return np.int32 if len(values) < 1 << 31 else np.int64


def _cut(deltas: Deltas, name: str, values: np.ndarray, positions: np.ndarray) -> sparsify.SparseTensor:
    return sparsify.SparseTensor(name, deltas.shapes[name], positions, sparsify.gathered(values, positions))


def make_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `tau.make {tuned, base, out, density?, chunked?: [keep, of], codec?}`."""
    chunked, density, codec = args.get("chunked"), args.get("density"), args.get("codec") or CODEC
    if codec not in taskvectors.CODECS:
        raise BadRequest(f"There is no codec {codec!r}; there are {', '.join(taskvectors.CODECS)}.")
    if density is not None and not 0 < density <= 1:
        raise BadRequest(f"A density of {density} keeps nothing or more than there is: give a share above 0, up to 1.")
    if chunked is not None and (len(chunked) != 2 or not 1 <= chunked[0] <= chunked[1] <= 1 << 24):
        raise BadRequest(f"{chunked} is no cut: give how many of how many are kept, as 64/4096.")
    with open_weights(Path(args["tuned"])) as tuned, open_weights(Path(args["base"])) as base:
        return make(
            tuned, base, Path(args["out"]), density=density, chunked=tuple(chunked) if chunked else None, codec=codec,
            progress=progress,
        )  # fmt: skip
