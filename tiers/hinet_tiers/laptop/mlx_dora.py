"""The laptop's distillation on Apple silicon: base + task vector → DoRA adapter, with mlx-lm.

The same contract as `hinet_tiers.laptop.dora` (which chooses this where `available()` says so), and the same product: a
folder in the PEFT layout. MLX also runs on Linux processors, slowly; the tests use that. SPEC.md section 7.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from hinet_tiers.backend import Progress


def available() -> str | None:
    """None where this engine should train the laptop's adapters, else one line that says why not. Imports nothing heavy."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return "MLX trains on Apple silicon only; here torch and PEFT do."
    if find_spec("mlx") is None or find_spec("mlx_lm") is None:
        return "mlx-lm is not installed: `pip install 'hinet-node[laptop]'`."
    return None


def distill(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Distils base + task vector into a DoRA adapter; see `hinet_tiers.laptop.dora.distill` for the contract."""
    raise NotImplementedError
