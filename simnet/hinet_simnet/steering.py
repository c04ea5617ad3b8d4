"""A world that is driven from outside, one call at a time: it runs in a thread of its own and stands still in between.

The world's main task blocks its whole loop while it waits for the next order, so no virtual time passes and no task
runs between two orders: what happens depends on the orders alone, however long the caller takes. Leaves what can be
ordered to `house`.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from hinet_simnet.clock import hold_task_order, virtual_run
from hinet_simnet.errors import SimnetError
from hinet_simnet.world import World

Order = Callable[[World], Awaitable[Any]]
LEAVE_S = 10.0
"""Real seconds that a world gets to end before its thread is left behind."""


class WorldHangs(SimnetError):
    """An order took longer than the caller's patience, in real seconds."""

    code = "E_SIMNET_HANGS"


class WorldEnded(SimnetError):
    """The world ended by itself, or was closed: it takes no more orders."""

    code = "E_SIMNET_ENDED"


@dataclass
class _Reply:
    value: Any = None
    error: BaseException | None = None


class Steering:
    """Starts a world and runs orders in it. One caller at a time."""

    def __init__(self, make: Callable[[trio.Nursery], World], *, seed: int, patience_s: float) -> None:
        self._make = make
        self._seed = seed
        self._patience_s = patience_s
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[_Reply] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self.closed = False
        self._thread = threading.Thread(target=self._work, name=f"simnet seed {seed}", daemon=True)

    def start(self) -> None:
        """Returns once the world stands."""
        self._thread.start()
        self._wait()

    def do(self, order: Order) -> Any:
        """Run an order to its end. Errors: the order's own, with its traceback; `WorldHangs`; `WorldEnded`."""
        if self.closed:
            raise WorldEnded("this world has ended and takes no more orders", next_step="make a new household")
        if threading.current_thread() is self._thread:
            raise SimnetError("a call of the household inside of its own world would wait for itself for ever",
                              next_step="inside `run`, await the world's own methods")
        self._orders.put(order)
        return self._wait()

    def close(self) -> None:
        """End the world at once, whatever it is doing."""
        if self.closed:
            return
        self.closed = True
        self._orders.put(None)
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._scope.cancel)
            except trio.RunFinishedError:
                pass
        self._thread.join(LEAVE_S)

    def _wait(self) -> Any:
        try:
            reply = self._replies.get(timeout=self._patience_s)
        except queue.Empty:
            where = self._where()
            self.close()
            raise WorldHangs(f"the simulated world (seed {self._seed}) did not come to an end within "
                             f"{self._patience_s:g} real seconds; it was at\n{where}",
                             next_step="look for a loop without an end there, or give more `patience_s`") from None
        except BaseException:
            self.close()
            raise
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _where(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-12:]) if frame is not None else "(its thread is gone)"

    # ---- in the world's thread -----------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            virtual_run(self._main, seed=self._seed)
            error: BaseException = WorldEnded("this world has ended", next_step="make a new household")
        except BaseException as ended:  # it goes to the caller's thread
            error = _single(ended)
        self.closed = True
        self._replies.put(_Reply(error=error))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                world = self._make(nursery)
                reply = _Reply()
                while (order := self._exchange(reply)) is not None:
                    reply = await self._obey(order, world)
                nursery.cancel_scope.cancel()

    def _exchange(self, reply: _Reply) -> Order | None:
        """A reply for the next order. Until it comes, this blocks the world's whole loop, which is the point."""
        take_up = hold_task_order()
        self._replies.put(reply)
        order = self._orders.get()
        take_up()
        return order

    async def _obey(self, order: Order, world: World) -> _Reply:
        try:
            return _Reply(await order(world))
        except Exception as error:
            return _Reply(error=_single(error))


def _single(error: BaseException) -> BaseException:
    """The one exception in a group of one; a larger group stays."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
