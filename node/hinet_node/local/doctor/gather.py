"""Finding the facts: from the home's files, from the agent if it runs, from this machine, and from the network.

Changes nothing. Each part is looked at on its own, so that one fault hides no other.
"""

from __future__ import annotations

import locale
import os
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hinet_node import config as configs
from hinet_node import home
from hinet_node.belonging.household import describe_household, household_warnings
from hinet_node.belonging.membership import Membership
from hinet_node.config import Config
from hinet_node.errors import AgentNotRunning, NodeError
from hinet_node.local import unit as services
from hinet_node.local.client import Client
from hinet_node.local.doctor import libraries, probe
from hinet_node.local.doctor.facts import Facts, Sibling, VaultFacts, Warned
from hinet_node.real.disk import RealDisk
from hinet_node.real.disk_names import TEMPORARY_PREFIX
from hinet_node.real.interfaces import interfaces
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.sessions import seen
from hinet_node.sessions.address_book import AddressBook
from hinet_protocol.chain import Chain
from hinet_protocol.errors import CloneDetected, ProtocolError

ANSWER_S = 5.0
SECOND_LOOK_S = 0.5
SECRETS = (home.DEVICE_KEY, home.DEVICE_KEY_NEXT, "root.sealed")
SECRET_FOLDERS = (home.INVITATIONS,)
BULKY = ("bases", "packs", "jobs")
CHECKED = ("E_REVOKED", "E_VOID", "E_CERTIFICATE_ENDS", "E_CERTIFICATE_EXPIRED", "E_NOT_TOLD", "E_CLOCK", "E_FORK",
           CloneDetected.code)
"""Warnings of the agent that have a check of their own."""
ERRORS_LOG = "log/errors.log"
ERRORS_BYTES_MAX = 4 << 20
FILES_LOOKED_AT_MAX = 50_000


def gather(folder: str, service: services.Service, version: str, *, network: bool = True) -> Facts:
    """The facts of this home on this machine."""
    facts = replace(_of_home(folder), version=version, libraries=libraries.unfit(), encoding=_encoding(),
                    **_of_disk(folder), **_of_service(service))
    config, facts = _of_config(folder, facts)
    status, facts = _of_agent(folder, facts)
    facts = _of_socket(folder, facts)
    if facts.initialised:
        facts = _of_household(folder, status, facts)
    return _of_network(folder, config, status, facts, network)


def _of_home(folder: str) -> Facts:
    place = Path(folder)
    facts = Facts(home=folder, initialised=(place / home.CHAIN_HEAD).exists(), errors_logged=_errors_logged(place))
    if not place.exists():
        parent = next(one for one in place.absolute().parents if one.exists())
        writable = parent.is_dir() and os.access(parent, os.W_OK)
        problem = "" if writable else f"it can't be made: {parent} is not yours to write in"
        return replace(facts, home_problem=problem)
    if not place.is_dir():
        return replace(facts, home_problem="it is no folder")
    found = place.stat()
    if found.st_uid != os.getuid():
        return replace(facts, home_problem="it belongs to another user")
    if not os.access(place, os.W_OK):
        return replace(facts, home_problem="it can't be written")
    open_files, leftovers = _look_at_files(place)
    return replace(facts, home_mode=stat.S_IMODE(found.st_mode), open_files=open_files, leftovers=leftovers)


def _look_at_files(place: Path) -> tuple[tuple[tuple[str, int], ...], int]:
    """Files that others can read and should not, or can change; and how many are leftovers."""
    found: list[tuple[str, int]] = []
    leftovers = looked_at = 0
    for where, folders, names in os.walk(place):
        folders[:] = sorted(one for one in folders if one not in BULKY)
        for name in sorted(names):
            looked_at += 1
            if looked_at > FILES_LOOKED_AT_MAX:
                return tuple(found), leftovers
            path = Path(where, name)
            inside = str(path.relative_to(place))
            leftovers += name.startswith(TEMPORARY_PREFIX)
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue  # gone meanwhile
            if stat.S_ISREG(mode) and mode & (0o077 if is_secret(inside) else 0o022):
                found.append((inside, stat.S_IMODE(mode)))
    return tuple(found), leftovers


