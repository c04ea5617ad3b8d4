"""Plays a scenario on any stage, with the checkers looking on: founds and joins, takes the steps, settles, sums up.

A step that can't be done because of what happened before (a put on a dead device) is an event `refused`; with
`must = true` it is a finding, as a failed `expect` is. Every wait and list here is bounded. Leaves what each step calls
to `acts`, what must always hold to the checkers, and time, network and disks to the stage.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import trio

from hinet_node.errors import NodeError
from hinet_simnet.checkers.base import Checker
from hinet_simnet.checkers.registry import all_checkers
from hinet_simnet.errors import BadScenario, NotAtThisLevel
from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.levels import Progress, Stop
from hinet_simnet.runs.curves import Convergence
from hinet_simnet.scenario import acts
from hinet_simnet.scenario.model import DeviceSpec, Scenario, Step
from hinet_simnet.scenario.steps import STEPS, missing_at
from hinet_simnet.stage import Stage

LOOK_S = 5.0
LOOKS_MAX = 1_000
"""At most about so many looks in a run: a week is looked at every ten minutes."""
SETTLE_LOOK_S = 5.0
WORK_S = 900.0
"""What one step may take, and all that is under way at the end together."""
JOIN_TRIES = 20
JOIN_PAUSE_S = 15.0
FINDINGS_MAX = 100
POLL_S = 0.5
PULSE_S = 1.0
PULSE_EVENTS = 256


def refuse(stage: type[Stage] | Stage, scenario: Scenario, level: str) -> None:
    """Errors: `NotAtThisLevel`, `BadScenario` when this stage can't play the scenario; before anything starts."""
    if level not in scenario.levels:
        raise NotAtThisLevel(f"{scenario.name} is for {', '.join(scenario.levels)}, not for level {level!r}",
                             next_step=f"--level {scenario.levels[0]}")
    supports = stage.supports()
    for step in scenario.steps:
        lacks = missing_at(supports, step.do)
        if lacks:
            raise BadScenario(f"level {level!r} can't do the step {step.do!r} (it has no {', '.join(lacks)})",
                              where=f"{scenario.file or scenario.name}:{step.line}",
                              next_step="take the step out, or play it at another level")


async def play_on(stage: Stage, scenario: Scenario, *, seed: int, checkers: Iterable[Checker] | None = None,
                  progress: Progress = lambda facts: None, stop: Stop = lambda: False,
                  first_only: bool = False) -> Outcome:
    """Play the scenario to its end, or to the first finding. Errors: as `refuse`; findings are in the outcome."""
    refuse(stage, scenario, stage.level)
    player = Player(stage, scenario, seed, list(all_checkers() if checkers is None else checkers), progress, stop,
                    first_only)
    return await player.run()


