"""Addresses as the node writes them: `/ip4/192.0.2.7/tcp/4001`, `/ip6zone/eth0/ip6/fe80::1/tcp/4001`, `/dns/nas/tcp/1`,
and through a relay: `/ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…/p2p-circuit`.

A small, strict subset of multiaddr, without the library, so that the command line and the pure parts may use it. Leaves
connecting to `hinet_node.real.transport`, relays to `hinet_node.sessions.relay`, and finding addresses to
`hinet_node.real.discovery`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from hinet_node.errors import NetworkError, UsageError
from hinet_protocol.errors import KeyInvalid
from hinet_protocol.identity import peer_id, peer_public

ADDRESS_BYTES_MAX = 256
CIRCUIT = "/p2p-circuit"
_DNS_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"(?=.{{1,100}}\Z){_DNS_LABEL}(?:\.{_DNS_LABEL})*\.?")
_ZONE = re.compile(r"[A-Za-z0-9_.:-]{1,32}")


@dataclass(frozen=True)
class Address:
    """One place to connect to or listen on. `kind` is ip4, ip6, dns, dns4 or dns6; `zone` is the interface that a
    link-local address belongs to, "" when there is none. `relay` is the key of the device that listens there and passes
    bytes on, b"" for a direct address."""

    kind: str
    host: str
    port: int
    zone: str = ""
    relay: bytes = b""

    def __str__(self) -> str:
        zone = f"/ip6zone/{self.zone}" if self.zone else ""
        relay = f"/p2p/{peer_id(self.relay)}{CIRCUIT}" if self.relay else ""
        return f"{zone}/{self.kind}/{self.host}/tcp/{self.port}{relay}"

    @property
    def direct(self) -> Address:
        """Where the relay itself listens; the address itself when there is none."""
        return replace(self, relay=b"")

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


def is_relayed(text: str) -> bool:
    """Whether an address leads through a relay; for any text."""
    return text.endswith(CIRCUIT)


def parse_address(text: str) -> Address:
    """Read one address. Errors: `UsageError` that says what is wrong with it."""
    if len(text) > ADDRESS_BYTES_MAX or not text.startswith("/"):
        raise _refused(text, f"it does not start with /, or has more than {ADDRESS_BYTES_MAX} characters")
    if not is_relayed(text):
        return _parse_direct(text, text)
    place, found, relay = text.removesuffix(CIRCUIT).partition("/p2p/")
    if not found:
        raise _refused(text, "before /p2p-circuit stands /p2p/ and the relay's peer id")
    return replace(_parse_direct(place, text), relay=_key(relay, text))


def parse_relay(text: str) -> tuple[Address, bytes | None]:
    """Where a relay listens, and its key where `/p2p/PEERID` says it. Errors: `UsageError`."""
    if len(text) > ADDRESS_BYTES_MAX or not text.startswith("/"):
        raise _refused(text, f"it does not start with /, or has more than {ADDRESS_BYTES_MAX} characters")
    if is_relayed(text):
        raise _refused(text, "a relay is reached directly; write where it listens, without /p2p-circuit")
    place, found, relay = text.partition("/p2p/")
    address = _parse_direct(place, text)
    if address.port == 0 or address.is_wildcard:
        raise _refused(text, "a relay listens at one address and port that others can dial")
    return address, _key(relay, text) if found else None


def not_through_a_relay(address: str) -> NetworkError:
    """Why a plain dial to a relayed address fails: it is how a joiner, who is a stranger to the relay, would come."""
    return NetworkError(
        f"{address} leads through a relay, and a relay carries only devices that belong already.", code="E_RELAY",
        next_step="join on a network that both devices are on, or make the invitation on the relay itself: hinet-node "
                  "invite")


def _key(text: str, whole: str) -> bytes:
    try:
        public = peer_public(text)
    except KeyInvalid as error:
        raise _refused(whole, f"{text[:64]!r} is no peer id of a device") from error
    if peer_id(public) != text:
        raise _refused(whole, f"{text[:64]!r} is no peer id of a device")
    return public


def _parse_direct(text: str, whole: str) -> Address:
    parts = text.split("/")
    zone = ""
    if len(parts) > 2 and parts[1] == "ip6zone":
        zone, parts = parts[2], ["", *parts[3:]]
        if not _ZONE.fullmatch(zone) or len(parts) < 2 or parts[1] != "ip6":
            raise _refused(whole, "/ip6zone/ names an interface and is followed by /ip6/")
    if len(parts) != 5 or parts[3] != "tcp":
        raise _refused(whole, "it is not of the form /ip4/HOST/tcp/PORT")
    kind, host, port_text = parts[1], parts[2], parts[4]
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= 65535):
        raise _refused(whole, "the port is not a number from 0 to 65535")
    if kind in ("ip4", "ip6"):
        try:
            parsed = (ipaddress.IPv4Address if kind == "ip4" else ipaddress.IPv6Address)(host)
        except ValueError as error:
            raise _refused(whole, f"{host!r} is no {kind} address") from error
        return Address(kind, str(parsed), int(port_text), zone)
    if kind not in ("dns", "dns4", "dns6") or not _DNS_NAME.fullmatch(host):
        raise _refused(whole, "the host is none of /ip4/, /ip6/ and /dns/")
    return Address(kind, host, int(port_text))


def _refused(text: str, reason: str) -> UsageError:
    return UsageError(f"{text[:80]!r} is no address: {reason}.", next_step="Write it like /ip4/192.0.2.7/tcp/4001.")
