"""Task vectors: bytes beside the entropy bound, speed beside zstandard on the same delta as dense fp16."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from bench.measure import Bench, timed
from hinet_protocol.taskvectors import TauHeader
from hinet_tiers import sparsify

SHAPE = (1536, 2048)
TENSORS = 10
KEEP, CHUNK = 64, 4096
BASE = "b" * 64
LEVEL = 3


def run(bench: Bench) -> None:
    """A Gaussian delta of 31 million parameters, the top 64 of every 4,096 kept."""
    random = np.random.default_rng(20261201)
    dense = [random.standard_normal(SHAPE, np.float32) * np.float32(1e-3) for _ in range(TENSORS)]
    select: list[float] = []
    kept: list[sparsify.SparseTensor] = []
    for _ in range(bench.repeats):
        with timed([], select):
            kept = [sparsify.SparseTensor(f"t{at:02d}", SHAPE, positions := sparsify.select_chunked(
                values.reshape(-1), KEEP, CHUNK), values.reshape(-1)[positions]) for at, values in enumerate(dense)]
    for codec in ("sign", "fp16"):
        _codec(bench, kept, codec)
    megabytes = TENSORS * math.prod(SHAPE) * 4 / 1e6
    bench.row("choosing the entries", "MB of fp32 / CPU s", [megabytes / one for one in select],
              "none: only zstd's work follows it", less=False)


def _codec(bench: Bench, kept: list[sparsify.SparseTensor], codec: str) -> None:
    path = bench.folder / f"{codec}.tau"
    parameters = TENSORS * math.prod(SHAPE)
    times: dict[str, list[float]] = {name: [] for name in ("encode", "decode", "zstd encode", "zstd decode")}
    packed: list[bytes] = []
    sparsify.write_tau(path, BASE, kept, codec=codec)
    written = list(sparsify.read_tau(path))  # what a reader gets is what zstandard is given
    halves = [np.ascontiguousarray(sparsify.densify(one).astype(np.float16)).tobytes() for one in written]
    for _ in range(bench.repeats):
        with timed([], times["encode"]):
            header = sparsify.write_tau(path, BASE, kept, codec=codec)
        with timed([], times["decode"]):
            for one in sparsify.read_tau(path, BASE):
                sparsify.densify(one)
        with timed([], times["zstd encode"]):
            packed = [zstandard.ZstdCompressor(level=LEVEL).compress(half) for half in halves]
        with timed([], times["zstd decode"]):
            for one_packed in packed:
                np.frombuffer(zstandard.ZstdDecompressor().decompress(one_packed), np.float16).astype(np.float32)
    rates: dict[str, Any] = {name: [parameters * 4 / 1e6 / one for one in took] for name, took in times.items()}
    for what in ("encode", "decode"):
        bench.row(f"{what}, codec {codec}", "MB of fp32 / CPU s", rates[what], f"zstd -{LEVEL} of dense fp16",
                  rates[f"zstd {what}"], less=False)
    size = path.stat().st_size / parameters
    value_bits = {"sign": 1, "fp16": 16}[codec]
    bench.row(f"size, codec {codec}", "bytes / parameter", [size], f"zstd -{LEVEL} of dense fp16",
              [sum(map(len, packed)) / parameters])
    bench.row(f"size, codec {codec}", "bytes / parameter", [size], f"bound: positions + {value_bits} bits a value",
              [(_bound_bits() + value_bits) / 8 * KEEP / CHUNK])
    if codec == "sign":
        bench.row("positions", "bits each", [_position_bits(path, header)], "bound: log2 C(4096, 64) / 64",
                  [_bound_bits()])


def _bound_bits() -> float:
    return math.log2(math.comb(CHUNK, KEEP)) / KEEP


def _position_bits(path: Path, header: TauHeader) -> float:
    """From the lengths at the start of each block (SPEC 7.3)."""
    packed = 0
    with path.open("rb") as file:
        for row in header.tensors:
            file.seek(header.blocks_at + row.offset + 8)
            packed += int.from_bytes(file.read(8), "little")
    return packed * 8 / sum(row.kept for row in header.tensors)
