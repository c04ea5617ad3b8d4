"""The checks: each a pure function from the facts to a finding. Their numbers and names are stable, for scripts.

`ok` is said only of what was looked at; `skip` says why something could not be. A `warn` works on, a `fail` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote

from hinet_node.local.doctor.facts import RESERVE_BYTES, Facts, Sibling

CLOCK_WARN_S = 60
CLOCK_FAIL_S = 3_600
CHAIN_CLOCK_WARN_S = 3_600
LOW_BYTES = 64 << 20
LOW_FILES = 1_000
OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"
START = "hinet-node up"
NOT_BEFORE_INIT = "this machine belongs to no household yet"


@dataclass(frozen=True)
class Finding:
    """One check's outcome. `fix` is what to type or do; `fixable`: `--fix` does it."""

    state: str
    said: str
    fix: str = ""
    fixable: bool = False


@dataclass(frozen=True)
class Check:
    """One row of the table. `name` is stable."""

    number: int
    name: str
    judge: Callable[[Facts], Finding]


def home(facts: Facts) -> Finding:
    if facts.home_problem:
        return Finding(FAIL, f"{facts.home}: {facts.home_problem}", "choose another folder: --home PATH or HINET_HOME")
    if not facts.initialised:
        return Finding(WARN, f"{facts.home} holds no identity: {NOT_BEFORE_INIT}",
                       "hinet-node init   or, to join your other devices: hinet-node join CODE")
    if facts.home_mode & 0o077:
        return Finding(WARN, f"other users can look into {facts.home} (mode {facts.home_mode:04o})",
                       f"chmod 700 {quote(facts.home)}", fixable=True)
    return Finding(OK, facts.home)


def keys(facts: Facts) -> Finding:
    if facts.open_files:
        names = ", ".join(f"{name} ({mode:04o})" for name, mode in facts.open_files[:4])
        paths = " ".join(quote(f"{facts.home}/{name}") for name, _ in facts.open_files[:4])
        return Finding(FAIL, f"other users can read or change {names}", f"chmod 600 {paths}", fixable=True)
    return Finding(OK, "keys and secrets are readable by this user only") if facts.initialised else _skipped()


def identity(facts: Facts) -> Finding:
    if facts.identity_problem:
        return Finding(FAIL, facts.identity_problem, "restore the home from a backup, or join again with a new --home")
    if facts.revoked:
        return Finding(FAIL, facts.revoked[0].what, facts.revoked[0].next_step)
    return Finding(OK, "keys and chain are whole") if facts.initialised else _skipped()


def config(facts: Facts) -> Finding:
    if facts.config_problem:
        return Finding(FAIL, facts.config_problem, f"mend or remove {quote(f'{facts.home}/config.toml')}")
    return Finding(OK, "config.toml can be read")


def agent(facts: Facts) -> Finding:
    if not facts.initialised:
        return _skipped()
    if facts.agent_problem:
        return Finding(FAIL, facts.agent_problem, "hinet-node down   then: hinet-node up")
    if not facts.agent_running:
        return Finding(WARN, "the agent is not running", START)
    return Finding(OK, "the agent answers")


def socket(facts: Facts) -> Finding:
    if facts.socket_problem:
        return Finding(FAIL, f"{facts.socket_place}: {facts.socket_problem}",
                       f"chmod 700 the folder of {quote(facts.socket_place)}, or choose a home that is yours",
                       fixable="other users" in facts.socket_problem)
    if facts.socket_stale:
        return Finding(WARN, f"{facts.socket_place} is left from an agent that has died",
                       f"rm {quote(facts.socket_place)}", fixable=True)
    return Finding(OK, facts.socket_place)


def clock(facts: Facts) -> Finding:
    if facts.clock_behind_chain_s > CHAIN_CLOCK_WARN_S:
        return Finding(FAIL, f"this clock is {_span(facts.clock_behind_chain_s)} behind what the household has signed "
                       "already", "set the clock: timedatectl set-ntp true")
    known = [one for one in facts.siblings if one.clock_offset_s is not None]
    if not known:
        return Finding(SKIP, "no sibling is connected to compare the clock with")
    worst = max(known, key=lambda one: abs(one.clock_offset_s or 0))
    offset_s = worst.clock_offset_s or 0
    if abs(offset_s) > CLOCK_WARN_S:
        side = "ahead of" if offset_s > 0 else "behind"
        whose = "this machine's" if _all_off(known) else f"{worst.name}'s"
        return Finding(FAIL if abs(offset_s) > CLOCK_FAIL_S else WARN,
                       f"the clock of {worst.name} is {_span(abs(offset_s))} {side} ours",
                       f"set {whose} clock: timedatectl set-ntp true")
    return Finding(OK, f"at most {abs(offset_s)} s apart from {_counted(len(known), 'sibling')}")


