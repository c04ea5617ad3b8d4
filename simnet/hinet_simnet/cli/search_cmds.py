"""`hinet-node simnet soak` and `shrink`: looking for a failure, and making it small."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet_node.cli import output

if TYPE_CHECKING:
    from hinet_simnet.runs.ledger import Total
    from hinet_simnet.runs.shrink import Shrunk
    from hinet_simnet.runs.soak import Soaked


def shrink(trace: Annotated[str, typer.Argument(metavar="TRACE", help="The .simtrace file of a run that failed.")],
           out: Annotated[str, typer.Option("--out", metavar="FILE", help="The smallest scenario (default: "
                                                                         "TRACE-small.toml).")] = "",
           checker: Annotated[str, typer.Option("--checker", help="Which finding must stay (default: the first "
                                                                 "one).")] = "",
           limit_s: Annotated[float, typer.Option("--limit-s", min=1, help="Stop after so many seconds with the best "
                                                                          "so far.")] = 600.0,
           wall_s: Annotated[float, typer.Option("--wall-s", min=1, help="One try's limit.")] = 300.0) -> int:
    """Find the smallest scenario that still fails.

    It fails with the same checker; it and its trace are written.
    """
    from hinet_simnet.cli import places, showing
    from hinet_simnet.runs.replay import read_through
    from hinet_simnet.runs.scenarios import from_text
    from hinet_simnet.runs.shrink import SCHEMA

    source = places.trace_file(trace)
    header = read_through(source).header
    scenario = from_text(header.text, file=header.file)
    toml = (places.new_file(out, "--out", ".toml") if out else
            showing.free_path(source.with_name(f"{source.stem}-small.toml")))
    with showing.terminated_as_interrupted():
        shrunk = small(scenario, header.seed, header.level, checker=checker, limit_s=limit_s, wall_s=wall_s)
    with places.room_for("the small scenario", "--out"):
        written = write_small(shrunk, toml, header.seed, header.level)
    output.emit(SCHEMA, {**shrunk.as_dict(), "seed": header.seed, "toml": str(toml), "trace": str(written)},
                lambda: _shrunk_lines(shrunk, toml, written, header.level))
    return showing.INTERRUPTED if shrunk.interrupted else 0


def small(scenario: Any, seed: int, level: str, *, checker: str = "", limit_s: float, wall_s: float) -> Shrunk:
    """Shrink with one worker and a moving line."""
    from hinet_simnet.cli import showing
    from hinet_simnet.runs.pool import one_worker
    from hinet_simnet.runs.shrink import shrink as make_small

    begun_s = time.monotonic()

    def shown(shrunk: Shrunk) -> None:
        best = shrunk.best
        show(f"shrinking: {shrunk.tries} tries in {showing.time_text(time.monotonic() - begun_s)}  {len(best.devices)} "
             f"devices, {len(best.steps)} steps, {showing.time_text(best.duration_s)}")

    with showing.moving_line() as show, one_worker() as play:
        return make_small(scenario, seed=seed, level=level, play=play, checker=checker, limit_s=limit_s, wall_s=wall_s,
                          shown=shown)


def write_small(shrunk: Shrunk, toml: Path, seed: int, level: str) -> Path:
    """The scenario's file and the trace of playing it; returns the trace's path."""
    from hinet_simnet.runs.record import record

    toml.write_text(shrunk.best.text, encoding="utf-8")
    trace = toml.with_suffix(".simtrace")
    record(shrunk.best, level=level, seed=seed, path=trace, wall_s=max(60.0, 10 * shrunk.outcome.wall_s))
    return trace


def _shrunk_lines(shrunk: Shrunk, toml: Path, trace: Path, level: str) -> Iterator[str]:
    import shlex

    from hinet_simnet.cli import showing

    state = ("nothing more can be left out" if shrunk.complete else
             "interrupted: the best so far" if shrunk.interrupted else "the time is over: the best so far")
    yield (f"{output.clean_line(shrunk.first.name)}: still found by {output.style(shrunk.checker, 'red', 'bold')} "
           f"after {shrunk.tries} tries in {showing.time_text(shrunk.wall_s)}; {state}")
    yield from output.table([[what, f"{before:g}", f"{after:g}"] for what, before, after in shrunk.sizes()],
                            ("", "BEFORE", "NOW"), indent="  ")
    yield from showing.finding_lines([one for one in shrunk.outcome.findings if one.checker == shrunk.checker][:1])
    yield ""
    again = f" --level {level}" if level != "world" else ""
    yield from output.table([["scenario", str(toml)], ["trace", str(trace)],
                             ["play it", f"hinet-node simnet run {shlex.quote(str(toml))}{again}"]], indent="  ")


def soak(minutes: Annotated[float, typer.Option("--minutes", min=0.01, help="How long.")] = 10.0,
         seed: Annotated[int | None, typer.Option("--seed", min=0, max=1 << 62, help="The first seed (default: "
                                                           "the ledger's next, else any).")] = None,
         jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, max=256, help="Processes (default: one a "
                                                                            "core).")] = 0,
         ledger: Annotated[str, typer.Option("--ledger", metavar="FILE", help="Keep the total over all soaks of this "
                                                                             "version there.")] = "",
         keep_going: Annotated[bool, typer.Option("--keep-going", help="Don't stop at the first finding.")] = False,
         shrink_s: Annotated[float, typer.Option("--shrink-s", min=0, help="Make a finding small for so many seconds "
                                                                          "(0: don't).")] = 120.0,
         wall_s: Annotated[float, typer.Option("--wall-s", min=1, help="One run's limit.")] = 300.0) -> int:
    """Play random scenarios until a checker fires or the time is over."""
    import secrets

    from hinet_simnet.cli import places, showing
    from hinet_simnet.runs.ledger import GOAL_EVENTS, Ledger
    from hinet_simnet.runs.pool import cores
    from hinet_simnet.runs.program import program
    from hinet_simnet.runs.soak import SCHEMA
    from hinet_simnet.runs.soak import soak as play_many

    book = Ledger(places.new_file(ledger, "--ledger", ".json"), program()["version"]) if ledger else None
    first = seed if seed is not None else book.read().next_seed if book else secrets.randbelow(1 << 31)
    workers = jobs or cores()
    output.say(f"random scenarios from seed {first} on, {workers} at a time, for {showing.time_text(minutes * 60)}")
    with showing.terminated_as_interrupted(), showing.moving_line() as show:
        soaked = play_many(seconds=minutes * 60, first_seed=first, workers=workers, wall_s=wall_s,
                           keep_going=keep_going, shown=lambda now: show(_soak_text(now)))
    with places.room_for("the ledger", "--ledger"):
        total = book.add(events=soaked.events, runs=soaked.runs, findings=len(soaked.found),
                         virtual_s=soaked.virtual_s, next_seed=soaked.next_seed) if book else None
    traces = [] if soaked.interrupted else _keep(soaked, shrink_s, wall_s)
    data = {**soaked.as_dict(), "traces": [str(path) for path in traces], "goal_events": GOAL_EVENTS,
            "total": vars(total) if total else None}
    output.emit(SCHEMA, data, lambda: _soaked_lines(soaked, total, traces))
    if soaked.found or soaked.refused:
        return showing.FOUND
    return showing.INTERRUPTED if soaked.interrupted else 0


def _keep(soaked: Soaked, shrink_s: float, wall_s: float) -> list[Path]:
    """Play what was found once more with a trace, and make the first one small."""
    from dataclasses import replace

    from hinet_simnet.cli import showing
    from hinet_simnet.runs.pool import one_worker
    from hinet_simnet.runs.scenarios import from_text
    from hinet_simnet.runs.shrink import NotFailing

    traces = []
    for number, done in enumerate(soaked.found[:showing.FINDINGS_SHOWN]):
        path = showing.free_path(Path(showing.file_name("soak", done.job.seed)))
        with one_worker() as play:
            again = play(replace(done.job, trace=str(path.absolute())))
        if path.exists():
            traces.append(path)
        if number == 0 and shrink_s and again.outcome.findings:
            try:
                shrunk = small(from_text(done.job.text, file=done.job.file), done.job.seed, done.job.level,
                               limit_s=shrink_s, wall_s=wall_s)
            except NotFailing as error:
                output.say(f"not made small: {error.what}")
                continue
            traces.append(write_small(shrunk, path.with_name(f"{path.stem}-small.toml"), done.job.seed,
                                      done.job.level))
    return traces


def _soak_text(soaked: Soaked) -> str:
    from hinet_simnet.cli import showing

    rate = soaked.events / max(1e-3, soaked.wall_s)
    return (f"{soaked.runs:,} runs, {soaked.events:,} events ({rate:,.0f} a second), "
            f"{showing.time_text(soaked.virtual_s)} simulated, {len(soaked.found)} with findings")


def _soaked_lines(soaked: Soaked, total: Total | None, traces: list[Path]) -> Iterator[str]:
    from hinet_simnet.cli import showing
    from hinet_simnet.runs.ledger import GOAL_EVENTS

    seeds = (f"seeds {soaked.first_seed} to {soaked.next_seed - 1}" if soaked.next_seed > soaked.first_seed
             else f"seeds from {soaked.first_seed}, which was not over")
    verdict = (output.style(f"{len(soaked.found)} of {soaked.runs} runs with findings", "red", "bold") if soaked.found
               else output.style("nothing found", "green", "bold"))
    yield f"{verdict}{' (interrupted)' if soaked.interrupted else ''}: {_soak_text(soaked)}; {seeds}"
    if total is not None:
        yield (f"all soaks of this version: {total.events:,} events in {total.runs:,} runs, "
               f"{total.events / GOAL_EVENTS:.2%} of {GOAL_EVENTS:,}")
    for line in soaked.refused[:showing.FINDINGS_SHOWN]:
        yield f"{output.style('refused', 'red')} {output.clean_line(line)}"
    for done in soaked.found[:showing.FINDINGS_SHOWN]:
        yield ""
        yield output.style(f"seed {done.job.seed}", "bold")
        yield from showing.finding_lines(done.outcome.findings)
    if traces:
        yield ""
        yield from (f"  trace  {path}" for path in traces)
        yield f"  look at it  hinet-node simnet report {traces[-1]}"
