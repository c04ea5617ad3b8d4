"""The pocket's 4-bit form of a base.

A GGUF source serves as it came. A Hugging Face folder is written as a 16-bit GGUF and quantised by llama.cpp; that form
may differ by processor, so it carries its own digest beside the base's. A base whose tokenizer or rope llama.cpp has no
name for gets no pocket form, and its manifest says why.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_tiers import base_tokenizer, gguf_names, safetensors_file

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
BLOCK = 32
BIG_BLOCK = 256


class NoPocketForm(Exception):
    """This base can't be served by llama.cpp; the message is the reason."""


def pocket_form(source: Path | None, folder: Path, out: Path) -> tuple[str, str]:
    """Write the pocket's GGUF to `out`: the source itself, or made from the base in `folder`.

    Returns (recipe, "") or, when there can be none, ("", why).
    """
    if source is not None:
        shutil.copyfile(source, out)
        _sync(out)
        return "the source GGUF, unchanged", ""
    half = out.with_suffix(".f16.gguf")
    try:
        write_gguf(folder, half)
        return _quantise(half, out, _hidden(folder)), ""
    except NoPocketForm as reason:
        return "", str(reason)
    finally:
        half.unlink(missing_ok=True)


def write_gguf(folder: Path, out: Path) -> None:
    """The base in `folder` as a 16-bit GGUF (norms in float32). Raises NoPocketForm when a part has no name there."""
    import gguf
    import numpy as np

    config = json.loads((folder / "config.json").read_bytes())
    if config["rope_parameters"].get("rope_type", "default") != "default":
        raise NoPocketForm("its scaled rope is not written to GGUF here")
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        raise NoPocketForm("its heads do not span its hidden size")
    writer = gguf.GGUFWriter(out, "llama")
    _settings(writer, config)
    for key, (value, kind, inner) in tokenizer_settings(folder, config["vocab_size"]).items():
        element = gguf.GGUFValueType(inner) if inner is not None else None
        writer.add_key_value(key, value, gguf.GGUFValueType(kind), element)
    weights = folder / "model.safetensors"
    for name, entry in safetensors_file.read_header(weights).items():
        values = safetensors_file.read_float32(weights, name, entry)
        gguf_name = gguf_names.to_gguf(name)
        heads = gguf_names.heads_of(gguf_name, config["num_attention_heads"], config["num_key_value_heads"])
        if heads is not None:
            values = gguf_names.interleave(values, heads)
        if values.ndim == 2:
            if np.abs(values).max(initial=0) > np.finfo(np.float16).max:
                raise NoPocketForm(f"tensor {name} has values too large for 16-bit numbers")
            values = values.astype(np.float16)
        writer.add_tensor(gguf_name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _settings(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(1)


def tokenizer_settings(folder: Path, vocab: int) -> dict[str, tuple[Any, int, int | None]]:
    """The tokenizer as GGUF settings: key → (value, type, element type). Raises NoPocketForm for an unknown kind."""
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    model = tokenizer["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or tokenizer.get("normalizer"):
        raise NoPocketForm(f"its tokenizer is no byte-level BPE ({model.get('type')!r})")
    split = _split_name(tokenizer.get("pre_tokenizer"))
    tokens = [f"[UNUSED{index}]" for index in range(vocab)]
    kinds = [UNUSED] * vocab
    for token, index in model["vocab"].items():
        tokens[index], kinds[index] = token, NORMAL
    for row in tokenizer.get("added_tokens", []):
        tokens[row["id"]], kinds[row["id"]] = row["content"], CONTROL if row.get("special") else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    settings: dict[str, tuple[Any, int, int | None]] = {
        "tokenizer.ggml.model": ("gpt2", 8, None), "tokenizer.ggml.pre": (split, 8, None),
        "tokenizer.ggml.tokens": (tokens, 9, 8), "tokenizer.ggml.token_type": (kinds, 9, 5),
        "tokenizer.ggml.merges": (merges, 9, 8), "tokenizer.ggml.add_bos_token": (False, 7, None),
        "tokenizer.ggml.add_space_prefix": (False, 7, None),
    }  # fmt: skip
    for role, name in (("bos", "bos_token"), ("eos", "eos_token"), ("padding", "pad_token")):
        if config.get(name) in tokens:
            settings[f"tokenizer.ggml.{role}_token_id"] = (tokens.index(config[name]), 4, None)
    return settings


def _split_name(pre_tokenizer: Any) -> str:
    """GGUF's name for a splitting rule."""
    rules = (pre_tokenizer or {}).get("pretokenizers") or [pre_tokenizer]
    for name, known in base_tokenizer.SPLITS.items():
        if [_bare(rule) for rule in rules] == [_bare(rule) for rule in known]:
            return name
    raise NoPocketForm("its tokenizer splits text by a rule that has no name in GGUF here")


def _bare(rule: Any) -> Any:
    return {key: value for key, value in rule.items() if key != "trim_offsets"} if isinstance(rule, dict) else rule


def _quantise(half: Path, out: Path, hidden: int) -> str:
    """Quantise to 4 bits where the matrices' rows allow it; returns the recipe."""
    try:
        import llama_cpp
    except ImportError as error:
        raise NoPocketForm("llama-cpp-python is not installed on the machine that made it") from error
    if hidden % BLOCK:
        shutil.copyfile(half, out)
        _sync(out)
        return "16-bit GGUF (rows are no multiple of 32, so they can't be quantised)"
    settings = llama_cpp.llama_model_quantize_default_params()
    big = hidden % BIG_BLOCK == 0
    settings.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M if big else llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1
    settings.nthread = 2
    if llama_cpp.llama_model_quantize(os.fsencode(half), os.fsencode(out), ctypes.byref(settings)) != 0:
        raise NoPocketForm("llama.cpp could not quantise it")
    _sync(out)
    return f"16-bit GGUF quantised by llama.cpp to {'Q4_K_M' if big else 'Q4_1'}"


def _hidden(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_bytes())
    return int(config["hidden_size"]) | int(config["intermediate_size"])


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
