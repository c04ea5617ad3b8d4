"""Real time, counted from the start of a run: what trio goes by at level "processes".

Leaves virtual time to `hinet_simnet.clock`.
"""

from __future__ import annotations

import time

import trio


class RunClock(trio.abc.Clock):
    """A trace's times are then the run's."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()

    def start_clock(self) -> None:
        self._begun_s = time.monotonic()

    def current_time(self) -> float:
        return time.monotonic() - self._begun_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()
