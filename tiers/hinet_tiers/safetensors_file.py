"""Safetensors files, read with distrust and written tensor by tensor.

Every length and offset of a header is checked against the file's real size before anything is allocated, so a file that
was cut short or made by an enemy is refused with the reason. Values are handed out as float32 whatever the file holds.
Leaves to others: what the tensors are called and mean (`base_layout`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hinet_tiers.errors import BaseRefused, BaseTruncated

if TYPE_CHECKING:
    import numpy as np

HEADER_BYTES_MAX = 100_000_000
TENSORS_MAX = 1 << 20
DIMENSIONS_MAX = 8
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its dtype's safetensors name, shape, and byte range from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a file by name. Raises BaseTruncated or BaseRefused, naming what is wrong."""
    size = path.stat().st_size
    if size < 8:
        raise BaseTruncated(f"{path.name} has {size} bytes and is no safetensors file: copy it again.")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > HEADER_BYTES_MAX:
            raise BaseRefused(
                f"{path.name} claims a header of {length} bytes (at most {HEADER_BYTES_MAX} are allowed): "
                "it is no safetensors file."
            )
        if length > size - 8:
            raise BaseTruncated(
                f"{path.name} ends inside its header ({size} bytes, header of {length}): copy it again."
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BaseRefused(f"{path.name}: its header is not JSON, so it is foreign or damaged.") from error
    if not isinstance(header, dict) or len(header) > TENSORS_MAX:
        raise BaseRefused(f"{path.name}: its header is not a table of tensors.")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, row, 8 + length, size) for name, row in header.items()}
    _refuse_overlap(path, entries)
    return entries


def _entry(path: Path, name: str, row: Any, data_start: int, size: int) -> Entry:
    where = f"{path.name}, tensor {name}"
    dtype = row.get("dtype") if isinstance(row, dict) else None
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BaseRefused(f"{where}: dtype {dtype!r} is not known.")
    shape, offsets = row.get("shape"), row.get("data_offsets")
    if not _counts(shape) or len(shape) > DIMENSIONS_MAX:
        raise BaseRefused(f"{where}: shape {shape!r} is not a list of counts.")
    if not _counts(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise BaseRefused(f"{where}: offsets {offsets!r} are not a range.")
    start, end = data_start + offsets[0], data_start + offsets[1]
    need = math.prod(shape) * ITEM_BYTES[row["dtype"]]
    if end - start != need:
        raise BaseRefused(f"{where}: {end - start} bytes where its shape {shape} needs {need}.")
    if end > size:
        raise BaseTruncated(f"{where} ends at byte {end} of a file of {size}: the file was cut short; copy it again.")
    return Entry(row["dtype"], tuple(shape), start, end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 48 for item in value)


def _refuse_overlap(path: Path, entries: Mapping[str, Entry]) -> None:
    last, last_name = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start < last:
            raise BaseRefused(f"{path.name}: tensors {last_name} and {name} overlap.")
        if entry.end > entry.start:
            last, last_name = entry.end, name


def read_float32(path: Path, name: str, entry: Entry) -> np.ndarray:
    """One tensor as a fresh float32 array. Raises BaseRefused for a dtype that is no float."""
    import numpy as np

    with path.open("rb") as file:
        file.seek(entry.start)
        raw = np.empty(entry.end - entry.start, np.uint8)
        if file.readinto(raw.data) != len(raw):
            raise BaseTruncated(f"{path.name} became shorter while tensor {name} was read.")
    if entry.dtype == "BF16":
        return widen_bf16(raw.view("<u2")).reshape(entry.shape)
    if entry.dtype not in FLOATS:
        raise BaseRefused(f"{path.name}, tensor {name}: dtype {entry.dtype} is not a plain float (a quantised model?).")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite; who reads it refuses that by name
        return raw.view(FLOATS[entry.dtype]).astype(np.float32, copy=False).reshape(entry.shape)


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) as float32, exactly."""
    import numpy as np

    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def round_bf16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to bfloat16 bit patterns (uint16), ties to even. The values must be finite."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


class Writer:
    """Writes a file whose tensors are all known beforehand, one at a time, in name order.

    Use as: `with Writer(path, {name: (dtype, shape)}) as writer: writer.add(name, raw)` for each name in sorted order.
    The same tensors give the same bytes. The file is synced to disk when the block ends.
    """

    def __init__(self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        self._path = path
        self._left = sorted(tensors)
        self._sizes: dict[str, int] = {}
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name in self._left:
            dtype, shape = tensors[name]
            self._sizes[name] = math.prod(shape) * ITEM_BYTES[dtype]
            end = position + self._sizes[name]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
            position = end
        raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        self._header = raw + b" " * (-len(raw) % 8)
        self._file: BinaryIO | None = None

    def __enter__(self) -> Writer:
        self._file = self._path.open("wb")
        self._file.write(len(self._header).to_bytes(8, "little") + self._header)
        return self

    def add(self, name: str, raw: bytes | memoryview) -> None:
        """Append the next tensor's little-endian bytes."""
        assert self._file is not None
        assert self._left[:1] == [name], f"{name} is not the next tensor"
        assert memoryview(raw).nbytes == self._sizes[name], f"{name} has another length"
        self._left.pop(0)
        self._file.write(raw)

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._file is not None
        try:
            if kind is None:
                assert not self._left, f"not written: {self._left[:3]}"
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def names(paths: Iterable[Path]) -> dict[str, tuple[Path, Entry]]:
    """All tensors of several shards. Raises BaseRefused when a name is in two of them."""
    found: dict[str, tuple[Path, Entry]] = {}
    for path in paths:
        for name, entry in read_header(path).items():
            if name in found:
                raise BaseRefused(f"tensor {name} is in {found[name][0].name} and again in {path.name}.")
            found[name] = (path, entry)
    return found
