"""The local API's verb `chain.add`: entries that the root signed in a command's process. They are public, and judged as
a sibling's are; the socket is the owner's alone, which no rule here relies on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hinet_node.api import Emit, Handler
from hinet_node.belonging.membership import Membership
from hinet_node.errors import UsageError
from hinet_protocol import limits

ENTRIES_MAX = limits.devices_max + 8
"""A recovery that removes everybody, and what goes with it."""


def chain_verbs(membership: Membership, log: Callable[[str], None]) -> dict[str, Handler]:
    """The handlers, by verb."""

    async def add(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        entries = args.get("entries")
        if (not isinstance(entries, list) or not 0 < len(entries) <= ENTRIES_MAX
                or not all(isinstance(raw, bytes) and len(raw) <= limits.entry_bytes_max for raw in entries)):
            raise UsageError(f"'entries' must be a list of 1 to {ENTRIES_MAX} chain entries")
        await membership.absorb(entries)
        log(f"{len(entries)} entries came from a command on this machine")
        return {"height": membership.chain().height}

    return {"chain.add": add}
