"""Plays one scenario so that it always ends: in a thread of its own, watched by the clock on the wall.

A busy loop in virtual time never ends by itself, and a crash must not take the command down: both become findings with
a traceback. The run has its own thread because any signal that reaches trio's thread (Ctrl-C, a timer) wakes its
scheduler and would change the order of tasks. Leaves files to `tracefile`, and what is shown to the commands.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hinet_simnet import levels
from hinet_simnet.errors import SimnetError
from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.levels import Progress
from hinet_simnet.scenario.model import Scenario
from hinet_simnet.trace import Sink, Trace

WALL_S = 3600.0
"""How long one run may take by default."""
STILL_S = 120.0
"""The world's time must move within so much real time."""
GRACE_S = 10.0
"""How long a run that was asked to stop may take to do it."""
LOOK_EVERY_S = 0.2
STACK_CHARACTERS_MAX = 20_000

Play = Callable[..., Outcome]


class TakenDown(BaseException):
    """Thrown into a run that does not end. No `Exception`, so that no agent's handler keeps it."""


@dataclass
class Watched:
    """One run under watch. `asked_to_stop_at`: the number of events when it was told to end early."""

    scenario: Scenario
    level: str
    seed: int
    trace: Trace
    outcome: Outcome | None = None
    error: BaseException | None = None
    stopping: bool = False
    asked_to_stop_at: int | None = None
    moved: tuple[float, float] = (-1.0, 0.0)
    """The world's time, and the real time at which it was first seen."""
    facts: dict[str, Any] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    """Asked instead of the thread itself: a `join` that Ctrl-C breaks off takes a running thread for an ended one."""
    finding: Finding | None = None
    enough: Callable[[], bool] = lambda: False
    """True when who plays it has seen what there is to see."""

    def stop(self) -> bool:
        """What the level asks now and then."""
        asked = self.stopping or self.enough()
        if asked and self.asked_to_stop_at is None:
            self.asked_to_stop_at = self.trace.events
        return asked

    def at_s(self) -> float:
        """How far the run has come, as its last event or report says."""
        line = self.trace.lines[-1] if self.trace.lines else "0 "
        return max(float(line.partition(" ")[0]), float(self.facts.get("at_s", 0.0)))


def play(scenario: Scenario, *, level: str, seed: int, sink: Sink | None = None, wall_s: float = WALL_S,
         still_s: float = STILL_S, grace_s: float = GRACE_S, progress: Progress = lambda facts: None,
         enough: Callable[[], bool] = lambda: False, run: Play = levels.play) -> Watched:
    """Play to the end, to Ctrl-C, until it is `enough`, or to the limits; the result's `outcome` is always there.

    `progress` is called in this thread. Errors: `SimnetError` when the scenario is refused.
    """
    watched = Watched(scenario, level, seed, Trace(sink), enough=enough)
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    thread = threading.Thread(target=_play, args=(watched, run), name=f"simnet {scenario.name}", daemon=True)
    thread.start()
    try:
        _watch(watched, thread, wall_s, still_s, progress)
        if not watched.ended.is_set():
            watched.stopping = True
            watched.ended.wait(grace_s)
        if not watched.ended.is_set():
            _take_down(watched, thread, wall_s, grace_s)
    except KeyboardInterrupt:  # a second one: whatever it does, this is over
        watched.stopping = True
        _throw(thread)
    if isinstance(watched.error, SimnetError):
        raise watched.error
    outcome = _finished(watched)
    outcome.wall_s = outcome.wall_s or time.monotonic() - begun_s
    outcome.cpu_s = outcome.cpu_s or time.process_time() - begun_cpu_s
    return watched


def _play(watched: Watched, run: Play) -> None:
    def progress(facts: Mapping[str, Any]) -> None:
        watched.facts = dict(facts)

    try:
        watched.outcome = run(watched.scenario, level=watched.level, seed=watched.seed, trace=watched.trace,
                              progress=progress, stop=watched.stop)
    except BaseException as error:  # also what ends an interpreter: it is a finding of this run
        watched.error = error
    finally:
        watched.ended.set()


def _watch(watched: Watched, thread: threading.Thread, wall_s: float, still_s: float, progress: Progress) -> None:
    """Return when the run has ended, when Ctrl-C asks for it, or when a limit is over."""
    begun_s = time.monotonic()
    watched.moved = (-1.0, begun_s)
    shown: dict[str, Any] = {}
    try:
        while not watched.ended.wait(LOOK_EVERY_S):
            now_s = time.monotonic()
            if watched.facts is not shown:
                shown = watched.facts
                progress(shown)
            at_s = watched.at_s()
            if at_s > watched.moved[0]:
                watched.moved = (at_s, now_s)
            elif watched.level == "world" and now_s - watched.moved[1] > still_s:
                watched.finding = Finding("hang", f"the world's time has stood still for {still_s:.0f} s of real time",
                                          at_s, traceback=_stack(thread))
                return
            if watched.enough():
                return
            if now_s - begun_s > wall_s:
                watched.finding = Finding("hang", f"not over after {wall_s:.0f} s of real time, at {at_s:.3f} s of "
                                          f"{watched.scenario.duration_s:.0f}", at_s, traceback=_stack(thread))
                return
    except KeyboardInterrupt:
        watched.stopping = True


def _take_down(watched: Watched, thread: threading.Thread, wall_s: float, grace_s: float) -> None:
    """It was asked to stop and did not: throw it out of its loop."""
    if watched.finding is None and not watched.enough():
        watched.finding = Finding("hang", f"asked to stop, it did not within {grace_s:.0f} s", watched.at_s(),
                                  traceback=_stack(thread))
    _throw(thread)
    watched.ended.wait(grace_s)


def _throw(thread: threading.Thread) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TakenDown))


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))[-STACK_CHARACTERS_MAX:]


def _finished(watched: Watched) -> Outcome:
    """The outcome, whatever became of the run."""
    outcome = watched.outcome
    if outcome is None:
        outcome = Outcome(watched.scenario.name, watched.level, watched.seed, virtual_s=watched.at_s(),
                          nodes=len(watched.scenario.devices))
        if watched.error is not None and not watched.stopping:
            text = "".join(traceback.format_exception(watched.error))[-STACK_CHARACTERS_MAX:]
            outcome.findings.append(Finding("crash", f"{type(watched.error).__name__}: {watched.error}",
                                            watched.at_s(), traceback=text))
    if watched.finding is not None:
        outcome.findings.append(watched.finding)
    outcome.interrupted = outcome.interrupted or (watched.stopping and watched.finding is None)
    outcome.count(watched.trace)  # the file has what came after the outcome was drawn up, so it counts
    watched.outcome = outcome
    return outcome
