"""Level "stack": one scenario through real libp2p over the simulator's links, in virtual time, with tens of nodes.

The seed fixes everything that the world level's seed does, and what Noise draws (see `hinet_simnet.stack.keys`).
Ciphertext costs real time, so more than `DEVICES_MAX` devices are refused. Leaves agents, links and faults to
`StackStage`, and the playing to `scenario.player`.
"""

from __future__ import annotations

from hinet_simnet.errors import BadScenario
from hinet_simnet.findings import Outcome
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.levels.virtual import play_virtually
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.scenario.player import refuse
from hinet_simnet.stack.keys import seeded_noise
from hinet_simnet.stack.stage import StackStage
from hinet_simnet.trace import Trace

DEVICES_MAX = 100


def play(scenario: Scenario, seed: int, trace: Trace, *, progress: Progress = lambda facts: None,
         stop: Stop = lambda: False, first_only: bool = False) -> Outcome:
    """Play the scenario. Errors: `BadScenario`, `NotAtThisLevel` before anything starts."""
    refuse(StackStage, scenario, StackStage.level)
    if len(scenario.devices) > DEVICES_MAX:
        raise BadScenario(f"{len(scenario.devices)} devices are too many for level 'stack': at most {DEVICES_MAX}",
                          where=scenario.file, next_step="--level world")

    with seeded_noise(SeededRandomness(seed, "noise")):
        return play_virtually(StackStage, scenario, seed, trace, progress=progress, stop=stop, first_only=first_only)
