"""The verb `tau.info`: what a task vector says of itself, by its header alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_protocol import taskvectors
from hinet_protocol.passports import signable
from hinet_tiers import sparsify
from hinet_tiers.backend import Progress
from hinet_tiers.vectors.layers import by_layer


def info_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`{tau}` → kind, base, density, codecs, bytes, displacement in all and by layer, passport."""
    path = Path(args["tau"])
    header = sparsify.read_tau_header(path)
    size = sum(row.size for row in header.tensors)
    length = path.stat().st_size
    codecs: dict[str, int] = {}
    for row in header.tensors:
        codecs[row.codec] = codecs.get(row.codec, 0) + 1
    return {
        "path": str(path), "base": header.base.hex(), "tensors": len(header.tensors), "entries": size,
        "kept": header.kept, "density": header.density, "codecs": codecs, "bytes": length,
        "bytes_per_parameter": length / max(1, size), "bytes_per_kept": length / max(1, header.kept),
        "displacement": header.displacement, "selection": readable(header.selection),
        "passport": readable(header.passport), "layers": _layers(path, header, progress),
    }  # fmt: skip


def _layers(path: Path, header: taskvectors.TauHeader, progress: Progress) -> list[dict[str, Any]]:
    from hinet_tiers.vectors.layers import square

    rows = []
    with path.open("rb") as file:
        for step, row in enumerate(header.tensors):
            progress(step, len(header.tensors), "reading")
            values = taskvectors.read_tensor(file, header, row.name)[1]
            rows.append((row.name, {
                "tensors": 1, "entries": row.size, "kept": row.kept, "bytes": row.length, "square": square(values),
            }))  # fmt: skip
    found = by_layer(rows)
    for layer in found:
        layer["displacement"] = layer.pop("square") ** 0.5
        layer["density"] = layer["kept"] / layer["entries"]
    return found


def readable(value: Any) -> Any:
    """A header's map as plain JSON values: bytes become hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return signable(value)
