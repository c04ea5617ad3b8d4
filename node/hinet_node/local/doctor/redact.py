"""Taking out of a text what a bug report must not carry: secrets, file names, names of devices, who and where you are.

By rule and not by list alone: whatever looks like a secret goes, also one that nobody thought of. What stays is our own
words, numbers, error codes and addresses inside private networks.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|“[^”\n]*”")
_TICKET = re.compile(r"\bhinet1[a-z0-9]{10,}", re.IGNORECASE)
_CODE = re.compile(r"\b\d{1,4}(?:-[a-z]{3,8}){2,}\b")
_PATH = re.compile(r"(?<![\w.<>/])~?(?:/[^\s:,;'\"()]+)+/?")
_MULTIADDR = re.compile(r"(?:/ip6zone/[^/\s]+)?/(?:ip4|ip6|dns|dns4|dns6)/[^/\s]+(?:/tcp/\d+)?[^\s,;)]*")
_REDACTED = re.compile(r"/(?:ip4|ip6|dns[46]?)/(?:<|[\d.]+/|[\da-f]*$)")
"""A multiaddr after its turn: hidden, or inside a private network."""
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}\]?)(?![\w.])")
_LONG = re.compile(r"(?<![\w-])(?:[\w+/=-]{32,}|(?=[\w+/=-]*\d)[\w+/=-]{20,})|\b[0-9a-fA-F]{16,}\b")
_FRAME = re.compile(r'\s*File "(?:[^"]*/)?((?:hinet_\w+|site-packages)/[^"]+)", line (\d+), in (\S+)')
_RAISED = re.compile(r"\s*(?:[|+-]\s*)*([A-Za-z_][\w.]*(?:Error|Exception|Group|Interrupt|Warning|Dead|Cancelled))\b.*")
_LOG_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+[+-]\d{4} ")
TRACEBACK = "failed unexpectedly:"


class Redactor:
    """Replaces known names and whatever looks private. The same name gets the same replacement everywhere."""

    def __init__(self, devices: Iterable[str], hidden: Iterable[str] = ()) -> None:
        """`devices` become `device-1`, `device-2`, …; `hidden` (file names, the user's name) become `<hidden>`."""
        names = {name: f"device-{number}" for number, name in enumerate(dict.fromkeys(devices), 1) if name}
        names |= {name: "<hidden>" for name in hidden if len(name) > 1 and name not in names}
        self._names = names
        longest = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest)) if names else None

    def text(self, text: str) -> str:
        """One line or text, redacted."""
        text = _TICKET.sub("<ticket>", text)
        text = _CODE.sub("<code>", text)
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._names[found[0]], text)
        known = set(self._names.values())
        text = _QUOTED.sub(lambda found: found[0] if found[0].strip("'\"`") in known else "<quoted>", text)
        text = _MULTIADDR.sub(_multiaddr, text)
        text = _PATH.sub(lambda found: found[0] if _REDACTED.match(found[0]) else "<path>", text)
        text = _LONG.sub("<long>", text)
        return _ADDRESS.sub(_address, text)

    def value(self, value: Any) -> Any:
        """A JSON value with all texts redacted, keys kept."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return None if isinstance(value, bytes) else value

    def log(self, lines: Iterable[str]) -> list[str]:
        """Lines of a log. Of a traceback only our own places and the kind of the error stay: its text may quote
        anything."""
        found, inside = [], False
        for line in lines:
            stamp = _LOG_TIME.match(line)
            rest = line[stamp.end():] if stamp else line
            if inside and (rest[:1] in (" ", "|", "+") or _RAISED.fullmatch(rest) or rest.startswith("Traceback")):
                found += _of_traceback(stamp[0] if stamp else "", rest)
                continue
            inside = TRACEBACK in rest or rest.startswith("Traceback")
            found.append((stamp[0] if stamp else "") + self.text(rest))
        return found


def traceback_only(lines: Iterable[str]) -> list[str]:
    """A file of tracebacks, reduced to places and kinds of errors."""
    return [kept for line in lines for kept in _of_traceback("", line)]


def _of_traceback(stamp: str, line: str) -> list[str]:
    frame = _FRAME.match(line)
    if frame is not None:
        return [f"{stamp}  {frame[1]}:{frame[2]} in {frame[3]}"]
    raised = _RAISED.fullmatch(line)
    return [f"{stamp}{raised[1]}"] if raised is not None else []


def _multiaddr(found: re.Match[str]) -> str:
    kind, host = re.sub(r"^/ip6zone/[^/]+", "", found[0]).split("/")[1:3]
    port = re.search(r"/tcp/(\d+)", found[0])
    return f"/{kind}/{_public_hidden(host)}{f'/tcp/{port[1]}' if port else ''}"


def _address(found: re.Match[str]) -> str:
    return _public_hidden(found[0])


def _public_hidden(host: str) -> str:
    """An address inside a private network as it is; any other place hidden."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host if re.fullmatch(r"[\d:.]+", host) else "<host>"
    return host if address.is_private or address.is_unspecified or address.is_link_local else "<public address>"
