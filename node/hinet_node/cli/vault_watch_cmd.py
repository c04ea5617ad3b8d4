"""`hinet-node vault watch`: folders that keep themselves in the vault."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, vault_local


def watch(folder: Annotated[str, typer.Argument(help="A folder of this machine.")] = "",
          under: Annotated[str, typer.Option(help="Put it under this folder of the vault.")] = "",
          show: Annotated[bool, typer.Option("--list", help="Show the watched folders (as without FOLDER).")] = False,
          stop: Annotated[bool, typer.Option("--stop", help="Watch it no more; the vault keeps its files.")] = False,
          pause: Annotated[bool, typer.Option("--pause", help="Leave it alone until --resume.")] = False,
          resume: Annotated[bool, typer.Option("--resume", help="Go on after --pause.")] = False,
          confirm: Annotated[bool, typer.Option("--confirm", help="Yes, the files that are gone are to go from the "
                                                                  "vault too; yes, this is the folder.")] = False,
          ) -> None:
    """Keep a folder in the vault as it changes: new, changed, renamed and removed files. One way; what goes stays
    restorable. Remembered over restarts; the agent does it. What to leave out: .hinetignore in the folder."""
    from hinet_node.errors import UsageError

    acts = [name for name, wanted in (("stop", stop), ("pause", pause), ("resume", resume), ("confirm", confirm))
            if wanted]
    if len(acts) + show > 1 or (acts and not folder) or (show and folder) or (acts and under):
        raise UsageError("name one folder and at most one of --stop, --pause, --resume and --confirm; or --list alone",
                         next_step="hinet-node vault watch --help")
    if not folder:
        data = vault_local.call("vault.watch.list")
        output.emit("hinet.vault-watches/1", data, lambda: _listed(data))
        return
    path = str(Path(folder).resolve())
    verb = f"vault.watch.{acts[0]}" if acts else "vault.watch"
    result = vault_local.call(verb, {"folder": path, **({"under": under} if not acts else {})})
    output.emit("hinet.vault-watch/1", result, lambda: _told(acts[0] if acts else "", result))
    if not result["running"] and not acts:
        output.say(f"no agent is running; it begins with: {context.typed('up')}")


def watch_lines(watches: list[dict[str, Any]]) -> Iterable[str]:
    """The watched folders for a person, for `vault status` too."""
    rows = [[_state(one), output.clean_line(one["folder"]), f"-> {output.clean_line(one['under'])}",
             "" if one["files"] is None else f"{one['files']:,} {'file' if one['files'] == 1 else 'files'}",
             _more(one)] for one in watches]
    yield from output.table(rows)
    for one in watches:
        if one["trouble"] is not None:
            yield output.style(output.clean_line(one["trouble"]["what"]), "yellow")
            yield f"  next: {output.clean_line(one['trouble']['next'])}"
        for name, why in one["left_out"].items():
            yield output.style(f"left out {output.clean_line(one['folder'])}/{output.clean_line(name)}: {why}", "dim")


def _listed(data: Mapping[str, Any]) -> Iterable[str]:
    if not data["watches"]:
        return [f"No folder is watched; for example: {context.typed('vault watch ~/notes')}"]
    return watch_lines(data["watches"])


def _state(one: Mapping[str, Any]) -> str:
    colour = {"watching": "green", "held": "yellow", "paused": "yellow"}.get(one["state"])
    return output.style(one["state"], colour) if colour else str(one["state"])


def _more(one: Mapping[str, Any]) -> str:
    said = [f"{one['waiting']:,} waiting"] if one["waiting"] else []
    if one["told"] is False:
        said.append("looked at every 30 s: the system tells of no changes there")
    return ", ".join(said)


def _told(act: str, result: Mapping[str, Any]) -> Iterable[str]:
    folder, under = output.clean_line(result["folder"]), output.clean_line(result["under"])
    yield {"": f"{folder} is kept in the vault under {under}",
           "stop": f"{folder} is watched no more; the vault keeps {under}",
           "pause": f"{folder} is left alone until: {context.typed('vault watch --resume ' + shlex.quote(folder))}",
           "resume": f"{folder} is watched again",
           "confirm": f"{folder}: what is gone there goes from the vault too; it stays restorable"}[act]
