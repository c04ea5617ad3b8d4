"""Fuzz targets of SPEC 7.1: model files, which come from anywhere."""

from __future__ import annotations

import atexit
import json
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.target import Target
from hinet_tiers.errors import TierError
from hinet_tiers.weights import open_weights


@cache
def folder() -> Path:
    """Where inputs lie while they are read, as model files do."""
    made = Path(tempfile.mkdtemp(prefix="fuzz-models-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def read_whole(path: Path) -> None:
    with open_weights(path) as model:
        exact, rounded = model.digests()
        assert len(exact) == len(rounded) == 32
        assert model.parameters > 0


def model_file(raw: bytes) -> None:
    path = folder() / "m"
    path.write_bytes(raw)
    read_whole(path)


def sharded_folder(raw: bytes) -> None:
    """The index is the input; the shards are right."""
    place = folder() / "sharded"
    if not place.is_dir():
        place.mkdir()
        for name in ("a", "b"):
            (place / f"{name}.safetensors").write_bytes(safetensors({name: ("F32", [2], b"\0\0\x80\x3f" * 2)}))
    (place / "model.safetensors.index.json").write_bytes(raw)
    read_whole(place)


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    rows: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        rows[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(rows).encode()
    return len(head).to_bytes(8, "little") + head + data


def headed(inner: bytes, random: Random) -> bytes:
    """A safetensors file whose stated header length fits this header."""
    data = bytes(random.choice((0, 8, 64, 200)))
    return len(inner).to_bytes(8, "little") + inner + data


def gguf() -> bytes:
    """A Llama file of three settings and three tensors, one of them in Q4_0."""
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    settings = [text("general.architecture") + struct.pack("<I", 8) + text("llama"),
                text("llama.attention.head_count") + struct.pack("<II", 4, 2),
                text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")]
    rows = [("token_embd.weight", (4, 2), 0, 32), ("blk.0.attn_q.weight", (4, 4), 0, 64), ("x", (32,), 2, 18)]
    table, offset = b"", 0
    for name, shape, kind, length in rows:
        table += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += -(-length // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(settings)) + b"".join(settings) + table
    return head + bytes(-len(head) % 32) + b"\0\0\x80\x3f" * (offset // 4)


def targets() -> list[Target]:
    one = b"\0\0\x80\x3f"
    plain = safetensors({"model.embed_tokens.weight": ("F32", [2, 2], one * 4), "lm_head.weight": ("BF16", [2, 2],
                         b"\x80\x3f" * 4), "h.0.w": ("F16", [3], b"\0\x3c" * 3), "r": ("F64", [], bytes(8))})
    heads = [plain[8:8 + int.from_bytes(plain[:8], "little")]]
    index = json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).encode()
    return [
        Target("safetensors", [plain], model_file, errors=(TierError,), dress=headed, inner=heads),
        Target("safetensors index", [index], sharded_folder, errors=(TierError,)),
        Target("gguf", [gguf()], model_file, errors=(TierError,)),
    ]
