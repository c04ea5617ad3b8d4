"""Tokenizer files of a base: taken over from a Hugging Face folder, or rebuilt from a GGUF's own tables.

A GGUF holds vocabulary, merges and token kinds, and names its splitting rule (`tokenizer.ggml.pre`); the rules known
here are listed in `SPLITS`. Anything else is refused by name: a tokenizer that is nearly right trains garbage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hinet_tiers.base_layout import LlamaShape
from hinet_tiers.errors import BaseForeign, BaseIncomplete, BaseRefused

TOKENIZER_BYTES_MAX = 256 << 20
CONTROL, USER_DEFINED = 3, 4

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _by_pattern(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, {**BYTE_LEVEL, "use_regex": False}]


SPLITS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [BYTE_LEVEL],
    "smollm": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    "llama-bpe": _by_pattern(LLAMA3_PATTERN),
}
"""Pre-tokenizers by GGUF's name for them, in the form of `tokenizer.json`."""


def from_gguf(where: str, settings: dict[str, Any], vocab: int) -> dict[str, bytes]:
    """`tokenizer.json` and `tokenizer_config.json` from a GGUF's settings, or a refusal that names what is missing."""
    model, split = settings.get("tokenizer.ggml.model"), settings.get("tokenizer.ggml.pre", "gpt-2")
    if model is None:
        raise BaseIncomplete(f"{where} holds no tokenizer (tokenizer.ggml.model).")
    if model != "gpt2" or split not in SPLITS:
        raise BaseForeign(
            f"{where}: the tokenizer {model!r} with splitting rule {split!r} is not known here "
            f"(known: 'gpt2' with {', '.join(SPLITS)}); import the model's Hugging Face folder instead."
        )
    tokens, merges = settings.get("tokenizer.ggml.tokens"), settings.get("tokenizer.ggml.merges")
    if not _texts(tokens) or not _texts(merges):
        raise BaseIncomplete(f"{where} lacks its tokenizer's tokens or merges.")
    assert tokens is not None
    assert merges is not None
    if len(tokens) != vocab:
        raise BaseRefused(f"{where}: {len(tokens)} tokens for an embedding of {vocab} rows.")
    if len(set(tokens)) != len(tokens):
        raise BaseRefused(f"{where}: its tokenizer lists a token twice.")
    kinds = settings.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise BaseRefused(f"{where}: {len(kinds)} token kinds for {len(tokens)} tokens.")
    pairs = [merge.split(" ") for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise BaseRefused(f"{where}: a merge of its tokenizer is not a pair.")
    special = {
        role: _token(where, tokens, settings.get(f"tokenizer.ggml.{role}_token_id"), role)
        for role in ("bos", "eos", "unknown", "padding")
    }
    added = [
        {
            "id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kinds[index] == CONTROL,
        }
        for index, token in enumerate(tokens) if kinds[index] in (CONTROL, USER_DEFINED)
    ]  # fmt: skip
    return {
        "tokenizer.json": _dump(_tokenizer(tokens, pairs, added, SPLITS[split])),
        "tokenizer_config.json": _config(special["bos"], special["eos"], special["unknown"], special["padding"]),
    }


def _tokenizer(
    tokens: list[str], pairs: list[list[str]], added: list[Any], splits: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)}, "merges": pairs,
        },
    }  # fmt: skip


def from_folder(path: Path, shape: LlamaShape) -> dict[str, bytes]:
    """The tokenizer files of a Hugging Face folder, checked to be a fast tokenizer that fits the embedding."""
    file = path / "tokenizer.json"
    if not file.is_file():
        old = (path / "tokenizer.model").is_file()
        hint = " (its tokenizer.model must be converted to tokenizer.json first)" if old else ""
        raise BaseIncomplete(f"{path} lacks tokenizer.json{hint}.")
    if file.stat().st_size > TOKENIZER_BYTES_MAX:
        raise BaseRefused(f"{file} has {file.stat().st_size} bytes; at most {TOKENIZER_BYTES_MAX} are read.")
    raw = file.read_bytes()
    try:
        tokenizer = json.loads(raw)
        ids = [*tokenizer["model"]["vocab"].values()] if isinstance(tokenizer["model"]["vocab"], dict) else []
        ids += [row["id"] for row in tokenizer.get("added_tokens", [])]
        highest = max(ids)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BaseRefused(f"{file} is no BPE tokenizer in tokenizer.json's form, or it is damaged.") from error
    if type(highest) is not int or not all(type(index) is int and 0 <= index < shape.vocab for index in ids):
        raise BaseRefused(f"{file}: token {highest!r} has no row in an embedding of {shape.vocab}.")
    _check_loads(file, raw)
    return {"tokenizer.json": raw, "tokenizer_config.json": _folder_config(path, tokenizer, shape)}


def has_token(tokenizer_json: bytes, token: str) -> bool:
    """Whether a checked tokenizer has this token in one piece."""
    tokenizer = json.loads(tokenizer_json)
    added = [row["content"] for row in tokenizer.get("added_tokens", [])]
    return token in tokenizer["model"]["vocab"] or token in added


def _check_loads(file: Path, raw: bytes) -> None:
    """Let the library that will use the tokenizer read it, where it is installed."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return
    try:
        Tokenizer.from_str(raw.decode())
    except Exception as error:  # the library raises nothing narrower
        raise BaseRefused(f"{file} is no tokenizer that can be loaded: {str(error)[:200]}.") from error


def _folder_config(path: Path, tokenizer: dict[str, Any], shape: LlamaShape) -> bytes:
    by_id = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    by_id |= {row["id"]: row["content"] for row in tokenizer.get("added_tokens", [])}

    def token(index: int | None) -> str | None:
        return by_id.get(index) if index is not None else None

    return _config(token(shape.bos), token(shape.eos), None, token(shape.pad) or token(shape.eos))


def _config(bos: str | None, eos: str | None, unknown: str | None, pad: str | None) -> bytes:
    return _dump({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, "unk_token": unknown,
        "pad_token": pad or eos, "clean_up_tokenization_spaces": False, "model_max_length": 1 << 20,
    })  # fmt: skip


def _token(where: str, tokens: list[str], index: Any, role: str) -> str | None:
    if index is None:
        return None
    if type(index) is not int or not 0 <= index < len(tokens):
        raise BaseRefused(f"{where}: the {role} token {index!r} is not in its vocabulary.")
    return tokens[index]


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