def is_secret(name: str) -> bool:
    """Whether only this user may read a file of the home."""
    return name in SECRETS or name.split("/")[0] in SECRET_FOLDERS


def _of_disk(folder: str) -> dict[str, Any]:
    place = Path(folder).absolute()
    figures = os.statvfs(next(one for one in (place, *place.parents) if one.exists()))
    return {"free_bytes": figures.f_bavail * figures.f_frsize,
            "free_files": figures.f_favail if figures.f_files else None}  # 0 in all: a file system without a limit


def _of_service(service: services.Service) -> dict[str, Any]:
    installed = service.installed
    return {"service_kind": service.kind, "service_installed": installed,
            "service_running": services.running(service) if installed else False,
            "service_current": not installed or service.path.read_bytes() == service.text.encode("utf-8"),
            "service_lingers": service.kind != "systemd" or services.lingers()}


def _of_config(folder: str, facts: Facts) -> tuple[Config, Facts]:
    try:
        config = configs.read(RealDisk(folder))
        config.listen_addresses()
    except (NodeError, OSError) as error:
        return Config(), replace(facts, config_problem=str(error))
    return config, facts


def _of_agent(folder: str, facts: Facts) -> tuple[dict[str, Any] | None, Facts]:
    try:
        with Client(folder) as client:
            status = client.call("status", timeout_s=ANSWER_S)
    except AgentNotRunning:
        return None, replace(facts, agent_running=False)
    except NodeError as error:
        return None, replace(facts, agent_problem=f"the agent is there and gives no status: {error}")
    return status, replace(facts, version=status["agent"]["version"] or facts.version)


