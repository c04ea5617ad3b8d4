"""`hinet-node invite`: open an invitation, show its code, ask about whoever comes, and end when one has joined."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from hinet_node.cli import agent_call, context, output
from hinet_node.errors import NetworkError, UsageError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def invite(role: Annotated[str, typer.Option(help="member, keeper (stores, reads nothing) or admin.")] = "member",
           tier: Annotated[str, typer.Option(help="Only a cloud, laptop or pocket device may use it.")] = "",
           expires: Annotated[str, typer.Option(metavar="TIME", help="How long it is valid: 90s, 10m, 2h.")] = "10m",
           ticket: Annotated[bool, typer.Option("--ticket", help="A ticket to copy instead of a code to type; "
                                                                 "works where multicast is blocked.")] = False,
           qr: Annotated[bool, typer.Option("--qr", help="A ticket as a QR code too.")] = False,
           yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve whoever has the code.")] = False,
           approve_fingerprint: Annotated[str, typer.Option(metavar="ABCD-EFGH", help="Approve this device and no "
                                                                                      "other.")] = "",
           interface: Annotated[str, typer.Option(metavar="NAME", help="Give the addresses on this network interface "
                                                                       "only, such as eth0 or lo.")] = "",
           no_wait: Annotated[bool, typer.Option("--no-wait", help="Print the code and end; the invitation stays "
                                                                   "open.")] = False) -> None:
    """Let another machine join. Waits until it has; Ctrl-C withdraws the invitation."""
    args: dict[str, Any] = {
        "role": role, "tier": tier or None, "expires_s": duration_s(expires), "accept": yes, "wait": not no_wait,
        "carrier": "ticket" if ticket or qr else "code", "fingerprint": approve_fingerprint or None}
    if not yes and not approve_fingerprint and not sys.stdin.isatty():
        raise UsageError("nobody is at the terminal to approve the new device",
                         next_step="add --yes or --approve-fingerprint ABCD-EFGH")
    if interface:
        from hinet_node.real.interfaces import require_interface

        args["hosts"] = list(require_interface(interface))
    with agent_call.connect() as client:
        try:
            result = client.call("invite", args, on_progress=lambda news: _show(news, qr=qr))
        except NetworkError as error:
            if error.code == "E_AGENT_GONE":
                error.next_step = (f"{context.typed('run')}   then see whether it came: {context.typed('devices')}   "
                                   f"and if not: {context.typed('invite')}")
            raise
    if no_wait:
        _show(result, qr=qr, waits=False)
    elif context.current.json:
        _json_line(result)
    else:
        device = result["device"]
        output.say("")
        output.emit("hinet.invite/1", result, [
            f"{output.style(output.clean(device['name']), 'bold')} belongs to the household now ({device['role']}, "
            f"{device['tier']}, {device['fingerprint']})."])
        if not result["confirmed"]:
            output.say("It went away before it said that it has its certificate. If it does not come "
                       f"({context.typed('devices')}), invite it once more: with the same key it gets the same one.")


def duration_s(text: str) -> int:
    """Seconds of `90s`, `10m`, `2h`, `1d` or a bare number of seconds. Errors: `UsageError`."""
    found = re.fullmatch(r"(\d{1,7})([smhd]?)", text.strip().lower())
    if found is None:
        raise UsageError(f"{text!r} is no time", next_step="for example 90s, 10m, 2h or 1d")
    return int(found[1]) * UNITS_S[found[2] or "s"]


def _show(news: Mapping[str, Any], *, qr: bool, waits: bool = True) -> None:
    """One piece of news: a JSON line, or words; and the question, when there is one."""
    if context.current.json:
        _json_line(news)
    elif news["state"] == "waiting":
        _show_waiting(news, qr=qr, waits=waits)
    elif news["state"] == "failed-try":
        output.say(output.style("A device tried and failed: ", "yellow", stream=sys.stderr)
                   + output.clean(news["what"]))
    if news["state"] == "asking":
        _ask(news)


def _show_waiting(news: Mapping[str, Any], *, qr: bool, waits: bool) -> None:
    secret = news.get("code") or news["ticket"]
    output.say(f"On the new machine type (valid for {_left(news['expires_in_s'])}, once, as {news['role']}):")
    output.say("")
    sys.stdout.write(f"  {output.style('hinet-node join', 'dim')} {output.style(secret, 'bold')}\n")
    sys.stdout.flush()
    if qr:
        import segno

        code = segno.make(secret.upper(), error="l")
        sys.stdout.write("\n")
        code.terminal(out=sys.stdout, compact=True, border=2)
        columns = code.symbol_size(border=2)[0]
        if sys.stdout.isatty() and shutil.get_terminal_size().columns < columns:
            output.say(f"This window is too narrow for the QR code, which takes {columns} columns; make it wider and "
                       "start again, or copy the ticket.")
        sys.stdout.flush()
    output.say("")
    if news["carrier"] == "code" and news["addresses"]:
        output.say(f"Where multicast is blocked add:  --address {output.address_text(news['addresses'][0])}")
    output.say("Waiting; Ctrl-C withdraws it." if waits else
               f"It stays open in the agent; who has come: {context.typed('devices')}")


def _ask(news: Mapping[str, Any]) -> None:
    output.say("")
    name = output.style(output.clean(news["name"]), "bold", stream=sys.stderr)
    shown = output.style(news["fingerprint"], "bold", stream=sys.stderr)
    output.say(f"{name} ({news['tier']}) asks to join as {news['role']}. Its screen must show the fingerprint {shown}.")
    accept = False
    try:
        accept = output.ask("Is it yours? [y/N] ").lower() in ("y", "yes")
    finally:
        agent_call.call("invite.decide", {"selector": news["selector"], "fingerprint": news["fingerprint"],
                                          "accept": accept})


def _json_line(news: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"schema": "hinet.invite/1", **news}, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _left(seconds: int) -> str:
    for unit_s, unit in ((86_400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds} s"
