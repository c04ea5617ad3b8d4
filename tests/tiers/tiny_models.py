"""Models of a few thousand random weights, made on the spot: a Hugging Face folder or a GGUF of the Llama family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hinet_tiers import safetensors_file
from hinet_tiers.base_layout import LlamaShape
from hinet_tiers.gguf_export import write_gguf

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["user", "assistant"]


def byte_letters() -> list[str]:
    """The 256 printable letters that stand for bytes in a byte-level vocabulary, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def tokenizer() -> dict[str, Any]:
    """A byte-level BPE with two merges, in the form of `tokenizer.json`."""
    tokens = [*SPECIAL, *byte_letters(), "us", "er"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} for index, token in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)}, "merges": [["u", "s"], ["e", "r"]],
        },
    }  # fmt: skip


def shape(*, tied: bool = True, layers: int = 2) -> LlamaShape:
    """Settings of a model with about 60 thousand weights."""
    return LlamaShape(
        vocab=261, hidden=64, feed_forward=96, layers=layers, heads=4, kv_heads=2, head=16, context=512,
        norm_epsilon=1e-5, tied=tied, rope={"rope_theta": 10000.0, "rope_type": "default"}, bos=1, eos=2, pad=2,
    )  # fmt: skip


def tensors(settings: LlamaShape, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights by Hugging Face name."""
    source = np.random.default_rng(seed)
    made = {}
    for name, dimensions in settings.tensors().items():
        values = source.standard_normal(dimensions).astype(np.float32) * np.float32(0.15)
        made[name] = values + 1 if len(dimensions) == 1 else values
    return made


def write_shard(path: Path, weights: dict[str, np.ndarray]) -> None:
    """One safetensors file in float32."""
    with safetensors_file.Writer(path, {name: ("F32", values.shape) for name, values in weights.items()}) as writer:
        for name in sorted(weights):
            writer.add(name, weights[name].tobytes())


def write_folder(
    folder: Path, settings: LlamaShape | None = None, *, seed: int = 0, shards: int = 1, **config: Any
) -> dict[str, np.ndarray]:
    """A whole Hugging Face folder. `config` overrides fields of config.json. Returns the weights."""
    settings = settings or shape()
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensors(settings, seed)
    (folder / "config.json").write_text(json.dumps(settings.config() | config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    names = sorted(weights)
    if shards == 1:
        write_shard(folder / "model.safetensors", weights)
        return weights
    where = {name: f"model-{index % shards}.safetensors" for index, name in enumerate(names)}
    for shard in sorted(set(where.values())):
        write_shard(folder / shard, {name: weights[name] for name in names if where[name] == shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return weights


def write_gguf_model(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """The same model as a 16-bit GGUF."""
    folder = path.with_suffix(".folder")
    weights = write_folder(folder, seed=seed)
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    write_gguf(folder, path)
    return weights


def write_file(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """One safetensors file of any names in one dtype; uint16 arrays are bfloat16 bits, integers keep their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, raws = {}, {}
    for name, values in tensors.items():
        kind = {"int64": "I64", "int32": "I32", "uint8": "U8"}.get(str(values.dtype), dtype)
        rows[name] = (kind, values.shape)
        if kind == "BF16":
            bits = safetensors_file.round_bf16(values.astype(np.float32)) if values.dtype != np.uint16 else values
            raws[name] = bits.astype("<u2").tobytes()
        else:
            raws[name] = values.astype(safetensors_file.FLOATS.get(kind, values.dtype)).tobytes()
    with safetensors_file.Writer(path, rows) as writer:
        for name in sorted(rows):
            writer.add(name, raws[name])
