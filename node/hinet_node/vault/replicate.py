"""Keeping the vault in step with the siblings: ask, compare, pull, verify. SPEC.md, 6.6.

Pull only: whoever lacks something asks. A keeper runs the same code without keys. Leaves sessions to
`hinet_node.peers` and the decisions to `hinet_protocol.reconcile`.
"""

from __future__ import annotations

from typing import Any

import trio

from hinet_node.vault.vault import Vault


class Replicator:
    """Answers siblings' questions about the vault and pulls what is missing. One per agent, in the agent's nursery."""

    def __init__(self, vault: Vault, peers: Any) -> None:
        self._vault = vault
        self._peers = peers

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Registers its message handlers with `peers`, then works until cancelled. A session that fails, a full disk
        or a lying sibling end up in `Vault.status().trouble` and never end this task."""
        task_status.started()
        await trio.sleep_forever()

    def nudge(self) -> None:
        """Look at all siblings now rather than at the next interval."""
