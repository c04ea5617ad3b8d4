"""How entries that the root signed come into the home's chain: through its running agent, or under the home's lock.

The root signs in the command's own process. The agent is given the signed entries alone and judges them as it would
anybody's; words and seeds never go over its socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet_node.cli import context

if TYPE_CHECKING:
    from hinet_protocol.chain import Chain


def put_in(before: Chain, after: Chain) -> bool:
    """Make what `after` has more than `before` part of the home's chain, durably; True when the agent did.

    Errors: `ConflictError` when another command holds the home; `ProtocolError` for an entry that is refused.
    """
    from hinet_node import home
    from hinet_node.belonging.membership import Membership
    from hinet_node.errors import AgentNotRunning
    from hinet_node.local.client import Client
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness

    raws = [entry.raw for entry in after.entries() if entry.hash not in before]
    folder = context.home_path()
    try:
        with Client(folder) as client:
            client.call("chain.add", {"entries": raws}, timeout_s=30.0)
            return True
    except AgentNotRunning:
        with home.locked(folder):
            Membership.load(RealDisk(folder), SystemRandomness(), SystemClock()).take_in(raws)
        return False
