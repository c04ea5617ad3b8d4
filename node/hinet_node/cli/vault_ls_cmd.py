"""`hinet-node vault ls`: what is in the vault, for people, for scripts, and for a million names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, vault_local

Row = dict[str, Any]


def ls(folder: Annotated[str, typer.Argument(help="A folder of the vault, a file, or nothing for all of it.")] = "",
       every_level: Annotated[bool, typer.Option("--recursive", "-R", help="Every file, by its whole name.")] = False,
       long: Annotated[bool, typer.Option("--long", "-l", help="Size, time, and device or number of files.")] = False,
       everything: Annotated[bool, typer.Option("--all", help="Also what was learned (.hinet/).")] = False,
       zero: Annotated[bool, typer.Option("-0", "--null", help="Names byte for byte, each ended by NUL.")] = False,
       ) -> None:
    """List what is in the vault: one level with its folders, or with -R every file. Names with odd letters are shown
    safely; byte for byte they are in --json (as surrogate escapes) and with -0."""
    with vault_local.calls() as call:
        rows = _rows(call, folder, every_level, everything)
        first = next(rows, None)
        if first is None and folder:
            from hinet_node.errors import UsageError

            raise UsageError(f"the vault holds nothing named {folder!r}", code="E_NO_SUCH_FILE",
                             next_step=f"see what it holds: {context.typed('vault ls')}")
        found = _with(first, rows)
        if context.current.json:
            _print_json(found)
        elif zero:
            for row in found:
                sys.stdout.buffer.write(os.fsencode(row["name"]) + b"\0")
        elif long:
            _print_long(found)
        else:
            for row in found:
                sys.stdout.write(output.clean_line(row["name"]) + "\n")
        sys.stdout.flush()


def _rows(call: vault_local.Call, folder: str, every_level: bool, everything: bool) -> Iterator[Row]:
    """Page by page, so that memory does not grow with the vault. A name that is a file's is that file."""
    if folder and not folder.endswith("/"):
        same = call("vault.ls", {"prefix": folder, "level": True, "limit": 1, "all": everything})["items"]
        if same and same[0]["name"] == folder:
            yield same[0]
        folder += "/"
    after, more = "", True
    while more:
        page = call("vault.ls", {"prefix": folder, "after": after, "level": not every_level, "all": everything})
        yield from page["items"]
        after, more = page["next"], page["more"]


def _with(first: Row | None, rest: Iterator[Row]) -> Iterator[Row]:
    if first is not None:
        yield first
        yield from rest


def _print_json(rows: Iterator[Row]) -> None:
    """One object, written as it comes."""
    sys.stdout.write('{"schema": "hinet.vault-ls/1", "items": [')
    for number, row in enumerate(rows):
        sys.stdout.write((", " if number else "") + json.dumps(row, ensure_ascii=False))
    sys.stdout.write("]}\n")


def _print_long(rows: Iterator[Row]) -> None:
    """Columns of fixed width, since the last row is not known when the first is printed."""
    for row in rows:
        if row["kind"] == "folder":
            who = f"{row['files']:,} {'file' if row['files'] == 1 else 'files'}"
        else:
            who = output.clean_line(row["device"])
        name = output.clean_line(row["name"])
        sys.stdout.write(f"{output.size_text(row['size']):>9}  {output.time_text(row['time'])}  {who:<14}  {name}\n")
