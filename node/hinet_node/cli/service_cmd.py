"""`hinet-node service install|uninstall|status|restart|logs`: the agent as a background service of this user."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hinet_node.cli import context, output, root
from hinet_node.local import unit as services

app = root.group("Keep the agent running in the background: a systemd user unit, or a launchd agent.")


def this_service() -> services.Service:
    """The service of the home that the command line names."""
    from platformdirs import user_data_dir

    home = Path(context.home_path())
    return services.describe(home, default_home=home == Path(user_data_dir("hinet", appauthor=False)))


@app.command()
def install(dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit and change nothing.")] = False,
            ) -> None:
    """Install and start the service. Doing it twice changes nothing."""
    from hinet_node.errors import ConflictError
    from hinet_node.home import require_identity
    from hinet_node.local import background
    from hinet_node.local.client import agent_answers

    service, folder = this_service(), context.home_path()
    if dry_run:
        output.emit("hinet.service-install/1", {"kind": service.kind, "path": str(service.path), "text": service.text,
                                                "dry_run": True}, service.text.rstrip("\n").split("\n"))
        output.say(f"would be written to {service.path}")
        return
    services.require_manager(service)
    require_identity(folder)
    if agent_answers(folder) and not services.running(service):
        raise ConflictError("an agent that is no service runs in this home already", code="E_AGENT_RUNNING",
                            next_step=f"{context.typed('down')}   then: {context.typed('service install')}")
    changed = services.install(service)
    background.start(folder, service)
    lines = [f"{service.path} {'written' if changed else 'was there already'}; the agent runs in the background."]
    if service.kind == "systemd" and not services.lingers():
        lines.append(f"It stops when you log out. To keep it:  loginctl enable-linger {services.user_name()}")
    output.emit("hinet.service-install/1", {"kind": service.kind, "path": str(service.path), "changed": changed,
                                            "dry_run": False, "lingers": services.lingers()}, lines)


@app.command()
def uninstall() -> None:
    """Stop the service and remove it. The home and its keys stay."""
    service = this_service()
    removed = services.uninstall(service)
    output.emit("hinet.service-uninstall/1", {"removed": removed, "path": str(service.path)},
                [f"{service.path} removed; the agent has stopped." if removed else "No service was installed."])


@app.command()
def restart() -> None:
    """Stop and start the service, and wait until the agent answers."""
    from hinet_node.local import background

    service = this_service()
    services.require_installed(service)
    services.restart(service)
    background.start(context.home_path(), service)
    output.emit("hinet.service-restart/1", {"name": service.name, "running": True}, [f"{service.name} was restarted."])


@app.command()
def status() -> None:
    """Whether the service is installed and runs."""
    service = this_service()
    running = services.running(service)
    data = {"kind": service.kind, "path": str(service.path), "installed": service.installed, "running": running}
    if service.kind == "systemd":
        data["lingers"] = services.lingers()
    if service.kind == "none":
        line = "This machine has no systemd; run the agent by hand: " + context.typed("up")
    elif running:
        line = f"The agent runs as {service.name}."
    elif service.installed:
        line = f"{service.name} is installed and stopped. Start it: {context.typed('up')}"
    else:
        line = "No service is installed. Install it: " + context.typed("service install")
    output.emit("hinet.service-status/1", data, [line])


@app.command()
def logs(follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, to Ctrl-C.")] = False,
         lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=100_000, help="How many of the last "
                                                                                      "lines.")] = 50) -> None:
    """What the service wrote: the system's journal, or the agent's own log where there is none."""
    from hinet_node.cli.logs_cmd import show

    line = services.journal_line(this_service(), lines, follow=follow)
    if line is None or context.current.json:
        show(follow=follow, count=lines)
        return
    sys.stdout.flush()
    os.execvp(line[0], line)  # noqa: S606 - the journal's own pager-less output, Ctrl-C and exit code are wanted
