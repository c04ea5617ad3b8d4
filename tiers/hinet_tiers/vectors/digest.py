"""The verb `base.digest`: which base a model is (SPEC section 7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_tiers.backend import Progress
from hinet_tiers.weights import open_weights


def digest_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`{path}` → the digest of the tensors as they are (`digest`), the one that they have once installed as a base
    (`as_base`: rounded to bf16), and what the model consists of. Reads every tensor once, one at a time."""
    with open_weights(Path(args["path"])) as model:
        exact, rounded = model.digests(progress)
        kinds: dict[str, int] = {}
        for dtype in model.dtypes.values():
            kinds[dtype] = kinds.get(dtype, 0) + 1
        return {
            "digest": exact.hex(), "as_base": rounded.hex(), "name": model.label, "tensors": len(model.shapes),
            "parameters": model.parameters, "dtypes": kinds, "tied": model.tied, "left_out": model.left_out[:100],
            "head_dropped": model.head_dropped,
        }  # fmt: skip
