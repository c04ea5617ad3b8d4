"""`hinet-node simnet list`, `run` and `replay`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet_node.cli import output

if TYPE_CHECKING:
    from hinet_simnet.runs.record import Recorded
    from hinet_simnet.runs.replay import Replayed
    from hinet_simnet.scenario.model import Scenario

LIST_SCHEMA = "hinet.simnet.list/1"
WALL_S = 3600.0
SEED_MAX = (1 << 63) - 1

Seed = Annotated[int | None, typer.Option("--seed", min=0, max=SEED_MAX,
                                              help="Replays everything (default: the scenario's own).")]
Level = Annotated[str, typer.Option("--level", help="world, stack or processes.")]
WallS = Annotated[float, typer.Option("--wall-s", min=1, help="A run that takes longer than so many real seconds is a "
                                                             "finding.")]


def list_scenarios() -> None:
    """The ready scenarios."""
    import shutil
    import textwrap

    from hinet_simnet.cli.showing import time_text
    from hinet_simnet.runs.scenarios import find, library

    found = [(name, find(name)) for name in library()]
    rows = [{"name": name, "about": one.about, "devices": len(one.devices), "households": len(one.households()),
             "duration_s": one.duration_s, "levels": list(one.levels)} for name, one in found]
    def told() -> Iterator[str]:
        heading, *lines = output.table([[name, str(len(one.devices)), time_text(one.duration_s), " ".join(one.levels)]
                                        for name, one in found], ("SCENARIO", "DEVICES", "LASTS", "LEVELS"))
        width = min(100, shutil.get_terminal_size().columns)
        yield heading
        for line, (_, one) in zip(lines, found, strict=True):
            yield line
            yield from textwrap.wrap(output.clean_line(one.about), width, initial_indent="  ", subsequent_indent="  ")
        yield from ("", "play one:  hinet-node simnet run SCENARIO [--level LEVEL]")

    output.emit(LIST_SCHEMA, {"scenarios": rows}, told)


def run(scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A name from `simnet list`, or a TOML "
                                                                        "file.")],
        seed: Seed = None, level: Level = "world",
        save: Annotated[str, typer.Option("--save", metavar="FILE", help="Keep the trace there (without it, the trace "
                                          "of a run that found something or was interrupted is kept here).")] = "",
        wall_s: WallS = WALL_S) -> int:
    """Play a scenario; exit code 1 if a checker fired."""
    from hinet_simnet.cli import places, showing
    from hinet_simnet.findings import RUN_SCHEMA
    from hinet_simnet.runs import scenarios

    chosen = scenarios.find(scenario)
    scenarios.refuse_level(chosen, scenarios.level_of(level))
    number = chosen.seed if seed is None else seed
    path = places.new_file(save, "--save", places.TRACE_SUFFIX) if save else None
    with places.room_for("the trace", "--save"), showing.terminated_as_interrupted():
        recorded = _record(chosen, level, number, path, wall_s)
    outcome = recorded.outcome
    output.emit(RUN_SCHEMA, {**outcome.as_dict(), "trace": str(recorded.path) if recorded.path else None,
                             "trace_short": recorded.short or None},
                lambda: _told(recorded))
    return showing.exit_code(outcome) or (showing.PARTLY_DONE if recorded.short else 0)


def _record(scenario: Scenario, level: str, seed: int, save: Path | None, wall_s: float) -> Recorded:
    """Play with a trace: a temporary file that is kept when the run is not ok, unless it has a name from the start."""
    from dataclasses import replace

    from hinet_simnet.cli import showing
    from hinet_simnet.runs.record import record
    from hinet_simnet.runs.tracefile import finite

    path = save or Path(f".{showing.file_name(scenario.name, seed)}.{time.time_ns():x}")
    begun_s = time.monotonic()
    with showing.moving_line() as show:
        recorded = record(scenario, level=level, seed=seed, path=path, wall_s=wall_s,
                          progress=lambda facts: show(showing.progress_text(dict(facts), begun_s)))
    recorded.outcome.facts = finite(recorded.outcome.facts)
    if save:
        return recorded
    if recorded.outcome.ok:
        path.unlink()
        return replace(recorded, path=None, short="")
    kept = showing.free_path(Path(showing.file_name(scenario.name, seed)))
    path.rename(kept)
    return replace(recorded, path=kept, short=recorded.short.replace(str(path), str(kept)))


def _told(recorded: Recorded) -> Iterator[str]:
    from hinet_simnet.cli import showing

    yield from showing.outcome_lines(recorded.outcome)
    if recorded.short:
        yield f"  {output.style('short', 'yellow')}  {output.clean_line(recorded.short)}"
    if recorded.path is not None:
        import shlex

        path = shlex.quote(str(recorded.path))
        rows = [["look at it", f"hinet-node simnet report {path}"],
                ["play it again", f"hinet-node simnet replay {path}"]]
        if recorded.outcome.findings:
            rows.append(["make it small", f"hinet-node simnet shrink {path}"])
        yield ""
        yield f"  trace  {recorded.path}"
        yield from output.table(rows, indent="  ")


def replay(trace: Annotated[str, typer.Argument(metavar="TRACE", help="A .simtrace file.")],
           anyway: Annotated[bool, typer.Option("--anyway", help="Also when another version made the trace.")] = False,
           wall_s: WallS = WALL_S) -> int:
    """Play a trace again and compare every event.

    Exit code 7 when one differs.
    """
    from hinet_simnet.cli import places, showing
    from hinet_simnet.runs.replay import SCHEMA
    from hinet_simnet.runs.replay import replay as play_again
    from hinet_simnet.runs.tracefile import finite

    path, begun_s = places.trace_file(trace), time.monotonic()
    with showing.terminated_as_interrupted(), showing.moving_line() as show:
        result = play_again(path, anyway=anyway, wall_s=wall_s,
                            progress=lambda facts: show(showing.progress_text(dict(facts), begun_s)))
    output.emit(SCHEMA, finite(result.as_dict()), lambda: _compared(result))
    if result.interrupted:
        return showing.INTERRUPTED
    return 0 if result.same else showing.NOT_SAME


def _compared(result: Replayed) -> Iterator[str]:
    from hinet_simnet.cli import showing

    header, outcome = result.recording.header, result.outcome
    what = f"{output.clean_line(header.scenario)}  seed {header.seed}  level {header.level}:  "
    if result.difference is not None:
        yield what + output.style(f"differs from event {result.difference.event:,} on", "red", "bold")
        yield from _difference(result)
        yield ""
        yield "the same program gave another run: something random or real got into it"
        return
    if result.interrupted:
        yield what + output.style(f"interrupted; the first {result.compared:,} events are the same", "yellow")
    elif not result.comparable:
        yield what + "played again, not compared (real time has its say at this level)"
        yield from showing.outcome_lines(outcome)
    elif result.recording.whole:
        yield what + output.style(f"the same, all {outcome.events:,} events", "green", "bold")
        yield f"  digest {outcome.digest}"
        yield from showing.finding_lines(outcome.findings)
    else:
        yield what + output.style(f"the same, {result.compared:,} events", "green", "bold")
        yield "  the recorded run did not come to its end, so the replay stopped there too"


def _difference(result: Replayed) -> Iterator[str]:
    found: Any = result.difference

    def row(mark: str, line: str, *styles: str) -> str:
        return output.style(f"  {mark} {output.clean_line(line)[:300]}", *styles)

    yield from (row(" ", line, "dim") for line in found.before)
    yield from (row("-", line, "red") for line in (found.recorded, *found.recorded_after))
    yield from (row("+", line, "green") for line in (found.played, *found.played_after))
    yield "  (- as recorded, + as played now)"
