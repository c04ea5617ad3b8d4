"""The agent as a background service of this user, through `systemctl --user` or `launchctl`.

Installing twice changes nothing the second time. A home that isn't the default one gets a unit of its own name. Leaves
the unit's text to `unit_text`, and agents without a service to `background`.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hinet_node.errors import NodeError
from hinet_node.local.unit_text import launchd_text, systemd_text

CALL_TIMEOUT_S = 30


@dataclass(frozen=True)
class Service:
    """Where the unit goes and what it says. `kind` is systemd, launchd or none."""

    kind: str
    name: str
    path: Path
    text: str

    @property
    def installed(self) -> bool:
        """Whether its unit is there."""
        return self.kind != "none" and self.path.exists()


def describe(home: Path, *, default_home: bool, python: str = sys.executable) -> Service:
    """The service for this home on this machine; writes nothing."""
    suffix = "" if default_home else f"-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"
    if sys.platform == "darwin":
        name = f"org.hinet.node{suffix}"
        path = Path.home() / "Library" / "LaunchAgents" / f"{name}.plist"
        return Service("launchd", name, path, launchd_text(name, home, python))
    name = f"hinet-node{suffix}.service"
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
    return Service("systemd" if has_systemd() else "none", name, folder / name,
                   systemd_text(home, python, namespaces=has_namespaces()))


def has_systemd() -> bool:
    """Whether a systemd manages this machine (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def has_namespaces() -> bool:
    """Whether this user may make user and mount namespaces: some systems forbid it, and then a unit that asks for them
    would not start at all."""
    try:
        return subprocess.run(["unshare", "--user", "--map-current-user", "--mount", "true"], capture_output=True,
                              check=False, timeout=CALL_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install(service: Service) -> bool:
    """Write the unit and start it; returns whether the file changed. Errors: `NodeError` naming the failing call."""
    require_manager(service)
    text = service.text.encode("utf-8")
    changed = not service.path.exists() or service.path.read_bytes() != text
    if changed:
        service.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = service.path.with_name(service.path.name + ".new")
        unfinished.write_bytes(text)
        unfinished.replace(service.path)
    if service.kind == "systemd":
        _call(["systemctl", "--user", "daemon-reload"])
        _call(["systemctl", "--user", "enable", service.name])
        _call(["systemctl", "--user", "restart" if changed else "start", service.name])
    else:
        if changed:
            _launchd_bootout(service)
        start(service)
    return changed


def uninstall(service: Service) -> bool:
    """Stop the service and remove its unit; returns whether there was one."""
    if not service.installed:
        return False
    if service.kind == "systemd":
        _call(["systemctl", "--user", "disable", "--now", service.name])
    else:
        _launchd_bootout(service)
    service.path.unlink()
    if service.kind == "systemd":
        _call(["systemctl", "--user", "daemon-reload"])
    return True


def start(service: Service) -> None:
    """Start the installed service; one that runs is left alone. Errors: `NodeError`."""
    if service.kind == "systemd":
        _call(["systemctl", "--user", "start", service.name])
    elif not running(service):
        _call(["launchctl", "bootstrap", f"gui/{os.getuid()}", str(service.path)])


def stop(service: Service) -> None:
    """Stop it until the next login, or the next `start`. Errors: `NodeError`."""
    if service.kind == "systemd":
        _call(["systemctl", "--user", "stop", service.name])
    else:
        _launchd_bootout(service)


def restart(service: Service) -> None:
    """Stop and start it. Errors: `NodeError`."""
    if service.kind == "systemd":
        _call(["systemctl", "--user", "restart", service.name])
    elif running(service):
        _call(["launchctl", "kickstart", "-k", f"gui/{os.getuid()}/{service.name}"])
    else:
        start(service)


def running(service: Service) -> bool:
    """Whether the manager says that it runs."""
    calls = {"systemd": ["systemctl", "--user", "is-active", "--quiet", service.name],
             "launchd": ["launchctl", "print", f"gui/{os.getuid()}/{service.name}"]}
    call = calls.get(service.kind)
    if call is None or shutil.which(call[0]) is None:
        return False
    return subprocess.run(call, capture_output=True, check=False, timeout=CALL_TIMEOUT_S).returncode == 0


def journal_line(service: Service, count: int, *, follow: bool) -> list[str] | None:
    """The command that shows the service's log; None where only the agent's own file has it."""
    if service.kind != "systemd" or not service.installed or shutil.which("journalctl") is None:
        return None
    return ["journalctl", "--user", "--unit", service.name, "--lines", str(count), "--output", "short-iso",
            "--no-pager", *(["--follow"] if follow else [])]


def lingers() -> bool:
    """Whether this user's services go on after logout and start at boot (systemd only)."""
    return (Path("/var/lib/systemd/linger") / user_name()).is_file()


def user_name() -> str:
    """This user's name; its number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def require_manager(service: Service) -> None:
    """Errors: `NodeError` code E_NO_SERVICE_MANAGER where nothing could run the service."""
    if service.kind == "none":
        raise NodeError("this machine has no systemd, so no service was installed",
                        next_step="start the agent from your own init system, or by hand: hinet-node up",
                        code="E_NO_SERVICE_MANAGER")


def require_installed(service: Service) -> None:
    """Errors: `NodeError` where there is no unit to act on."""
    require_manager(service)
    if not service.installed:
        raise NodeError("no service is installed for this home", next_step="hinet-node service install",
                        code="E_NO_SERVICE")


def _launchd_bootout(service: Service) -> None:
    """Stop it and let launchd forget it; that it was not loaded is no error."""
    subprocess.run(["launchctl", "bootout", f"gui/{os.getuid()}/{service.name}"], capture_output=True, check=False,
                   timeout=CALL_TIMEOUT_S)


def _call(words: Sequence[str]) -> None:
    by_hand = f"try it by hand: {' '.join(words)}"
    try:
        done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=CALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"{words[0]} could not be run: {error}", code="E_SERVICE", next_step=by_hand) from error
    if done.returncode != 0:
        why = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        if "bus" in why:  # a shell without a session of its own: su, sudo, some containers
            by_hand = f"log in as {user_name()} directly (not by su or sudo), then {by_hand}"
        raise NodeError(f"{' '.join(words)} failed: {why}", next_step=by_hand, code="E_SERVICE")
