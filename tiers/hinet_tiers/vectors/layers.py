"""Which layer a tensor belongs to, and sums by layer: how a table of thousands of tensors becomes one to look at."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ROWS_MAX = 400
"""More groups than this are summed up in a last one: an answer fits a frame."""
PIECE = 1 << 18
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blk|blocks|block)\.(\d{1,6})\.")


def layer_of(name: str) -> str:
    """`layer 3` for a tensor of a numbered layer, else the name's stem: `model.embed_tokens`, `lm_head`."""
    found = _LAYER.search(name)
    if found is not None:
        return f"layer {int(found[1])}"
    return name.removesuffix(".weight").removesuffix(".bias")


def by_layer(rows: Iterable[tuple[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """Sums of each tensor's figures by layer, the numbered layers in order and then the others by name."""
    sums: dict[str, dict[str, float]] = {}
    for name, figures in rows:
        layer = layer_of(name)
        if layer not in sums and len(sums) >= ROWS_MAX:
            layer = "all others"
        into = sums.setdefault(layer, {})
        for key, value in figures.items():
            into[key] = into.get(key, 0) + value
    return [{"layer": layer, **sums[layer]} for layer in sorted(sums, key=_place)]


def square(values: np.ndarray) -> float:
    """The sum of squares in float64, in pieces, so that no large copy is made and nothing overflows."""
    return dot(values, values)


def dot(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The scalar product of two flat arrays in float64, in pieces of a fixed size: the same on every machine."""
    import numpy as np

    total = 0.0
    for at in range(0, len(ours), PIECE):
        total += float(np.sum(ours[at : at + PIECE].astype(np.float64) * theirs[at : at + PIECE]))
    return total


def distance_square(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The squared distance of two flat arrays in float64, in pieces: huge values do not overflow."""
    import numpy as np

    total = 0.0
    for at in range(0, len(ours), PIECE):
        apart = ours[at : at + PIECE].astype(np.float64)
        apart -= theirs[at : at + PIECE]
        total += float(np.dot(apart, apart))
    return total


def _place(layer: str) -> tuple[int, int, str]:
    number = layer.removeprefix("layer ")
    return (0, int(number), "") if number.isdigit() else (1, 0, layer)
