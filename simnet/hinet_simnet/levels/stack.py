"""Level "stack": one scenario through real libp2p over the simulator's links, in virtual time, with tens of nodes.

The seed fixes everything that the world level's seed does, and what Noise draws (see `hinet_simnet.stack.keys`).
Ciphertext costs real time, so more than `DEVICES_MAX` devices are refused. Leaves agents, links and faults to
`StackStage`.
"""

from __future__ import annotations

import time

import trio

from hinet_simnet.errors import BadScenario
from hinet_simnet.findings import Outcome
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.stack.stage import StackStage, run_stack
from hinet_simnet.stack.walk import refuse_unknown, walk
from hinet_simnet.trace import Trace

DEVICES_MAX = 100
LOOK_S = 1.0
PROGRESS_S = 30.0


def play(scenario: Scenario, seed: int, trace: Trace, *, progress: Progress, stop: Stop) -> Outcome:
    """As `levels.play` says. Errors: `BadScenario`."""
    _refuse(scenario)
    outcome = Outcome(scenario.name, "stack", seed, nodes=len(scenario.devices))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()

    async def story(stage: StackStage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, stage, scenario, outcome, progress, stop, nursery.cancel_scope)
            await walk(stage, scenario)
            nursery.cancel_scope.cancel()
        outcome.virtual_s = stage.now_s()

    # Starting many agents takes no virtual time to speak of, joins take seconds each.
    hours = (scenario.duration_s + scenario.settle_s + 60.0 * len(scenario.devices)) / 3600
    stage = run_stack(story, seed=seed, hours=hours, trace=trace)
    outcome.findings = list(stage.crashes)
    outcome.digest, outcome.events = trace.digest(), trace.events
    outcome.messages, outcome.message_bytes = trace.messages, trace.message_bytes
    outcome.wall_s, outcome.cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return outcome


def _refuse(scenario: Scenario) -> None:
    if "stack" not in scenario.levels:
        raise BadScenario(f"{scenario.name} is not written for level stack", where=scenario.file,
                          next_step="add \"stack\" to its `levels`, or play it with --level world")
    if len(scenario.devices) > DEVICES_MAX:
        raise BadScenario(f"{len(scenario.devices)} devices are too many for level stack: at most {DEVICES_MAX}",
                          where=scenario.file, next_step="play it with --level world")
    refuse_unknown(scenario)


async def _watch(stage: StackStage, scenario: Scenario, outcome: Outcome, progress: Progress, stop: Stop,
                 scope: trio.CancelScope) -> None:
    told_s = 0.0
    while True:
        await trio.sleep(LOOK_S)
        if stop():
            outcome.interrupted = True
            scope.cancel()
        if stage.now_s() - told_s >= PROGRESS_S:
            told_s = stage.now_s()
            progress({"at_s": told_s, "duration_s": scenario.duration_s, "events": stage.trace.events,
                      "findings": len(stage.crashes)})
