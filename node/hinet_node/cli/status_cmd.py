"""`hinet-node status`: one screen, from the running agent, or from the home's files when there is none.

Never waits for the network. `--check` is for scripts and monitors: exit code 0 when all is well, 9 without a running
agent, 4 when this device was put out of the household, 1 for any other warning.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from hinet_node.cli import context, output
from hinet_node.cli.device_table import device_table
from hinet_node.cli.vault_text import status_lines

EVERY_S = 2.0
ADDRESSES_SHOWN = 2
CLEAR = "\x1b[H\x1b[2J"


def status() -> None:
    """This device, its siblings and its vault on one screen."""
    show()


def show(*, check: bool = False, watch: bool = False, every_s: float = EVERY_S) -> int:
    """Print the status once, or again and again until Ctrl-C. The exit code is 0 unless `check` finds something."""
    if not watch:
        data = current()
        output.emit("hinet.status/1", data, lambda: screen(data))
        return health_code(data) if check else 0
    try:
        while True:
            data = current()
            lines = list(screen(data))
            at_terminal = output.at_terminal(sys.stdout) and not context.current.json
            output.emit("hinet.status/1", data, [CLEAR + lines[0], *lines[1:]] if at_terminal else [*lines, ""])
            if check and health_code(data):
                return health_code(data)
            time.sleep(every_s)
    except KeyboardInterrupt:
        return 0  # the way to end a watch, and no failure


def current() -> dict[str, Any]:
    """The status as the agent knows it now, or as the home's files have it. `healthy` is false when it warns."""
    from hinet_node.cli.agent_call import connect
    from hinet_node.errors import AgentNotRunning

    try:
        with connect() as client:
            data = client.call("status", timeout_s=5.0)
    except AgentNotRunning:
        from hinet_node.cli.local_work import local_status

        data = local_status()
    data["healthy"] = health_code(data) == 0
    return data


def health_code(data: dict[str, Any]) -> int:
    """The exit code of `--check`."""
    if not data["agent"]["running"]:
        return 9
    if any(warning["code"] == "E_REVOKED" for warning in data["warnings"]):
        return 4
    return 1 if data["warnings"] else 0


def screen(data: dict[str, Any]) -> Iterable[str]:
    """The status for a person."""
    device, agent = data["device"], data["agent"]
    yield (f"{output.style(output.clean(device['name']), 'bold')}  {device['role']}, {device['tier']}, "
           f"{device['fingerprint']}")
    yield f"identity  {data['identity']['id']}, chain height {data['identity']['height']}"
    if agent["running"]:
        since = output.ago_text(time.time() - agent["started_unix_s"])
        near = [output.address_text(one) for one in agent["addresses"] if not one.startswith("/ip6zone/")]
        more = f" and {len(near) - ADDRESSES_SHOWN} more" if len(near) > ADDRESSES_SHOWN else ""
        at = f"at {', '.join(near[:ADDRESSES_SHOWN]) or 'no address'}{more}"
        yield f"agent     {output.style('running', 'green')}, started {since}, {at}"
    else:
        yield f"agent     {output.style('not running', 'yellow')}; start it: {context.typed('up')}"
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
