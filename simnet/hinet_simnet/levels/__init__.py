"""The levels of simulation: each plays one scenario with one seed and returns an `Outcome`.

`world`: the agent over in-memory ports in virtual time. `stack`: real py-libp2p over in-memory links. `processes`: real
`hinet-node` processes. `play` picks one by name and imports no other, so that the world level never sees libp2p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

from hinet_simnet.findings import Outcome
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.trace import Trace

Progress = Callable[[Mapping[str, Any]], None]
"""Gets {at_s, duration_s, events, findings} now and then."""
Stop = Callable[[], bool]
"""True when the run should end early and leave a usable outcome (Ctrl-C)."""


class Play(Protocol):
    """`levels.<name>.play`."""

    def __call__(self, scenario: Scenario, seed: int, trace: Trace, *, progress: Progress, stop: Stop) -> Outcome: ...


def play(scenario: Scenario, *, level: str, seed: int, trace: Trace | None = None,
         progress: Progress = lambda facts: None, stop: Stop = lambda: False) -> Outcome:
    """Play a scenario. Errors: `BadScenario` before anything starts; findings are in the outcome, never raised."""
    chosen: Play = import_module(f"hinet_simnet.levels.{level}").play
    return chosen(scenario, seed, trace if trace is not None else Trace(), progress=progress, stop=stop)
