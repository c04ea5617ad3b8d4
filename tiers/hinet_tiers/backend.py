"""The one seam between jobs and engines: what a machine can do, whether a job fits, and the doing of it.

An engine (torch, llama.cpp, MLX, the deterministic fake) answers the verbs that it can; `registry` finds the module of
a verb and imports it on demand. Nothing here imports an ML library. SPEC section 7.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Progress = Callable[..., None]
"""`progress(step, total, note="", **more)`: called often and cheaply; a worker turns it into an event."""


def no_progress(step: int, total: int, note: str = "", **more: Any) -> None:
    """A progress callback that says nothing."""


Verb = Callable[[Mapping[str, Any], Progress], dict[str, Any]]
"""One thing that a worker does: arguments and a progress callback → result, all of plain values."""


class ComputeBackend(Protocol):
    """An engine. `verbs` are what it can do, by the worker's names for them."""

    name: str

    def available(self) -> str | None:
        """None when this machine can use the engine, else one line that says what is missing. Imports nothing heavy."""

    def verbs(self) -> Mapping[str, Verb]:
        """The verbs that this engine answers."""


@dataclass(frozen=True)
class Method:
    """One rung of the memory ladder: bytes per parameter of the base and per trained one, and whether it trains."""

    name: str
    base_bytes: float
    trained_bytes: float
    trains: bool


LADDER = {
    method.name: method
    for method in (
        Method("full", 16.0, 0.0, True),
        Method("full-8bit", 10.0, 0.0, True),
        Method("adapter-bf16", 2.0, 16.0, True),
        Method("adapter-fp32", 4.0, 16.0, True),
        Method("adapter-4bit", 0.5, 16.0, True),
        Method("serve-4bit", 0.65, 0.0, False),
    )
}
"""Full fine-tuning: float32 weights, gradient and two moments. Served 4-bit weights carry scales (5.0-5.2 bits)."""

PROCESS_BYTES = 700 << 20
"""An interpreter with torch loaded."""
SERVE_PROCESS_BYTES = 150 << 20
LOGITS_COPIES = 3
"""Logits, their gradient and the softmax live at once, in float32: with a large vocabulary they outweigh the layers."""
ACTIVATION_COPIES = 34
"""Kept hidden-sized float32 values per token and layer (attention, norms, three feed-forward products)."""


@dataclass(frozen=True)
class Job:
    """What decides a job's memory. `trained` counts an adapter's parameters (0 for full fine-tuning)."""

    method: str
    parameters: int
    hidden: int
    layers: int
    vocab: int
    batch: int = 1
    tokens: int = 512
    trained: int = 0


@dataclass(frozen=True)
class Estimate:
    """Bytes a job needs, by part, and whether it fits into `available_bytes`."""

    need_bytes: int
    available_bytes: int
    parts: Mapping[str, int]
    nearest: str | None = None
    """The best method that would fit where this one doesn't."""

    @property
    def fits(self) -> bool:
        """Whether the job can run here."""
        return self.need_bytes <= self.available_bytes


def estimate(job: Job, available_bytes: int | None = None) -> Estimate:
    """The memory a job needs by the ladder, never less than it takes; and the nearest method that fits, if need be."""
    room = memory_bytes() if available_bytes is None else available_bytes
    parts = _parts(job)
    need = sum(parts.values())
    nearest = None
    if need > room and LADDER[job.method].trains:
        for method in ("full-8bit", "adapter-bf16", "adapter-4bit"):
            rank16 = job.trained or job.parameters // 25
            other = Job(**{**job.__dict__, "method": method, "trained": 0 if method == "full-8bit" else rank16})
            if method != job.method and sum(_parts(other).values()) <= room:
                nearest = method
                break
    return Estimate(need, room, parts, nearest)


def _parts(job: Job) -> dict[str, int]:
    method = LADDER[job.method]
    parts = {
        "process": PROCESS_BYTES if method.trains else SERVE_PROCESS_BYTES,
        "weights": int(method.base_bytes * job.parameters),
        "adapter": int(method.trained_bytes * job.trained),
    }
    tokens = job.batch * job.tokens
    if method.trains:
        parts["activations"] = 4 * ACTIVATION_COPIES * tokens * job.hidden * job.layers
        parts["logits"] = 4 * LOGITS_COPIES * tokens * job.vocab
    else:
        parts["cache"] = 4 * tokens * job.hidden * job.layers
    return parts


def memory_bytes() -> int:
    """The memory this process may use: the machine's, or its container's limit when that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
