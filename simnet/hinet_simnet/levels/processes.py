"""Level "processes": a scenario with real `hinet-node` processes in real time.

Chooses the form of network, refuses what this machine can't do before anything starts, and fills in the outcome.
Nothing repeats to the bit here: the seed decides the scenario's and the links' draws only. Training and answering are
the fake engine's, unless HINET_BACKEND says otherwise. Leaves playing to `scenario.player`, the nodes to `processes`.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from hinet_simnet.errors import NotAtThisLevel
from hinet_simnet.findings import Outcome
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.processes.isolation import disk_refusal
from hinet_simnet.processes.realtime import RunClock
from hinet_simnet.processes.stage import DEVICES_MAX, ProcessStage, chosen_form, open_stage
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.scenario.player import play_on, refuse
from hinet_simnet.trace import Trace

BACKEND_VARIABLE = "HINET_BACKEND"

PlayOn = Callable[..., Awaitable[Outcome]]
"""`scenario.player.play_on`: plays and checks, and returns what it found."""


def play(scenario: Scenario, seed: int, trace: Trace, *, progress: Progress = lambda facts: None,
         stop: Stop = lambda: False, first_only: bool = False) -> Outcome:
    """Play the scenario. Errors: `BadScenario`, `NotAtThisLevel` before anything starts."""
    refuse(ProcessStage, scenario, ProcessStage.level)
    return play_by(play_on, scenario, seed, trace, progress=progress, stop=stop, first_only=first_only)


def play_by(play_on: PlayOn, scenario: Scenario, seed: int, trace: Trace, **more: Any) -> Outcome:
    """Play with the given player; `more` is for the player."""
    form = chosen_form()
    refuse_impossible(scenario)
    outcomes: list[Outcome] = []

    async def main() -> None:
        async with open_stage(seed, trace, form=form, link=scenario.link, small_disks=filled(scenario),
                              environment={BACKEND_VARIABLE: os.environ.get(BACKEND_VARIABLE, "fake")}) as stage:
            trace.event("stage", form=form)
            for link in scenario.links:
                stage.set_link(link)
            outcomes.append(await play_on(stage, scenario, seed=seed, **more))
            stage.keep_logs = stage.keep_logs or bool(outcomes[0].findings)
        if stage.logs is not None:
            trace.note(f"the logs are in {stage.logs}")
            outcomes[0].facts["logs"] = str(stage.logs)

    begun_s, begun_cpu_s = time.monotonic(), cpu_s()
    trio.run(main, clock=RunClock())
    (outcome,) = outcomes
    outcome.count(trace)
    outcome.wall_s, outcome.cpu_s = round(time.monotonic() - begun_s, 3), round(cpu_s() - begun_cpu_s, 3)
    return outcome


def refuse_impossible(scenario: Scenario) -> None:
    """Errors: `NotAtThisLevel` for what no real process, or not this machine, can do."""
    if len(scenario.devices) > DEVICES_MAX:
        raise NotAtThisLevel(f"{len(scenario.devices)} devices are more than the {DEVICES_MAX} that run as real "
                             "processes on one machine", next_step="play this scenario with --level world")
    small = [device.name for device in scenario.devices if device.disk_bytes is not None]
    if disk_refusal() and (small or filled(scenario)):
        raise NotAtThisLevel(f"{(small or filled(scenario))[0]} needs a disk of its own, and {disk_refusal()}",
                             next_step="run it as root, or play this scenario with --level world")


def filled(scenario: Scenario) -> list[str]:
    """The devices whose disks a step fills: small ones, which this machine does not notice."""
    known = [device.name for device in scenario.devices]
    named: dict[str, None] = {}
    for step in scenario.steps:
        if step.do == "fill_disk":
            on = step.args.get("on", ())
            for name in (on,) if isinstance(on, str) else on:
                named.update(dict.fromkeys(known if name == "*" else [name]))
    return list(named)


def cpu_s() -> float:
    """Processor seconds of this process and of the nodes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
