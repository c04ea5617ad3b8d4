"""This machine's network interfaces: which addresses other machines can really use.

Every real interface counts, IPv4 and IPv6, link-local with its zone; container bridges, VPN tunnels and virtual
machines' networks do not, since an address there is a decoy for everybody else. Loopback counts only when there is
nothing else. Leaves announcing to `hinet_node.real.discovery` and listening to `hinet_node.real.transport`.
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ifaddr

from hinet_node.errors import UsageError
from hinet_node.sessions.addresses import Address

_DECOY = re.compile(
    r"(docker|br-(?!lan)|veth|virbr|vboxnet|vmnet|vnet|tun|tap|wg|utun|ppp|tailscale|ts\d|zt|cni|flannel|cali|lxc|lxd|"
    r"podman|awdl|llw|ipsec|gif|stf|anpi|nordlynx|proton|bridge\d|ifb|dummy|sit|ip6tnl|gre|kube)", re.IGNORECASE)
_SIOCGIFFLAGS = 0x8913
_FLAGS_UP = 0x1 | 0x40
"""Wanted up, and with a carrier: what an unplugged cable leads to can't be dialled."""
_FLAG_POINT_TO_POINT = 0x10
ZONES_MAX = 4
_FLAGS_UNUSABLE = 0x08 | 0x20 | 0x40
"""Of an IPv6 address: a duplicate, deprecated, tentative."""


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


def interfaces(only: Sequence[str] | None = None, *, loopback: bool = False) -> list[Interface]:
    """Real interfaces that are up, loopback last. `only` names the interfaces to use instead of guessing; `loopback`
    wants that one beside them."""
    found, unusable = [], _unusable_ip6()
    for adapter in ifaddr.get_adapters():
        name = adapter.name if isinstance(adapter.name, str) else adapter.name.decode("utf-8", "replace")
        ip4 = tuple(ip.ip for ip in adapter.ips if isinstance(ip.ip, str))
        ip6 = tuple(host for ip in adapter.ips if not isinstance(ip.ip, str)
                    and (name, host := ip.ip[0].split("%")[0]) not in unusable)
        interface = Interface(name, adapter.index or 0, ip4, ip6)
        if not (ip4 or ip6) or not _is_up(name):
            continue
        if only is None:
            wanted = interface.is_loopback or not _is_decoy(name)
        else:
            wanted = name in only or (loopback and interface.is_loopback)
        if wanted:
            found.append(interface)
    return sorted(found, key=lambda interface: (interface.is_loopback, interface.name))


def require_interface(name: str) -> tuple[str, ...]:
    """The IP addresses that an interface has now, for an owner who named it. Errors: `UsageError` when there is none of
    this name, naming those that there are."""
    names = [known for _, known in socket.if_nameindex()]
    if name not in names:
        raise UsageError(f"this machine has no network interface {name!r}", code="E_NO_INTERFACE",
                         next_step=f"one of: {', '.join(names)}   (ip -br addr shows their addresses)")
    return tuple(host for interface in interfaces([name]) for host in (*interface.ip4, *interface.ip6))


def with_zones(address: Address, only: Sequence[str] | None = None) -> list[str]:
    """Where to dial an address that another machine gave: a link-local one on each interface of ours that has such, as
    the zone that it came with is that machine's."""
    if not address.is_link_local:
        return [str(address)]
    zones = [interface.name for interface in interfaces(only)
             if any(ipaddress.ip_address(own).is_link_local for own in interface.ip6)]
    return [str(Address("ip6", address.host, address.port, zone)) for zone in zones[:ZONES_MAX]]


def dialable(listening: Sequence[Address], only: Sequence[str] | None = None) -> list[Address]:
    """The addresses that others can dial when a host listens on these: wildcards become the real interfaces'."""
    if not any(address.is_wildcard for address in listening):
        return list(dict.fromkeys(listening))  # asked every few seconds: the machine is not read for nothing
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
    """Asked of the kernel and not of /sys, which may show another network namespace's interfaces."""
    if sys.platform != "linux":
        return None  # what getifaddrs lists there is up
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
    except OSError:
        return None
    return int(struct.unpack("16sH", answer[:18])[1])


def _unusable_ip6() -> set[tuple[str, str]]:
    """Interface and address of those that the kernel still tests or gives up: nobody can bind or dial them."""
    try:
        lines = Path("/proc/self/net/if_inet6").read_text("ascii").splitlines()
    except OSError:
        return set()  # not Linux, or without IPv6
    rows = [line.split() for line in lines]
    return {(row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in rows
            if len(row) == 6 and int(row[4], 16) & _FLAGS_UNUSABLE}


def _is_up(name: str) -> bool:
    flags = _flags(name)
    return flags is None or flags & _FLAGS_UP == _FLAGS_UP


def _is_decoy(name: str) -> bool:
    flags = _flags(name)
    return bool(_DECOY.match(name)) or (flags is not None and bool(flags & _FLAG_POINT_TO_POINT))
