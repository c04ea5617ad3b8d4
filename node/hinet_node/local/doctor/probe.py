"""The checks' experiments on the network: hear our own multicast, bind our port, reach a sibling's address.

Plain sockets with short time limits; nothing is announced that anybody would act on. Leaves judging to `checks`.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hinet_node.errors import UsageError
from hinet_node.real.interfaces import Interface
from hinet_node.sessions.addresses import Address, parse_address

MDNS_PORT = 5353
MDNS_GROUP_4, MDNS_GROUP_6 = "224.0.0.251", "ff02::fb"
HEAR_S = 1.0
REACH_S = 2.0
ADDRESSES_MAX = 4
THREADS_MAX = 16
RELAYED = "/p2p-circuit"


def multicast_problem(interfaces: Iterable[Interface]) -> str:
    """Why this machine does not hear its own multicast, naming the interfaces; "" when it hears it on all of them."""
    problems = []
    for interface in interfaces:
        tries = [*interface.ip4[:1], *[host for host in interface.ip6 if ipaddress.ip_address(host).is_link_local][:1]]
        results = [_twice(host, interface.index) for host in tries or interface.ip6[:1]]
        if results and all(results):
            problems.append(f"{interface.name}: {results[0]}")
    return "; ".join(problems)


def _twice(host: str, index: int) -> str:
    """A second try after a moment: an IPv6 address of an interface that has just come up can't be used yet."""
    problem = heard_problem(host, index)
    if not problem:
        return ""
    time.sleep(HEAR_S)
    return heard_problem(host, index)


def heard_problem(host: str, index: int) -> str:
    """Send a question that nobody answers to the mDNS group through one interface, and wait for it; "" when it came."""
    query = _question(os.urandom(8).hex())
    six = ":" in host
    try:
        with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if six:
                group = socket.inet_pton(socket.AF_INET6, MDNS_GROUP_6) + struct.pack("@I", index)
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(("::", MDNS_PORT))
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
                one.sendto(query, (MDNS_GROUP_6, MDNS_PORT, 0, index))
            else:
                own = socket.inet_aton(host)
                one.bind(("", MDNS_PORT))
                one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(MDNS_GROUP_4) + own)
                one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
                one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
                one.sendto(query, (MDNS_GROUP_4, MDNS_PORT))
            return "" if _came(one, query) else "it was sent and not heard"
    except OSError as error:
        return error.strerror or str(error)


def bind_problem(port: int, hosts: Sequence[str]) -> str:
    """Why a port can't be listened on; "" when it can."""
    for host in hosts or ("0.0.0.0",):  # noqa: S104 - bound for a moment, to ask the system
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((host, port))
                one.listen()
        except OSError as error:
            why = {errno.EADDRINUSE: "another program uses it", errno.EACCES: "this user may not use it",
                   errno.EADDRNOTAVAIL: f"this machine has no address {host}"}.get(error.errno or 0, error.strerror)
            return f"port {port} can't be listened on: {why}"
    return ""


def reach(addresses: Sequence[str]) -> str:
    """Why none of these addresses takes a connection; "" when one does."""
    problems = []
    for address in direct(addresses)[:ADDRESSES_MAX]:
        problem = _connect_problem(address)
        if not problem:
            return ""
        problems.append(f"{address.host}:{address.port} {problem}")
    return ", ".join(problems[:2]) or "no address is known"


def direct(addresses: Sequence[str]) -> list[Address]:
    """Those that a plain connection can be made to: not through a relay, and of no newer kind."""
    found = []
    for text in addresses:
        with suppress(UsageError):
            if RELAYED not in text:
                found.append(parse_address(text))
    return found


def reach_all(places: Sequence[Sequence[str]]) -> list[str]:
    """`reach` for several devices at once."""
    if not places:
        return []
    with ThreadPoolExecutor(min(THREADS_MAX, len(places))) as pool:
        return list(pool.map(reach, places))


def _connect_problem(address: Address) -> str:
    try:
        with socket.create_connection((address.socket_host, address.port), timeout=REACH_S):
            return ""
    except TimeoutError:
        return "does not answer (a firewall, or it is off)"
    except ConnectionRefusedError:
        return "refuses: no agent listens there"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _came(one: socket.socket, query: bytes) -> bool:
    deadline_s = time.monotonic() + HEAR_S
    with suppress(TimeoutError):
        while (left_s := deadline_s - time.monotonic()) > 0:
            one.settimeout(left_s)
            if one.recv(9_000) == query:
                return True
    return False


def _question(label: str) -> bytes:
    """A whole mDNS question for a service that does not exist."""
    labels = (f"_hinet-doctor-{label}".encode(), b"_tcp", b"local")
    name = b"".join(bytes([len(part)]) + part for part in labels) + b"\0"
    return struct.pack(">6H", 0, 0, 1, 0, 0, 0) + name + struct.pack(">2H", 12, 1)
