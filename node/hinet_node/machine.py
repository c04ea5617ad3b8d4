"""What this machine can do, found without importing any backend: for the hello that siblings get, and for `status`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec

BACKENDS = (("torch", "torch"), ("llama.cpp", "llama_cpp"), ("mlx", "mlx_lm"), ("onnx", "onnxruntime"))


@dataclass(frozen=True)
class Machine:
    """Names of the installed backends, and the memory in bytes (0 when it can't be told)."""

    backends: tuple[str, ...] = ()
    memory_bytes: int = 0


def describe() -> Machine:
    """This machine. Looks for packages and asks the kernel; loads nothing."""
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory_bytes = 0
    return Machine(tuple(name for name, module in BACKENDS if find_spec(module) is not None), max(0, memory_bytes))


def suggested_tier(machine: Machine) -> str:
    """pocket for less than 12 GiB of memory, laptop otherwise; a cloud machine is named by its owner."""
    return "pocket" if 0 < machine.memory_bytes < 12 * 2**30 else "laptop"
