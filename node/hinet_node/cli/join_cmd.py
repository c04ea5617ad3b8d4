"""`hinet-node join CODE|TICKET`: make this machine a device of a household. Works without a running agent."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output
from hinet_node.errors import UsageError


def join(code: Annotated[str, typer.Argument(metavar="CODE|TICKET", help="What the inviting device shows.")] = "",
         name: Annotated[str, typer.Option(help="This device's name (default: the host name).")] = "",
         tier: Annotated[str, typer.Option(help="cloud, laptop or pocket (default: by this machine's memory).")] = "",
         address: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="The inviting device's address, "
                                                                                   "where multicast fails.")] = None,
         timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="How long to look for it.")] = 60.0,
         code_stdin: Annotated[bool, typer.Option("--code-stdin", help="Read the code from stdin, so that it stands "
                                                                       "in no process list.")] = False,
         fingerprint: Annotated[bool, typer.Option("--fingerprint", help="Print this device's fingerprint and "
                                                                         "end.")] = False,
         service: Annotated[bool | None, typer.Option("--service/--no-service", help="Afterwards leave the agent "
                                                                                     "running in the background; "
                                                                                     "asks by default.")] = None,
         ) -> None:
    """Make this machine a device of your household."""
    from hinet_node import home, machine
    from hinet_node.belonging import join as joining
    from hinet_node.belonging.membership import refuse_second
    from hinet_node.cli.init_cmd import checked_tier, default_name
    from hinet_node.cli.run_cmd import multiaddr
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness

    folder = context.home_path()
    refuse_second(RealDisk(folder))
    checked_tier(tier)
    with home.locked(folder):
        home.check_private(folder)
        keys = joining.preflight(RealDisk(folder), SystemRandomness())
        if fingerprint:
            _print_fingerprint(keys.public)
            return
        invitation = parse_invitation(_read_code(code, from_stdin=code_stdin))
        warning = joining.clock_warning(SystemClock().now_unix_s())
        if warning:
            output.say(f"warning: {warning}")
        wanted = joining.Wanted(invitation, name or default_name(),
                                tier or machine.suggested_tier(machine.describe()),
                                tuple(multiaddr(one) for one in address or ()), timeout)
        data = _join(folder, keys, wanted)
    output.emit("hinet.join/1", data, lambda: _lines(data))
    _offer_service(service)


def parse_invitation(text: str) -> Any:
    """A code or a ticket. Errors: `CodeMalformed`, `TicketMalformed`."""
    from hinet_protocol.invitations import parse_code, parse_ticket

    return parse_ticket(text) if text.strip().lower().startswith("hinet1") else parse_code(text)


def _read_code(code: str, *, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline(4096).strip()
    if code:
        return code
    if sys.stdin.isatty():
        return output.ask("The code that the inviting device shows: ")
    raise UsageError("no code was given", next_step="on a device of the household: hinet-node invite   then here: "
                                                    "hinet-node join CODE")


def _join(folder: str, keys: Any, wanted: Any) -> dict[str, Any]:
    import trio

    from hinet_node import config
    from hinet_node.belonging import join as joining
    from hinet_node.belonging.household import describe_household
    from hinet_node.cli import real_ports
    from hinet_node.real.disk import RealDisk
    from hinet_node.sessions import seen

    settings = config.read(RealDisk(folder))
    ports = real_ports.build(folder, settings)
    membership = trio.run(joining.join_household, ports, keys, wanted, _report)
    config.write(ports.disk, config.Config(name=membership.name, tier=membership.tier, port=settings.port,
                                           listen=settings.listen, interface=settings.interface,
                                           static=tuple(dict.fromkeys((*settings.static, *wanted.addresses)))))
    return {**describe_household(membership, seen.read(ports.disk)), "home": folder}


def _report(news: dict[str, str]) -> None:
    if news["state"] == "looking":
        output.say("Looking for the inviting device ...")
    elif news["state"] == "found":
        output.say(f"Found it at {output.address_text(news['address'])}; checking the code ...")
    elif news["state"] == "asking":
        shown = output.style(news["fingerprint"], "bold", stream=sys.stderr)
        output.say(f"{output.clean(news['inviter'])} invites this machine as {news['role']}. There, compare the "
                   f"fingerprint with {shown}.")


def _lines(data: dict[str, Any]) -> list[str]:
    from hinet_node.cli.device_table import device_table

    device = data["device"]
    return [f"{output.style(output.clean(device['name']), 'bold')} belongs to identity {data['identity']['id']} now "
            f"({device['role']}, {device['tier']}).", "", *device_table(data["devices"])]


def _offer_service(wanted: bool | None) -> None:
    """Install the agent as a service when wanted; ask when somebody is there; else say what to type."""
    from hinet_node.cli.service_cmd import this_service
    from hinet_node.local import unit as services

    service = this_service()
    if wanted is None and service.kind != "none" and output.at_terminal() and sys.stdin.isatty():
        wanted = output.ask("Leave the agent running in the background from now on? [Y/n] ").lower() in ("", "y", "yes")
    if wanted:
        services.install(service)
        output.say(f"The agent runs as {service.name}; see: {context.typed('status')}")
        return
    output.say("")
    output.say(f"next: {context.typed('run')}    start the agent")
    if service.kind != "none":
        output.say(f"      {context.typed('service install')}    or leave it running in the background")


def _print_fingerprint(public: bytes) -> None:
    from hinet_protocol.identity import fingerprint

    shown = fingerprint(public)
    output.emit("hinet.join-fingerprint/1", {"fingerprint": shown, "public": public.hex()}, [shown])

