"""`hinet-node vault rm|mv|history|restore|accept-older`: changing what the vault shows, getting back what was there.

Leaves conflicts to `vault_conflicts_cmd`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import context, moments, output, vault_local, vault_out_cmd

ID_DIGITS = 8
"""Of a version's id, as the lists show it; so many tell the versions of one file apart."""
HEAD_DIGITS = 12


def rm(names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Files and folders of the vault.")],
       yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also for folders.")] = False) -> None:
    """Remove files or folders, on every device. They can be put back for a while."""
    from hinet_node.errors import UsageError

    with vault_local.calls() as call:
        plan = call("vault.rm", {"names": names, "dry": True})
        asked = sys.stdin.isatty()
        if plan["folders"] and not yes and not asked:
            raise UsageError(f"{_what(plan)} would go; in a script, that needs --yes. Nothing was removed",
                             next_step=context.typed(f"vault rm --yes {quoted(*names)}"))
        if (plan["folders"] or plan["files"] > 1) and asked and not yes:
            _ask_whether(f"Remove {_what(plan)} from the vault, on every device?", plan["names"], plan["files"])
        done = call("vault.rm", {"names": names}, label="removing")
    back = done["folders"][0] if done["folders"] else done["names"][0]
    count = done["files"]
    _say_what_stays(done)
    output.emit("hinet.vault-rm/1", done, lambda: [
        f"{count} {'file' if count == 1 else 'files'} ({output.size_text(done['bytes'])}) removed.",
        f"  Until {output.time_text(done['restorable_until'])} at least: "
        + context.typed(f"vault restore {quoted(back)}")])


def mv(old: Annotated[str, typer.Argument(metavar="OLD", help="A file's name, or a folder's.")],
       new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name; with / at the end, the folder to put it "
                                                              "into.")]) -> None:
    """Rename a file or a folder. Its history goes with it."""
    done = vault_local.call("vault.mv", {"old": old, "new": new}, label="renaming")
    _say_what_stays(done)
    count = done["files"]
    output.emit("hinet.vault-mv/1", done, lambda: [
        f"{output.clean_line(done['old'])} is {output.clean_line(done['new'])} now"
        + ("." if count == 1 else f" ({count} files).")])


def history(name: Annotated[str, typer.Argument(help="A file's name, also of a removed one, or a folder's; without it, "
                                                     "the whole vault.")] = "",
            limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many rows.")] = 50,
            heads: Annotated[bool, typer.Option("--heads", help="Instead, each device's newest state, and those that "
                                                                "contradict it or are not whole.")] = False) -> None:
    """Show what changed. Of a file every version; of a folder, or of everything, the recent changes."""
    if heads:
        found = vault_local.call("vault.heads")
        output.emit("hinet.vault-heads/1", found, lambda: _heads(
            [one for one in found["heads"] if one["newest"] or one["state"] != "settled"]))
        return
    found = vault_local.call("vault.history", {"name": name, "limit": limit})
    output.emit("hinet.vault-history/1", found, lambda: _history(found))


