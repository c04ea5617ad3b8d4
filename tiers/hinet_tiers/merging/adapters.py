"""PEFT adapters as exact deltas: LoRA, rsLoRA and DoRA, with biases and whole tensors that were saved along.

    LoRA     τ = s · B A                    s = alpha / r, rsLoRA alpha / sqrt(r)
    DoRA     τ = m · (W0 + s B A) / ‖W0 + s B A‖ - W0       the norm of each output row (Liu et al. 2024, 2402.09353)
    bias     τ = s · b                      where the B of a layer has a bias (lora_bias)
    whole    τ = saved - W0                 modules_to_save, and biases that were trained themselves

Products are float64 and rounded to float32 once. Every tensor of the file is used or refused by name, and one is in
memory at a time. Nothing is unpickled. Leaves to others: the settings (`adapter_settings`), combining (`engine`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from hinet_tiers import safetensors_file, weights
from hinet_tiers.errors import AdapterRefused, BaseMismatch, MergeRefused, TierError
from hinet_tiers.merging import adapter_settings
from hinet_tiers.sparsify import SparseTensor

if TYPE_CHECKING:
    from hinet_tiers.weights import Weights

EMBEDDINGS, HEADS = weights.EMBEDDINGS, weights.HEADS
Values = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
TENSORS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
PREFIX = "base_model.model."
SAVED_ALONG, TRAINED_BIAS, ADDED_BIAS = ".base_layer.weight", ".base_layer.bias", ".lora_B.bias"
PIECE_BYTES = 1 << 20
_PART = re.compile(r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
                   r"(\.weight)?")  # fmt: skip
PAIRS = (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"))


class PeftDelta:
    """The folder of a PEFT adapter, on the base that it was trained on. See `deltas.Delta`.

    Raises AdapterRefused for what can't be read as a delta, BaseMismatch for tensors that the base doesn't have (or has
    in another shape), or for an adapter that names another base.
    """

    def __init__(self, path: Path, base: Weights) -> None:
        self.label, self._base = path.name, base
        self._file = path / TENSORS
        if not self._file.is_file():
            pickled = f", and {PICKLED} is a pickle, which is code" if (path / PICKLED).exists() else ""
            raise AdapterRefused(f"{path.name} holds no {TENSORS}{pickled}: save the adapter as safetensors.")
        self._settings = adapter_settings.read(path)
        self.base = base.digest()
        if self._settings.base not in (None, self.base.hex()):
            raise BaseMismatch(
                f"{path.name} belongs to base {str(self._settings.base)[:12]}, and the base given is "
                f"{self.base.hex()[:12]}: give the base that it was trained on."
            )
        try:
            self._entries = safetensors_file.read_header(self._file)
        except TierError as error:
            raise AdapterRefused(f"{path.name}: {error}") from error
        self._parts: dict[str, dict[str, str]] = {}
        """By the base's tensor, the keys of the file: parts of an adapter, or the one of a whole tensor."""
        for key in sorted(self._entries):
            self._sort(key)
        if not self._parts:
            raise AdapterRefused(f"{self.label} holds no tensors.")
        for name in self._parts:
            self._check(name)
        self._require_all_saved()
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(base.shapes[name]) for name in sorted(self._parts, key=str.encode)
        }
        self.digest = _digest(path)

    def _sort(self, key: str) -> None:
        """Find what a key of the file belongs to."""
        name = key.removeprefix(PREFIX)
        if name.endswith(SAVED_ALONG):
            self._require_the_bases_own(key, name.removesuffix(SAVED_ALONG) + ".weight")
            return
        if name.endswith(ADDED_BIAS):
            tensor, part = f"{name.removesuffix(ADDED_BIAS)}.bias", "lora_bias"
        elif found := _PART.fullmatch(name):
            tensor, part = f"{found['module']}.weight", found["part"]
        else:
            tensor, part = name.replace(TRAINED_BIAS, ".bias"), "whole"
            if not self._settings.stores(tensor):
                self._require_the_bases_own(key, tensor)
                return
        if self._base.tied and tensor in EMBEDDINGS + HEADS:
            raise AdapterRefused(
                f"{self.label}: {key} changes the embedding or the head alone, and in this base the two are one tensor "
                "(they are tied): no delta of it can say that. Train the adapter without them."
            )
        if tensor not in self._base.shapes:
            raise BaseMismatch(f"{self.label}: {key} changes {tensor}, which the base does not have.")
        if self._parts.setdefault(tensor, {}).setdefault(part, key) != key:
            raise AdapterRefused(f"{self.label}: {key} stands twice for the {part} of {tensor}.")

    def _require_the_bases_own(self, key: str, tensor: str) -> None:
        """PEFT saves embeddings, the head and layers that it adapts along; these must be the base's to the last bit.

        Any other tensor that the settings don't tell of is refused: PEFT would pass over it without a word.
        """
        if not key.endswith(SAVED_ALONG) and tensor not in EMBEDDINGS + HEADS:
            if tensor not in self._base.shapes:
                raise BaseMismatch(f"{self.label}: {key} changes {tensor}, which the base does not have.")
            raise AdapterRefused(
                f"{self.label}: {key} is a whole tensor, of which modules_to_save and bias in its settings say nothing."
            )
        if self._base.tied and tensor in HEADS:
            tensor = next(name for name in EMBEDDINGS if name in self._base.shapes)
        shape = self._base.shapes.get(tensor)
        if shape is None or self._entries[key].shape != tuple(shape):
            raise BaseMismatch(f"{self.label}: {key} is not the base's {tensor} (another vocabulary?).")
        if not np.array_equal(self._stored(key), self._base.read(tensor)):
            raise BaseMismatch(f"{self.label}: {key} holds other values than the base's {tensor}: another base's.")

    def _check(self, name: str) -> None:
        """Whether a tensor's parts are whole and their shapes fit the base."""
        parts, shape = self._parts[name], tuple(self._base.shapes[name])
        kinds = set(parts) - {"lora_magnitude_vector"}
        if kinds == {"whole"}:
            if self._entries[parts["whole"]].shape != shape or len(parts) > 1:
                raise BaseMismatch(
                    f"{self.label}: {parts['whole']} is {list(self._entries[parts['whole']].shape)}, where the base's "
                    f"{name} is {list(shape)}."
                )
            return
        if kinds == {"lora_bias"}:
            self._check_added_bias(name, shape)
            return
        pair = next((pair for pair in PAIRS if kinds == set(pair)), None)
        if pair is None:
            raise AdapterRefused(f"{self.label}: {name} has {', '.join(sorted(kinds))}, and needs A and B.")
        if self._settings.dora != ("lora_magnitude_vector" in parts):
            raise AdapterRefused(f"{self.label}: use_dora is {self._settings.dora}, which the parts of {name} belie.")
        a, b = (self._entries[parts[part]].shape for part in pair)
        rows, columns = self._oriented(name, shape)
        if len(a) != 2 or len(b) != 2 or len(shape) != 2 or (b[0], a[1]) != (rows, columns) or a[0] != b[1]:
            raise BaseMismatch(f"{self.label}: {list(b)} times {list(a)} does not fit {name}, {list(shape)}.")
        module = name.removesuffix(".weight")
        if a[0] != self._settings.rank_of(module):
            told = f"{name} has rank {a[0]}, and the settings say {self._settings.rank_of(module)}"
            raise AdapterRefused(f"{self.label}: {told}: the files do not belong together.")
        if self._settings.biased and "lora_A" in parts and "lora_bias" not in self._parts.get(f"{module}.bias", {}):
            raise AdapterRefused(f"{self.label}: lora_bias is set, and {module} has no bias for its B.")
        if self._settings.dora and self._magnitudes(name) != rows:
            raise BaseMismatch(f"{self.label}: the magnitudes of {name} are not {rows}.")

    def _require_all_saved(self) -> None:
        """Whatever the settings say was saved whole is there: a file without it would count as no change."""
        whole = [name for name, parts in self._parts.items() if "whole" in parts]
        for module in self._settings.saved:
            if not any(adapter_settings.is_within(name, (module,)) for name in whole):
                raise AdapterRefused(f"{self.label}: modules_to_save names {module}, which {TENSORS} lacks.")

    def _check_added_bias(self, name: str, shape: tuple[int, ...]) -> None:
        key = self._parts[name]["lora_bias"]
        if not self._settings.biased or "lora_B" not in self._parts.get(_weight_of(name), {}):
            raise AdapterRefused(f"{self.label}: {key} is there without lora_bias in the settings, or without its B.")
        if self._entries[key].shape != shape:
            raise BaseMismatch(
                f"{self.label}: {key} is {list(self._entries[key].shape)}, where the base's {name} is {list(shape)}."
            )

    def _magnitudes(self, name: str) -> int:
        shape = self._entries[self._parts[name]["lora_magnitude_vector"]].shape
        return int(np.prod(shape)) if len(shape) <= 2 else -1

    def _oriented(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of B A: the base's, turned round where the layer keeps its weight that way."""
        return shape[::-1] if self._is_turned(name) else shape

    def _is_turned(self, name: str) -> bool:
        return self._settings.transposed or "lora_embedding_A" in self._parts[name]

    def factors(self, name: str) -> tuple[Doubles, Doubles] | None:
        """(s · B, A) of a tensor, with B A as the base has it, float64; None for a bias or a whole tensor.

        Raises MergeRefused for DoRA, whose delta is no product of two small factors.
        """
        if self._settings.dora:
            raise MergeRefused(f"{self.label} is a DoRA adapter, whose delta has no two factors: take another method.")
        parts = self._parts[name]
        if "whole" in parts or "lora_bias" in parts:
            return None
        b, a = self._pair(name)
        return (a.T, b.T) if self._is_turned(name) else (b, a)

    def _pair(self, name: str) -> tuple[Doubles, Doubles]:
        """(s · B, A) as they are in the file."""
        parts = self._parts[name]
        a, b = next(pair for pair in PAIRS if pair[0] in parts)
        first = self._read(parts[a])
        scale = self._settings.scale_of(name.removesuffix(".weight"), len(first))
        return self._read(parts[b]) * scale, first

    def _read(self, key: str) -> Doubles:
        return self._stored(key).astype(np.float64)

    def _stored(self, key: str) -> Values:
        try:
            values = safetensors_file.read_float32(self._file, key, self._entries[key])
        except TierError as error:
            raise AdapterRefused(f"{self.label}: {error}") from error
        if not np.isfinite(values).all():
            raise AdapterRefused(f"{self.label}: {key} holds a value that is not finite.")
        return values

    def dense(self, name: str) -> Values:
        """A listed tensor's delta as a fresh flat float32 array. Raises KeyError, AdapterRefused."""
        parts = self._parts[name]
        if "whole" in parts:
            made = self._read(parts["whole"])
            made -= self._base.read(name)
        elif "lora_bias" in parts:
            rank = self._entries[self._parts[_weight_of(name)]["lora_A"]].shape[0]
            made = self._read(parts["lora_bias"]) * self._settings.scale_of(name.removesuffix(".bias"), rank)
        else:
            b, a = self._pair(name)
            made = b @ a
            if self._settings.dora:
                base = self._base.read(name).astype(np.float64)
                base = base.T if self._is_turned(name) else base
                made += base
                norms = np.sqrt(np.einsum("ij,ij->i", made, made))
                if not (norms > 0).all():
                    raise AdapterRefused(f"{self.label}: a row of {name} has no direction.")
                made *= (self._read(parts["lora_magnitude_vector"]).reshape(-1) / norms)[:, None]
                made -= base
            made = made.T if self._is_turned(name) else made
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(made.astype(np.float32)).reshape(-1)

    def read(self, name: str) -> SparseTensor:
        """The entries of a listed tensor that change."""
        values = self.dense(name)
        positions = np.flatnonzero(values)
        return SparseTensor(name, self.shapes[name], positions, values[positions])

    def close(self) -> None:
        """Nothing is held open; the base belongs to whoever opened it."""


def _weight_of(bias: str) -> str:
    return f"{bias.removesuffix('.bias')}.weight"


def _digest(path: Path) -> bytes:
    """BLAKE3 over the digests of both files."""
    found = blake3()
    for name in (adapter_settings.SETTINGS, TENSORS):
        whole = blake3()
        with (path / name).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                whole.update(piece)
        found.update(whole.digest())
    return found.digest()
