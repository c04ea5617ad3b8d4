"""`hinet-node up` and `hinet-node down`: the agent in the background, by its service or as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from hinet_node.cli import context, output


def up(port: Annotated[int | None, typer.Option(min=0, max=65_535, help="As for run; without a service only.")] = None,
       listen: Annotated[list[str] | None, typer.Option(metavar="IP", help="As for run; without a service "
                                                                           "only.")] = None,
       rate: Annotated[str | None, typer.Option(metavar="BYTES", help="As for run; without a service only.")] = None,
       ) -> None:
    """Start the agent in the background and wait until it answers. One that runs already is left alone."""
    from hinet_node.cli.service_cmd import this_service
    from hinet_node.errors import UsageError
    from hinet_node.home import require_identity
    from hinet_node.local import background
    from hinet_node.rates import read_rate

    folder, service = context.home_path(), this_service()
    require_identity(folder)
    options = [part for ip in listen or () for part in ("--listen", ip)]
    options += [] if port is None else ["--port", str(port)]
    if rate is not None:
        read_rate(rate)
        options += ["--rate", rate]
    if options and service.installed:
        raise UsageError("the service takes its port, addresses and rate from config.toml",
                         next_step=f"write them into {folder}/config.toml, then: hinet-node service restart")
    done = background.start(folder, service, options)
    how = f"as {service.name}" if done.by == "service" else f"as process {done.process_id}"
    lines = [f"The agent {'runs' if done.changed else 'was running already,'} {how}; stop it: {context.typed('down')}"]
    if done.by == "process" and done.changed and service.kind != "none":
        lines.append(f"To have it after each login too: {context.typed('service install')}")
    output.emit("hinet.up/1", {"running": True, "started": done.changed, "by": done.by,
                               "process_id": done.process_id}, lines)


def down() -> None:
    """Stop the agent and wait until it has ended. None running is no error."""
    from hinet_node.cli.service_cmd import this_service
    from hinet_node.local import background

    service = this_service()
    done = background.stop(context.home_path(), service)
    lines = ["The agent has stopped." if done.changed else "No agent was running."]
    if done.changed and done.by == "service":
        lines.append(f"It starts again at the next login; for good: {context.typed('service uninstall')}")
    output.emit("hinet.down/1", {"running": False, "stopped": done.changed, "by": done.by}, lines)
