"""`hinet-node vault add|ls|get|status`: the household's files. Other subcommands have modules of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import (
    output,
    root,
    vault_conflicts_cmd,
    vault_gc_cmd,
    vault_local,
    vault_past_cmd,
    vault_repair_cmd,
)
from hinet_node.cli.add_report import say_what_was_left_out
from hinet_node.cli.vault_text import status_lines

app = root.group("Add, list, get and verify the household's files.")


@app.command()
def add(paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files and folders.")],
        under: Annotated[str, typer.Option(help="Put them under this folder of the vault.")] = "",
        rescan: Annotated[bool, typer.Option("--rescan", help="Also read files that look unchanged.")] = False) -> None:
    """Store files in the vault; every device of the household gets them."""
    if "" in paths:
        from hinet_node.errors import UsageError

        raise UsageError("a path is empty", next_step="name the folder itself; this one is: hinet-node vault add .")
    absolute = [str(Path(path).absolute()) for path in paths]
    result = vault_local.call("vault.add", {"paths": absolute, "under": under, "rescan": rescan}, label="adding")
    partly = say_what_was_left_out(result)
    count = result["files"]
    output.emit("hinet.vault-add/1", result, [
        f"{count} {'file' if count == 1 else 'files'} ({output.size_text(result['bytes'])}) in the vault."])
    if partly:
        raise typer.Exit(3)


@app.command()
def ls(prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "",
       everything: Annotated[bool, typer.Option("--all", help="Also what the household learned (.hinet/).")] = False,
       long: Annotated[bool, typer.Option("--long", "-l", help="Size, time and device beside each name.")] = False,
       ) -> None:
    """List the vault's files."""
    items: list[dict[str, Any]] = []
    with vault_local.calls() as call:
        after, more = "", True
        while more:
            page = call("vault.ls", {"prefix": prefix, "after": after, "all": everything})
            items += page["items"]
            more = page["more"] and bool(page["items"])
            after = page["items"][-1]["name"] if page["items"] else ""
    output.emit("hinet.vault-ls/1", {"items": items}, lambda: _listed(items, long))


@app.command()
def get(name: Annotated[str, typer.Argument(help="A file's name, or a folder's.")],
        out: Annotated[str, typer.Option("--out", "-o", metavar="PATH", help="Where to write it; - is stdout. A "
                                                                             "folder goes below it.")] = "",
        ) -> None:
    """Take a file or a folder out of the vault."""
    if out == "-":
        content = vault_local.call("vault.get", {"name": name})["content"]
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    target = Path(out or Path(name.rstrip("/")).name or "vault").absolute()
    if not out and target.exists():
        from hinet_node.errors import ConflictError

        raise ConflictError(f"{target} exists already", next_step=f"to replace it: --out {target.name}")
    result = vault_local.call("vault.get", {"name": name, "to": str(target), "into": str(Path(out).absolute())},
                              label="getting")
    files = "" if result["files"] == 1 else f"{result['files']} files, "
    output.emit("hinet.vault-get/1", result, [f"{result['to']} ({files}{output.size_text(result['bytes'])})"])


@app.command()
def status() -> None:
    """How many packs and copies there are, and who is behind."""
    data = vault_local.call("vault.status")
    data.pop("schema", None)
    output.emit("hinet.vault-status/1", data, lambda: status_lines(data))


app.command()(vault_repair_cmd.verify)
app.command()(vault_repair_cmd.repair)


vault_past_cmd.add_to(app)
vault_gc_cmd.add_to(app)
app.add_typer(vault_conflicts_cmd.app, name="conflicts")


def _listed(items: list[dict[str, Any]], long: bool) -> Iterable[str]:
    if not long:
        return [output.clean_line(item["name"]) for item in items]
    return output.table([[output.size_text(item["size"]), output.time_text(item["time"]),
                          output.clean(item["device"]), output.clean_line(item["name"])] for item in items])

