"""Plays many jobs on all cores of this machine: worker processes, each with a time limit, each replaceable.

A worker that crashes or hangs is a finding of the job that it played. Leaves what a job is to `job`.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from hinet_simnet.runs.job import LINE_BYTES_MAX, Done, Job, done_of, limit_s, line_of, lost

AHEAD = 2
"""Jobs that are made ahead of the workers, for each worker: a source of jobs may be endless."""
LOOK_EVERY_S = 0.5


def cores() -> int:
    """How many workers fit: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One worker process, started when it gets its first job, and anew when the last one is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def play(self, job: Job) -> Done:
        """Give it the job and wait for the answer, or for the limit."""
        with self._lock:
            if self._closed:
                return lost(job, "interrupted", "stopped before it was played")
            if self._process is None or self._process.poll() is not None:
                self._process = _start()
            process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        deadline_s = time.monotonic() + limit_s(job)
        try:
            process.stdin.write(line_of(job))
            process.stdin.flush()
            answer = _line(process.stdout, deadline_s)
        except (OSError, ValueError):
            answer = b""
        if answer is None:
            self._end(process)
            return lost(job, "hang", f"the worker did not answer within {limit_s(job):.0f} s and was killed")
        if not answer.endswith(b"\n"):
            self._end(process)
            if self._closed:
                return lost(job, "interrupted", "stopped")
            return lost(job, "crash", f"the worker process {_ended(process.returncode)}")
        return done_of(job, json.loads(answer))

    def close(self) -> None:
        """End the process, whatever it does."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue  # bytes that the dead process will not read


def play_all(jobs: Iterable[Job], *, workers: int,
             over: Callable[[], bool] = lambda: False) -> Generator[Done, None, None]:
    """Play the jobs on so many workers and give each as it is done, in no order. Closing the iterator stops all, and
    so does `over`, without waiting for what is being played."""
    wanted: queue.Queue[Job | None] = queue.Queue(maxsize=max(1, workers * AHEAD))
    done: queue.Queue[Done] = queue.Queue()
    crew = [Worker() for _ in range(workers)]
    threads = [threading.Thread(target=_serve, args=(worker, wanted, done), daemon=True) for worker in crew]
    for thread in threads:
        thread.start()
    source, waiting, given = iter(jobs), 0, True
    try:
        while given or waiting:
            while given and not wanted.full():
                job = next(source, None)
                given = job is not None
                if job is not None:
                    wanted.put(job)
                    waiting += 1
            try:
                yield done.get(timeout=LOOK_EVERY_S)
                waiting -= 1
            except queue.Empty:
                if over():
                    return
    finally:
        for worker in crew:
            worker.close()
        while not wanted.empty():
            wanted.get_nowait()
        for _ in threads:
            wanted.put(None)
        for thread in threads:
            thread.join(10)


@contextmanager
def one_worker() -> Iterator[Callable[[Job], Done]]:
    """A single worker for jobs that come one after the other."""
    worker = Worker()
    try:
        yield worker.play
    finally:
        worker.close()


def _serve(worker: Worker, wanted: queue.Queue[Job | None], done: queue.Queue[Done]) -> None:
    while (job := wanted.get()) is not None:
        done.put(worker.play(job))


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([sys.executable, "-m", "hinet_simnet.runs.job"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, env=environment, bufsize=0, start_new_session=True)


def _line(stream: IO[bytes], deadline_s: float) -> bytes | None:
    """One line, or what came before the end; None when the time is over."""
    found = bytearray()
    while not found.endswith(b"\n"):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or len(found) > LINE_BYTES_MAX:
            return None
        if select.select([stream], [], [], min(left_s, 1.0))[0]:
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                break
            found += piece
    return bytes(found)


def _ended(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"was killed by signal {-returncode}"
    return f"ended with exit code {returncode}"
