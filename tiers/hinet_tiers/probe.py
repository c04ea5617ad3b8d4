"""What this machine can do: engines, memory, processors, and the tier that suits it.

Looks without importing any engine, so that it is fast and can't fail by one.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_tiers import registry
from hinet_tiers.backend import Progress, memory_bytes

CLOUD_BYTES = 16 << 30
LAPTOP_BYTES = 6 << 30


def probe(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `probe`: {backends, memory_bytes, cpus, machine, system, gpus, tier}."""
    found = registry.backends()
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if Path("/proc/driver/nvidia/gpus").is_dir() else 0
    memory = memory_bytes()
    return {
        "backends": found, "memory_bytes": memory, "cpus": cpus(), "machine": platform.machine(),
        "system": platform.system().lower(), "gpus": gpus, "tier": recommend(found, memory, gpus),
    }  # fmt: skip


def recommend(backends: list[str], memory: int, gpus: int) -> str:
    """The strongest tier that this machine can serve as."""
    if "torch" in backends and (gpus or memory >= CLOUD_BYTES):
        return "cloud"
    if ("peft" in backends or "mlx" in backends) and memory >= LAPTOP_BYTES:
        return "laptop"
    return "pocket"


def cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
