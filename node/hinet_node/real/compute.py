"""The real Compute port: models run in processes of their own, spoken to over pipes.

A worker is `hinet_tiers.worker` in its own process group. Requests and answers are frames (4-byte big-endian length,
msgpack body) on its stdin and stdout; what it prints goes to stderr, of which the end is kept for the error message. A
crash, an abort, a memory limit or a cancelled call costs the worker, never the agent; and no worker outlives its agent
(`worker_start`). What the verbs do is the worker's business. SPEC section 7.4.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import trio

from hinet_node.errors import WORKER_GONE, NodeError, WorkerDied, WorkerFailed
from hinet_tiers.backend import memory_bytes

FRAME_BYTES_MAX = 1024 * 1024
STDERR_TAIL_BYTES = 8192
CLOSE_GRACE_S = 2.0
"""How long a worker may take to end by itself once its stdin is closed."""
EXIT_WAIT_S = 5.0
MEMORY_CHECK_S = 0.25
RECEIVE_BYTES = 256 * 1024

QUIET_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "TOKENIZERS_PARALLELISM": "false",
                 "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Spinning thread pools slow a shared machine a hundredfold; and no library may ask the network for a model."""

SIGNAL_NAMES = {signal.SIGSEGV: "touched memory that is not its own", signal.SIGABRT: "aborted itself",
                signal.SIGILL: "used an instruction that this processor lacks", signal.SIGBUS: "hit a bus error",
                signal.SIGFPE: "hit an arithmetic fault"}


class ProcessCompute:
    """`Compute` with one process for each worker."""

    def __init__(self, *, module: str = "hinet_tiers.worker", environment: Mapping[str, str] | None = None,
                 memory_bytes_max: int | None = None) -> None:
        """`memory_bytes_max` holds for calls that name no limit; None leaves a reserve of this machine's memory."""
        self._module = module
        self._memory_bytes_max = memory_bytes_max
        self._environment = dict(environment or {})

    def worker(self, *, memory_bytes_max: int | None = None) -> AbstractAsyncContextManager[ProcessWorker]:
        """Start a worker; it and its whole process group are gone when the context ends.

        `memory_bytes_max` bounds its resident memory: above it the worker is killed and the call fails with
        `E_WORKER_MEMORY`. Errors: `WorkerDied` when it can't be started.
        """
        return self._run(memory_bytes_max or self._memory_bytes_max or default_memory_bytes_max(memory_bytes()))

    @asynccontextmanager
    async def _run(self, memory_bytes_max: int) -> AsyncIterator[ProcessWorker]:
        lifeline_read, lifeline_write = os.pipe()
        try:
            command = [sys.executable, "-P", "-m", "hinet_node.real.worker_start", str(lifeline_read),
                       str(memory_bytes_max), self._module]
            try:
                process = await trio.lowlevel.open_process(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env=self._child_environment(), start_new_session=True, pass_fds=(lifeline_read,))
            except OSError as error:
                raise WorkerDied(f"The worker process could not be started: {error}.") from error
            finally:
                os.close(lifeline_read)
            worker = ProcessWorker(process, memory_bytes_max)
            failure: Exception | None = None
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(worker.read_stderr)
                    nursery.start_soon(worker.reap)
                    nursery.start_soon(worker.watch_memory)
                    try:
                        yield worker
                    except Exception as error:
                        failure = error  # raised again below, so that no exception group is put around it
                    finally:
                        with trio.CancelScope(shield=True):
                            await worker.close()
                        nursery.cancel_scope.cancel()
            finally:
                worker.kill()
            if failure is not None:
                raise failure
        finally:
            os.close(lifeline_write)

    def _child_environment(self) -> dict[str, str]:
        environment = {**os.environ, **QUIET_THREADS, **self._environment}
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        return environment