def restore(name: Annotated[str, typer.Argument(help="A file's name or a folder's, also of a removed one; / is "
                                                     "everything.")],
            version: Annotated[str, typer.Option(metavar="ID", help="The version, as `vault history NAME` shows it."),
                               ] = "",
            before: Annotated[str, typer.Option(metavar="TIME", help="As it was then: 2026-12-01, '2026-12-01 14:30', "
                                                                     "14:30, or so long ago: 30m, 2h, 3d, 2w.")] = "",
            to: Annotated[str, typer.Option("--to", metavar="PATH", help="Write it there and leave the vault as it is. "
                                                                         "A folder goes below it.")] = "",
            overwrite: Annotated[bool, typer.Option("--overwrite", help="With --to: replace other files in the way.",
                                                    )] = False) -> None:
    """Put back what was there. A removed file, an older version, what was last removed of a folder, or a folder as it
    was at a time. What stands there now stays in the history."""
    from hinet_node.errors import ConflictError

    args: dict[str, Any] = {"name": name, "version": version}
    if before:
        args["before"] = moments.unix_s(before)
    if to:
        target = Path(to).absolute()
        if target.exists() and not target.is_dir() and not overwrite:
            raise ConflictError(f"{target} exists already", next_step="name another place with --to, or: --overwrite")
        args |= {"to": str(target), "overwrite": overwrite}
    done = vault_local.call("vault.restore", args, label="restoring")
    output.emit("hinet.vault-restore/1", done, lambda: _restored(done))
    partly = "kept" in done and vault_out_cmd.say_what_became_of_them(done, "--overwrite")
    if done["left"]:
        count = len(done["left"])
        output.say(f"{count} {'file was' if count == 1 else 'files were'} left as they are, since what they were then "
                   f"is not held any more: {output.clean_line(', '.join(done['left'][:5]))}")
    if partly or done["left"]:
        raise typer.Exit(3)


