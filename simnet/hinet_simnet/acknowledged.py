"""Which calls acknowledge a write, and of what: for the checker that no acknowledged byte is lost.

Leaves the vault's own work to `hinet_node.vault`; reads its list after the call returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_node.agent import Agent
from hinet_node.local.vault_verbs import find_files, name_bytes, text_name

LOOKING = frozenset(("status", "devices", "vault.ls", "vault.get", "vault.status", "vault.verify", "jobs.list",
                     "adapters.list", "base.show", "invite.list"))
"""Verbs that change nothing: polling them leaves no trace."""


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
