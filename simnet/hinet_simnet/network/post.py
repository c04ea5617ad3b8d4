"""The post: does things at a given virtual time, in the order of times and then of posting.

One task for all hosts, so that a message costs no timer of its own. It is a system task of trio: it lives as long as
the run, whoever posts first. What is posted must be quick, must not wait and must not raise.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from typing import Any

import trio

Act = Callable[..., None]


class Post:
    """A heap of what is to be done."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Act, tuple[Any, ...]]] = []
        self._number = 0
        self._scope: trio.CancelScope | None = None
        self._started = False

    def at(self, due_s: float, act: Act, *args: Any) -> None:
        """Call `act(*args)` at that time, by trio's clock."""
        self._number += 1
        heapq.heappush(self._waiting, (due_s, self._number, act, args))
        if not self._started:
            self._started = True
            trio.lowlevel.spawn_system_task(self._deliver)
        elif self._scope is not None and due_s < self._scope.deadline:
            self._scope.deadline = due_s

    async def _deliver(self) -> None:
        waiting = self._waiting
        try:
            while True:
                now_s = trio.current_time()
                while waiting and waiting[0][0] <= now_s:
                    _, _, act, args = heapq.heappop(waiting)
                    act(*args)
                with trio.CancelScope(deadline=waiting[0][0] if waiting else inf) as self._scope:
                    await trio.sleep_forever()
                self._scope = None
        finally:
            self._scope, self._started = None, False
