"""Level "stack": one scenario through real libp2p over the simulator's links, in virtual time, with tens of nodes.

The seed fixes everything that the world level's seed does, and what Noise draws (see `hinet_simnet.stack.keys`).
Ciphertext costs real time, so more than `DEVICES_MAX` devices are refused. Leaves agents, links and faults to
`StackStage`, and the playing to `scenario.player`.
"""

from __future__ import annotations

import time

import trio

from hinet_simnet.clock import virtual_run
from hinet_simnet.errors import BadScenario
from hinet_simnet.findings import Outcome
from hinet_simnet.learning import computes
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.scenario.player import play_on, refuse
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

    measured: dict[str, list[list[float]]] = {}

    async def main() -> Outcome:
        async with trio.open_nursery() as nursery:
            stage = StackStage(seed, nursery, trace=trace, compute=computes(scenario.learning, measured))
            outcome = await play_on(stage, scenario, seed=seed, progress=progress, stop=stop, first_only=first_only)
            nursery.cancel_scope.cancel()
        outcome.facts.update(measured)
        return outcome

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with seeded_noise(SeededRandomness(seed, "noise")):
        outcome = virtual_run(main, seed=seed)
    outcome.digest, outcome.events = trace.digest(), trace.events  # agents say goodbye after the last step
    outcome.messages, outcome.message_bytes = trace.messages, trace.message_bytes
    outcome.wall_s = round(time.perf_counter() - wall_s, 3)
    outcome.cpu_s = round(time.process_time() - cpu_s, 3)
    return outcome
