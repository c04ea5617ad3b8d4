"""`hinet-node revoke DEVICE`: put a device out of the household, for good."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, root_key, root_revoke
from hinet_node.cli.agent_call import call


def revoke(device: Annotated[str, typer.Argument(help="Its name, fingerprint, or the beginning of its key.")],
           reason: Annotated[str, typer.Option(help="Why; every device of the household sees it.")] = "",
           dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen and do nothing.")] = False,
           yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for the name.")] = False,
           words: Annotated[bool, typer.Option("--words", help="Sign with the root, whose 24 words are asked for; the "
                                                               "last admin goes in no other way.")] = False,
           words_file: root_key.WordsFile = "", sealed_root: root_key.SealedRoot = "",
           passphrase_file: root_key.PassphraseFile = "") -> None:
    """Put a device out of the household: it gets nothing from now on, and the others get a new vault key."""
    by_root = words or bool(words_file or sealed_root)
    plan = root_revoke.plan(device) if by_root else call("device.revoke", {"device": device, "reason": reason,
                                                                           "dry_run": True})
    name = plan["device"]["name"]
    if dry_run:
        output.emit("hinet.revoke/1", plan, lambda: _plan(plan))
        return
    if not yes:
        for line in _plan(plan):
            output.say(line)
        if output.ask(f"Type its name to revoke it ({output.clean(name)}): ") != name:
            from hinet_node.errors import UsageError

            raise UsageError("that is not its name; nothing was changed", next_step=context.typed(f"revoke {name}"))
    done = (root_revoke.carry_out(plan, reason, words_file, sealed_root, passphrase_file) if by_root else
            call("device.revoke", {"device": plan["device"]["public"], "reason": reason}))
    output.emit("hinet.revoke/1", done, lambda: _done(done))


def _plan(plan: dict[str, Any]) -> list[str]:
    device = plan["device"]
    lines = [f"{output.clean(device['name'])} ({device['role']}, {device['tier']}, {device['fingerprint']}) will be "
             "put out of the household, for good.",
             f"  It keeps {plan['keeps']}.",
             f"  Left in the household: {output.clean(', '.join(plan['remaining']))}. They get a new vault key."]
    if plan["away"]:
        lines.append(f"  Not in reach now, so they let it in until they are met: "
                     f"{output.clean(', '.join(plan['away']))}.")
    met = plan["last_seen_unix_s"]
    when = "it was never met" if met is None else f"it was last met {output.ago_text(time.time() - met)}"
    lines.append(f"  What it has not sent by now is lost to the others: {when}.")
    if not plan.get("admins_left", True):
        lines.append(output.style("  No admin is left then: only the words can let a device in, by  "
                                  + context.typed("init --recover"), "yellow"))
    return lines


def _done(done: dict[str, Any]) -> list[str]:
    keyless = done["device"]["role"] == "keeper"  # it never held the vault's key, so there is no new one
    lines = [f"{output.clean(done['device']['name'])} is revoked"
             f"{'; it never held the vault key, which stays' if keyless else '; a new vault key is in force'}.",
             f"  It keeps {done['keeps']}."]
    if done["told"]:
        lines.append(f"  They know, and said so: {output.clean(', '.join(done['told']))}.")
    if done["not_told"]:
        lines.append(output.style(f"  They do not know yet, until they are met: "
                                  f"{output.clean(', '.join(done['not_told']))}.", "yellow"))
        lines.append(f"  Who still has to be told: {context.typed('status')}")
    if not keyless:
        lines.append("  What is written from now on is sealed under the new key. To move the rest under it as well: "
                     + context.typed("vault reseal"))
    return lines
