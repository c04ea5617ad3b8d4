"""`hinet-node run`: the agent in the foreground."""

from __future__ import annotations

import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet_node.cli import context, output

if TYPE_CHECKING:
    from hinet_node.agent import Agent
    from hinet_node.config import Config

PORT_FILE = "run/port"


def run(listen: Annotated[list[str] | None, typer.Option(metavar="IP", help="Listen on this address only "
                                                                           "(may be given again).")] = None,
        port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Listen on this port; 0 lets the system "
                                                                         "choose.")] = None,
        static: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="A sibling on another network: "
                                                                                 "/ip4/1.2.3.4/tcp/4001 or "
                                                                                 "1.2.3.4:4001.")] = None,
        interface: Annotated[str, typer.Option(metavar="NAME", help="Be found and look for siblings on this network "
                                                                    "interface only, such as eth0 or lo.")] = "",
        no_discovery: Annotated[bool, typer.Option("--no-discovery", help="Neither announce nor look for siblings "
                                                                          "on the LAN.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log to the file only.")] = False) -> None:
    """Run the agent in the foreground until Ctrl-C."""
    from hinet_node import config as configs
    from hinet_node import home, machine
    from hinet_node.cli.journal import Journal
    from hinet_node.cli.version_cmd import installed_version

    folder = context.home_path()
    home.require_identity(folder)
    if interface:
        from hinet_node.real.interfaces import require_interface

        require_interface(interface)
    with home.locked(folder):
        import trio

        from hinet_node.agent import Agent
        from hinet_node.belonging.membership import Membership
        from hinet_node.cli import real_ports
        from hinet_node.real.disk import RealDisk

        RealDisk(folder).remove_leftovers()
        config = configs.read(RealDisk(folder))
        config = replace(config, interface=interface or config.interface,
                         port=config.port if port is None else port, listen=tuple(listen or config.listen),
                         static=tuple(multiaddr(one) for one in (*config.static, *(static or ()))))
        ports = real_ports.build(folder, config)
        membership = Membership.load(ports.disk, ports.randomness, ports.clock)
        agent = Agent(ports, membership, config, listen=configs.listen_addresses(config.listen, _port(folder, config)),
                      machine=machine.describe(), version=installed_version(), discover=not no_discovery,
                      log=Journal(Path(folder) / home.LOG, to_stderr=not quiet), socket=home.socket_path(folder))
        trio.run(_run, agent)


async def _run(agent: Agent) -> None:
    import trio

    async def stop_on_signal(*, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if agent.stopping:
                    nursery.cancel_scope.cancel()
                agent.stop()

    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal)
        addresses = await nursery.start(agent.run)
        _remember_port(agent, addresses)
        device = agent.membership.device
        agent.log(f"{device.name} is ready ({device.tier}, {agent.membership.role}); Ctrl-C stops it")
        if context.current.json:
            output.emit("hinet.run/1", {"state": "ready", "addresses": list(addresses), "name": device.name}, [])
        await agent.stopped.wait()
        agent.log(f"{device.name} has stopped")
        nursery.cancel_scope.cancel()


def multiaddr(text: str) -> str:
    """A multiaddr, also from HOST:PORT with an IP address. Errors: `UsageError`."""
    import ipaddress

    from hinet_node.errors import UsageError

    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        if not 0 < int(port) < 65_536:
            raise ValueError
    except ValueError:
        raise UsageError(f"{text!r} is no address",
                         next_step="for example 192.168.1.5:4001 or /ip4/192.168.1.5/tcp/4001") from None
    return f"/ip{address.version}/{address}/tcp/{port}"


def _port(folder: str, config: Config) -> int:
    """The wanted port; when none is wanted, the former one if it is free, so that siblings find us where we were."""
    if config.port:
        return config.port
    try:
        former = int((Path(folder) / PORT_FILE).read_text("ascii"))
        with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", former))
    except (OSError, ValueError, OverflowError):
        return 0
    return former


def _remember_port(agent: Agent, addresses: tuple[str, ...]) -> None:
    from contextlib import suppress

    from hinet_node.errors import NoSpace

    chosen = {address.rpartition("/tcp/")[2] for address in addresses}
    if len(chosen) == 1 and not agent.config.port:
        with suppress(NoSpace):
            agent.ports.disk.write_atomic(PORT_FILE, chosen.pop().encode("ascii"))
