"""Where a merge goes: a `.tau` file, a whole model folder in float32, or both in one pass.

Both appear whole or not at all. A `.tau`'s passport names method, settings, weights, seed and the inputs' digests, so
that the same merge can be made again. Leaves to others: signing (the node), the file formats.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_protocol import passports, taskvectors
from hinet_tiers import safetensors_file
from hinet_tiers.errors import MergeRefused, MergeSetting
from hinet_tiers.sparsify import SparseTensor
from hinet_tiers.vectors import apply

if TYPE_CHECKING:
    from hinet_tiers.merging.engine import Merge, Merged

WEIGHTS = "model.safetensors"


def write(
    merge: Merge, *, out: Path | None, model: Path | None, codec: str = "fp32"
) -> dict[str, Any]:
    """Do the merge and write it. Returns the report, with what was written.

    Raises what `Merge.tensors` raises, MergeSetting for an unknown codec, MergeRefused for a folder that is in use,
    TauRefused for a merge that is zero everywhere.
    """
    if out is not None and codec not in taskvectors.CODECS:
        raise MergeSetting(f"There is no codec {codec!r}; there are: {', '.join(taskvectors.CODECS)}.")
    if model is not None and model.exists() and (not model.is_dir() or any(model.iterdir())):
        raise MergeRefused(f"{model} is there already: name a new folder.")
    with ExitStack() as stack:
        tau = None if out is None else stack.enter_context(TauOut(out, merge, codec))
        folder = None if model is None else stack.enter_context(ModelOut(model, merge))
        for merged in merge.stream():
            if folder is not None:
                folder.add(merged)
            if tau is not None:
                tau.add(merged.sparse())
            del merged
        written: dict[str, Any] = {}
        if tau is not None:
            written["tau"] = tau.finish()
        if folder is not None:
            written["model"] = folder.finish()
    return merge.report() | {"written": written}


def passport(merge: Merge) -> dict[str, Any]:
    """The passport of a merged task vector: a canonical map, fractions as text."""
    run = merge.run
    signable: dict[str, Any] = passports.signable({
        "kind": "merge", "method": merge.method.name, "settings": dict(run.settings), "weights": list(run.weights),
        "seed": run.seed,
    })  # fmt: skip
    return signable | {"parents": [delta.digest for delta in run.deltas]}


class TauOut:
    """A `.tau` in the making; leaving the block without `finish` leaves nothing."""

    def __init__(self, path: Path, merge: Merge, codec: str) -> None:
        self._path, self._codec, self._kept = path, codec, 0
        self._part = path.with_name(f".{path.name}.part")
        self._base, self._passport = merge.run.deltas[0].base, passport(merge)

    def __enter__(self) -> TauOut:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._spool = tempfile.TemporaryFile(dir=self._path.parent)
        self._writer = taskvectors.TauWriter(self._spool, self._base, {"kind": "given"}, self._passport)
        return self

    def add(self, tensor: SparseTensor) -> None:
        """The next tensor; one without kept entries is left out."""
        if len(tensor.values):
            self._writer.add(tensor.name, tensor.shape, tensor.positions, tensor.values, self._codec)
            self._kept += len(tensor.values)

    def finish(self) -> dict[str, Any]:
        """Put the file in its place. Returns its path, length and kept entries."""
        if not self._kept:
            raise taskvectors.TauRefused("The merge is zero everywhere: the inputs cancel each other out.")
        with self._part.open("wb") as file:
            self._writer.finish(file)
            file.flush()
            os.fsync(file.fileno())
        self._part.replace(self._path)
        return {"path": str(self._path), "bytes": self._path.stat().st_size, "kept": self._kept, "codec": self._codec}

    def __exit__(self, *_: object) -> None:
        self._spool.close()
        self._part.unlink(missing_ok=True)


class ModelOut:
    """A merged model folder in the making: base + delta in float32, and the base's settings and tokenizer."""

    def __init__(self, path: Path, merge: Merge) -> None:
        assert merge.run.base is not None, "checked by the engine"
        self._path, self._base = path, merge.run.base
        self._part = path.with_name(f".{path.name}.part")
        self._left = iter(sorted(self._base.shapes, key=str.encode))
        self._stack = ExitStack()

    def __enter__(self) -> ModelOut:
        shutil.rmtree(self._part, ignore_errors=True)
        self._part.mkdir(parents=True)
        self._notes = apply.copy_companions(self._base, self._part, "float32")
        table = {name: ("F32", tuple(shape)) for name, shape in self._base.shapes.items()}
        self._writer = self._stack.enter_context(safetensors_file.Writer(self._part / WEIGHTS, table))
        return self

    def add(self, merged: Merged) -> None:
        """The next tensor that the merge changes; those before it are the base's own."""
        for name in self._left:
            values = self._base.read(name).reshape(-1)
            if name == merged.name:
                values = values if values.flags.writeable else values.copy()
                merged.add_to(values)
            self._writer.add(name, values.data.cast("B"))
            if name == merged.name:
                return
        raise AssertionError(f"{merged.name} is no tensor of the base, or out of order")

    def finish(self) -> dict[str, Any]:
        """Write the rest and put the folder in its place."""
        for name in self._left:
            self._writer.add(name, self._base.read(name).reshape(-1).data.cast("B"))
        self._stack.close()
        if self._path.is_dir():
            self._path.rmdir()
        self._part.rename(self._path)
        return {"path": str(self._path), "bytes": (self._path / WEIGHTS).stat().st_size, "notes": self._notes}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
        shutil.rmtree(self._part, ignore_errors=True)