def _of_socket(folder: str, facts: Facts) -> Facts:
    path = home.socket_path(folder)
    facts = replace(facts, socket_place=str(path))
    try:
        found = path.parent.stat()
    except OSError:
        return facts  # it is made when the agent starts
    if found.st_uid != os.getuid():
        return replace(facts, socket_problem="its folder belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return replace(facts, socket_problem="its folder is open to other users, so the agent will not start")
    stale = path.exists() and not facts.agent_running and home.lock_holder(folder) is None
    return replace(facts, socket_stale=stale)


def _of_household(folder: str, status: dict[str, Any] | None, facts: Facts) -> Facts:
    disk = RealDisk(folder)
    try:
        membership = _membership(disk, patient=facts.agent_running)
        household: Mapping[str, Any] = status or describe_household(membership, seen.read(disk))
        warnings = household_warnings(membership, household, time.time())
    except (NodeError, ProtocolError, OSError) as error:
        return replace(facts, identity_problem=str(error))
    devices = household["devices"]
    found = [*(status or {}).get("warnings", ()), *warnings]
    return replace(
        facts, clock_behind_chain_s=_behind_chain_s(membership.chain()), heads=household["identity"]["heads"],
        void=tuple(one["name"] for one in devices if one["state"] == "void"),
        siblings=tuple(_sibling(one) for one in devices if one["state"] in ("connected", "away")),
        revoked=_warned(found, "E_REVOKED"), clones=_warned(found, CloneDetected.code),
        vault_trouble=_warned(found, "E_FORK"), vault=_vault((status or {}).get("vault")),
        other_warnings=tuple(Warned(one["code"], one["what"], one["next"]) for one in (status or {}).get("warnings", ())
                             if one["code"] not in CHECKED),
        certificates=_warned(found, "E_CERTIFICATE_ENDS", "E_CERTIFICATE_EXPIRED"), untold=_warned(found, "E_NOT_TOLD"))


def _vault(told: Mapping[str, Any] | None) -> VaultFacts | None:
    """None without an agent, and of one of another version that does not tell all of it."""
    names = [field.name for field in fields(VaultFacts)]
    if told is None or any(name not in told for name in names):
        return None
    return VaultFacts(**{name: int(told[name]) for name in names})


def _membership(disk: RealDisk, *, patient: bool) -> Membership:
    """The home's membership. A running agent may be writing its chain anew at this moment: then a second look counts.

    Errors: those of `Membership.load`.
    """
    try:
        return Membership.load(disk, SystemRandomness(), SystemClock())
    except NodeError:
        if not patient:
            raise
        time.sleep(SECOND_LOOK_S)
        return Membership.load(disk, SystemRandomness(), SystemClock())


def _sibling(device: Mapping[str, Any]) -> Sibling:
    return Sibling(device["name"], connected=device["state"] == "connected", version=device["version"] or "",
                   clock_offset_s=device["clock_offset_s"])


def _warned(warnings: list[dict[str, str]], *codes: str) -> tuple[Warned, ...]:
    return tuple(Warned(one["code"], one["what"], one["next"]) for one in warnings if one["code"] in codes)


def _behind_chain_s(chain: Chain) -> int:
    """How far this clock is behind what two keys have signed (or the only one): a single wrong clock proves nothing."""
    newest: dict[bytes, int] = {}
    for entry in chain.entries():
        newest[entry.signer] = max(entry.time_s, newest.get(entry.signer, 0))
    times = sorted(newest.values())[-2:]
    return max(0, times[0] - int(time.time()))


def _of_network(folder: str, config: Config, status: dict[str, Any] | None, facts: Facts, network: bool) -> Facts:
    only = [config.interface] if config.interface else None
    used = [one for one in interfaces(only) if config.interface or not one.is_loopback]
    shown = tuple(f"{one.name} {', '.join((*one.ip4, *one.ip6)[:3])}" for one in used)
    facts = replace(facts, interface_wanted=config.interface, interfaces_used=shown, network_tried=network,
                    interfaces_left_out=_left_out({one.name for one in used}, config.interface))
    own = probe.direct((status or {"agent": {"addresses": ()}})["agent"]["addresses"])
    port = own[0].port if own else config.port
    facts = replace(facts, port=port)
    if not network:
        return facts
    problem = probe.multicast_problem(used)
    facts = replace(facts, multicast_heard=not problem, multicast_problem=problem)
    if status is not None:
        lost = probe.reach(status["agent"]["addresses"]) if own else ""
        facts = replace(facts, port_problem=f"the agent's own address does not answer: {lost}" if lost else "")
    elif port:
        facts = replace(facts, port_problem=probe.bind_problem(port, config.listen))
    return replace(facts, siblings=_reached(folder, facts)) if not facts.identity_problem else facts


def _reached(folder: str, facts: Facts) -> tuple[Sibling, ...]:
    away = [one for one in facts.siblings if not one.connected]
    if not away:
        return facts.siblings
    disk = RealDisk(folder)
    book = AddressBook(disk)
    names = Membership.load(disk, SystemRandomness(), SystemClock()).names()
    places = {name: book.find(public) for public, name in names.items()}
    tried = [one for one in away if places.get(one.name)]
    problems = dict(zip([one.name for one in tried], probe.reach_all([places[one.name] for one in tried]), strict=True))
    return tuple(one if one.name not in problems or one.connected else replace(
        one, addresses=places[one.name], reached=not problems[one.name], problem=problems[one.name])
        for one in facts.siblings)


def _left_out(used: set[str], wanted: str) -> tuple[tuple[str, str], ...]:
    """The other interfaces with an address, and why the agent does not use them."""
    import ifaddr

    found = {}
    for adapter in ifaddr.get_adapters():
        name = str(adapter.nice_name)
        if name in used or not adapter.ips:
            continue
        one = interfaces([name])
        if not one:
            found[name] = "it is down"
        elif one[0].is_loopback:
            continue
        else:
            found[name] = f"config.toml asks for {wanted}" if wanted else "it looks like a VPN, container or bridge"
    return tuple(sorted(found.items()))


def _encoding() -> str:
    names = (sys.getfilesystemencoding(), locale.getencoding())
    return next((name for name in names if name.replace("-", "").lower() != "utf8"), "utf-8")


def _errors_logged(place: Path) -> int:
    try:
        with (place / ERRORS_LOG).open("rb") as log:
            return log.read(ERRORS_BYTES_MAX).count(b"Traceback (most recent call last)")
    except OSError:
        return 0
