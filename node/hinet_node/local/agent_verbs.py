"""The local API's verbs about the device and its household: status, devices, device.revoke, agent.stop.

Nothing here waits for the network: `status` says what is known at this moment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from hinet_node.api import Emit, Handler, text_of
from hinet_node.belonging.awareness import unaware_of
from hinet_node.belonging.household import (
    NEVER,
    describe_household,
    find_device,
    household_warnings,
    revocation_consequences,
    revoked_warning,
    warning,
)
from hinet_node.belonging.renaming import rename
from hinet_node.local.vault_verbs import vault_status
from hinet_node.sessions import seen
from hinet_protocol.errors import CloneDetected

if TYPE_CHECKING:
    from hinet_node.agent import Agent

CLOCK_OFFSET_WARN_S = 60
CONFIRM_S = 3.0
CONFIRM_POLL_S = 0.05


def agent_verbs(agent: Agent) -> dict[str, Handler]:
    """The handlers, by verb."""

    async def status(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        vault = {**await vault_status(agent.vault, agent.membership), **agent.replicator.moving()}
        household = _household(agent, vault)
        return {"agent": _agent(agent), **household, "vault": vault, "invitations": agent.inviter.open_invitations(),
                "warnings": [*_warnings(agent, household), *vault["trouble"]]}

    async def devices(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        vault = await vault_status(agent.vault, agent.membership)
        return {"devices": _household(agent, vault)["devices"]}

    async def revoke(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        membership = agent.membership
        device = find_device(membership.chain(), text_of(args, "device"))
        consequences = revocation_consequences(membership, device)
        met = agent.last_seen.get(device.public, NEVER).time_s or None
        here = agent.peers.session_with(device.public) is not None
        consequences["last_seen_unix_s"] = int(agent.ports.clock.now_unix_s()) if here else met
        if args.get("dry_run") is True:
            return {"done": False, **consequences, "away": _away(agent, device.public)}
        membership.revoke(device.public, text_of(args, "reason", ""))
        agent.log(f"{device.name} was revoked; a new epoch is in force")
        await _confirmations(agent, device.public)
        agent.remember_siblings()
        later = _without_word(agent, device.public)
        others = [other for other in membership.chain().members() if other.public != membership.device_public]
        return {"done": True, **consequences, "told": [other.name for other in others if other.public not in later],
                "not_told": [other.name for other in others if other.public in later]}

    async def rename_device(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        device = find_device(agent.membership.chain(), text_of(args, "device"))
        rename(agent.membership, device, text_of(args, "name"), agent.ports.clock.now_unix_s())
        after = agent.membership.chain().device(device.public)
        assert after is not None, "a rename takes no device away"
        return {"public": device.public.hex(), "former": device.name, "name": after.name}

    async def stop(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        agent.stop()
        return {}

    return {"status": status, "devices": devices, "device.revoke": revoke, "device.rename": rename_device,
            "agent.stop": stop}


def _away(agent: Agent, leaving: bytes) -> list[str]:
    """The other live devices that no session is open with."""
    near = {leaving, agent.membership.device_public, *(session.device.public for session in agent.peers.sessions)}
    return [device.name for device in agent.membership.chain().members() if device.public not in near]


async def _confirmations(agent: Agent, revoked: bytes) -> None:
    """Give the devices that are in reach a moment to say that they know of the revocation."""
    deadline_s = trio.current_time() + CONFIRM_S
    while trio.current_time() < deadline_s:
        if not {session.device.public for session in agent.peers.sessions}.intersection(_without_word(agent, revoked)):
            return
        await trio.sleep(CONFIRM_POLL_S)


def _without_word(agent: Agent, revoked: bytes) -> set[bytes]:
    """The live devices that have not said that they know of this revocation."""
    said: dict[bytes, tuple[bytes, ...]] = {public: one.heads for public, one in agent.last_seen.items()}
    said |= {session.device.public: session.heads for session in agent.peers.sessions}
    unaware = unaware_of(agent.membership.chain(), said, agent.membership.device_public)
    return {public for public, revocations in unaware.items() if revoked in revocations}


def _agent(agent: Agent) -> dict[str, Any]:
    return {"running": True, "pid": os.getpid(), "version": agent.version, "addresses": list(agent.addresses),
            "started_unix_s": int(agent.started_s), "backends": list(agent.machine.backends),
            "memory_bytes": agent.machine.memory_bytes, "relays": _relays(agent),
            "relaying": agent.peers.relaying.describe() if agent.peers.relaying is not None else None}


def _relays(agent: Agent) -> list[dict[str, Any]]:
    """The relays of the settings, with the names of the devices that were found there."""
    names = {public.hex(): name for public, name in agent.membership.names().items()}
    return [{**relay, "name": names.get(relay["public"] or "")} for relay in agent.peers.relays.describe()]


def _household(agent: Agent, vault: Mapping[str, Any]) -> dict[str, Any]:
    """The household as it is at this moment: what the open sessions say, what is remembered of the other devices, and
    what their heads in the vault tell, which come from devices that this one never meets too."""
    now_s = agent.ports.clock.now_unix_s()
    open_now = {session.device.public: seen.sighting(session, now_s) for session in agent.peers.sessions}
    relays = {session.device.public: session.relay for session in agent.peers.sessions}
    names = agent.membership.names()
    known = {**agent.last_seen, **open_now}
    for state in vault["devices"]:
        public, epoch = bytes.fromhex(state["device"]), bytes.fromhex(state["epoch"])
        one = known.get(public, NEVER)
        known[public] = replace(one, heads=(*one.heads, epoch)) if epoch else one
    found = describe_household(agent.membership, known)
    for device in found["devices"]:
        here = open_now.get(bytes.fromhex(device["public"]))
        if here is not None and device["state"] == "away":
            device.update(state="connected", via="relayed" if here.relayed else "direct",
                          relay=names.get(relays[bytes.fromhex(device["public"])] or b""),
                          clock_offset_s=agent.clock_offsets_s.get(bytes.fromhex(device["public"])))
        elif device["state"] == "this":
            device.update(version=agent.version or None, backends=list(agent.machine.backends),
                          memory_bytes=agent.machine.memory_bytes or None,
                          bases=[digest.hex() for digest in agent.facts().bases])
    return _with_vault(found, vault)


def _with_vault(household: dict[str, Any], vault: Mapping[str, Any]) -> dict[str, Any]:
    """The household, each device with how far its copy of the vault is behind."""
    states = {state["device"]: state for state in vault["devices"]}
    for device in household["devices"]:
        state = states.get(device["public"])
        if state is not None and state["behind"] is not None and device["state"] != "revoked":
            device["behind"] = {key: state[f"behind_{key}"] for key in ("packs", "bytes")} | {"heads": state["behind"]}
    return household


def _warnings(agent: Agent, household: Mapping[str, Any]) -> list[dict[str, str]]:
    found = household_warnings(agent.membership, household, agent.ports.clock.now_unix_s())
    for reason in agent.clones.values():
        found.append(warning(CloneDetected.code, reason, "on one of the two: hinet-node init --rekey"))
    names = agent.membership.names()
    if agent.removed_by and agent.membership.device.live:
        who = ", ".join(names[public] for public in agent.removed_by)
        say = "says" if len(agent.removed_by) == 1 else "say"
        found.append(revoked_warning(f"{who} {say} that this device was put out of the household"))
    for public, reason in agent.refused.items():
        if public in agent.clones or public in agent.removed_by:
            continue
        name = names.get(public, "a device")
        found.append(warning("E_REFUSED", f"{name} was refused: {reason}", "on both devices: hinet-node doctor"))
    for relay in _relays(agent):
        if relay["reason"]:
            found.append(warning("E_RELAY", f"siblings can't call this device through {relay['name'] or 'its relay'} "
                                            f"at {relay['address']}: {relay['reason']}",
                                 "see there: hinet-node status; the relay is set by relay = ... in config.toml"))
    for session in agent.peers.sessions:
        offset_s = agent.clock_offsets_s.get(session.device.public, 0)
        if abs(offset_s) > CLOCK_OFFSET_WARN_S:
            side = "ahead of" if offset_s > 0 else "behind"
            found.append(warning("E_CLOCK", f"the clock of {session.device.name} is {abs(offset_s)} s {side} ours",
                                 "set the clock of one of the two devices"))
    return found
