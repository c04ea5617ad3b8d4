"""The local API's verbs about the device and its household: status, devices, device.revoke, agent.stop.

Nothing here waits for the network: `status` says what is known at this moment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hinet_node.api import Emit, Handler, text_of
from hinet_node.belonging.household import describe_household, find_device, revocation_consequences
from hinet_node.local.vault_verbs import vault_status
from hinet_node.sessions.peers import Session

if TYPE_CHECKING:
    from hinet_node.agent import Agent

CLOCK_OFFSET_WARN_S = 60


def agent_verbs(agent: Agent) -> dict[str, Handler]:
    """The handlers, by verb."""

    async def status(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        vault = await vault_status(agent.vault, agent.membership)
        household = _household(agent)
        return {"agent": _agent(agent), **household, "vault": vault, "invitations": agent.inviter.open_invitations(),
                "warnings": [*_warnings(agent), *vault["trouble"]]}

    async def devices(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return {"devices": _household(agent)["devices"]}

    async def revoke(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        membership = agent.membership
        device = find_device(membership.chain(), text_of(args, "device"))
        consequences = revocation_consequences(membership, device)
        if args.get("dry_run") is True:
            return {"done": False, **consequences}
        reached_before = {session.device.public for session in agent.peers.sessions}
        membership.revoke(device.public, text_of(args, "reason", ""))
        others = [other for other in membership.chain().members() if other.public != membership.device_public]
        agent.log(f"{device.name} was revoked; a new epoch is in force")
        return {"done": True, **consequences,
                "told": [other.name for other in others if other.public in reached_before],
                "not_told": [other.name for other in others if other.public not in reached_before]}

    async def stop(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        agent.stop()
        return {}

    return {"status": status, "devices": devices, "device.revoke": revoke, "agent.stop": stop}


def _agent(agent: Agent) -> dict[str, Any]:
    return {"running": True, "pid": os.getpid(), "version": agent.version, "addresses": list(agent.addresses),
            "started_unix_s": int(agent.started_s), "backends": list(agent.machine.backends),
            "memory_bytes": agent.machine.memory_bytes}


def _household(agent: Agent) -> dict[str, Any]:
    found = describe_household(agent.membership, agent.last_seen)
    sessions = {session.device.public.hex(): session for session in agent.peers.sessions}
    for device in found["devices"]:
        session = sessions.get(device["public"])
        if session is not None:
            device.update(_connected(agent, session))
    return found


def _connected(agent: Agent, session: Session) -> dict[str, Any]:
    hello = session.hello
    return {"state": "connected", "address": session.address, "version": hello.agent,
            "backends": list(hello.backends), "memory_bytes": hello.memory_bytes,
            "bases": [digest.hex() for digest in hello.bases], "last_seen_unix_s": int(agent.ports.clock.now_unix_s())}


def _warnings(agent: Agent) -> list[dict[str, str]]:
    found = []
    if not agent.membership.device.live:
        found.append(_warning("E_REVOKED", "this device was put out of the household",
                              "join again as a new device: hinet-node --home PATH join CODE"))
    for public, reason in agent.refused.items():
        name = agent.membership.names().get(public, "a device")
        found.append(_warning("E_REFUSED", f"{name} was refused: {reason}", "on that device: hinet-node status"))
    for session in agent.peers.sessions:
        offset_s = agent.clock_offsets_s.get(session.device.public, 0)
        if abs(offset_s) > CLOCK_OFFSET_WARN_S:
            side = "ahead of" if offset_s > 0 else "behind"
            found.append(_warning("E_CLOCK", f"the clock of {session.device.name} is {abs(offset_s)} s {side} ours",
                                  "set the clock of one of the two devices"))
    return found


def _warning(code: str, what: str, next_step: str) -> dict[str, str]:
    return {"code": code, "what": what, "next": next_step}

