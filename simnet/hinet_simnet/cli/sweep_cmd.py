"""`hinet-node simnet sweep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet_node.cli import output

if TYPE_CHECKING:
    from hinet_simnet.runs.sweep import Row


def sweep(scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A name from `simnet list`, or a TOML "
                                                                          "file.")],
          seeds: Annotated[str, typer.Option("--seeds", help="1:50, or 1,2,7.")] = "1:10",
          set_: Annotated[list[str] | None, typer.Option("--set", metavar="PATH=A,B,C", help="Values for a place of "
                          "the scenario's TOML; may be given again.")] = None,
          engine: Annotated[str, typer.Option("--engine", help="processes (this machine's cores) or "
                                                               "ray.")] = "processes",
          jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, max=256, help="Processes (default: one a "
                                                                            "core).")] = 0,
          level: Annotated[str, typer.Option("--level", help="world, stack or processes.")] = "world",
          csv: Annotated[str, typer.Option("--csv", metavar="FILE", help="Write one line a run.")] = "",
          wall_s: Annotated[float, typer.Option("--wall-s", min=1, help="One run's limit.")] = 600.0) -> int:
    """Play seeds × parameters on all cores; a table of what came out."""
    from hinet_simnet.cli import places, showing
    from hinet_simnet.runs import scenarios
    from hinet_simnet.runs.parameters import parameter_of, seeds_of
    from hinet_simnet.runs.pool import cores
    from hinet_simnet.runs.sweep import SCHEMA, jobs_of, summary, write_csv
    from hinet_simnet.runs.sweep import engine as engine_of
    from hinet_simnet.runs.sweep import sweep as play_all

    engine_of(engine)
    table = places.new_file(csv, "--csv", ".csv") if csv else None
    runs, values = jobs_of(scenarios.find(scenario), [parameter_of(text) for text in set_ or []], seeds_of(seeds),
                           level=scenarios.level_of(level), wall_s=wall_s)
    with showing.terminated_as_interrupted(), showing.moving_line() as show:
        rows, interrupted = play_all(runs, values, workers=jobs or cores(), engine_name=engine,
                                     shown=lambda count, done: show(f"{count:,} of {len(runs):,} runs"))
    if table is not None:
        with places.room_for("the table", "--csv"):
            write_csv(table, rows)
    found = [row for row in rows if row.outcome.findings or row.refused]
    output.emit(SCHEMA, {"ok": not found and not interrupted, "scenario": scenario, "engine": engine,
                         "wanted": len(runs), "interrupted": interrupted, "runs": [row.as_dict() for row in rows],
                         "summary": summary(rows)},
                lambda: _lines(rows, summary(rows), len(runs), interrupted))
    if found:
        return showing.FOUND
    return showing.INTERRUPTED if interrupted else 0


def _lines(rows: Sequence[Row], groups: Sequence[dict[str, Any]], wanted: int, interrupted: bool) -> Iterator[str]:
    from hinet_simnet.cli import showing

    if not rows:
        yield "nothing was played"
        return
    names = list(groups[0]["values"])
    facts = sorted({name for group in groups for name in group["facts"]})[:6]
    table = [[*(str(group["values"][name]) for name in names), str(group["runs"]), str(group["ok"]),
              str(group["findings"]), f"{group['events']:,.0f}", output.size_text(int(group["message_bytes"])),
              showing.time_text(group["virtual_s"]),
              *(f"{group['facts'][name]:.4g}" if name in group["facts"] else "-" for name in facts)]
             for group in groups]
    yield from output.table(table, (*names, "RUNS", "OK", "FINDINGS", "EVENTS", "BYTES", "SIMULATED", *facts))
    yield "(events, bytes, time and measurements are means of the runs)"
    if interrupted:
        yield output.style(f"interrupted: {len(rows):,} of {wanted:,} runs", "yellow")
    bad = [row for row in rows if row.outcome.findings or row.refused]
    for row in bad[:showing.FINDINGS_SHOWN]:
        first = row.refused or (f"{row.outcome.findings[0].checker}: {row.outcome.findings[0].message}")
        where = " ".join(f"{name}={value}" for name, value in row.values.items())
        yield f"{output.style('found', 'red')} seed {row.seed} {where} {output.clean_line(first)[:200]}"
    if len(bad) > showing.FINDINGS_SHOWN:
        yield f"and {len(bad) - showing.FINDINGS_SHOWN} more"