def interfaces(facts: Facts) -> Finding:
    left_out = "; ".join(f"{name} left out: {why}" for name, why in facts.interfaces_left_out)
    if not facts.interfaces_used:
        wanted = f"the interface {facts.interface_wanted} that config.toml names has no address" \
            if facts.interface_wanted else "no network interface of use to other devices"
        return Finding(WARN, f"{wanted}{f' ({left_out})' if left_out else ''}",
                       "connect a network, or choose an interface: interface = \"NAME\" in config.toml")
    return Finding(OK, ", ".join(facts.interfaces_used) + (f" ({left_out})" if left_out else ""))


def multicast(facts: Facts) -> Finding:
    if not facts.network_tried:
        return Finding(SKIP, "not tried (--no-network)")
    if not facts.interfaces_used:
        return Finding(SKIP, "there is no interface to try it on")
    if not facts.multicast_heard:
        why = facts.multicast_problem or "it was sent and not heard"
        return Finding(WARN, f"this machine does not hear its own announcement on the LAN: {why}",
                       "let UDP port 5353 through the firewall, or name siblings in config.toml: static = [ADDRESS]")
    return Finding(OK, "an announcement was sent and heard")


def port(facts: Facts) -> Finding:
    if facts.port_problem:
        return Finding(FAIL, facts.port_problem, "choose another port in config.toml, or stop what uses it")
    if not facts.port:
        return Finding(OK, "no port is asked for: the system gives a free one")
    said = f"the agent listens on port {facts.port}" if facts.agent_running else f"port {facts.port} is free"
    return Finding(OK, said)


def siblings(facts: Facts) -> Finding:
    away = [one for one in facts.siblings if not one.connected]
    if not facts.siblings:
        return Finding(OK, "there is no other device") if facts.initialised else _skipped()
    if not away:
        return Finding(OK, f"connected with {_counted(len(facts.siblings), 'sibling')}, none is away")
    blocked = [one for one in away if one.reached and facts.agent_running]
    if blocked:
        return Finding(WARN, f"{_names(blocked)} can be reached, and yet there is no session", "hinet-node logs")
    lost = [one for one in away if one.reached is False]
    if lost:
        why = "; ".join(f"{one.name}: {one.problem}" for one in lost[:3])
        return Finding(WARN, f"not reached at their last addresses: {why}",
                       "start the agent there; check that its firewall lets the port through")
    return Finding(OK if not facts.agent_running else WARN, f"not connected: {_names(away)}",
                   "start the agent there, on the same network")


def disk(facts: Facts) -> Finding:
    free = f"{facts.free_bytes / 2**30:.1f} GiB free"
    if facts.free_bytes < LOW_BYTES or (facts.free_files is not None and facts.free_files < LOW_FILES):
        what = free if facts.free_bytes < LOW_BYTES else f"room for {facts.free_files} more files"
        return Finding(FAIL, f"the disk is full: {what}", f"free some space on the disk of {quote(facts.home)}")
    if facts.free_bytes < RESERVE_BYTES:
        return Finding(WARN, f"{free}: below the reserve of {RESERVE_BYTES >> 30} GiB, so the vault takes nothing new",
                       f"free some space on the disk of {quote(facts.home)}")
    return Finding(OK, free)


def locale(facts: Facts) -> Finding:
    if facts.encoding.replace("-", "").lower() != "utf8":
        return Finding(WARN, f"text is {facts.encoding} here: names beyond ASCII are shown escaped",
                       "export LANG=C.UTF-8")
    return Finding(OK, "UTF-8")


def duplicate(facts: Facts) -> Finding:
    if facts.clones:
        return Finding(FAIL, facts.clones[0].what, facts.clones[0].next_step)
    if not facts.agent_running:
        return _needs_agent(facts)
    return Finding(OK, "no device was met twice")


def forks(facts: Facts) -> Finding:
    if not facts.initialised or facts.identity_problem:
        return _skipped()
    if facts.vault_trouble:
        return Finding(FAIL, facts.vault_trouble[0].what, facts.vault_trouble[0].next_step)
    if facts.void:
        return Finding(WARN, "certificates that do not count, since a revoked device signed them: "
                       f"{', '.join(facts.void)}", "let these devices join again: hinet-node invite")
    if facts.heads > 1:
        return Finding(WARN, f"the chain has {facts.heads} open ends: devices that were apart wrote to it",
                       "nothing to do: the next entry joins them")
    return Finding(OK, "one chain, all certificates count")


def certificates(facts: Facts) -> Finding:
    if not facts.initialised or facts.identity_problem:
        return _skipped()
    if facts.certificates:
        gone = [one for one in facts.certificates if one.code == "E_CERTIFICATE_EXPIRED"]
        first = (gone or list(facts.certificates))[0]
        return Finding(FAIL if gone else WARN, first.what, first.next_step)
    return Finding(OK, "none ends within 30 days")


