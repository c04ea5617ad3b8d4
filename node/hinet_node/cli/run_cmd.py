"""`hinet-node run`: the agent in the foreground. Reads the line; the rest is `agent_process`'s."""

from __future__ import annotations

from typing import Annotated

import typer

from hinet_node.cli import agent_process, context
from hinet_node.cli.agent_process import multiaddr

__all__ = ["multiaddr", "run"]


def run(listen: Annotated[list[str] | None, typer.Option(metavar="IP", help="Listen on this address only "
                                                                           "(may be given again).")] = None,
        port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Listen on this port; 0 lets the system "
                                                                         "choose.")] = None,
        static: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="A sibling on another network: "
                                                                                 "/ip4/1.2.3.4/tcp/4001 or "
                                                                                 "1.2.3.4:4001.")] = None,
        interface: Annotated[str, typer.Option(metavar="NAME", help="Be found and look for siblings on this network "
                                                                    "interface only, such as eth0 or lo.")] = "",
        relay: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="A sibling that others can reach: this "
                                                                                "device can be called through it.",
                                                        )] = None,
        rate: Annotated[str | None, typer.Option(metavar="BYTES", help="Packs travel at most so fast, each way: 5M is "
                                                                       "5 million bytes a second; 0 is no limit.",
                                                 )] = None,
        no_discovery: Annotated[bool, typer.Option("--no-discovery", help="Neither announce nor look for siblings "
                                                                          "on the LAN.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log to the file only.")] = False) -> None:
    """Run the agent in the foreground until Ctrl-C."""
    from hinet_node import home

    folder, given = context.home_path(), context.current
    home.require_identity(folder)
    if rate is not None:
        from hinet_node.rates import read_rate

        read_rate(rate)
    if interface:
        from hinet_node.real.interfaces import require_interface

        require_interface(interface)
    agent_process.become(agent_process.Wish(
        home=folder, home_option=given.home_option, json=given.json, debug=given.debug, listen=tuple(listen or ()),
        port=port, static=tuple(multiaddr(one) for one in static or ()),
        relay=tuple(multiaddr(one) for one in relay or ()), interface=interface, rate=rate,
        discover=not no_discovery, quiet=quiet))
