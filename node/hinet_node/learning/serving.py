"""The long-lived worker that answers: one model in memory, one request at a time, adapters swapped without a reload.

It starts with the first request, loads the base once, and is started anew after a crash; after a long silence it is
let go, so that an idle device has its memory back. Which adapter is on is told to it with each request and changed only
when it differs. Which one that should be is `adapters`' business. SPEC section 8.2.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from hinet_node.errors import WORKER_GONE, NodeError, TryAgain, WorkerDied
from hinet_node.foreign_errors import as_node_error
from hinet_node.ports import Compute, Worker

REQUESTS_MAX = 64
"""Requests waiting for the model; one more is refused."""

UNKNOWN = "?"
"""Stands for the adapter after a swap that failed: never equal to a path, so the next request swaps again."""


@dataclass(frozen=True)
class Hot:
    """What should answer: a base, and an adapter file for it (None for the base alone). Paths are the worker's."""

    base_dir: str
    base_digest: str
    adapter: str | None = None


@dataclass
class _Request:
    work: Callable[[Worker], Awaitable[Any]]
    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    error: NodeError | None = None
    abandoned: bool = False
    again: bool = False
    """Whether it met a worker that had died while idle, and is to be put to a new one (once)."""

    def finish(self, error: NodeError | None = None) -> None:
        if not self.done.is_set():
            self.error = error or self.error
            self.done.set()


class Serving:
    """The answering worker of one device. `run` belongs in the agent's nursery."""

    def __init__(self, compute: Compute, *, idle_s: float = math.inf) -> None:
        self._compute = compute
        self._idle_s = idle_s
        self._send, self._receive = trio.open_memory_channel[_Request](REQUESTS_MAX)
        self._hot: Hot | None = None
        self.loads = 0
        """How often a base was loaded into a worker: an adapter swap adds none."""
        self.load_ms = 0.0
        """How long the last load of a base took."""

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serve requests until cancelled."""
        task_status.started()
        request: _Request | None = None
        while True:
            if request is None:
                request = await self._receive.receive()
            try:
                async with self._compute.worker() as worker:
                    request = await self._work(worker, request)
            except WorkerDied as error:  # it could not even be started
                if request is not None:
                    request.finish(error)
                request = None
            finally:
                self._hot = None
                if request is not None and not request.again:
                    request.finish(TryAgain("the agent is stopping"))

    async def _work(self, worker: Worker, request: _Request | None) -> _Request | None:
        """Serve requests until none came for long or the worker is gone; a request that met a dead one is returned."""
        while request is not None:
            await self._serve(worker, request)
            if request.again:
                return request
            if isinstance(request.error, WorkerDied):
                return None
            request = await self._next()
        return None

    async def answer(self, hot: Hot, question: str, context: list[str], tokens_max: int, *, bare: bool = False,
                     ) -> dict[str, Any]:
        """One answer: {answer, tokens, prompt_tokens}; with `bare` the base's, while the adapter stays in use.

        Errors: `TryAgain` E_BUSY; those of the worker.
        """
        async def work(worker: Worker) -> dict[str, Any]:
            await self._make_hot(worker, hot)
            return await worker.call("serve.answer", {"question": question, "context": context,
                                                      "max_tokens": tokens_max, "bare": bare})

        return dict(await self._ask(work))

    async def score(self, hot: Hot, question: str, answers: list[str]) -> list[float]:
        """How likely the model finds each answer: mean log-probability in nats. Errors: as `answer`."""
        async def work(worker: Worker) -> dict[str, Any]:
            await self._make_hot(worker, hot)
            return await worker.call("serve.score", {"question": question, "answers": answers})

        return [float(score) for score in (await self._ask(work))["scores"]]

    async def make_hot(self, hot: Hot) -> dict[str, Any]:
        """Load and swap until `hot` is what answers. Returns what that took: {swap_ms, init_ms, load_ms, loads,
        probe_change}; times are 0 for what was not needed. After an error the model answers with what it had before, or
        is loaded anew with the next request."""
        return dict(await self._ask(lambda worker: self._make_hot(worker, hot)))

    async def _make_hot(self, worker: Worker, hot: Hot) -> dict[str, Any]:
        took: dict[str, Any] = {"swap_ms": 0.0, "init_ms": 0.0, "load_ms": 0.0, "probe_change": 0.0}
        if self._hot is None or (self._hot.base_dir, self._hot.base_digest) != (hot.base_dir, hot.base_digest):
            self._hot = None
            loaded = await worker.call("serve.load", {"base_dir": hot.base_dir})
            self.loads += 1
            self.load_ms = took["load_ms"] = float(loaded.get("load_ms", 0.0))
            self._hot = Hot(hot.base_dir, hot.base_digest)
        if self._hot != hot:
            self._hot = replace(self._hot, adapter=UNKNOWN)  # until the swap is known to have worked
            swapped = await worker.call("serve.adapter", {"path": hot.adapter, "base_digest": hot.base_digest})
            self._hot = hot
            took.update({key: swapped[key] for key in took if key in swapped})
        return {**took, "loads": self.loads, "last_load_ms": self.load_ms}

    async def _ask(self, work: Callable[[Worker], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
        request = _Request(work)
        try:
            self._send.send_nowait(request)
        except trio.WouldBlock:
            raise TryAgain(f"{REQUESTS_MAX} questions are waiting already", next_step="try again in a moment",
                           code="E_BUSY") from None
        try:
            await request.done.wait()
        finally:
            request.abandoned = True  # a caller that left: skip it if its turn has not come
        if request.error is not None:
            raise request.error
        answer: Mapping[str, Any] = request.result
        return answer

    async def _serve(self, worker: Worker, request: _Request) -> None:
        first, request.again = not request.again, False
        if not request.abandoned:
            try:
                request.result = await request.work(worker)
            except Exception as error:  # whatever it is, it costs this answer and not the agent
                request.error = as_node_error(error)
                if first and request.error.code == WORKER_GONE:
                    request.error, request.again = None, True
                    return
        request.finish()

    async def _next(self) -> _Request | None:
        """The next request, or None when none came for so long that the worker is let go."""
        with trio.move_on_after(self._idle_s):
            return await self._receive.receive()
        return None
