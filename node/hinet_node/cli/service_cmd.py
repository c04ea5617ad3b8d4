"""`hinet-node service install|uninstall|status`: the agent as a background service of this user."""

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
    from hinet_node.home import require_identity

    service = this_service()
    if dry_run:
        output.emit("hinet.service-install/1", {"kind": service.kind, "path": str(service.path), "text": service.text,
                                                "dry_run": True}, service.text.rstrip("\n").split("\n"))
        output.say(f"would be written to {service.path}")
        return
    services.require_manager(service)
    require_identity(context.home_path())
    changed = services.install(service)
    lines = [f"{service.path} {'written' if changed else 'was there already'}; the agent runs in the background."]
    if service.kind == "systemd" and not services.lingers():
        lines.append(f"It stops when you log out. To keep it:  loginctl enable-linger {os.environ.get('USER', '')}")
    output.emit("hinet.service-install/1", {"kind": service.kind, "path": str(service.path), "changed": changed,
                                            "dry_run": False}, lines)


@app.command()
def uninstall() -> None:
    """Stop the service and remove it. The home and its keys stay."""
    service = this_service()
    removed = services.uninstall(service)
    output.emit("hinet.service-uninstall/1", {"removed": removed, "path": str(service.path)},
                [f"{service.path} removed; the agent has stopped." if removed else "No service was installed."])


@app.command()
def status() -> None:
    """Whether the service is installed and runs."""
    service = this_service()
    installed, running = service.path.exists(), services.running(service)
    data = {"kind": service.kind, "path": str(service.path), "installed": installed, "running": running}
    if service.kind == "none":
        line = "This machine has no systemd; run the agent by hand: " + context.typed("run")
    elif running:
        line = f"The agent runs as {service.name}."
    elif installed:
        line = f"{service.name} is installed and stopped. Start it: {_start_line(service)}"
    else:
        line = "No service is installed. Install it: " + context.typed("service install")
    output.emit("hinet.service-status/1", data, [line])


def _start_line(service: services.Service) -> str:
    if sys.platform == "darwin":
        return f"launchctl bootstrap gui/{os.getuid()} {service.path}"
    return f"systemctl --user start {service.name}"
