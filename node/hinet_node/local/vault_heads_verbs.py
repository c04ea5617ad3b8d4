"""The local API's verbs for heads and for honest restores: vault.heads, vault.accept-older.

Leaves deciding to `hinet_node.vault.acceptance`; turns values into what the socket can say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hinet_node.api import Emit, Handler, text_of
from hinet_node.local.vault_verbs import Names, text_name
from hinet_node.vault import Household, Vault
from hinet_protocol.heads import Head


def vault_heads_verbs(vault: Vault, names: Names, household: Household) -> dict[str, Handler]:
    """The handlers, by verb."""

    async def heads(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        known, me = names(), household.device_public
        return {"heads": [{**_shown(one.head, known), "state": one.state, "missing_packs": one.missing,
                           "newest": one.newest, "mine": one.head.device == me}
                          for one in await vault.look(lambda core: core.acceptance.overview())]}

    async def accept_older(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        beginning, dry = text_of(args, "head"), args.get("dry") is True
        done = await vault.change(lambda core: core.acceptance.accept(beginning, dry=dry))
        known = names()
        return {"head": _shown(done.head, known), "what": done.what, "dry": dry, "lost_packs": done.lost_packs,
                "settles": [_shown(head, known) for head in done.settles],
                "files": [text_name(name) for name in done.files], "files_total": done.files_total}

    return {"vault.heads": heads, "vault.accept-older": accept_older}


def _shown(head: Head, names: Mapping[bytes, str]) -> dict[str, Any]:
    return {"head": head.hash.hex(), "number": head.seq, "time": head.time,
            "device": names.get(head.device, head.device.hex()[:8])}
