"""A plain walk through a scenario on a stage: devices come when they should, steps happen when they should.

Knows the steps that are one call of the stage or of an agent's API; any other one is refused before the run begins.
Steps of one moment go in the file's order, each to its end. A call that an agent refuses is an event, no finding.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from hinet_node.errors import NodeError
from hinet_simnet.errors import BadScenario
from hinet_simnet.scenario.model import DeviceSpec, Scenario, Step
from hinet_simnet.stage import Stage

ENOUGH_BYTES = 1_000
Act = Callable[[Stage, Step], Awaitable[None]]


def _on(step: Step) -> Sequence[str]:
    wanted = step.args.get("on", ())
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


async def _power(stage: Stage, step: Step) -> None:
    act: Mapping[str, Callable[[str], Awaitable[None]]] = {
        "kill": stage.kill, "stop": stage.stop, "start": stage.start, "freeze": stage.freeze, "thaw": stage.thaw}
    for name in _on(step):
        await act[step.do](name)


async def _restart(stage: Stage, step: Step) -> None:
    for name in _on(step):
        await stage.kill(name)
    await trio.sleep(float(step.args.get("after", 1.0)))
    for name in _on(step):
        await stage.start(name)


async def _links(stage: Stage, step: Step) -> None:
    if step.do == "partition":
        stage.partition(*step.args["groups"])
    elif step.do == "cut":
        stage.cut(step.args["from"], step.args["to"])
    else:
        stage.heal()


async def _put(stage: Stage, step: Step) -> None:
    content = str(step.args.get("text", "")).encode() or bytes(int(step.args.get("size", ENOUGH_BYTES)))
    for name in _on(step):
        await stage.call(name, "vault.put", name=step.args["file"], content=content)


async def _revoke(stage: Stage, step: Step) -> None:
    admin = (*_on(step), *stage.names())[0]
    await stage.call(admin, "device.revoke", device=step.args["device"], reason=step.args.get("reason", "lost"))


ACTS: Mapping[str, Act] = {
    "kill": _power, "stop": _power, "start": _power, "freeze": _power, "thaw": _power, "restart": _restart,
    "partition": _links, "cut": _links, "heal": _links, "put": _put, "revoke": _revoke}


def refuse_unknown(scenario: Scenario) -> None:
    """Errors: `BadScenario` for a step that this walk can't do."""
    for step in scenario.steps:
        if step.do not in ACTS:
            raise BadScenario(f"level stack can't do the step {step.do!r}", where=f"{scenario.file}:{step.line}",
                              next_step=f"it can do: {', '.join(sorted(ACTS))}; or play it with --level world")


async def walk(stage: Stage, scenario: Scenario) -> None:
    """From the first device to `duration_s`. Steps that fail are events."""
    stage.set_link(scenario.link)
    for link in scenario.links:
        stage.set_link(link)
    coming: list[tuple[float, int, DeviceSpec | Step]] = []
    for household in scenario.households().values():
        coming += [(device.joins_at_s, 0, device) for device in household]
    coming += [(step.at_s, 1, step) for step in scenario.steps]
    founders = {name: devices[0].name for name, devices in scenario.households().items()}
    for at_s, _, what in sorted(coming, key=lambda entry: entry[:2]):
        await trio.sleep(max(0.0, min(at_s, scenario.duration_s) - stage.now_s()))
        await _do(stage, what, founders)
    await trio.sleep(max(0.0, scenario.duration_s - stage.now_s()))


async def _do(stage: Stage, what: DeviceSpec | Step, founders: Mapping[str, str]) -> None:
    label: dict[str, Any] = {}
    try:
        if isinstance(what, Step):
            label = {"do": what.do, "line": what.line}
            await ACTS[what.do](stage, what)
        elif founders[what.household] == what.name:
            label = {"do": "found", "device": what.name}
            await stage.found(what)
        else:
            label = {"do": "join", "device": what.name}
            await stage.join(what, by=founders[what.household])
    except NodeError as error:
        stage.trace.event("refused", **label, error=error.code)
