"""The agent as a background service of this user: a hardened systemd user unit, or a launchd agent on macOS.

Pure text and a few calls of `systemctl`/`launchctl`; the agent itself does not know that it is a service. Installing
twice changes nothing the second time. A home that isn't the default one gets a unit of its own name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from hinet_node.errors import NodeError

CALL_TIMEOUT_S = 20


@dataclass(frozen=True)
class Service:
    """Where the unit goes and what it says. `kind` is systemd, launchd or none."""

    kind: str
    name: str
    path: Path
    text: str


def describe(home: Path, *, default_home: bool, python: str = sys.executable) -> Service:
    """The service for this home on this machine; writes nothing."""
    suffix = "" if default_home else f"-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"
    if sys.platform == "darwin":
        name = f"org.hinet.node{suffix}"
        path = Path.home() / "Library" / "LaunchAgents" / f"{name}.plist"
        return Service("launchd", name, path, launchd_text(name, home, python))
    name = f"hinet-node{suffix}.service"
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
    return Service("systemd" if has_systemd() else "none", name, folder / name, systemd_text(home, python))


def has_systemd() -> bool:
    """Whether a systemd manages this machine (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def systemd_text(home: Path, python: str) -> str:
    """The unit. It may write only the home and the user's runtime folder (%t, for a socket whose path is long)."""
    place = _quoted(str(home))
    return f"""\
[Unit]
Description=HiNet node agent
Documentation=man:hinet-node(1)
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=exec
ExecStart={_quoted(python)} -m hinet_node --home {place} run
Restart=on-failure
RestartSec=2
# Exit codes that another start can't mend: usage, not initialised, conflict, integrity.
RestartPreventExitStatus=2 4 6 7
KillSignal=SIGTERM
TimeoutStopSec=20
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
PrivateUsers=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={place} %t
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
ProtectClock=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


def launchd_text(name: str, home: Path, python: str) -> str:
    """The property list of a launchd agent."""
    words = "".join(f"    <string>{escape(word)}</string>\n" for word in
                    (python, "-m", "hinet_node", "--home", str(home), "run"))
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>{escape(name)}</string>
  <key>ProgramArguments</key>
  <array>
{words}  </array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>ThrottleInterval</key><integer>10</integer>
  <key>ProcessType</key><string>Background</string>
  <key>Umask</key><integer>63</integer>
</dict>
</plist>
"""


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
        domain = f"gui/{os.getuid()}"
        if changed:
            subprocess.run(["launchctl", "bootout", f"{domain}/{service.name}"], capture_output=True, check=False,
                           timeout=CALL_TIMEOUT_S)
        if not running(service):
            _call(["launchctl", "bootstrap", domain, str(service.path)])
    return changed


def uninstall(service: Service) -> bool:
    """Stop the service and remove its unit; returns whether there was one."""
    if not service.path.exists():
        return False
    if service.kind == "systemd":
        _call(["systemctl", "--user", "disable", "--now", service.name])
    elif service.kind == "launchd":
        subprocess.run(["launchctl", "bootout", f"gui/{os.getuid()}/{service.name}"], capture_output=True, check=False,
                       timeout=CALL_TIMEOUT_S)
    service.path.unlink()
    if service.kind == "systemd":
        _call(["systemctl", "--user", "daemon-reload"])
    return True


def running(service: Service) -> bool:
    """Whether the manager says that it runs."""
    calls = {"systemd": ["systemctl", "--user", "is-active", "--quiet", service.name],
             "launchd": ["launchctl", "print", f"gui/{os.getuid()}/{service.name}"]}
    call = calls.get(service.kind)
    if call is None or shutil.which(call[0]) is None:
        return False
    return subprocess.run(call, capture_output=True, check=False, timeout=CALL_TIMEOUT_S).returncode == 0


def lingers() -> bool:
    """Whether this user's services go on after logout and start at boot (systemd only)."""
    return (Path("/var/lib/systemd/linger") / os.environ.get("USER", "")).is_file()


def require_manager(service: Service) -> None:
    """Errors: `NodeError` code E_NO_SERVICE_MANAGER where nothing could run the service."""
    if service.kind == "none":
        raise NodeError("this machine has no systemd, so no service was installed",
                        next_step="start the agent from your own init system, or by hand: hinet-node run",
                        code="E_NO_SERVICE_MANAGER")


def _call(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=CALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"{words[0]} could not be run: {error}", code="E_SERVICE",
                        next_step=f"try it by hand: {' '.join(words)}") from error
    if done.returncode != 0:
        why = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise NodeError(f"{' '.join(words)} failed: {why}",
                        next_step=f"try it by hand: {' '.join(words)}", code="E_SERVICE")


def _quoted(word: str) -> str:
    """A word for a systemd unit: quoted, with `%` and `$` taken literally."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if any(letter in ' \t"\'\\;' for letter in plain):
        escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return plain