class Player:
    """One run."""

    def __init__(self, stage: Stage, scenario: Scenario, seed: int, checkers: Sequence[Checker], progress: Progress,
                 stop: Stop, first_only: bool) -> None:
        self.stage, self.scenario, self.seed = stage, scenario, seed
        self.outcome = Outcome(scenario.name, stage.level, seed)
        self.outcome.facts = {"steps_done": 0, "steps_refused": 0, "unsettled": []}
        self._checkers, self._progress, self._stop, self._first_only = checkers, progress, stop, first_only
        self._scope = trio.CancelScope()
        self._begun_s = 0.0
        self._pulse_wall_s = 0.0
        self._events = 0
        self._turns: dict[tuple[str, str], trio.Lock] = {}
        self._under_way: dict[str, dict[int, trio.CancelScope]] = {}
        self._count = 0
        self._off: dict[str, None] = {}
        self._frozen: dict[str, None] = {}
        self._seen: dict[tuple[str, str, str], None] = {}
        self._invited: dict[str, int] = {}

    # ---- the run -------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        stage, scenario = self.stage, self.scenario
        self._begun_s = stage.now_s()
        stage.trace.observers.append(self._observe)
        try:
            with self._scope:
                stage.trace.event("play", what=scenario.name, seed=self.seed)
                acts.set_links(stage, scenario)
                async with trio.open_nursery() as watching:
                    watching.start_soon(self._watch)
                    await self._play()
                    await self._settle()
                    watching.cancel_scope.cancel()
        finally:
            stage.trace.observers.remove(self._observe)
        return self._summed_up()

    async def _play(self) -> None:
        async with trio.open_nursery() as nursery:
            for devices in self.scenario.households().values():
                nursery.start_soon(self._household, nursery, devices)
            for step in self.scenario.steps:
                await self._until(step.at_s)
                self._begin(nursery, step)
            await self._until(self.scenario.duration_s)
            # What is under way may end; expectations say how long they wait.
            nursery.cancel_scope.deadline = trio.current_time() + WORK_S

    async def _settle(self) -> None:
        """Faults end, then the checkers of convergence get their time."""
        stage = self.stage
        stage.trace.event("settle")
        await acts.end_faults(stage, self.scenario, tuple(self._frozen), tuple(self._off), self._start_again)
        end_s = stage.now_s() + self.scenario.settle_s
        while True:
            waiting = [(checker.name, what) for checker in self._checkers for what in await checker.settled(stage)]
            self.outcome.facts["unsettled"].append([round(self._at_s(), 3), len(waiting)])
            if not waiting:
                return
            if stage.now_s() >= end_s:
                break
            await trio.sleep(min(SETTLE_LOOK_S, max(0.01, end_s - stage.now_s())))
        for name, what in waiting:
            self.found(Finding(name, f"not settled {self.scenario.settle_s:g} s after the faults ended: {what}",
                               self._at_s()))

    async def _start_again(self, name: str) -> None:
        try:
            with trio.fail_after(WORK_S):
                await self.stage.start(name)
        except (NodeError, OSError, trio.TooSlowError) as error:
            self.stage.trace.event("refused", name, do="start", why=_words(error))

    async def _watch(self) -> None:
        pause_s = max(LOOK_S, (self.scenario.duration_s + self.scenario.settle_s) / LOOKS_MAX)
        convergence = Convergence()
        while True:
            await trio.sleep(pause_s)
            self._pulse()
            convergence.sample(self.stage, self._at_s(), self.outcome.facts)
            for checker in self._checkers:
                for finding in await checker.look(self.stage):
                    self.found(finding)

    def _summed_up(self) -> Outcome:
        outcome = self.outcome
        outcome.count(self.stage.trace)
        outcome.virtual_s = round(self._at_s(), 6)
        outcome.nodes = len(self.stage.names())
        self._report()
        return outcome

    # ---- looking -------------------------------------------------------------------------------------------------

    def _observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> None:
        self._events += 1
        if self._events % PULSE_EVENTS == 0:
            self._pulse()
        if kind == "crash":
            self._off.setdefault(node)
            self.found(Finding("crash", f"the agent on {node} crashed (seed {self.seed}): {fields.get('what', '')}",
                               self._at_s(), node, str(fields.get("traceback", ""))))
        for checker in self._checkers:
            for finding in checker.observe(kind, node, fields):
                self.found(finding)

    def found(self, finding: Finding) -> None:
        """Note a finding, once."""
        key = (finding.checker, finding.node, finding.message)
        if key in self._seen or len(self.outcome.findings) >= FINDINGS_MAX:
            return
        self._seen[key] = None
        self.outcome.findings.append(finding)
        self.stage.trace.event("finding", finding.node, checker=finding.checker, what=finding.message)
        if self._first_only:
            self._scope.cancel()

    def _pulse(self) -> None:
        """About once a second of wall time: tell how far we are, ask whether to end. Nothing of it is in the trace."""
        now_s = time.monotonic()
        if now_s - self._pulse_wall_s < PULSE_S:
            return
        self._pulse_wall_s = now_s
        self._report()
        if self._stop() and not self.outcome.interrupted:
            self.outcome.interrupted = True
            self._scope.cancel()

    def _report(self) -> None:
        self._progress({"at_s": round(self._at_s(), 3), "duration_s": self.scenario.duration_s,
                        "events": self.stage.trace.events, "findings": len(self.outcome.findings)})

    def _at_s(self) -> float:
        return self.stage.now_s() - self._begun_s

    async def _until(self, at_s: float) -> None:
        await trio.sleep(max(0.0, self._begun_s + at_s - self.stage.now_s()))

    # ---- households ----------------------------------------------------------------------------------------------

    async def _household(self, nursery: trio.Nursery, devices: Sequence[DeviceSpec]) -> None:
        founder = devices[0]
        await self._until(founder.joins_at_s)
        # A stage may make a whole household at once; for a thousand devices that is much quicker.
        at_once: Callable[[Sequence[DeviceSpec]], Awaitable[None]] | None = getattr(self.stage, "household", None)
        with_founder = [device for device in devices if device.by == "direct" and device is not founder
                        and device.joins_at_s == founder.joins_at_s]
        if at_once is not None and with_founder:
            await at_once([founder, *with_founder])
        else:
            await self.stage.found(founder)
            with_founder = []
        for device in devices[1:]:
            if device not in with_founder:
                nursery.start_soon(self._join, device, devices)

    async def _join(self, device: DeviceSpec, household: Sequence[DeviceSpec]) -> None:
        """Join, and try again as a person would while something is in the way."""
        await self._until(device.joins_at_s)
        why = ""
        for _ in range(JOIN_TRIES):
            by = self._inviter(household)
            if by is not None:
                try:
                    async with self._turn(by, "invites"):
                        with trio.fail_after(WORK_S):
                            await self.stage.join(device, by=by)
                    return
                except (NodeError, OSError, trio.TooSlowError) as error:
                    why = _words(error)
                except Exception as error:
                    self._bug(device.name, "join", error)
                    return
            if device.name in self.stage.names():
                break  # it has joined; it was the start that failed
            await trio.sleep(JOIN_PAUSE_S)
        self._refused(Step(device.joins_at_s, "join", {"on": device.name}), why or "no admin runs")

    def _inviter(self, household: Sequence[DeviceSpec]) -> str | None:
        """The running admin that has invited least, by the file's order where they are even."""
        able = [device.name for device in household if device.role == "admin" and self.stage.running(device.name)
                and device.name not in self._frozen]
        if not able:
            return None
        by = min(able, key=lambda name: self._invited.get(name, 0))
        self._invited[by] = self._invited.get(by, 0) + 1
        return by

    def _turn(self, name: str, what: str) -> trio.Lock:
        return self._turns.setdefault((name, what), trio.Lock())

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _begin(self, nursery: trio.Nursery, step: Step) -> None:
        kind = STEPS[step.do]
        if kind.acts == "world":
            self._at_once(step)
        elif kind.acts == "expect":
            nursery.start_soon(self._expect, step)
        else:
            nursery.start_soon(self._take, step, kind.acts)

    def _at_once(self, step: Step) -> None:
        try:
            acts.change_world(self.stage, step)
        except (NodeError, OSError, KeyError) as error:
            self._refused(step, _words(error))
        else:
            self._done(step)

    async def _take(self, step: Step, acts_as: str) -> None:
        """One step on its device, in turn with those before it."""
        name = step.args["on"]
        async with self._turn(name, acts_as):
            number, self._count = self._count, self._count + 1
            with trio.move_on_after(WORK_S) as scope:
                if acts_as == "work":
                    self._under_way.setdefault(name, {})[number] = scope
                try:
                    await self._do(name, step, acts_as)
                except (NodeError, OSError, trio.TooSlowError) as error:
                    self._refused(step, _words(error))
                except Exception as error:
                    self._bug(name, step.do, error)
                else:
                    self._done(step)
                finally:
                    self._under_way.get(name, {}).pop(number, None)
            if scope.cancelled_caught:
                self._refused(step, "the device went down meanwhile" if name in self._off else "it took too long")

    async def _do(self, name: str, step: Step, acts_as: str) -> None:
        if acts_as == "work":
            await acts.work(self.stage, name, step, self.seed)
            return
        if step.do in ("kill", "stop", "restart") and self.stage.running(name):
            self._off[name] = None
            self._frozen.pop(name, None)
            for scope in self._under_way.get(name, {}).values():
                scope.cancel()
        await acts.power(self.stage, name, step)
        if step.do in ("start", "restart", "clone"):
            self._off.pop(name, None)
        elif step.do == "freeze":
            self._frozen[name] = None
        elif step.do == "thaw":
            self._frozen.pop(name, None)

    async def _expect(self, step: Step) -> None:
        name, end_s = step.args["on"], self.stage.now_s() + step.args["within"]
        while True:
            try:
                why = await acts.unmet(self.stage, name, step.args)
            except (NodeError, OSError) as error:
                why = _words(error)
            if not why:
                self._done(step)
                return
            if self.stage.now_s() >= end_s:
                break
            await trio.sleep(min(POLL_S, max(0.01, end_s - self.stage.now_s())))
        self.found(Finding("expect", f"{self._where(step)}: {name}: {why}", self._at_s(), name))

    def _done(self, step: Step) -> None:
        self.outcome.facts["steps_done"] += 1
        self.stage.trace.event("done", step.args.get("on", ""), do=step.do)

    def _refused(self, step: Step, why: str) -> None:
        self.outcome.facts["steps_refused"] += 1
        name = step.args.get("on", "")
        self.stage.trace.event("refused", name, do=step.do, why=why)
        if step.args.get("must"):
            self.found(Finding("expect", f"{self._where(step)}: {step.do} on {name} had to work: {why}", self._at_s(),
                               name))

    def _bug(self, name: str, do: str, error: Exception) -> None:
        """Something that is no refusal came out of a step: as bad as a crash."""
        rows = traceback.extract_tb(error.__traceback__)
        text = "\n".join(f"{row.filename.rpartition('/')[2]}:{row.name}: {row.line}" for row in rows)
        self.found(Finding("crash", f"{do} on {name} ended in {type(error).__name__} (seed {self.seed}): {error}",
                           self._at_s(), name, text))

    def _where(self, step: Step) -> str:
        return f"{self.scenario.file or self.scenario.name}:{step.line}" if step.line else f"at {step.at_s:g} s"


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
