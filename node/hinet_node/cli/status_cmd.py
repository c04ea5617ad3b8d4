"""`hinet-node status`: one screen, from the running agent, or from the home's files when there is none."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from hinet_node.cli import context, output
from hinet_node.cli.vault_text import status_lines

STATE_STYLES = {"connected": ("green",), "this": ("bold",), "revoked": ("red",), "away": ("dim",)}


def status() -> None:
    """This device, its siblings and its vault on one screen."""
    from hinet_node.cli.agent_call import connect
    from hinet_node.errors import AgentNotRunning

    try:
        with connect() as client:
            data = client.call("status", timeout_s=5.0)
    except AgentNotRunning:
        from hinet_node.cli.local_work import local_status

        data = local_status()
    output.emit("hinet.status/1", data, lambda: screen(data))


def screen(data: dict[str, Any]) -> Iterable[str]:
    """The status for a person."""
    device, agent = data["device"], data["agent"]
    yield (f"{output.style(output.clean(device['name']), 'bold')}  {device['role']}, {device['tier']}, "
           f"{device['fingerprint']}")
    yield f"identity  {data['identity']['id']}, chain height {data['identity']['height']}"
    if agent["running"]:
        since = output.ago_text(time.time() - agent["started_unix_s"])
        near = [output.address_text(one) for one in agent["addresses"] if not one.startswith("/ip6zone/")]
        yield f"agent     {output.style('running', 'green')}, started {since}, at {', '.join(near) or 'no address'}"
    else:
        yield f"agent     {output.style('not running', 'yellow')}; start it: {context.typed('run')}"
    if data["vault"] is not None:
        yield from status_lines(data["vault"], brief=True)
    yield ""
    yield from device_table(data["devices"])
    if data["invitations"] or data["warnings"]:
        yield ""
    for invitation in data["invitations"]:
        yield f"An invitation is open: role {invitation['role']}, {max(0, invitation['left_s']) // 60 + 1} min left."
    for warning in data["warnings"]:
        if warning not in (data["vault"] or {}).get("trouble", ()):
            yield output.style(output.clean(warning["what"]), "yellow")
            yield f"  next: {output.clean(warning['next'])}"


def device_table(devices: list[dict[str, Any]], *, revoked: bool = False) -> list[str]:
    """The devices as a table, the revoked ones only on request."""
    shown = [device for device in devices if revoked or device["state"] != "revoked"]
    rows = [[output.clean(device["name"]), device["role"], device["tier"], device["fingerprint"],
             output.style(_state(device), *STATE_STYLES[device["state"]]), _abilities(device)] for device in shown]
    return output.table(rows, ("DEVICE", "ROLE", "TIER", "FINGERPRINT", "STATE", ""))


def _state(device: dict[str, Any]) -> str:
    if device["state"] == "this":
        return "this device"
    if device["state"] == "away":
        seen = device["last_seen_unix_s"]
        return "not met yet" if seen is None else f"away, seen {output.ago_text(time.time() - seen)}"
    return str(device["state"])


def _abilities(device: dict[str, Any]) -> str:
    parts = [", ".join(output.clean(name) for name in device["backends"])]
    if device["memory_bytes"]:
        parts.append(output.size_text(device["memory_bytes"]))
    return output.style("  ".join(part for part in parts if part), "dim")
