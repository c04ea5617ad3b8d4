"""The two kinds of model that can become a base, behind one interface: a Hugging Face folder and a GGUF file.

A source says what the model's settings are, hands out one float32 tensor at a time in Hugging Face's names and row
order, and gives the tokenizer's files. Everything is checked before the first tensor is read. Pickle files are never
opened.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hinet_tiers import base_tokenizer, gguf_names, safetensors_file
from hinet_tiers.base_layout import LlamaShape, check_tensors, listed
from hinet_tiers.errors import BaseForeign, BaseIncomplete, BaseNotFound, BaseRefused, BaseTruncated
from hinet_tiers.gguf_file import GgufFile

if TYPE_CHECKING:
    import numpy as np

JSON_BYTES_MAX = 256 << 20
NAME_LETTERS_MAX = 120
GGUF_ARCHITECTURES = ("llama",)
FOLDER_TYPES = ("llama",)
ROPE_KEYS = (
    "rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
)  # fmt: skip


class Source(Protocol):
    """A checked model, ready to be read."""

    name: str
    shape: LlamaShape
    gguf: Path | None
    """The file itself when it is a GGUF: the pocket's representation is the file as it came."""

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32, in Hugging Face's row order."""

    def tokenizer_files(self) -> dict[str, bytes]:
        """`tokenizer.json` and `tokenizer_config.json`."""

    def close(self) -> None:
        """Release the files."""


def open_source(path: Path) -> Source:
    """Open and check a model folder or GGUF file. Raises a BaseRefused or BaseNotFound that names what is wrong."""
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        raise BaseNotFound(f"There is no model at {path}. Give a Hugging Face model folder or a .gguf file.")
    return GgufSource(path)