def revocations(facts: Facts) -> Finding:
    if not facts.initialised or facts.identity_problem:
        return _skipped()
    if facts.untold:
        return Finding(WARN, facts.untold[0].what, facts.untold[0].next_step)
    return Finding(OK, "all devices know who was revoked")


def copies(facts: Facts) -> Finding:
    """Whether what the vault holds here is whole, and is anywhere else."""
    vault = facts.vault
    if vault is None:
        return _needs_agent(facts)
    if vault.missing_packs:
        damaged = f", {vault.damaged_packs} of them damaged on this disk" if vault.damaged_packs else ""
        return Finding(WARN, f"{_counted(vault.missing_packs, 'pack')} missing here{damaged}",
                       "hinet-node vault repair")
    if vault.packs and not vault.other_devices:
        return Finding(WARN, "the vault is on this device only: lost with it, if it is lost",
                       "add a device: hinet-node invite")
    if vault.single_packs:
        return Finding(WARN, f"{_counted(vault.single_packs, 'pack')} only on this device yet",
                       "start the agent of another device, where this one can reach it")
    if not vault.packs:
        return Finding(OK, "the vault is empty")
    return Finding(OK, f"everything is on at least {vault.copies_least} devices")


def versions(facts: Facts) -> Finding:
    if facts.libraries:
        rows = "; ".join(f"{name} {wanted or ''} is wanted, {found or 'nothing'} is there".replace("  ", " ")
                         for name, wanted, found in facts.libraries[:4])
        return Finding(FAIL, rows, "install it anew: pipx install --force hinet-node")
    others = [one for one in facts.siblings if one.version and one.version != facts.version]
    if others:
        rows = ", ".join(f"{one.name} {one.version}" for one in others[:4])
        return Finding(WARN, f"this device runs {facts.version}, others: {rows}",
                       "bring all devices to the newer version")
    return Finding(OK, f"{facts.version}; the libraries fit")


def service(facts: Facts) -> Finding:
    if facts.service_kind == "none":
        return Finding(SKIP, "no systemd and no launchd here: start the agent from your own init system")
    if not facts.service_installed:
        return Finding(WARN, "no service is installed: the agent does not start by itself",
                       "hinet-node service install")
    if not facts.service_current:
        return Finding(WARN, "the service was installed by another version or from another place",
                       "hinet-node service install")
    if not facts.service_running:
        return Finding(WARN, "the service is installed and stopped", START)
    if not facts.service_lingers:
        return Finding(WARN, "the service ends when this user logs out, and does not start at boot",
                       "loginctl enable-linger")
    return Finding(OK, "installed and running")


def leftovers(facts: Facts) -> Finding:
    if facts.leftovers:
        return Finding(WARN, f"{facts.leftovers} files of writes that were cut short",
                       "they go at the agent's next start", fixable=not facts.agent_running)
    return Finding(OK, "none")


def errors(facts: Facts) -> Finding:
    if facts.errors_logged:
        return Finding(WARN, f"{facts.errors_logged} unexpected errors were logged (log/errors.log)",
                       "please report them: hinet-node doctor --bundle FILE; then remove that file")
    return Finding(OK, "none was logged")


def warnings(facts: Facts) -> Finding:
    if facts.other_warnings:
        first = facts.other_warnings[0]
        more = f" (and {len(facts.other_warnings) - 1} more: status)" if len(facts.other_warnings) > 1 else ""
        return Finding(WARN, first.what + more, first.next_step)
    return Finding(OK, "the agent warns of nothing else") if facts.agent_running else _needs_agent(facts)


CHECKS = tuple(Check(number, judge.__name__, judge) for number, judge in enumerate((
    home, keys, identity, config, agent, socket, clock, interfaces, multicast, port, siblings, disk, locale, duplicate,
    forks, certificates, revocations, versions, service, leftovers, errors, warnings, copies), 1))


def _skipped() -> Finding:
    return Finding(SKIP, NOT_BEFORE_INIT)


def _needs_agent(facts: Facts) -> Finding:
    return Finding(SKIP, "only a running agent can tell", START) if facts.initialised else _skipped()


def _all_off(known: list[Sibling]) -> bool:
    """Whether several siblings agree that the clock is wrong: then it is ours."""
    return len(known) > 1 and all(abs(one.clock_offset_s or 0) > CLOCK_WARN_S for one in known)


def _names(devices: list[Sibling]) -> str:
    return ", ".join(one.name for one in devices[:6])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _span(seconds: int) -> str:
    for limit, unit_s, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds // 86_400} days"
