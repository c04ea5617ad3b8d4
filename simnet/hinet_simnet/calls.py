"""Calls of an agent's local API as the socket server makes them, and which of them acknowledged a write.

A call ends when its agent does, as a closed socket would end it. What was acknowledged is for the checker that no such
byte is lost. Leaves the verbs to the agent, and the vault's own work to `hinet_node.vault`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from hinet_node.agent import Agent
from hinet_node.errors import AgentNotRunning, NodeError
from hinet_node.foreign_errors import as_node_error
from hinet_node.local.vault_verbs import find_files, name_bytes, text_name
from hinet_simnet.machines import Life

LOOKING = frozenset(("status", "devices", "vault.ls", "vault.get", "vault.status", "vault.verify", "jobs.list",
                     "adapters.list", "base.show", "invite.list"))
"""Verbs that change nothing: polling them leaves no trace."""


UNEXPECTED = "E_UNEXPECTED"
"""The code of what is our bug; the exception is the error's cause."""


async def dispatch(agent: Agent, life: Life, verb: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Run a verb. Errors: `NodeError`; `AgentNotRunning` when the agent goes away meanwhile."""
    result: dict[str, Any] | None = None
    failed: NodeError | None = None
    async with trio.open_nursery() as nursery:
        async def watch() -> None:
            await life.ended.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            result = await agent.api.dispatch(verb, args)
        except Exception as error:
            failed = as_node_error(error)
            if failed is not error:
                failed.__cause__ = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    if result is None:
        raise AgentNotRunning(f"the agent on {agent.config.name} went away during the call {verb}",
                              next_step="start it, then see what became of the call")
    return result


async def acknowledged(agent: Agent, verb: str, args: Mapping[str, Any],
                       result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files of a call that returned: {file, digest, size} each."""
    if verb == "vault.put":
        return [{"file": result["name"], "digest": result["digest"], "size": result["size"]}]
    if verb != "vault.add":
        return []
    found, _ = find_files([Path(path) for path in args["paths"]], name_bytes(str(args.get("under", ""))))
    names = {name for name, _ in found}
    return [{"file": text_name(item.name), "digest": item.digest.hex(), "size": item.size}
            for item in await agent.vault.list() if item.name in names]
