"""`hinet-node vault gc|reseal`: giving up what nothing needs any more, and moving what is sealed under old keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, vault_local

_NAMES_SHOWN = 10


def gc(apply: Annotated[bool, typer.Option("--apply", help="Do it; without this, nothing changes.")] = False,
       keep_days: Annotated[int | None, typer.Option(
           min=0, max=36_500, metavar="DAYS", help="Keep what was replaced or removed less than so long ago (30).",
       )] = None,
       keep_versions: Annotated[int | None, typer.Option(
           min=0, max=1_000_000, metavar="N", help="And so many past versions of each file, however old (3).")] = None,
       now: Annotated[bool, typer.Option("--now", help="Do not wait a day before deleting. What other devices still "
                                                       "need stays in any case.")] = False) -> None:
    """Free the room of what nothing needs any more. Only shows what would go, unless --apply is given.

    A pack leaves the disk when every device that counts has given it up, for a day; the agents see to that.
    """
    found = vault_local.call("vault.gc", {"apply": apply, "keep_days": keep_days, "keep_versions": keep_versions,
                                          "now": now}, label="collecting")
    output.emit("hinet.vault-gc/1", found, lambda: _gc(found))


def reseal(status: Annotated[bool, typer.Option("--status", help="Only show how far it is.")] = False,
           stop: Annotated[bool, typer.Option("--stop", help="Do not go on. What is done stays done.")] = False,
           background: Annotated[bool, typer.Option("--background", help="Leave it to the agent and do not wait.",
                                                    )] = False) -> None:
    """Move all content under the household's newest key, after a device was revoked.

    It takes room and time: everything older is written anew. It goes on in the agent if this command ends, and begins
    again if a device that was away brings more. The old packs go as `vault gc` says.
    """
    if background and not (status or stop):
        from hinet_node.cli import agent_call

        found = agent_call.call("vault.reseal", {"do": "start", "wait": False})
    else:
        do = "status" if status else "stop" if stop else "start"
        found = vault_local.call("vault.reseal", {"do": do}, label="resealing" if do == "start" else None)
    output.emit("hinet.vault-reseal/1", found, lambda: _reseal(found))


def add_to(app: typer.Typer) -> None:
    """Make these subcommands of `vault`."""
    app.command("gc")(gc)
    app.command("reseal")(reseal)


# ---- in words --------------------------------------------------------------------------------------------------------


def _gc(found: dict[str, Any]) -> list[str]:
    lines = []
    if found["applied"]:
        lines.append(f"{_packs(found['due_packs'], found['due_bytes'])} deleted.")
    elif found["keeper"]:
        lines.append(f"{_packs(found['due_packs'], found['due_bytes'])} can go now.")
    else:
        lines.append(f"{_packs(found['unneeded_packs'], found['unneeded_bytes'])} that nothing needs would be given "
                     f"up. {_packs(found['due_packs'], found['due_bytes'])} can be deleted at once.")
    if found["rewritten_bytes"]:
        done = "were" if found["applied"] else "would be"
        lines.append(f"  {output.size_text(found['rewritten_bytes'])} {done} moved out of packs that are mostly dead, "
                     "or small.")
    if found["note"]:
        lines.append(output.style(f"  {found['note']}", "yellow"))
    lines += _lost(found) + _holds(found)
    if not found["applied"] and (found["unneeded_packs"] or found["due_packs"] or found["rewritten_bytes"]):
        lines.append(f"  Nothing was changed. To do it: {context.typed('vault gc --apply')}")
    return lines


def _lost(found: dict[str, Any]) -> list[str]:
    if not found["lost_versions"]:
        return []
    could = "cannot" if found["applied"] else "could then not"
    lines = [f"  {_count(found['lost_versions'], 'past version')} {could} be restored any more:"]
    lines += [f"    {output.clean_line(row['name'])}: {_count(row['versions'], 'version')}"
              for row in found["lost"][:_NAMES_SHOWN]]
    if found["lost_files"]:
        names = found["lost_file_names"]
        lines.append(f"  {_count(found['lost_files'], 'removed file')} {could} be restored at all:")
        lines += [f"    {output.clean_line(name)}" for name in names[:_NAMES_SHOWN]]
        if found["lost_files"] > len(names[:_NAMES_SHOWN]):
            lines.append("    …")
    return lines


def _holds(found: dict[str, Any]) -> list[str]:
    lines = []
    if found["blocked"]:
        lines.append(output.style(f"  Nothing can be deleted now: {found['blocked']}.", "yellow"))
    for row in found["retained_by"]:
        lines.append(f"  {output.clean(row['device'])} still retains {output.size_text(row['bytes'])} of it, or has "
                     "given it up only once so far.")
    if found["younger_packs"]:
        lines.append(f"  {_packs(found['younger_packs'], found['younger_bytes'])} wait until they have been given up "
                     f"for long enough: {output.duration_text(found['left_s'])} more of running time.")
    if found["pinned_packs"]:
        lines.append(f"  {_count(found['pinned_packs'], 'pack')} on the way to a device stay until that is over.")
    if found["last_copies"]:
        lines.append(f"  {_count(found['last_copies'], 'pack')} that only a silent device may still need stay: this "
                     "may be the last copy. If that device is gone for good: " + context.typed("revoke DEVICE"))
    return lines


def _reseal(found: dict[str, Any]) -> list[str]:
    if found["done"]:
        lines = ["Everything that is needed is sealed under the newest key."]
    elif found["asked"]:
        lines = [f"{_packs(found['left_packs'], found['left_bytes'])} are still to be moved; the agent goes on."]
    else:
        lines = [f"{_packs(found['left_packs'], found['left_bytes'])} are sealed under earlier keys.",
                 f"  To move them: {context.typed('vault reseal')}"]
    if found["waiting_packs"]:
        lines.append(f"  {_packs(found['waiting_packs'], found['waiting_bytes'])} under earlier keys are given up and "
                     f"go when all devices agree: {context.typed('vault gc')}")
    return lines


def _packs(count: int, size_bytes: int) -> str:
    return f"{_count(count, 'pack')} ({output.size_text(size_bytes)})"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
