"""`hinet-node compose methods`: which merge methods there are, what each needs, its settings and their defaults."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from hinet_node.cli import output, worker_call

COLUMNS = 80
NEEDS = {"base": "--base", "data": "--data", "adapters": "adapters", "matrix": "SVD"}
"""How a need is written in the table. `matrix` is no demand on the owner: it says what the method costs."""


def add_to(app: typer.Typer) -> None:
    """Make this command part of `compose`."""
    app.command()(methods)


def methods(name: Annotated[str, typer.Argument(metavar="METHOD", help="One method, with what each setting is.",
                                                show_default=False)] = "") -> None:
    """List the merge methods: what each needs, and its settings with their defaults."""
    found = worker_call.call("compose.methods", {"name": name or None})
    output.emit("hinet.compose-methods/1", found, lambda: _one(found["methods"][0]) if name else _all(found["methods"]))


def _all(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = max(len(row["name"]) for row in rows)
    needs = max(5, *(len(_needs(row)) for row in rows))
    cells = []
    for row in rows:
        settings = [f"{one['name']} {one['default']:g}".replace(" ", "\0") for one in row["settings"]]
        lines = textwrap.wrap(", ".join(settings), max(20, COLUMNS - names - needs - 4)) or ["none"]
        first = [str(row["name"]), _needs(row)]
        cells += [[*(first if at == 0 else ["", ""]), line.replace("\0", " ")] for at, line in enumerate(lines)]
    return [*output.table(cells, ["METHOD", "NEEDS", "SETTINGS AND THEIR DEFAULTS"]), "",
            "What the settings of one are: hinet-node compose methods METHOD"]


def _one(row: Mapping[str, Any]) -> list[str]:
    head = [["source", row["source"]], ["needs", _needs(row)], ["more", f"docs/merging/{row['name']}.md"]]
    lines = []
    for one in row["settings"]:
        lines.append(f"  {output.style(one['name'], 'bold')}  {one['default']:g} ({one['low']:g} to {one['high']:g})")
        lines += textwrap.wrap(one["help"], COLUMNS - 8, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return [output.style(row["title"], "bold"), *output.table(head, indent="  "), "",
            "settings, each with its default and its range:", *lines]


def _needs(row: Mapping[str, Any]) -> str:
    return ", ".join(NEEDS.get(need, need) for need in row["needs"]) or "-"
