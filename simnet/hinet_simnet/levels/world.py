"""Level "world": a scenario over in-memory ports in virtual time. The same seed gives the same trace digest.

Leaves the world to `hinet_simnet.world` and the playing to `scenario.player`.
"""

from __future__ import annotations

import time

import trio

from hinet_simnet.clock import virtual_run
from hinet_simnet.findings import Outcome
from hinet_simnet.learning import computes
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.scenario.player import play_on, refuse
from hinet_simnet.trace import Trace
from hinet_simnet.world import World


def play(scenario: Scenario, seed: int, trace: Trace, *, progress: Progress = lambda facts: None,
         stop: Stop = lambda: False, first_only: bool = False) -> Outcome:
    """Play the scenario. Errors: `BadScenario`, `NotAtThisLevel` before anything starts."""
    refuse(World, scenario, World.level)

    measured: dict[str, list[list[float]]] = {}

    async def main() -> Outcome:
        async with trio.open_nursery() as nursery:
            world = World(seed, nursery, trace=trace, compute=computes(scenario.learning, measured))
            outcome = await play_on(world, scenario, seed=seed, progress=progress, stop=stop, first_only=first_only)
            nursery.cancel_scope.cancel()
        outcome.facts.update(measured)
        return outcome

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    outcome = virtual_run(main, seed=seed)
    outcome.digest, outcome.events = trace.digest(), trace.events  # agents say goodbye after the last step
    outcome.messages, outcome.message_bytes = trace.messages, trace.message_bytes
    outcome.wall_s = round(time.perf_counter() - wall_s, 3)
    outcome.cpu_s = round(time.process_time() - cpu_s, 3)
    return outcome
