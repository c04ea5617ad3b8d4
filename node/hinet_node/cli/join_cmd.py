"""`hinet-node join CODE|TICKET`: make this machine a device of a household. Works without a running agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output
from hinet_node.errors import PortBusy, UsageError


def join(code: Annotated[str, typer.Argument(metavar="CODE|TICKET", help="What the inviting device shows.")] = "",
         name: Annotated[str, typer.Option(help="This device's name (default: the host name).")] = "",
         tier: Annotated[str, typer.Option(help="cloud, laptop or pocket (default: by this machine's memory).")] = "",
         address: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="The inviting device's address, "
                                                                                   "where multicast fails.")] = None,
         port: Annotated[int | None, typer.Option(min=0, max=65_535, help="The port that the agent will listen on; 0 "
                                                                          "lets the system choose.")] = None,
         interface: Annotated[str, typer.Option(metavar="NAME", help="Look on this network interface only, such as "
                                                                     "eth0 or lo; the agent does so too.")] = "",
         any_clock: Annotated[bool, typer.Option("--any-clock", help="Join also with a clock that can't be "
                                                                     "right.")] = False,
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

    from hinet_node import config, home, machine
    from hinet_node.belonging import join as joining
    from hinet_node.belonging.membership import refuse_second
    from hinet_node.cli.init_cmd import checked_tier, default_name
    from hinet_node.cli.run_cmd import multiaddr
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness

    folder = context.home_path()
    refuse_second(RealDisk(folder))
    checked_tier(tier)
    joining.check_name(name or default_name())
    home.check_folder(folder)
    with home.locked(folder):
        home.check_private(folder)
        keys = joining.preflight(RealDisk(folder), SystemRandomness())
        if fingerprint:
            _print_fingerprint(keys.public)
            return
        settings = config.read(RealDisk(folder))
        settings = replace(settings, interface=interface or settings.interface,
                           port=settings.port if port is None else port)
        _check_machine(settings, now_unix_s=None if any_clock else SystemClock().now_unix_s())
        invitation = parse_invitation(_read_code(code, from_stdin=code_stdin))
        typed = tuple(multiaddr(one) for one in address or ())
        wanted = joining.Wanted(invitation, name or default_name(),
                                tier or machine.suggested_tier(machine.describe()),
                                _from_here(typed or getattr(invitation, "addresses", ()), settings), timeout)
        data = _join(folder, keys, wanted, replace(settings, static=tuple(dict.fromkeys((*settings.static, *typed)))))
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


def _check_machine(settings: Any, *, now_unix_s: float | None) -> None:
    """What would keep the agent from working later, asked before the code is spent. Errors: `NodeError` E_CLOCK;
    `PortBusy`, `NetworkError` for an address that is not this machine's; `UsageError` for an unknown interface."""
    import trio

    from hinet_node.belonging.join import check_clock
    from hinet_node.real.interfaces import require_interface
    from hinet_node.real.transport.sockets import check_listening

    if now_unix_s is not None:
        check_clock(now_unix_s)
    if settings.interface:
        require_interface(settings.interface)
    try:
        trio.run(check_listening, settings.listen_addresses())
    except PortBusy as error:
        raise PortBusy(f"{error.what.rstrip('.')}; the code was not used",
                       next_step="stop it, or let the agent have another: hinet-node join CODE --port 0") from error


def _from_here(addresses: Sequence[str], settings: Any) -> tuple[str, ...]:
    """The addresses as this machine can dial them. Errors: `UsageError` for one that is none."""
    from hinet_node.real.interfaces import with_zones
    from hinet_node.sessions.addresses import parse_address

    only = [settings.interface] if settings.interface else None
    return tuple(place for text in addresses for place in with_zones(parse_address(text), only))


def _join(folder: str, keys: Any, wanted: Any, settings: Any) -> dict[str, Any]:

    import trio

    from hinet_node import config
    from hinet_node.belonging import join as joining
    from hinet_node.belonging.household import describe_household
    from hinet_node.cli import real_ports
    from hinet_node.sessions import seen

    ports = real_ports.build(folder, settings)

    def settle(device: Any) -> None:
        config.write(ports.disk, replace(settings, name=device.name, tier=device.tier))

    membership = trio.run(joining.join_household, ports, keys, wanted, report, settle)
    return {**describe_household(membership, seen.read(ports.disk)), "home": folder}


def report(news: dict[str, str]) -> None:
    if news["state"] == "looking":
        output.say("Looking for the inviting device ...")
    elif news["state"] == "found":
        output.say(f"Found it at {output.address_text(news['address'])}; checking the code ...")
    elif news["state"] == "asking":
        shown = output.style(news["fingerprint"], "bold", stream=sys.stderr)
        output.say(f"{output.clean(news['inviter'])} of household {news['identity']} invites this machine as "
                   f"{news['role']}. There, compare the fingerprint with {shown}.")
    elif news["state"] == "busy":
        output.say("Another device is joining there just now; waiting for it ...")
    elif news["state"] == "new-key":
        output.say("The household has removed this machine's former key; joining with a new one.")


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
    output.say(f"next: {context.typed('up')}    start the agent")
    if service.kind != "none":
        output.say(f"      {context.typed('service install')}    or leave it running in the background")


def _print_fingerprint(public: bytes) -> None:
    from hinet_protocol.identity import fingerprint

    shown = fingerprint(public)
    output.emit("hinet.join-fingerprint/1", {"fingerprint": shown, "public": public.hex()}, [shown])

