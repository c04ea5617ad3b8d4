"""One simulated machine, and one life of the agent on it: from a start to a stop, a power cut or a crash.

A crash is an exception that comes out of the agent's `run`. It becomes a `Finding` with a traceback that repeats:
module, line and function of our own frames, no paths and no object addresses. Leaves what it means to the checkers.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from hinet_node.agent import Agent
from hinet_node.errors import NodeError
from hinet_simnet.clock import VirtualClock
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.errors import SimnetError
from hinet_simnet.folders import MemoryFolders

LOG_LINES_MAX = 500


@dataclass
class Life:
    """One run of an agent."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    cut: bool = False
    """The power was cut: whatever its tasks still do leaves no trace."""


@dataclass
class SimMachine:
    """Its disk, clock and its owner's folders outlive the agent that runs on it."""

    name: str
    tier: str
    household: str
    disk: MemoryDisk
    clock: VirtualClock
    starts: int = 0
    agent: Agent | None = None
    life: Life | None = None
    frozen: bool = False
    tear_share: float = 0.0
    disk_bytes: int | None = None
    thawed: trio.Event = field(default_factory=trio.Event)
    log: list[str] = field(default_factory=list)
    folders: MemoryFolders = field(init=False)

    def __post_init__(self) -> None:
        self.folders = MemoryFolders(self.clock.now_unix_s)

    def note(self, line: str) -> None:
        """Keep a line of the agent's log; the oldest ones go."""
        self.log.append(line)
        if len(self.log) > LOG_LINES_MAX:
            del self.log[:LOG_LINES_MAX // 5]

    def cut_power(self, below: Callable[[int], int], chance: Callable[[], float]) -> None:
        """Unsynced writes are gone, or torn where `tear` said so. The tasks of the ended life keep the old disk, so
        that nothing they still do is written: the machine has another one with what survived."""
        def keep(size_bytes: int) -> int:
            return below(size_bytes + 1) if chance() < self.tear_share else 0

        old = self.disk
        old.crash(keep if self.tear_share else None)
        old.hold = None
        self.disk = old.copy()
        self.disk.crashes, self.disk.full, self.disk.read_only = old.crashes, old.full, old.read_only
        self.tear_share, self.frozen = 0.0, False
        self.thawed.set()


class Started:
    """The agent's `task_status`: calls back at the moment when the agent has started."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def started(self, value: Any = None) -> None:
        self._then()


def split_error(error: BaseException) -> tuple[Exception | None, BaseException | None]:
    """What an agent raised on its own account, and what goes on up (a cancellation)."""
    if isinstance(error, BaseExceptionGroup):
        own, rest = error.split(Exception)
        return own, rest  # type: ignore[return-value]
    return (error, None) if isinstance(error, Exception) else (None, error)


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, and in groups inside it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def could_not_start(name: str, error: Exception) -> NodeError:
    """The error for whoever asked for the start: the agent's own, where it has one for people."""
    first = leaves(error)[0]
    if isinstance(first, NodeError):
        return first
    made = SimnetError(f"the agent on {name} crashed while it started: {plain_text(error)}", code="E_CRASH",
                       next_step="its traceback is in the trace, kind `crash`")
    made.__cause__ = error
    return made


def plain_text(error: BaseException) -> str:
    """Kind and words of an error, without object addresses."""
    words = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves(error))
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", words)


def plain_traceback(error: BaseException) -> str:
    """Our own frames of each exception in it, outermost first, one a line."""
    lines: list[str] = []
    for leaf in leaves(error):
        for frame, line in traceback.walk_tb(leaf.__traceback__):
            module = str(frame.f_globals.get("__name__", ""))
            if module.startswith("hinet_"):
                lines.append(f"{module}:{line} {frame.f_code.co_name}")
        lines.append(plain_text(leaf))
    return "\n".join(lines)