def accept_older(head: Annotated[str, typer.Option("--head", metavar="HASH", help="The head, or the beginning of its "
                                                                                  "hash, as `vault status` and "
                                                                                  "`vault history --heads` show it.")],
                 yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """End an alarm that you know of. An old copy that was put back, a copied device, or a lost pack: no device tells of
    it any more."""
    with vault_local.calls() as call:
        plan = call("vault.accept-older", {"head": head, "dry": True})
        for line in _acceptance(plan):
            output.say(line)
        if not yes and output.ask("Type yes to accept that: ") != "yes":
            from hinet_node.errors import UsageError

            raise UsageError("nothing was changed", next_step=context.typed(f"vault accept-older --head {head}"))
        done = call("vault.accept-older", {"head": plan["head"]["head"]})
    output.emit("hinet.vault-accept-older/1", done, [
        "Accepted. Every device that hears of it stops telling of it."])


def add_to(app: typer.Typer) -> None:
    """Make these subcommands of `vault`."""
    for name, command in (("rm", rm), ("mv", mv), ("history", history), ("restore", restore),
                          ("accept-older", accept_older)):
        app.command(name)(command)


# ---- in words --------------------------------------------------------------------------------------------------------


def _say_what_stays(done: dict[str, Any]) -> None:
    for name in done["still_there"][:5]:
        output.say(f"{output.clean_line(name)} was contested: another device's version stands under that name now")


def _what(plan: dict[str, Any]) -> str:
    folders, files = plan["folders"], plan["files"]
    parts = f"{files} {'file' if files == 1 else 'files'} ({output.size_text(plan['bytes'])})"
    if len(folders) == 1:
        return f"the folder {output.clean_line(folders[0])} with {parts}"
    return f"{len(folders)} folders, in all {parts}" if folders else parts


def _ask_whether(question: str, names: list[str], total: int) -> None:
    from hinet_node.errors import UsageError

    for name in names[:5]:
        output.say(f"  {output.clean_line(name)}")
    if total > 5:
        output.say(f"  … and {total - 5} more")
    if output.ask(f"{question} [y/N] ").casefold() not in ("y", "yes"):
        raise UsageError("nothing was changed", next_step="answer y, or add --yes")


def quoted(*names: str) -> str:
    """Names as they can be typed in a shell."""
    return " ".join(shlex.quote(output.clean_line(name)) for name in names)


def _history(found: dict[str, Any]) -> Iterable[str]:
    is_file = found["kind"] == "file"
    rows = [[output.style(one["id"][:ID_DIGITS], "cyan" if one["restorable"] else "dim"),
             output.time_text(one["time"]), "" if one["deleted"] else output.size_text(one["size"]),
             output.clean(one["device"]), _event(one), *_place(one, found["name"], is_file)]
            for one in found["versions"]]
    if not rows:
        yield "Nothing has changed here yet."
        return
    yield from output.table(rows)
    last = found["versions"][-1]
    if found["more"]:
        yield output.style("  older ones: --limit N", "dim")
    elif is_file and last["older_collected"]:
        yield output.style("  older ones are not held any more, or were never kept", "dim")
    standing = {one["digest"] for one in found["versions"] if one["stands"]}
    back = next((one for one in found["versions"] if one["restorable"] and one["digest"] not in standing), None)
    if is_file and back is not None:
        yield "  put one back: " + context.typed(
            f"vault restore {quoted(found['name'])} --version {back['id'][:ID_DIGITS]}")


def _event(one: dict[str, Any]) -> str:
    what = str(one["what"])
    if what == "renamed":
        what = f"renamed from {output.clean_line(one['came_from'])}"
    if one["moved_to"] is not None:
        what = f"renamed to {output.clean_line(one['moved_to'])}"
    colour = {"removed": "red", "added": "green", "restored": "green"}.get(what)
    return output.style(what, colour) if colour else what


def _place(one: dict[str, Any], name: str, is_file: bool) -> list[str]:
    if not is_file:
        return [output.clean_line(one["name"])]
    marks = ["now"] if one["stands"] else []
    if one["name"] != name:
        marks.append(f"as {output.clean_line(one['name'])}")
    if not one["deleted"] and not one["restorable"]:
        marks.append("content was collected")
    return [output.style(f"({', '.join(marks)})", "dim") if marks else ""]


def _restored(done: dict[str, Any]) -> Iterable[str]:
    count = done["files"]
    files = f"{count} {'file' if count == 1 else 'files'} ({output.size_text(done['bytes'])})"
    if done["to"]:
        yield f"{done['to']} ({files})"
    elif not count and not done["left"]:
        yield "The vault holds that already: nothing was changed."
    elif count:
        names = [output.clean_line(name) for name in done["names"]]
        yield f"{files} put back: {', '.join(names[:3])}{'' if count <= 3 else ', …'}"
        if done["removed_before"]:
            yield output.style(f"  {done['removed_before']} that were removed before stay removed; they come back by "
                               "name, or with --before TIME", "dim")


def _heads(heads: list[dict[str, Any]]) -> Iterable[str]:
    colours = {"whole": "green", "settled": "dim"}
    return output.table([[
        one["head"][:HEAD_DIGITS], output.clean(one["device"]), str(one["number"]), output.time_text(one["time"]),
        output.style(_state(one), colours.get(one["state"], "yellow"))] for one in heads],
        heading=["head", "device", "number", "made", "state"])


def _state(one: dict[str, Any]) -> str:
    lacks = f", {one['missing_packs']} packs missing" if one["missing_packs"] else ""
    state = {"fork": "two of one number", "lost": "not whole"}.get(one["state"], str(one["state"]))
    return state + lacks


def _acceptance(plan: dict[str, Any]) -> Iterable[str]:
    device, number = output.clean(plan["head"]["device"]), plan["head"]["number"]
    if plan["what"] == "fork":
        yield f"There are two states number {number} of {device}. Both are merged already, and both stay merged."
        yield "  Accept it if you put an old copy back, or have given the copied machine a key of its own."
        return
    if plan["what"] == "unreadable":
        yield f"State number {number} of {device} can't be read here. It is passed over; the one before it stands in."
        yield "  A device that can read it goes on with it all the same."
        return
    packs = f"{plan['lost_packs']} {'pack' if plan['lost_packs'] == 1 else 'packs'}"
    yield f"State number {number} of {device} needs {packs} that this device has lost. They are given up."
    if plan["files_total"]:
        count = plan["files_total"]
        yield (f"  {count} {'file stays' if count == 1 else 'files stay'} without content until added again, or "
               f"removed: {output.clean_line(', '.join(plan['files'][:5]))}{', …' if count > 5 else ''}")
    yield "  If a device comes back that holds them, they are there again."
