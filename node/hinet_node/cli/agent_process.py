"""The agent's own process: what `hinet-node run` becomes once its line is read.

`run` replaces its process by this module (same process id, same terminal, same streams), so that an agent that runs for
months does not carry the parser of one command line. Leaves options and their checks to `run_cmd`, and everything that
an agent does to `hinet_node.agent`.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hinet_node.cli import context, output

if TYPE_CHECKING:
    from hinet_node.agent import Agent
    from hinet_node.config import Config

PORT_FILE = "run/port"
MEMORY_TIDIED_S = 60.0


@dataclass(frozen=True)
class Wish:
    """What the line asked for. `home` is the folder; `home_option` is as the owner typed it, None if not at all."""

    home: str
    home_option: str | None = None
    json: bool = False
    debug: bool = False
    listen: tuple[str, ...] = ()
    port: int | None = None
    static: tuple[str, ...] = ()
    relay: tuple[str, ...] = ()
    interface: str = ""
    rate: str | None = None
    discover: bool = True
    quiet: bool = False


def become(wish: Wish) -> NoReturn:
    """Go on as the agent, in a process that has loaded nothing yet."""
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: the folder that this was typed in is no place to import from, unless this program itself was found there.
    safely = [] if Path(__file__).parents[2] == Path.cwd() else ["-P"]
    # "run" stands there for whoever looks through the list of processes.
    line = [sys.executable, *safely, "-m", __name__, "run", json.dumps(asdict(wish))]
    os.execv(sys.executable, line)  # noqa: S606 - this interpreter again, and no shell is wanted


def main(arguments: Sequence[str]) -> int:
    """Run the agent to its end; returns the exit code. The last argument is a `Wish` as JSON."""
    given = json.loads(arguments[-1])
    wish = Wish(**{**given, **{name: tuple(given[name]) for name in ("listen", "static", "relay")}})
    context.current = context.Context(debug=wish.debug)
    context.current.json, context.current.home_option, context.current.command = wish.json, wish.home_option, "run"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        run(wish)
    except (Exception, KeyboardInterrupt) as error:
        from hinet_node.cli import failures

        return failures.report(error)
    return 0


def run(wish: Wish) -> None:
    """The agent of the wished home, until a signal. Errors: the home is locked, a port is busy, and so on."""
    from hinet_node import config as configs
    from hinet_node import home, machine
    from hinet_node.cli.journal import Journal
    from hinet_node.cli.version_cmd import installed_version

    folder = wish.home
    home.require_identity(folder)
    with home.locked(folder):
        import trio

        from hinet_node.agent import Agent
        from hinet_node.belonging.device_keys import settle_keys
        from hinet_node.belonging.membership import Membership
        from hinet_node.cli import real_ports
        from hinet_node.real.disk import RealDisk
        from hinet_node.sessions.relay import read_relays

        RealDisk(folder).remove_leftovers()
        config = configs.read(RealDisk(folder))
        config = replace(config, port=config.port if wish.port is None else wish.port,
                         listen=wish.listen or config.listen, interface=wish.interface or config.interface,
                         rate=config.rate if wish.rate is None else wish.rate,
                         static=tuple(multiaddr(one) for one in config.static) + wish.static,
                         relay=tuple(multiaddr(one) for one in config.relay) + wish.relay)
        read_relays(config.relay)
        ports = real_ports.build(folder, config)
        membership = Membership.load(ports.disk, ports.randomness, ports.clock)
        settle_keys(ports.disk, membership.chain())
        agent = Agent(ports, membership, config, listen=configs.listen_addresses(config.listen, _port(folder, config)),
                      machine=machine.describe(), version=installed_version(), discover=wish.discover,
                      log=Journal(Path(folder) / home.LOG, to_stderr=not wish.quiet), socket=home.socket_path(folder))
        trio.run(_run, agent)


async def _run(agent: Agent) -> None:
    import trio

    from hinet_node.real.system import return_freed_memory

    async def tidy_memory() -> None:
        while True:
            await trio.sleep(MEMORY_TIDIED_S)
            return_freed_memory()

    async def stop_on_signal(*, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if agent.stopping:
                    nursery.cancel_scope.cancel()
                agent.stop()

    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal)
        nursery.start_soon(tidy_memory)
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

    if text.endswith("/p2p-circuit"):
        raise UsageError(f"{text!r} leads through a relay; devices that belong find it by themselves",
                         next_step="write where the relay listens, as relay = ... in config.toml")
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
    zone = getattr(address, "scope_id", None)
    return f"{f'/ip6zone/{zone}' if zone else ''}/ip{address.version}/{str(address).partition('%')[0]}/tcp/{port}"


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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
