"""GGUF files, read with distrust: header, settings and tensor table, then one dequantised tensor at a time.

An own parser, because every count, length and offset must be checked against the file's real size before it is
believed; the `gguf` package supplies the block sizes and the dequantisers. Leaves to others: names (`gguf_names`).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_tiers.errors import BaseForeign, BaseRefused, BaseTruncated

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SETTINGS_MAX = 10_000
TENSORS_MAX = 1 << 20
DIMENSIONS_MAX = 4
ARRAY_MAX = 1 << 24
ARRAY, STRING = 9, 8
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True)
class GgufTensor:
    """One row of the tensor table. `shape` is row-major (GGUF stores it reversed); `start` is the byte in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int
    length: int


class _Cursor:
    """Reads forward through a file's head and refuses to run over its end."""

    def __init__(self, name: str, data: mmap.mmap) -> None:
        self.name, self.data, self.position, self.size = name, data, 0, len(data)

    def take(self, length: int, what: str) -> bytes:
        if length > self.size - self.position:
            raise BaseTruncated(
                f"{self.name} ends inside {what} (at byte {self.size}): it was cut short; copy it again."
            )
        self.position += length
        return self.data[self.position - length : self.position]

    def scalar(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def string(self, what: str) -> str:
        length = self.scalar("<Q", what)
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise BaseRefused(f"{self.name}: {what} is not UTF-8 text: the file is damaged.") from error

    def value(self, kind: int, what: str, nested: bool = False) -> Any:
        if kind == STRING:
            return self.string(what)
        if kind in SCALARS:
            return self.scalar(SCALARS[kind], what)
        if kind != ARRAY or nested:
            raise BaseRefused(f"{self.name}: {what} has the unknown value type {kind}: the file is damaged.")
        inner, count = self.scalar("<I", what), self.scalar("<Q", what)
        if count > ARRAY_MAX:
            raise BaseRefused(f"{self.name}: {what} claims {count} values; at most {ARRAY_MAX} are read.")
        least = 8 if inner == STRING else struct.calcsize(SCALARS.get(inner, "<B"))
        if count * least > self.size - self.position:
            raise BaseTruncated(f"{self.name}: {what} claims {count} values, more than the file has room for.")
        if inner in SCALARS:
            form = SCALARS[inner]
            return list(struct.unpack(f"<{count}{form[1]}", self.take(count * struct.calcsize(form), what)))
        return [self.value(inner, what, nested=True) for _ in range(count)]


class GgufFile:
    """An open GGUF file: `settings` by key, `tensors` by name, `read` for values. Close it, or use `with`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size < 24:
            raise BaseTruncated(f"{path.name} has {path.stat().st_size} bytes and is no GGUF file: copy it again.")
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._parse()
        except BaseException:
            self._map.close()
            raise

    def _parse(self) -> None:
        cursor = _Cursor(self.path.name, self._map)
        magic = cursor.take(4, "its magic")
        if magic != MAGIC:
            raise BaseForeign(f"{self.path.name} is no GGUF file (it begins with {magic!r}, not {MAGIC!r}).")
        version = cursor.scalar("<I", "its version")
        if version not in VERSIONS:
            raise BaseForeign(f"{self.path.name} is GGUF version {version}; versions {VERSIONS} can be read.")
        tensors, settings = cursor.scalar("<Q", "its tensor count"), cursor.scalar("<Q", "its settings count")
        if tensors > TENSORS_MAX or settings > SETTINGS_MAX:
            raise BaseRefused(f"{self.path.name} claims {tensors} tensors and {settings} settings: it is damaged.")
        self.settings: dict[str, Any] = {}
        for index in range(settings):
            key = cursor.string(f"setting {index}")
            self.settings[key] = cursor.value(cursor.scalar("<I", f"setting {key}"), f"setting {key}")
        rows = [self._row(cursor, index) for index in range(tensors)]
        alignment = self.settings.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise BaseRefused(f"{self.path.name}: an alignment of {alignment!r} is not possible.")
        data_start = -(-cursor.position // alignment) * alignment
        self.tensors = self._place(rows, data_start)

    def _row(self, cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
        name = cursor.string(f"tensor {index}'s name")
        dimensions = cursor.scalar("<I", f"tensor {name}")
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise BaseRefused(f"{self.path.name}, tensor {name}: {dimensions} dimensions: the file is damaged.")
        shape = tuple(cursor.scalar("<Q", f"tensor {name}") for _ in range(dimensions))[::-1]
        return name, shape, cursor.scalar("<I", f"tensor {name}"), cursor.scalar("<Q", f"tensor {name}")

    def _place(self, rows: list[tuple[str, tuple[int, ...], int, int]], data_start: int) -> dict[str, GgufTensor]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        known = {int(kind): GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType}
        placed: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in rows:
            where = f"{self.path.name}, tensor {name}"
            if name in placed:
                raise BaseRefused(f"{where} is listed twice: the file is damaged.")
            if kind not in known:
                raise BaseForeign(f"{where}: quantisation type {kind} is not known.")
            block, block_bytes = known[kind]
            if shape[-1] % block or not all(0 < dimension < 1 << 40 for dimension in shape):
                raise BaseRefused(f"{where}: shape {list(shape)} does not fit its quantisation: the file is damaged.")
            length = math.prod(shape) // block * block_bytes
            if data_start + offset + length > len(self._map):
                raise BaseTruncated(
                    f"{where} ends at byte {data_start + offset + length} of a file of {len(self._map)}: "
                    "the file was cut short; copy it again."
                )
            placed[name] = GgufTensor(name, shape, kind, data_start + offset, length)
        last, last_name = 0, ""
        for tensor in sorted(placed.values(), key=lambda tensor: tensor.start):
            if tensor.start < last:
                raise BaseRefused(f"{self.path.name}: tensors {last_name} and {tensor.name} overlap.")
            last, last_name = tensor.start + tensor.length, tensor.name
        return placed

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32, dequantised."""
        import numpy as np
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        raw = np.frombuffer(self._map[tensor.start : tensor.start + tensor.length], np.uint8)
        kind = GGMLQuantizationType(tensor.kind)
        if kind == GGMLQuantizationType.F32:
            return raw.view("<f4").astype(np.float32).reshape(tensor.shape)
        if kind == GGMLQuantizationType.F16:
            return raw.view("<f2").astype(np.float32).reshape(tensor.shape)
        rows = raw.reshape(math.prod(tensor.shape[:-1]), -1)
        try:
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused by whoever reads it
                values = dequantize(rows, kind)
        except NotImplementedError as error:
            raise BaseForeign(f"{self.path.name}, tensor {name}: {kind.name} can't be dequantised here.") from error
        return np.asarray(values, np.float32).reshape(tensor.shape)

    def close(self) -> None:
        """Release the file."""
        self._map.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
