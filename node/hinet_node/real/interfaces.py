"""This machine's network interfaces: which addresses other machines can really use.

Every real interface counts, IPv4 and IPv6, link-local with its zone; container bridges, VPN tunnels and virtual
machines' networks do not, since an address there is a decoy for everybody else. Loopback counts only when there is
nothing else. Leaves announcing to `hinet_node.real.discovery` and listening to `hinet_node.real.transport`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ifaddr

from hinet_node.sessions.addresses import Address

_DECOY = re.compile(
    r"(docker|br-|veth|virbr|vboxnet|vmnet|vnet|tun|tap|wg|utun|ppp|tailscale|ts\d|zt|cni|flannel|cali|lxc|lxd|podman|"
    r"awdl|llw|ipsec|gif|stf|anpi|nordlynx|proton|bridge\d|ifb|dummy|sit|ip6tnl|gre|kube)", re.IGNORECASE)
_FLAG_UP, _FLAG_POINT_TO_POINT = 0x1, 0x10


@dataclass(frozen=True)
class Interface:
    """One interface: its name and index, its IPv4 and IPv6 addresses as text (no zone)."""

    name: str
    index: int
    ip4: tuple[str, ...]
    ip6: tuple[str, ...]

    @property
    def is_loopback(self) -> bool:
        addresses = (*self.ip4, *self.ip6)
        return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)


def interfaces(only: Sequence[str] | None = None) -> list[Interface]:
    """Real interfaces that are up, loopback last. `only` names the interfaces to use instead of guessing."""
    found = []
    for adapter in ifaddr.get_adapters():
        name = adapter.name if isinstance(adapter.name, str) else adapter.name.decode("utf-8", "replace")
        ip4 = tuple(ip.ip for ip in adapter.ips if isinstance(ip.ip, str))
        ip6 = tuple(ip.ip[0].split("%")[0] for ip in adapter.ips if not isinstance(ip.ip, str))
        interface = Interface(name, adapter.index or 0, ip4, ip6)
        if not (ip4 or ip6) or not _is_up(name):
            continue
        if (name in only) if only is not None else (interface.is_loopback or not _is_decoy(name)):
            found.append(interface)
    return sorted(found, key=lambda interface: (interface.is_loopback, interface.name))


def dialable(listening: Sequence[Address], only: Sequence[str] | None = None) -> list[Address]:
    """The addresses that others can dial when a host listens on these: wildcards become the real interfaces'."""
    result: list[Address] = []
    known = interfaces(only)
    real = [interface for interface in known if not interface.is_loopback]
    for address in listening:
        if not address.is_wildcard:
            result.append(address)
            continue
        for interface in real or known:
            result += _on_interface(address, interface)
    return list(dict.fromkeys(result))


def _on_interface(wildcard: Address, interface: Interface) -> list[Address]:
    if wildcard.kind == "ip4":
        return [Address("ip4", host, wildcard.port) for host in interface.ip4]
    addresses = [Address("ip6", host, wildcard.port) for host in interface.ip6]
    return [Address("ip6", address.host, address.port, interface.name) if address.is_link_local else address
            for address in addresses]


def _flags(name: str) -> int | None:
    try:
        return int(Path("/sys/class/net", name, "flags").read_text(), 16)
    except (OSError, ValueError):
        return None  # not Linux: what getifaddrs lists is up


def _is_up(name: str) -> bool:
    flags = _flags(name)
    return flags is None or bool(flags & _FLAG_UP)


def _is_decoy(name: str) -> bool:
    flags = _flags(name)
    return bool(_DECOY.match(name)) or (flags is not None and bool(flags & _FLAG_POINT_TO_POINT))
