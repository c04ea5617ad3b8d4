"""Addresses as the node writes them: `/ip4/192.0.2.7/tcp/4001`, `/ip6zone/eth0/ip6/fe80::1/tcp/4001`, `/dns/nas/tcp/1`.

A small, strict subset of multiaddr, without the library, so that the command line and the pure parts may use it. Leaves
connecting to `hinet_node.real.transport` and finding addresses to `hinet_node.real.discovery`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from hinet_node.errors import UsageError

ADDRESS_BYTES_MAX = 160
_DNS_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"(?=.{{1,100}}\Z){_DNS_LABEL}(?:\.{_DNS_LABEL})*\.?")
_ZONE = re.compile(r"[A-Za-z0-9_.:-]{1,32}")


@dataclass(frozen=True)
class Address:
    """One place to connect to or listen on. `kind` is ip4, ip6, dns, dns4 or dns6; `zone` is the interface that a
    link-local address belongs to, "" when there is none."""

    kind: str
    host: str
    port: int
    zone: str = ""

    def __str__(self) -> str:
        zone = f"/ip6zone/{self.zone}" if self.zone else ""
        return f"{zone}/{self.kind}/{self.host}/tcp/{self.port}"

    @property
    def is_wildcard(self) -> bool:
        return self.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    @property
    def is_loopback(self) -> bool:
        return self.kind in ("ip4", "ip6") and ipaddress.ip_address(self.host).is_loopback

    @property
    def is_link_local(self) -> bool:
        return self.kind == "ip6" and ipaddress.ip_address(self.host).is_link_local

    @property
    def socket_host(self) -> str:
        """The host as the socket functions take it."""
        return f"{self.host}%{self.zone}" if self.zone else self.host


def parse_address(text: str) -> Address:
    """Read one address. Errors: `UsageError` that says what is wrong with it."""
    parts = text.split("/")
    zone = ""
    if len(text) > ADDRESS_BYTES_MAX or parts[0] != "":
        raise _refused(text, "it does not start with /")
    if len(parts) > 2 and parts[1] == "ip6zone":
        zone, parts = parts[2], ["", *parts[3:]]
        if not _ZONE.fullmatch(zone) or len(parts) < 2 or parts[1] != "ip6":
            raise _refused(text, "/ip6zone/ names an interface and is followed by /ip6/")
    if len(parts) != 5 or parts[3] != "tcp":
        raise _refused(text, "it is not of the form /ip4/HOST/tcp/PORT")
    kind, host, port_text = parts[1], parts[2], parts[4]
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= 65535):
        raise _refused(text, "the port is not a number from 0 to 65535")
    if kind in ("ip4", "ip6"):
        try:
            parsed = (ipaddress.IPv4Address if kind == "ip4" else ipaddress.IPv6Address)(host)
        except ValueError as error:
            raise _refused(text, f"{host!r} is no {kind} address") from error
        return Address(kind, str(parsed), int(port_text), zone)
    if kind not in ("dns", "dns4", "dns6") or not _DNS_NAME.fullmatch(host):
        raise _refused(text, "the host is none of /ip4/, /ip6/ and /dns/")
    return Address(kind, host, int(port_text))


def _refused(text: str, reason: str) -> UsageError:
    return UsageError(f"{text[:80]!r} is no address: {reason}.", next_step="Write it like /ip4/192.0.2.7/tcp/4001.")
