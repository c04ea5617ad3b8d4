"""What a run found, and how it went: the values that every level returns and every command prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hinet_simnet.trace import Trace

RUN_SCHEMA = "hinet.simnet.run/1"


@dataclass(frozen=True)
class Finding:
    """Something that must never be. `checker` is a checker's name, "crash" for an agent's exception, or "expect"."""

    checker: str
    message: str
    at_s: float
    node: str = ""
    traceback: str = ""


@dataclass
class Outcome:
    """One run. `digest` is the trace's; it repeats with scenario, seed and program at level "world" only."""

    scenario: str
    level: str
    seed: int
    digest: str = ""
    findings: list[Finding] = field(default_factory=list)
    events: int = 0
    messages: int = 0
    message_bytes: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    nodes: int = 0
    interrupted: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    """What steps measured, such as recall over time: {name: [[at_s, value], ...]}."""

    @property
    def ok(self) -> bool:
        return not self.findings and not self.interrupted

    def count(self, trace: Trace) -> None:
        """Take digest and counts from the trace as it is now."""
        self.digest, self.events = trace.digest(), trace.events
        self.messages, self.message_bytes = trace.messages, trace.message_bytes

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; `schema` is `RUN_SCHEMA`."""
        return {"ok": self.ok, **asdict(self)}
