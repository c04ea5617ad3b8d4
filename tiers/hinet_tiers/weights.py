"""Any model's tensors behind one interface: an installed base, a Hugging Face folder, a safetensors file, a GGUF.

`open_weights` says what a model consists of (names, shapes, dtypes, whether its head is tied) before anything is read,
and then hands out one float32 tensor at a time, in name order or any other. Unlike `base_sources` it takes every
architecture, since task vectors need no more than names and numbers. What is no parameter (rotary tables, masks) is
left out and named in `left_out`; a tied head is not a tensor of its own, also where a file holds it all the same.

Leaves to others: how two models differ (`model_difference`), which entries to keep (`sparsify`), making a base
(`base`). SPEC section 7.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_protocol import base_digest
from hinet_tiers import base_sources, gguf_names, safetensors_file
from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.errors import BaseDamaged, BaseForeign, BaseIncomplete, BaseNotFound, BaseRefused

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray

MANIFEST = "base.json"
CONFIG = "config.json"
HEADS = ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight", "embed_out.weight")
EMBEDDINGS = (
    "model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight", "model.decoder.embed_tokens.weight", "transformer.wte.weight",
    "wte.weight", "gpt_neox.embed_in.weight",
)  # fmt: skip
"""Where the architectures of Hugging Face keep the two tensors that may be tied."""
FLOATS = ("F64", "F32", "F16", "BF16")
PIECE = 1 << 18
"""Values rounded at once, so that no second tensor is held."""
_BUFFERS = re.compile(r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|masked_bias|position_ids)$|^rope_freqs\.")
_MASK = re.compile(r"(^|\.)attn\.bias$")


class Weights:
    """An open model. Use with `with`, or call `close`.

    `shapes` and `dtypes` hold every tensor by its Hugging Face name, in the order of the names' bytes; dtypes are the
    file's own (`BF16`, `F32`, `Q4_1`). `tied` says that the head is the embedding; it is then no tensor of its own.
    """

    def __init__(
        self,
        path: Path,
        tensors: dict[str, tuple[str, tuple[int, ...]]],
        read: Callable[[str], Values],
        *,
        tied: bool | None,
        close: Callable[[], None] | None = None,
        known_digest: Callable[[], bytes] | None = None,
    ) -> None:
        """`tensors` are (dtype, shape) by name. `tied` None: to be found out from the tensors themselves.

        `known_digest` gives the digest where a manifest holds it (and checks that the file is still the one).
        """
        self.path, self.label = path, path.resolve().name
        self.left_out = sorted(name for name, (_, shape) in tensors.items() if _is_buffer(name, shape))
        buffers = set(self.left_out)
        kept = {name: row for name, row in tensors.items() if name not in buffers}
        self._read, self._close, self._known_digest = read, close, known_digest
        self._found_digest: bytes | None = None
        _refuse_no_floats(self.label, kept)
        self.head_dropped: str | None = None
        """A head that the file holds though it is tied."""
        self.tied = self._find_tie(kept, tied)
        kept.pop(self.head_dropped or "", None)
        self.shapes = {name: kept[name][1] for name in sorted(kept, key=str.encode)}
        self.dtypes = {name: kept[name][0] for name in self.shapes}
        if not self.shapes:
            raise BaseIncomplete(f"{self.label} holds no tensors.")

    def _find_tie(self, tensors: dict[str, tuple[str, tuple[int, ...]]], told: bool | None) -> bool:
        """Whether the head is the embedding: as the settings tell, else by what is stored."""
        head = next((name for name in HEADS if name in tensors), None)
        embedding = next((name for name in EMBEDDINGS if name in tensors), None)
        if head is None or embedding is None:
            if told is False and embedding is not None:
                raise BaseIncomplete(f"{self.label} is not tied and lacks its head, tensor {HEADS[0]}.")
            return embedding is not None
        if told is False:
            return False
        import numpy as np

        same = tensors[head][1] == tensors[embedding][1] and np.array_equal(
            _bits(self._read(head)), _bits(self._read(embedding))
        )
        if told and not same:
            raise BaseRefused(f"{self.label}: {CONFIG} ties {head} to {embedding}, but the two differ.")
        self.head_dropped = head if same else None
        return same

    @property
    def parameters(self) -> int:
        """How many numbers the tensors hold; a tied head counts once."""
        return sum(base_digest.tensor_bytes(shape) // 4 for shape in self.shapes.values())

    @property
    def is_bf16(self) -> bool:
        """Whether all tensors are stored as bfloat16."""
        return set(self.dtypes.values()) == {"BF16"}

    def read(self, name: str) -> Values:
        """One tensor as float32. Raises BaseRefused, with the counts, when a value is not finite; KeyError."""
        values = self.read_any(name)
        refuse_non_finite(self.label, name, values)
        return values

    def read_any(self, name: str) -> Values:
        """One tensor as float32, whatever its values. Float64 is rounded to the nearest."""
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def digest(self, progress: Progress = no_progress) -> bytes:
        """The base digest (32 bytes, SPEC 7.1) of these tensors as float32; streams. Raises BaseRefused by name."""
        if self._found_digest is None:
            if self._known_digest is not None:
                progress(0, 1, "checking the base's file")
            if self._known_digest is None:
                self._found_digest = base_digest.digest_base(exact for exact, _ in self._digested(progress, False))
            else:
                progress(0, 1, "checking the base's file")
                self._found_digest = self._known_digest()
        return self._found_digest

    def digests(self, progress: Progress = no_progress) -> tuple[bytes, bytes]:
        """The digest of the tensors as they are, and the one they have once installed as a base (rounded to bf16)."""
        pairs = list(self._digested(progress, True))
        return base_digest.digest_base(exact for exact, _ in pairs), base_digest.digest_base(also for _, also in pairs)

    def _digested(
        self, progress: Progress, rounded: bool
    ) -> Iterator[tuple[base_digest.TensorDigest, base_digest.TensorDigest]]:
        """For each tensor its digest, and that of its values rounded to bf16 (the same one where not asked for)."""
        for step, (name, shape) in enumerate(self.shapes.items()):
            progress(step, len(self.shapes), "reading the tensors")
            values = self.read(name).reshape(-1)
            try:
                exact = also = base_digest.digest_tensor(name, shape, [_little(values)])
            except ValueError as error:
                raise BaseRefused(f"{self.label}: {error}.") from error
            if rounded and any((_bits(piece) & 0xFFFF).any() for piece in _pieces(values)):
                also = base_digest.digest_tensor(name, shape, _rounded(values))
            yield exact, also
        progress(len(self.shapes), len(self.shapes), "reading the tensors")

    def close(self) -> None:
        """Release the files."""
        if self._close is not None:
            self._close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_weights(path: Path) -> Weights:
    """Open an installed base, a model folder, a safetensors file or a GGUF.

    Raises BaseNotFound, or a BaseRefused that names what is wrong: damaged, cut short, quantised, a pickle, an adapter.
    """
    if path.is_dir():
        return _open_installed(path) if (path / MANIFEST).is_file() else _open_folder(path)
    if not path.is_file():
        raise BaseNotFound(f"There is no model at {path}. Give a model folder, a .safetensors file or a .gguf file.")
    with path.open("rb") as file:
        magic = file.read(8)
    if magic.startswith(b"HINETTAU"):
        raise BaseForeign(f"{path.name} is a task vector, not a model: apply it to its base first.")
    if magic.startswith(b"GGUF"):
        return _open_gguf(path)
    if magic.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise BaseForeign(f"{path.name} is a pickle, which is never opened here; convert it to safetensors.")
    return _of_files(path, [path], tied=None)


def refuse_non_finite(label: str, name: str, values: Values) -> None:
    """Raise BaseRefused naming the tensor, with how many values are no numbers and how many are infinite."""
    import numpy as np

    if np.isfinite(values).all():
        return
    nans, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    raise BaseRefused(
        f"{label}: tensor {name} has {nans + infinite} of {values.size} values that are not finite "
        f"({nans} NaN, {infinite} infinite): the model is damaged, or its training diverged."
    )


def _open_installed(path: Path) -> Weights:
    from hinet_tiers import base

    installed = base.read_base(path)

    def known_digest() -> bytes:
        row = next((row for row in installed.manifest["files"] if row["path"] == base.WEIGHTS), None)
        if row is None or base.digest_file(installed.weights) != row["digest"]:
            raise BaseDamaged(f"{installed.weights} is not the file that its manifest names: install the base again.")
        return bytes.fromhex(installed.digest)

    if not installed.weights.is_file():
        raise BaseDamaged(f"{path} lacks {base.WEIGHTS}: remove it and install the base again.")
    opened = _of_files(path, [installed.weights], tied=bool(installed.manifest.get("tied")), known_digest=known_digest)
    if opened.shapes != dict(sorted(installed.shapes.items(), key=lambda row: row[0].encode())):
        raise BaseDamaged(f"{path}: its manifest names other tensors than its file holds: install the base again.")
    opened.label = installed.name
    return opened


def _open_folder(path: Path) -> Weights:
    config = base_sources.read_json(path, CONFIG) if (path / CONFIG).is_file() else {}
    if config.get("quantization_config"):
        raise BaseForeign(f"{path.name}/{CONFIG} says that the model is quantised: give it as bf16 or float32 tensors.")
    if not config and (path / "adapter_config.json").is_file():
        raise BaseForeign(f"{path.name} is a PEFT adapter, not a model: merge it into its model first.")
    text = config.get("text_config")
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings") if isinstance(text, dict) else None)
    return _of_files(path, base_sources.shards_of(path), tied=tied if isinstance(tied, bool) else None)


def _of_files(
    path: Path, files: Iterable[Path], *, tied: bool | None, known_digest: Callable[[], bytes] | None = None
) -> Weights:
    where = safetensors_file.names(files)
    return Weights(
        path, {name: (entry.dtype, entry.shape) for name, (_, entry) in where.items()},
        lambda name: safetensors_file.read_float32(where[name][0], name, where[name][1]),
        tied=tied, known_digest=known_digest,
    )  # fmt: skip


def _open_gguf(path: Path) -> Weights:
    from hinet_tiers.gguf_file import GgufFile

    file = GgufFile(path)
    try:
        settings = file.settings
        if settings.get("general.type", "model") != "model":
            raise BaseForeign(f"{path.name} is a GGUF of type {settings['general.type']!r}, not a model.")
        is_llama = settings.get("general.architecture") in base_sources.GGUF_ARCHITECTURES
        names = {_hugging_face(name) if is_llama else name: name for name in file.tensors}
        if len(names) != len(file.tensors):
            raise BaseRefused(f"{path.name} holds one tensor under two names: the file is damaged.")
        heads = _llama_heads(path, settings) if is_llama else None
        for own, tensor in file.tensors.items():
            count = gguf_names.heads_of(own, *heads) if heads else None
            if count is not None and tensor.shape[0] % (2 * count):
                raise BaseRefused(f"{path.name}: tensor {own} has {tensor.shape[0]} rows for {count} heads.")

        def read(name: str) -> Values:
            values = file.read(names[name])
            count = gguf_names.heads_of(names[name], *heads) if heads else None
            return values if count is None else gguf_names.deinterleave(values, count)

        return Weights(
            path, {name: (_kind(file.tensors[own].kind), file.tensors[own].shape) for name, own in names.items()},
            read, tied=None if is_llama else False, close=file.close,
        )  # fmt: skip
    except BaseException:
        file.close()
        raise


def _hugging_face(name: str) -> str:
    try:
        return gguf_names.from_gguf(name)
    except KeyError:
        return name


def _kind(number: int) -> str:
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType(number).name


def _llama_heads(path: Path, settings: dict[str, Any]) -> tuple[int, int]:
    heads = settings.get("llama.attention.head_count")
    kv_heads = settings.get("llama.attention.head_count_kv", heads)
    for count in (heads, kv_heads):
        if type(count) is not int or not 1 <= count <= 4096:
            raise BaseRefused(f"{path.name}: llama.attention.head_count is {count!r}: the file is damaged.")
    return heads, kv_heads  # type: ignore[return-value]


def _is_buffer(name: str, shape: tuple[int, ...]) -> bool:
    """Tables that a model derives from its settings: no parameters, and not always stored."""
    return bool(_BUFFERS.search(name)) or bool(_MASK.search(name) and len(shape) == 4 and shape[:2] == (1, 1))


def _refuse_no_floats(label: str, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    for name, (dtype, shape) in tensors.items():
        if dtype in safetensors_file.ITEM_BYTES and dtype not in FLOATS:
            raise BaseForeign(
                f"{label}: tensor {name} is {dtype}, which is no plain float (a quantised model?): "
                "give the model as bf16 or float32 tensors."
            )
        if not 1 <= len(name.encode("utf-8", "replace")) <= base_digest.NAME_BYTES_MAX or not _is_text(name):
            raise BaseRefused(f"{label}: a tensor's name of {len(name)} letters is no name: the file is damaged.")
        if 0 in shape:
            raise BaseRefused(f"{label}: tensor {name} of shape {list(shape)} holds nothing.")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bits(values: Values) -> Values:
    import numpy as np

    return np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)


def _rounded(values: Values) -> Iterator[memoryview]:
    """Values rounded to bf16 and widened again."""
    for piece in _pieces(values):
        yield _little(safetensors_file.widen_bf16(safetensors_file.round_bf16(piece)))


def _pieces(values: Values) -> Iterator[Values]:
    for at in range(0, len(values), PIECE):
        yield values[at : at + PIECE]


def _little(values: Values) -> memoryview:
    import numpy as np

    return np.ascontiguousarray(values, "<f4").reshape(-1).data.cast("B")
