"""What the service manager is told: a systemd user unit, or a launchd property list. Pure text.

Each line of the unit was held against what the agent does. It stores files from where its owner says and writes them
where its owner says (`vault add`, `vault get`, also in /tmp and on other disks), so the home folders and /tmp can't be
closed to it; it asks the kernel for its interfaces (netlink); its workers build code in memory (llama.cpp, torch) and
open GPUs, so neither memory nor devices are restricted.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

NO_RESTART = "2 4 6 7"
"""Exit codes that another start can't mend: usage, not initialised, conflict, integrity."""

_CONFINED = """\
# These need user namespaces, which this machine had when the unit was written. What starts programs at a login or lets
# others in is closed to writing: a hole in the agent must not become a foothold.
PrivateUsers=yes
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
ReadOnlyPaths=-%h/.ssh -%h/.gnupg -%h/.profile -%h/.bashrc -%h/.bash_profile -%h/.zshrc -%h/.config/fish
ReadOnlyPaths=-%h/.config/systemd -%h/.config/autostart -%h/.local/bin
"""


def systemd_text(home: Path, python: str, *, namespaces: bool = True) -> str:
    """The unit. `namespaces`: whether this user may make the namespaces that part of the hardening needs."""
    return f"""\
[Unit]
Description=HiNet node agent
# A full disk or a busy port may pass: it is tried again for ever.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={quoted(python)} -m hinet_node --home {quoted(str(home))} run
Restart=on-failure
RestartSec=5
RestartPreventExitStatus={NO_RESTART}
# The agent ends its workers itself.
KillMode=mixed
TimeoutStopSec=20
UMask=0077
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
{_CONFINED if namespaces else ""}
[Install]
WantedBy=default.target
"""


def launchd_text(name: str, home: Path, python: str) -> str:
    """The property list of a launchd agent."""
    words = "".join(f"    <string>{escape(word)}</string>\n" for word in
                    (python, "-m", "hinet_node", "--home", str(home), "run", "--quiet"))
    log = escape(str(home / "log" / "service.log"))
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
  <key>StandardOutPath</key><string>{log}</string>
  <key>StandardErrorPath</key><string>{log}</string>
  <key>Umask</key><integer>63</integer>
</dict>
</plist>
"""


def quoted(word: str) -> str:
    """A word for a systemd unit: quoted, with `%` and `$` taken literally."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if any(letter in ' \t"\'\\;' for letter in plain):
        escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return plain
