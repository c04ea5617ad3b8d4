"""Level "world": a scenario over in-memory ports in virtual time. The same seed gives the same trace digest.

Leaves the world to `hinet_simnet.world` and the playing to `scenario.player`.
"""

from __future__ import annotations

from hinet_simnet.findings import Outcome
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.levels.virtual import play_virtually
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.scenario.player import refuse
from hinet_simnet.trace import Trace
from hinet_simnet.world import World


def play(scenario: Scenario, seed: int, trace: Trace, *, progress: Progress = lambda facts: None,
         stop: Stop = lambda: False, first_only: bool = False) -> Outcome:
    """Play the scenario. Errors: `BadScenario`, `NotAtThisLevel` before anything starts."""
    refuse(World, scenario, World.level)
    return play_virtually(World, scenario, seed, trace, progress=progress, stop=stop, first_only=first_only)