class ProcessWorker:
    """One worker process. One call at a time; a cancelled or failed pipe ends it for good."""

    def __init__(self, process: trio.Process, memory_bytes_max: int) -> None:
        self._process = process
        self._memory_bytes_max = memory_bytes_max
        self._over_memory = False
        self._received = bytearray()
        self._stderr = bytearray()
        self._next_id = 1
        self._busy = False
        self._closed = False
        self._group_ended = False

    async def call(self, verb: str, args: Mapping[str, Any], *,
                   on_progress: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
        """Run a verb and return its result. Cancelling kills the process and everything that it started.

        Errors: `WorkerFailed` with the worker's own code and exit code; `WorkerDied` when the process ends instead of
        answering (crash, abort, memory).
        """
        assert not self._busy, "a worker takes one call at a time"
        if self._closed:
            raise WorkerDied(f"The worker for '{verb}' is already gone.", next_step="Run the command again.",
                             code=WORKER_GONE)
        self._busy = True
        request_id, self._next_id = self._next_id, self._next_id + 1
        answered = False
        try:
            await self._send({"id": request_id, "verb": verb, "args": dict(args)}, verb)
            while True:
                frame = await self._receive(verb)
                if frame.get("id") != request_id:
                    raise WorkerDied(f"The worker answered another request than '{verb}'.")
                if "progress" in frame:
                    if on_progress is not None:
                        on_progress(frame["progress"])
                    continue
                answered = True
                return self._result(frame, verb)
        finally:
            self._busy = False
            if not answered:
                self.kill()

    def _result(self, frame: Mapping[str, Any], verb: str) -> dict[str, Any]:
        if "error" not in frame:
            return dict(frame.get("result") or {})
        error = frame["error"]
        raise WorkerFailed.from_frame(error if isinstance(error, Mapping) else {"message": str(error)}, verb)

    async def _send(self, value: Mapping[str, Any], verb: str) -> None:
        body = msgpack.packb(value, use_bin_type=True)
        if len(body) > FRAME_BYTES_MAX:
            raise NodeError(f"The request '{verb}' is {len(body):,} bytes; a frame holds at most {FRAME_BYTES_MAX:,}.",
                            next_step="Ask for less at once.")
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(len(body).to_bytes(4, "big") + body)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._died(verb)

    async def _receive(self, verb: str) -> dict[str, Any]:
        size = int.from_bytes(await self._exactly(4, verb), "big")
        if size > FRAME_BYTES_MAX:
            raise WorkerDied(f"The worker's answer to '{verb}' claims {size:,} bytes; at most {FRAME_BYTES_MAX:,} fit.")
        body = await self._exactly(size, verb)
        try:
            frame = msgpack.unpackb(body, raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise WorkerDied(f"The worker's answer to '{verb}' can't be read: {error}.") from error
        if not isinstance(frame, dict):
            raise WorkerDied(f"The worker's answer to '{verb}' is not a record.")
        return frame

    async def _exactly(self, size: int, verb: str) -> bytes:
        assert self._process.stdout is not None
        while len(self._received) < size:
            try:
                chunk = await self._process.stdout.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                chunk = b""
            if not chunk:
                await self._died(verb)
            self._received += chunk
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def _died(self, verb: str) -> None:
        """Raise what is known about a process that went away."""
        with trio.move_on_after(EXIT_WAIT_S) as waited:
            await self._process.wait()
        if waited.cancelled_caught:
            self.kill()
            raise WorkerDied(f"The worker for '{verb}' closed its pipe and hung; it was killed.{self._last_words()}")
        raise self._obituary(verb)

    def _obituary(self, verb: str) -> WorkerDied:
        status = self._process.returncode or 0
        if self._over_memory:
            return WorkerDied(
                f"'{verb}' needed more than the {_mib(self._memory_bytes_max)} that it may use and was stopped; "
                "nothing was changed.", next_step="Close other programs, or use a recipe that needs less memory.",
                code="E_WORKER_MEMORY")
        if status == -signal.SIGKILL:
            return WorkerDied(f"The worker for '{verb}' was killed, most likely because the machine ran out of memory; "
                              "nothing was changed.", next_step="Close other programs and run it again.",
                              code="E_WORKER_MEMORY")
        if status < 0:
            number = signal.Signals(-status)
            why = SIGNAL_NAMES.get(number, "was stopped by a signal")
            return WorkerDied(f"The worker for '{verb}' {why} ({number.name}); nothing was changed."
                              f"{self._last_words()}", next_step="Run it again; if it happens twice, set up anew.")
        return WorkerDied(f"The worker ended ({status}) before it answered '{verb}'.{self._last_words()}")

    def _last_words(self) -> str:
        lines = [line for line in self._stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        return f" Its last words: {lines[-1].strip()[:300]}" if lines else ""

    async def read_stderr(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for chunk in self._process.stderr:
                self._stderr += chunk
                del self._stderr[:-STDERR_TAIL_BYTES]

    async def watch_memory(self) -> None:
        """Kill the worker when its resident memory passes the limit. Linux only; elsewhere the resource limit holds."""
        statm = Path(f"/proc/{self._process.pid}/statm")
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        while True:
            try:
                resident = int(statm.read_text().split()[1]) * page_bytes
            except (OSError, IndexError, ValueError):
                return
            if resident > self._memory_bytes_max:
                self._over_memory = True
                self.kill()
                return
            await trio.sleep(MEMORY_CHECK_S)

    async def reap(self) -> None:
        """When the process ends, end what it started too: a child that holds the pipe would keep it open for ever."""
        await self._process.wait()
        self.kill()

    def kill(self) -> None:
        """End the process and all that it started, at once. Safe to repeat."""
        self._closed = True
        if self._group_ended:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # Once the leader is reaped its id may come to name another group: never signal it again.
        self._group_ended = self._process.returncode is not None

    async def close(self) -> None:
        """Let the worker end by itself (its stdin ends), then make sure that it has."""
        self._closed = True
        if self._process.stdin is not None:
            await self._process.stdin.aclose()
        if not self._busy:
            with trio.move_on_after(CLOSE_GRACE_S):
                await self._process.wait()
        self.kill()
        await self._process.wait()
        if self._process.stdout is not None:
            await self._process.stdout.aclose()


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


def default_memory_bytes_max(total_bytes: int, reserve_bytes: int = 512 * 1024 * 1024) -> int:
    """What a worker may use on this machine: all but a reserve for the agent and the system."""
    return max(total_bytes - reserve_bytes, total_bytes // 2)


__all__: Sequence[str] = ["ProcessCompute", "ProcessWorker", "default_memory_bytes_max"]
