"""Lanes: a second place for blocking calls, in their order, beside the caller's. `ThreadLane` is a thread of its own,
`AtOnceLane` runs each call when it is given, so that the simulator sees one order only.

Both keep to the same rules, and pass the same tests: calls run in their order, and none runs after one that failed.
Leaves what runs there, and how many calls wait, to the caller.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Call(Generic[T]):
    """One call that a lane was given. (A `Future` would do; its module costs every command's start several
    milliseconds.)"""

    __slots__ = ("_ended", "_error", "_value", "_work")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._ended = threading.Lock()
        self._ended.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def result(self) -> T:
        with self._ended:
            pass
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def run(self, failed: BaseException | None) -> BaseException | None:
        """Run, unless a call before it failed; what failed so far."""
        work, self._work = self._work, None
        try:
            if failed is None:
                assert work is not None
                self._value = work()
        except BaseException as error:  # whatever it is, it belongs to whoever asks for the result
            failed = error
        self._error = failed
        self._ended.release()
        return failed


class AtOnceLane:
    """Each call runs before `do` returns."""

    def __init__(self) -> None:
        self._failed: BaseException | None = None

    def do(self, work: Callable[[], T]) -> Call[T]:
        call = Call(work)
        self._failed = call.run(self._failed)
        return call

    def close(self) -> None:
        """Nothing is left to wait for."""


class ThreadLane:
    """Calls run in a thread, which begins with the first of them. Used by one thread at a time."""

    def __init__(self) -> None:
        self._failed: BaseException | None = None
        self._waiting: queue.SimpleQueue[Call[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], T]) -> Call[T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
            self._thread.start()
        call = Call(work)
        self._waiting.put(call)
        return call

    def close(self) -> None:
        """Wait for the call that runs now; those that wait are not run."""
        if self._thread is not None:
            self._failed = self._failed or RuntimeError("The lane was closed.")
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (call := self._waiting.get()) is not None:
            # What failed may be set by `close` while this call runs, so it is not overwritten with None.
            self._failed = call.run(self._failed) or self._failed
            del call
