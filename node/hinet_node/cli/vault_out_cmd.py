"""`hinet-node vault get|cat|export`: files out of the vault, onto this machine's disk or into a pipe."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import output, vault_local

COPY_BYTES = 1 << 20
NAMES_SHOWN = 20


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `vault`."""
    for command in (get, cat, export):
        app.command()(command)


def get(name: Annotated[str, typer.Argument(help="A file's name, or a folder's.")],
        out: Annotated[str, typer.Option("--out", "-o", metavar="PATH", help="Where to write it; - is stdout. A "
                                                                             "folder goes below it.")] = "",
        overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace other files in the way.")] = False,
        skip: Annotated[bool, typer.Option("--skip", help="Leave such files as they are, and call that done.")] = False,
        ) -> None:
    """Take a file or a folder out of the vault. What is there already is left, so the same line goes on after a stop;
    a name that is one with another on this disk is written beside it and named."""
    if out == "-":
        cat(name)
        return
    target = Path(out or Path(name.rstrip("/")).name or "vault").absolute()
    result = vault_local.call("vault.get", {"name": name, "to": str(target), "into": str(Path(out).absolute()),
                                            "overwrite": overwrite}, label="getting")
    files = "" if result["files"] == 1 else f"{result['files']:,} files, "
    there = f", {result['there']:,} of them there already" if result["there"] else ""
    output.emit("hinet.vault-get/1", result, [
        f"{output.clean_line(result['to'])} ({files}{output.size_text(result['bytes'])}{there})"])
    _end(result, "--overwrite", skip=skip)


def cat(name: Annotated[str, typer.Argument(help="A file's name.")]) -> None:
    """Write a file's content to stdout."""
    with _piped_to_stdout() as pipe:
        vault_local.call("vault.cat", {"name": name, "to": pipe})


def export(target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder, a .tar file, or - for a tar archive "
                                                                        "on stdout.")],
           under: Annotated[str, typer.Option(help="Only what is under this folder of the vault.")] = "",
           everything: Annotated[bool, typer.Option("--all", help="Also what was learned (.hinet/).")] = False,
           force: Annotated[bool, typer.Option("--force", help="Replace other files that are in the way.")] = False,
           ) -> None:
    """Write all files, or those of one folder, in plain form. Each is checked against its digest. A folder is gone on
    with where an earlier run stopped; a tar archive is pax, with the names byte for byte."""
    if target == "-" and sys.stdout.isatty():
        from hinet_node.errors import UsageError

        raise UsageError("an archive is nothing for a terminal", next_step="hinet-node vault export - > vault.tar")
    args = {"under": under, "all": everything, "overwrite": force}
    if target == "-":
        with _piped_to_stdout() as pipe:
            result = vault_local.call("vault.export", {**args, "to": pipe, "kind": "pipe"}, label="exporting")
        output.say(f"{_counted(result)} exported")
    else:
        kind = "tar" if target.endswith(".tar") else "folder"
        result = vault_local.call("vault.export", {**args, "to": str(Path(target).absolute()), "kind": kind},
                                  label="exporting")
        there = f"; {result['there']:,} of them were there already" if result["there"] else ""
        output.emit("hinet.vault-export/1", result, [
            f"{_counted(result)} in {output.clean_line(result['to'])}{there}"])
    _end(result, "--force")


def say_what_became_of_them(result: Mapping[str, Any], option: str) -> bool:
    """On stderr: what went elsewhere, was kept or left out; whether the work was only partly done."""
    _say([f"{output.clean_line(one['name'])} is one with another name on this disk: written to "
          f"{output.clean_line(one['path'])}" for one in result["beside"]], result["beside_count"])
    _say([f"kept as it is: {output.clean_line(path)}" for path in result["kept"]], result["kept_count"])
    _say([f"not written: {output.clean_line(one['name'])}: {one['why']}" for one in result["left_out"]],
         result["left_out_count"])
    if result["kept_count"]:
        output.say(f"next: to replace the files that were kept, the same again with {option}")
    if result["left_out_count"]:
        output.say("next: vault verify says what is damaged; one file goes to any name with: "
                   "hinet-node vault get NAME --out PATH")
    return bool(result["kept_count"] or result["left_out_count"])


def _end(result: Mapping[str, Any], option: str, *, skip: bool = False) -> None:
    if say_what_became_of_them({**result, "kept": [], "kept_count": 0} if skip else result, option):
        raise typer.Exit(3)


def _say(lines: list[str], count: int) -> None:
    for line in lines[:NAMES_SHOWN]:
        output.say(line)
    if count > min(len(lines), NAMES_SHOWN):
        output.say(f"… and {count - min(len(lines), NAMES_SHOWN):,} more; --json names them")


def _counted(result: Mapping[str, Any]) -> str:
    return (f"{result['files']:,} {'file' if result['files'] == 1 else 'files'} "
            f"({output.size_text(result['bytes'])})")


@contextmanager
def _piped_to_stdout() -> Iterator[str]:
    """The path of a pipe that goes on to stdout: the agent writes into it, in whose process the vault is open."""
    with tempfile.TemporaryDirectory(prefix="hinet-pipe-") as folder:
        path = os.path.join(folder, "out")  # noqa: PTH118
        os.mkfifo(path, 0o600)
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(reading, True)
        # A writing end of our own keeps the pipe open until the work has ended, whoever does it.
        holding = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        failed: list[BaseException] = []
        copier = threading.Thread(target=_copy, args=(reading, failed), daemon=True)
        copier.start()
        try:
            yield path
        except BaseException:
            if not failed:
                raise  # else stdout failed first, and the work for that
        finally:
            os.close(holding)
            copier.join()
        if failed and not isinstance(failed[0], BrokenPipeError):
            raise failed[0]
        if failed:
            # The reader (`| head`) has left: no failure. Nothing more is to be flushed to it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0)


def _copy(reading: int, failed: list[BaseException]) -> None:
    try:
        stream = sys.stdout.buffer
        while piece := os.read(reading, COPY_BYTES):
            stream.write(piece)
        stream.flush()
    except BaseException as error:
        failed.append(error)
    finally:
        os.close(reading)
