"""The agent's upkeep of the vault: running time, second sets, following what others gave up, merging small packs,
resealing, deleting. SPEC.md, 6.10.

One task that looks every ten minutes and does a bounded piece of each. A failure is told in the vault's status and
tried again at the next look. Leaves the work itself to `collect`, `repack` and `reseal`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from hinet_node.errors import ConflictError, NodeError
from hinet_node.ports import Clock
from hinet_node.vault import repack
from hinet_node.vault.choosing import Choice
from hinet_node.vault.marking import Marks
from hinet_node.vault.vault import Vault
from hinet_protocol.errors import ProtocolError
from hinet_protocol.messages import PacksGet, PacksList

if TYPE_CHECKING:
    from hinet_node.sessions.peers import Peers

PACKS_AT_ONCE = 64
_LISTED_MAX = 256
_JUDGED_S = 86_400.0


class Upkeep:
    """One per agent."""

    def __init__(self, vault: Vault, peers: Peers, clock: Clock, log: Callable[[str], None] = lambda line: None,
                 ) -> None:
        self._vault = vault
        self._core = vault.core
        self._peers = peers
        self._clock = clock
        self._log = log
        self._looked_s = clock.monotonic_s()
        self._judged_s = 0.0
        self._wake = trio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with trio.move_on_after(self._core.settings.collect_interval_s):
                await self._wake.wait()
            self._wake = trio.Event()
            await self.look()

    def wake(self) -> None:
        """Look now rather than at the next interval."""
        self._wake.set()

    async def look(self) -> None:
        """One look. A clock that jumped, or a machine that slept, counts for two intervals at most."""
        now_s = self._clock.monotonic_s()
        passed_s = min(max(0.0, now_s - self._looked_s), 2 * self._core.settings.collect_interval_s)
        self._looked_s = now_s
        await self._vault.tick(passed_s)
        failed = False
        for step in (self._say, self._follow, self._merge, self._reseal, self._ask_for_copies, self._sweep):
            try:
                await step()
            except ConflictError:
                continue  # the owner collects by hand just now
            except (NodeError, OSError) as error:
                failed = True
                told = error if isinstance(error, NodeError) else NodeError(
                    f"The home's disk failed: {error.strerror or error}.", code="E_DISK",
                    next_step="See what the system says of it: dmesg")
                self._core.note_error(told, b"upkeep")
        if not failed:
            for code, subject in tuple(self._core.trouble):
                if subject == b"upkeep":
                    self._core.settle(code, subject)

    # ---- the steps -----------------------------------------------------------------------------------------------

    async def _say(self) -> None:
        collector = self._core.collector
        own = self._core.heads.own()
        if collector.restate_due():
            await self._vault.change(lambda core: collector.restate())
        elif own is not None and self._core.ledger.silent_s(own.device, own.hash) >= self._core.settings.confirm_s:
            await self._vault.change(lambda core: collector.confirm())

    async def _follow(self) -> None:
        collector = self._core.collector
        if not self._core.may_write():
            return
        if self._core.ledger.ran_s - self._judged_s >= _JUDGED_S:
            collector.judged = frozenset()  # what was needed then may not be needed now
        if collector.follow_due():
            self._judged_s = self._core.ledger.ran_s
            await self._vault.collect()

    async def _merge(self) -> None:
        if self._core.may_write() and self._core.collector.small_packs() > repack.SMALL_MAX:
            await self._vault.collect(rewrite=self._merge_small)

    def _merge_small(self, marks: Marks, choice: Choice) -> repack.Mover | None:
        picked = repack.too_many_small(choice, mine_only=True)
        self._core.check_room(repack.bytes_to_move(choice, picked))
        return repack.move(self._core, marks, picked, repack.SMALL_BYTES * repack.SMALL_MAX * 4) if picked else None

    async def _reseal(self) -> None:
        while self._core.reseal.due():
            before = self._core.reseal.status()
            await self._vault.reseal_step()
            after = self._core.reseal.status()
            self._log(f"resealing: {after.left_packs} packs are left")
            if after.left_packs >= before.left_packs:
                return  # the rest can't be opened here now

    async def _ask_for_copies(self) -> None:
        """Who holds the packs that silent devices alone retain."""
        core = self._core
        wanted = core.collector.last_copies()[:_LISTED_MAX]
        listed: dict[bytes, set[bytes]] = {}
        for session in self._peers.sessions if wanted else ():
            if session.device.public > core.household.device_public:
                continue
            for name in wanted:
                after = (int.from_bytes(name, "big") - 1).to_bytes(32, "big") if any(name) else b""
                try:
                    reply = await session.request(PacksGet(after, 1), timeout_s=core.settings.request_timeout_s)
                except (NodeError, ProtocolError):
                    break
                if isinstance(reply, PacksList) and any(pack == name for pack, _ in reply.packs):
                    listed.setdefault(session.device.public, set()).add(name)
        core.collector.listed = listed

    async def _sweep(self) -> None:
        packs = size_bytes = 0
        while True:
            swept = await self._vault.sweep(packs_max=PACKS_AT_ONCE)
            packs += swept.packs
            size_bytes += swept.size_bytes
            if swept.packs < PACKS_AT_ONCE:
                break
        if packs:
            self._log(f"{packs} packs ({size_bytes} bytes) that nobody needs were deleted")
