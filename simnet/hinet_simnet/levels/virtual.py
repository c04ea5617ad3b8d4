"""What the levels in virtual time have in common: one world of agents, the player on it, and the outcome's last counts.

Leaves to `world` and `stack` which stage it is and what else they refuse.
"""

from __future__ import annotations

import time
from typing import Any

import trio

from hinet_simnet.clock import virtual_run
from hinet_simnet.findings import Outcome
from hinet_simnet.learning import computes
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.scenario.player import play_on
from hinet_simnet.trace import Trace
from hinet_simnet.world import World


def play_virtually(stage: type[World], scenario: Scenario, seed: int, trace: Trace, **more: Any) -> Outcome:
    """Play on a new stage of this kind; `more` is the player's. Errors: as `scenario.player.play_on`."""
    measured: dict[str, list[list[float]]] = {}

    async def main() -> Outcome:
        async with trio.open_nursery() as nursery:
            world = stage(seed, nursery, trace=trace, compute=computes(scenario.learning, measured))
            outcome = await play_on(world, scenario, seed=seed, **more)
            nursery.cancel_scope.cancel()
        outcome.facts.update(measured)
        return outcome

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    outcome = virtual_run(main, seed=seed)
    outcome.count(trace)  # agents say goodbye after the last step
    outcome.wall_s = round(time.perf_counter() - wall_s, 3)
    outcome.cpu_s = round(time.process_time() - cpu_s, 3)
    return outcome
