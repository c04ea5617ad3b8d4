"""The slow verification that runs beside everything else: every pack is read again within a stated number of days.

One pack at a time, the one that waits longest, spread evenly over the time; what the device slept through is made up at
a bounded rate. When each pack was read is kept (`packnotes`), so a restart goes on where the last run stopped. Needs no
key. What is damaged is set aside and told, and the replicator fetches it. An idle agent wakes for this a few times an
hour. Leaves the check of a pack to `checking`. SPEC.md, 6.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from hinet_node.errors import NodeError
from hinet_node.ports import Clock
from hinet_node.vault.checking import Checker

if TYPE_CHECKING:
    from hinet_node.vault.vault import Vault

DAY_S = 86_400
SHARE = 0.8
"""The packs are spread over this share of the time, so that the last one is not late."""
BEGIN_S = 60.0
"""An agent that has just started has better things to do."""
PAUSE_S_MIN, PAUSE_S_MAX = 20.0, 3_600.0
CATCH_UP_S_MIN = 1.0
RECORDS_S = DAY_S


@dataclass(frozen=True)
class ScrubSettings:
    """Every pack within so many days (0: never), and while catching up at most so many bytes a second."""

    days: int = 30
    rate: int = 20_000_000

    @property
    def period_s(self) -> float:
        return float(self.days * DAY_S)


class Scrub:
    """One per agent."""

    def __init__(self, vault: Vault, clock: Clock, settings: ScrubSettings, log: Callable[[str], None]) -> None:
        self._vault = vault
        self._core = vault.core
        self._clock = clock
        self._settings = settings
        self._log = log
        self._records_s = 0.0
        vault.core.scrub_days = settings.days

    async def run(self) -> None:
        """Works until cancelled; returns at once when it is switched off."""
        if self._settings.days == 0:
            return
        await trio.sleep(BEGIN_S)
        while True:
            try:
                pause_s = await self.step()
            except (NodeError, OSError) as error:
                self._log(f"the vault could not be verified: {error}")
                pause_s = PAUSE_S_MAX
            await trio.sleep(pause_s)

    async def step(self) -> float:
        """Verify one pack if one is due; for how long to sleep then."""
        now_s = int(self._clock.now_unix_s())
        held = self._core.store.index.packs()
        longest = self._core.store.notes.longest_unchecked(held, now_s)
        if longest is None:
            return PAUSE_S_MAX
        name, since_s = longest
        late = now_s - since_s > self._settings.period_s
        every_s = SHARE * self._settings.period_s / len(held)
        newest_s = self._core.store.notes.verified(held, now_s).newest_s or since_s
        if not late and now_s < newest_s + every_s:
            return _bounded(newest_s + every_s - now_s)
        await self._verify(name, now_s)
        if late:
            return max(CATCH_UP_S_MIN, held[name] / self._settings.rate)
        return _bounded(every_s)

    async def _verify(self, name: bytes, now_s: int) -> None:
        records = abs(now_s - self._records_s) >= RECORDS_S
        if records:
            self._records_s = now_s
        checker = Checker(self._core, deep=False, on_progress=None)
        faults = await self._core.disk.run_blocking(lambda: checker.one(name, records=records))
        for fault in faults:
            self._log(f"verifying: {fault.what}")
        if faults:
            self._vault.changed()


def _bounded(pause_s: float) -> float:
    return min(max(pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