class GgufSource:
    """A GGUF file of the Llama family."""

    def __init__(self, path: Path) -> None:
        self.gguf: Path | None = path
        self._file = GgufFile(path)
        try:
            self._open(path)
        except BaseException:
            self._file.close()
            raise

    def _open(self, path: Path) -> None:
        settings = self._file.settings
        architecture = settings.get("general.architecture")
        if settings.get("general.type", "model") != "model":
            raise BaseForeign(f"{path.name} is a GGUF of type {settings['general.type']!r}, not a model.")
        if architecture not in GGUF_ARCHITECTURES:
            raise BaseForeign(f"{path.name} is a {architecture!r} model; only the Llama family can be a base here.")
        for key in ("llama.expert_count", "llama.rope.scaling.type"):
            if settings.get(key) not in (None, 0, "none"):
                raise BaseForeign(f"{path.name} uses {key} = {settings[key]!r}, which is not understood here.")
        if "rope_freqs.weight" in self._file.tensors:
            raise BaseForeign(
                f"{path.name} holds rope_freqs.weight: the scaling behind it is not stored in a GGUF; "
                "import the model's Hugging Face folder instead."
            )
        self.name = _name(settings.get("general.name"), path)
        found: dict[str, tuple[int, ...]] = {}
        self._names: dict[str, str] = {}
        for gguf_name, tensor in self._file.tensors.items():
            try:
                name = gguf_names.from_gguf(gguf_name)
            except KeyError:
                name = gguf_name
            found[name], self._names[name] = tensor.shape, gguf_name
        self.shape = self._shape(path, settings, tied="lm_head.weight" not in found, found=found)
        self.shape.check(path.name)
        check_tensors(path.name, self.shape, found)
        self._tokenizer = base_tokenizer.from_gguf(path.name, settings, self.shape.vocab)

    def _shape(self, path: Path, settings: dict[str, Any], tied: bool, found: dict[str, tuple[int, ...]]) -> LlamaShape:
        def need(key: str) -> Any:
            if f"llama.{key}" not in settings:
                raise BaseIncomplete(f"{path.name} lacks the setting llama.{key}: the file is not a whole model.")
            return settings[f"llama.{key}"]

        embedding = found.get("model.embed_tokens.weight")
        if embedding is None:
            raise BaseIncomplete(f"{path.name} lacks tensor model.embed_tokens.weight (token_embd.weight).")
        heads = need("attention.head_count")
        hidden = need("embedding_length")
        if type(heads) is not int or type(hidden) is not int or heads < 1:
            raise BaseRefused(f"{path.name}: embedding_length {hidden!r}, head_count {heads!r}.")
        return LlamaShape(
            vocab=embedding[0], hidden=hidden, feed_forward=need("feed_forward_length"), layers=need("block_count"),
            heads=heads, kv_heads=settings.get("llama.attention.head_count_kv", heads),
            head=settings.get("llama.attention.key_length", hidden // heads), context=need("context_length"),
            norm_epsilon=_short(path, need("attention.layer_norm_rms_epsilon")), tied=tied,
            rope={
                "rope_theta": _short(path, settings.get("llama.rope.freq_base", 10000.0)), "rope_type": "default",
            },
            bos=settings.get("tokenizer.ggml.bos_token_id"), eos=settings.get("tokenizer.ggml.eos_token_id"),
            pad=settings.get("tokenizer.ggml.padding_token_id"),
        )  # fmt: skip

    def read(self, name: str) -> np.ndarray:
        gguf_name = self._names[name]
        values = self._file.read(gguf_name)
        heads = gguf_names.heads_of(gguf_name, self.shape.heads, self.shape.kv_heads)
        return values if heads is None else gguf_names.deinterleave(values, heads)

    def tokenizer_files(self) -> dict[str, bytes]:
        return self._tokenizer

    def close(self) -> None:
        self._file.close()


class FolderSource:
    """A Hugging Face folder: `config.json`, safetensors (one file or shards), `tokenizer.json`."""

    gguf: Path | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        config = read_json(path, "config.json")
        kind = config.get("model_type")
        if kind not in FOLDER_TYPES:
            raise BaseForeign(
                f"{path.name}/config.json says model_type {kind!r}; only the Llama family can be a base here."
            )
        for key in ("quantization_config", "attention_bias", "mlp_bias"):
            if config.get(key):
                raise BaseForeign(f"{path.name}/config.json sets {key}, which a plain Llama base does not have.")
        self.name = _name(None, path.resolve())
        self._where = safetensors_file.names(shards_of(path))
        self._drop_buffers()
        self.shape = _shape_of_config(f"{path.name}/config.json", config)
        self.shape.check(f"{path.name}/config.json")
        if self.shape.tied:
            self._drop_tied_head()
        check_tensors(path.name, self.shape, {name: entry.shape for name, (_, entry) in self._where.items()})
        self._tokenizer = base_tokenizer.from_folder(path, self.shape)

    def _drop_buffers(self) -> None:
        for name in [name for name in self._where if name.endswith(".rotary_emb.inv_freq")]:
            del self._where[name]

    def _drop_tied_head(self) -> None:
        """A tied head that is stored all the same must be the embedding itself."""
        import numpy as np

        if "lm_head.weight" not in self._where or "model.embed_tokens.weight" not in self._where:
            return
        if not np.array_equal(self.read("lm_head.weight"), self.read("model.embed_tokens.weight")):
            raise BaseRefused("config.json ties lm_head.weight to model.embed_tokens.weight, but the two differ.")
        del self._where["lm_head.weight"]

    def read(self, name: str) -> np.ndarray:
        path, entry = self._where[name]
        return safetensors_file.read_float32(path, name, entry)

    def tokenizer_files(self) -> dict[str, bytes]:
        return self._tokenizer

    def close(self) -> None:
        """Nothing is held open."""


def shards_of(folder: Path) -> list[Path]:
    """The safetensors files of a model folder: the one, or those that its index names, each with the tensors that the
    index says. Raises BaseIncomplete, BaseForeign or BaseRefused naming what is wrong."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        pickles = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*"))
        if pickles:
            raise BaseForeign(
                f"{pickles[0].name} is a pickle, which is never opened here; convert it to safetensors."
            )
        others = sorted(path.name for path in folder.glob("*.safetensors"))
        hint = f" It holds {others[0]}: give that file itself, if it is the model." if others else ""
        raise BaseIncomplete(f"{folder} holds no model.safetensors (nor an index of shards).{hint}")
    weights = read_json(folder, index.name).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise BaseRefused(f"{index.name} has no weight_map: the folder is damaged.")
    shards = sorted({str(shard) for shard in weights.values()})
    for shard in shards:
        if Path(shard).name != shard or len(shard.encode("utf-8", "replace")) > 255:
            raise BaseRefused(f"{index.name} points outside its folder, or to no file: {shard[:80]!r}.")
        if not (folder / shard).is_file():
            raise BaseIncomplete(f"{folder} lacks the shard {shard} that {index.name} names.")
    held = safetensors_file.names(folder / shard for shard in shards)
    for name, shard in weights.items():
        if name not in held or held[name][0].name != shard:
            raise BaseIncomplete(f"{index.name} says that {shard} holds tensor {name}, which it does not.")
    unlisted = sorted(set(held) - set(weights))
    if unlisted:
        raise BaseRefused(f"{held[unlisted[0]][0].name} holds {listed(unlisted)}, which {index.name} does not name.")
    return [folder / shard for shard in shards]


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file of the folder. Raises BaseIncomplete or BaseRefused naming the file."""
    path = folder / name
    if not path.is_file():
        raise BaseIncomplete(f"{folder} lacks {name}: it is not a Hugging Face model folder, or not all of one.")
    if path.stat().st_size > JSON_BYTES_MAX:
        raise BaseRefused(f"{name} has {path.stat().st_size} bytes; at most {JSON_BYTES_MAX} are read.")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BaseTruncated(f"{path} is not JSON: it is damaged or cut short.") from error
    if not isinstance(value, dict):
        raise BaseRefused(f"{path} is not a JSON object.")
    return value


def _shape_of_config(where: str, config: dict[str, Any]) -> LlamaShape:
    def need(key: str) -> Any:
        if key not in config:
            raise BaseIncomplete(f"{where} lacks {key}.")
        return config[key]

    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise BaseRefused(f"{where}: its rope settings are not a table.")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3", "linear"):
        raise BaseForeign(f"{where}: rope of type {kind!r} is not understood here.")
    kept = {key: rope[key] for key in ROPE_KEYS if key in rope}
    kept |= {"rope_type": kind, "rope_theta": rope.get("rope_theta", config.get("rope_theta", 10000.0))}
    for key, value in kept.items():
        if key != "rope_type" and (type(value) not in (int, float) or not 0 < value < 1e30):
            raise BaseRefused(f"{where}: the rope setting {key} is {value!r}.")
    hidden, heads = need("hidden_size"), need("num_attention_heads")
    if type(hidden) is not int or type(heads) is not int or heads < 1:
        raise BaseRefused(f"{where}: hidden_size {hidden!r}, num_attention_heads {heads!r}.")
    eos = config.get("eos_token_id")
    return LlamaShape(
        vocab=need("vocab_size"), hidden=hidden, feed_forward=need("intermediate_size"),
        layers=need("num_hidden_layers"), heads=heads, kv_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or hidden // heads,
        context=config.get("max_position_embeddings", 2048), norm_epsilon=config.get("rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings", False)), rope=dict(sorted(kept.items())),
        bos=config.get("bos_token_id"), eos=eos[0] if isinstance(eos, list) and eos else eos,
        pad=config.get("pad_token_id"),
    )  # fmt: skip


def _name(given: Any, path: Path) -> str:
    """A model's own name, fit for one line of a terminal."""
    text = given if isinstance(given, str) and given.strip() else path.stem
    return "".join(letter for letter in text if letter.isprintable())[:NAME_LETTERS_MAX]


def _short(path: Path, value: Any) -> float:
    """A float32 setting as the shortest decimal that means the same float32 (9.999999747378752e-06 → 1e-05)."""
    import numpy as np

    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e30:
        raise BaseRefused(f"{path.name}: {value!r} where a setting needs a number.")
    return float(str(np.float32(value)))
