"""What can be wrong with what the simulator was given, or with a run. Exit codes as in SPEC "Exit codes"."""

from __future__ import annotations

from hinet_node.errors import NodeError


class SimnetError(NodeError):
    """Anything that the simulator refuses or can't do."""

    code = "E_SIMNET"


class BadScenario(SimnetError):
    """A scenario that can't be played. `where` is `file:line` of the offending key."""

    code = "E_SCENARIO"
    exit_code = 2
    lines_kept = True

    def __init__(self, message: str, *, where: str = "", next_step: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message, next_step=next_step)
        self.where = where


class BadTrace(SimnetError):
    """A trace file that is damaged, or of a version or scenario that this program can't replay."""

    code = "E_TRACE"
    exit_code = 2


class NotAtThisLevel(SimnetError):
    """A step that this level of simulation can't do, such as tearing a real disk's writes."""

    code = "E_LEVEL"
    exit_code = 2
