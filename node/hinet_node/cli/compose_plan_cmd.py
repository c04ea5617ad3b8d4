"""`hinet-node compose plan`: merge, route, retrieve or cluster? What was measured of the task vectors decides."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import output, worker_call

COLUMNS = 80


def add_to(app: typer.Typer) -> None:
    """Make this command part of `compose`."""
    app.command()(plan)


def plan(inputs: Annotated[list[str], typer.Argument(metavar="A.tau B.tau …", show_default=False,
                                                     help="The task vectors, of one base.")],
         probe: Annotated[list[str] | None, typer.Option("--probe", metavar="A.tau=FILE", show_default=False,
                                                         help="Questions that this one should know the answers to, "
                                                              "one on each line or as JSON; one file for each."
                                                         )] = None,
         base: Annotated[str, typer.Option("--base", help="The installed base: its digest or folder (default: the one "
                                                          "in this home).")] = "",
         threads: Annotated[int, typer.Option(min=0, max=1024, help="Threads; 0: all cores.")] = 0) -> None:
    """Measure whether specialists contradict each other, and choose: merge, route, retrieve, or cluster first."""
    from hinet_node.cli import tau_make_cmd

    paths = [_file(one) for one in inputs]
    probes = _probes(probe or [])
    args = {"inputs": paths, "probes": probes, "threads": threads or None,
            "base_dir": tau_make_cmd.base_of(paths[0], base) if probes else None}
    found = worker_call.call("compose.plan", args, "measuring")
    output.emit("hinet.compose-plan/1", found, lambda: _lines(found))


def _file(given: str) -> str:
    from hinet_node.errors import UsageError

    path = Path(given).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no file {given}", next_step="check the path", code="E_NO_SUCH_FILE")
    return str(path.absolute())


def _probes(given: Sequence[str]) -> dict[str, str]:
    """File names of task vectors, and of their questions. Errors: `UsageError` for another form or a name twice."""
    from hinet_node.errors import UsageError

    found: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--probe {text!r} is not understood",
                             next_step="give a task vector and its questions: --probe A.tau=questions.txt")
        if Path(name).name in found:
            raise UsageError(f"--probe names {name} twice", next_step="put its questions into one file")
        found[Path(name).name] = _file(path)
    return found


def _lines(data: dict[str, Any]) -> list[str]:
    rows = [[output.clean(row["name"]), f"{row['displacement']:.4g}", f"{row['density']:.1%}",
             str(data["probes"].get(row["name"], "-")), f"beyond the bound of {data['bound']:.4g}: no merge takes it"
             if row["beyond_bound"] else ""] for row in data["inputs"]]
    pairs = [[f"{output.clean(row['first'])} + {output.clean(row['second'])}", _share(row.get("contradict")),
              _share(row.get("agree")), _number(row["cosine"]), _share(row["sign_conflict"]), _share(row["overlap"])]
             for row in data["pairs"]]
    lines = [*output.table(rows, ["SPECIALIST", "MOVES THE BASE BY", "DENSITY", "PROBES", ""]), "",
             *output.table(pairs, ["PAIR", "CONTRADICT", "AGREE", "COSINE", "SIGNS DIFFER", "OVERLAP"]), ""]
    if data["separable"] is not None:
        lines += [f"The question alone tells who should answer in {data['separable']:.0%} of the cases.", ""]
    lines += [output.style(data["choice"], "bold"),
              *textwrap.wrap(output.clean(data["reason"]), COLUMNS - 2, initial_indent="  ", subsequent_indent="  ")]
    if len(data["groups"]) > 1 and data["choice"] == "cluster":
        lines += [f"  {at + 1}. {output.clean(', '.join(group))}" for at, group in enumerate(data["groups"])]
    return [*lines, *_next(data)]


def _next(data: dict[str, Any]) -> list[str]:
    if data["choice"] == "merge":
        names = " ".join(output.clean(row["name"]) for row in data["inputs"])
        return ["", f"next: hinet-node compose merge {names} --method {data['method']} --out M.tau"]
    if not data["probes"]:
        name = output.clean(data["inputs"][0]["name"])
        return ["", f"next: measure what they answer: --probe {name}=questions.txt, and so for each"]
    return []


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
