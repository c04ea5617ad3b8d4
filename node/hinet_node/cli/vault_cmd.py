"""`hinet-node vault add|ls|get|status`: the household's files. Other subcommands have modules of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hinet_node.cli import (
    context,
    output,
    root,
    vault_conflicts_cmd,
    vault_gc_cmd,
    vault_local,
    vault_ls_cmd,
    vault_out_cmd,
    vault_past_cmd,
    vault_repair_cmd,
    vault_watch_cmd,
)
from hinet_node.cli.add_report import say_what_was_left_out
from hinet_node.cli.vault_text import status_lines

app = root.group("Add, list, get and verify the household's files.")
app.command("watch")(vault_watch_cmd.watch)
app.command()(vault_ls_cmd.ls)
vault_out_cmd.add_to(app)


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
    if vault_local.alone:
        output.say(f"no agent is running: other devices get it after {context.typed('up')}")
    if partly:
        raise typer.Exit(3)


@app.command()
def status() -> None:
    """How many packs and copies there are, and who is behind."""
    with vault_local.calls() as call:
        data = {**call("vault.status"), "watches": call("vault.watch.list")["watches"]}
    data.pop("schema", None)
    output.emit("hinet.vault-status/1", data, lambda: [*status_lines(data), *vault_watch_cmd.watch_lines(
        [{**one, "trouble": None} for one in data["watches"]])])


app.command()(vault_repair_cmd.verify)
app.command()(vault_repair_cmd.repair)


vault_past_cmd.add_to(app)
vault_gc_cmd.add_to(app)
app.add_typer(vault_conflicts_cmd.app, name="conflicts")
