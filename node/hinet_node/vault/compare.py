"""What a sibling holds that this device may pull: its whole list while vaults are small, ranges above. SPEC.md, 6.6.

Leaves the comparison of ranges to `hinet_protocol.ranges`, what is needed to `hinet_protocol.reconcile`, answers to
`serve`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from hinet_node.errors import NetworkError
from hinet_node.vault.core import VaultCore
from hinet_protocol import limits
from hinet_protocol.messages import PacksGet, PacksList, RangesGet, RangesList
from hinet_protocol.ranges import Search

_PAGES_MAX = 1_024


class Sibling(Protocol):
    """What a session says of the device at its other end."""

    @property
    def public(self) -> bytes: ...

    @property
    def name(self) -> str: ...


Ask = Callable[[Any, type], Awaitable[Any]]
"""Sends a question; the answer is of that class."""


async def offered_packs(core: VaultCore, sibling: Sibling, ask: Ask) -> Mapping[bytes, int]:
    """Name -> size of packs that the sibling holds: all of them, or those that this device lacks.

    Errors: `NetworkError` and the sibling's own; ProtocolError for answers that can't be.
    """
    if core.store.index.totals()[0] < limits.ranges_packs_min:
        listed = await _listed(sibling.name, ask)
        core.met(sibling.public, listed)
        return listed
    held = core.store.index.packs()
    search = Search(sorted(held))
    while question := search.next_question():
        search.take((await ask(RangesGet(question), RangesList)).answers)
    core.met(sibling.public, {*held, *search.found}.difference(search.lacking))
    return search.found


async def _listed(sibling: str, ask: Ask) -> Mapping[bytes, int]:
    found: dict[bytes, int] = {}
    after = b""
    for _ in range(_PAGES_MAX):
        page = await ask(PacksGet(after, limits.packs_list_max), PacksList)
        for name, size in page.packs:
            if name <= after:
                raise NetworkError(f"{sibling} lists its packs out of order.")
            found[name] = size
            after = name
        if not page.more or not page.packs:
            break
    return found
