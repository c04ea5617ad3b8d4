"""Durable jobs: long work that survives a restart, one at a time, with progress for whoever watches.

A job is a record `jobs/<id>/record.json` in the home, written through Disk before anything is done and after each
change of state. What a kind of job does is given by its owner (`learning`); its working folder `jobs/<id>/work` is
emptied when it ends. A job that was running when the agent went away is queued again at the next start, a bounded
number of times. SPEC section 8.3.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio
from blake3 import blake3

from hinet_node.errors import JobFailed, NodeError, NoSpace, TryAgain, UsageError
from hinet_node.foreign_errors import as_node_error
from hinet_node.ports import Clock, Disk, Randomness

QUEUE_MAX = 16
"""Jobs waiting or running; one more is refused."""
ATTEMPTS_MAX = 3
"""Starts of one job; a job that took the agent down with it this often is given up."""
RECORDS_MAX = 200
"""Ended jobs that are remembered; older ones are forgotten, oldest first."""

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
ENDED = frozenset({DONE, FAILED, CANCELLED})

FOLDER = "jobs"


@dataclass(frozen=True)
class Job:
    """One job as it stands. Times are Unix seconds by this device's clock, for display only."""

    id: str
    """`000007-train-1a2b3c`: the number orders jobs, the rest makes it unique on this device."""
    kind: str
    args: Mapping[str, Any]
    args_digest: str
    """BLAKE3 of the arguments (hex): equal jobs are not queued twice."""
    state: str
    created_unix_s: float
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    attempts: int = 0
    progress: Mapping[str, Any] = field(default_factory=dict)
    """The last progress value. Not durable: after a restart it is empty."""
    result: Mapping[str, Any] | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What the work measured of itself: counts, digests, seconds."""
    error: Mapping[str, Any] | None = None
    """`{code, exit_code, what, next}` of the failure."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "args": dict(self.args), "args_digest": self.args_digest,
                "state": self.state, "created_unix_s": self.created_unix_s, "started_unix_s": self.started_unix_s,
                "ended_unix_s": self.ended_unix_s, "attempts": self.attempts, "progress": dict(self.progress),
                "result": self.result, "evidence": dict(self.evidence), "error": self.error}


@dataclass
class Running:
    """What a job's work is given."""

    job: Job
    folder: str
    """Disk name of its working folder; emptied when the job ends, however it ends."""
    report: Callable[[Mapping[str, Any]], None]
    """Shows progress `{step, total, note}`; cheap, never blocks."""
    evidence: dict[str, Any]
    """Filled by the work; kept in the record, of a failed job too."""


Work = Callable[[Running], Awaitable[Mapping[str, Any]]]
"""`async def work(running) -> result`. Errors that a person should see are `NodeError`."""


class Jobs:
    """The jobs of one device. One runs at a time: training fills a machine."""

    def __init__(self, disk: Disk, clock: Clock, randomness: Randomness) -> None:
        self._disk = disk
        self._clock = clock
        self._randomness = randomness
        self._kinds: dict[str, Work] = {}
        self._jobs: dict[str, Job] = {}
        self._changed: dict[str, trio.Event] = {}
        self._wake = trio.Event()
        self._running: tuple[str, trio.CancelScope] | None = None
        self._loaded = False

    def kind(self, name: str, work: Work) -> None:
        """Say what jobs of this kind do. Before `run`."""
        assert name not in self._kinds, f"the job kind {name} is given twice"
        self._kinds[name] = work

    def load(self) -> None:
        """Read the records; a job that was running is queued again, or given up after `ATTEMPTS_MAX` starts."""
        self._loaded = True
        for job_id in self._disk.list(FOLDER):
            job = self._read(job_id)
            if job is None:
                continue
            self._jobs[job.id] = job
            if job.state != RUNNING:
                continue
            if job.attempts >= ATTEMPTS_MAX:
                self._save(replace(job, state=FAILED, ended_unix_s=self._clock.now_unix_s(), error=NodeError(
                    f"the {job.kind} job was started {job.attempts} times and never came to its end",
                    next_step=f"start it again by hand: hinet-node {job.kind}", code="E_JOB_GIVEN_UP").as_json()))
                self._empty(job.id)
            else:
                self._save(replace(job, state=QUEUED))

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Run queued jobs, oldest first, until cancelled. The job under way then stays `running` in its record."""
        if not self._loaded:
            self.load()
        task_status.started()
        while True:
            waiting = [job for job in self.list() if job.state == QUEUED]
            if waiting:
                await self._run_one(waiting[0])
            else:
                self._wake = trio.Event()
                await self._wake.wait()

    def submit(self, kind: str, args: Mapping[str, Any]) -> Job:
        """Queue a job, durably; one with the same kind and arguments that has not ended is returned instead.

        Errors: `TryAgain` E_QUEUE_FULL; `NoSpace` (nothing was queued).
        """
        assert kind in self._kinds, f"no work is known for jobs of the kind {kind}"
        digest = blake3(json.dumps([kind, args], sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        open_jobs = [job for job in self._jobs.values() if not job.ended]
        for job in open_jobs:
            if job.args_digest == digest:
                return job
        if len(open_jobs) >= QUEUE_MAX:
            raise TryAgain(f"{len(open_jobs)} jobs are waiting already, and no more are taken",
                           next_step="wait, or cancel one: hinet-node train --cancel JOB", code="E_QUEUE_FULL")
        number = 1 + max((int(job_id.partition("-")[0]) for job_id in self._jobs), default=0)
        job = Job(id=f"{number:06d}-{kind}-{self._randomness.draw(3).hex()}", kind=kind, args=dict(args),
                  args_digest=digest, state=QUEUED, created_unix_s=self._clock.now_unix_s())
        self._save(job)
        self._forget_old()
        self._wake.set()
        return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a job; a running one is stopped at once. Cancelling an ended one changes nothing."""
        job = self.get(job_id)
        if job.state == RUNNING and self._running is not None and self._running[0] == job.id:
            self._running[1].cancel()
        elif not job.ended:
            self._save(replace(job, state=CANCELLED, ended_unix_s=self._clock.now_unix_s()))
            self._empty(job.id)
        return self.get(job.id)

    def get(self, job_id: str) -> Job:
        """A job by its id or by a beginning that only one has. Errors: `UsageError` E_NO_SUCH_JOB."""
        found = [job for name, job in self._jobs.items() if name == job_id or (job_id and name.startswith(job_id))]
        if len(found) != 1:
            raise UsageError(f"there is no job {job_id!r}" if not found else f"{job_id!r} fits {len(found)} jobs",
                             next_step="hinet-node train --list", code="E_NO_SUCH_JOB")
        return found[0]

    def list(self) -> list[Job]:
        """All remembered jobs, oldest first."""
        return [self._jobs[name] for name in sorted(self._jobs)]

    async def watch(self, job_id: str) -> AsyncGenerator[Job, None]:
        """The job now and after each change, until it has ended. A slow watcher misses progress, never the end."""
        name = self.get(job_id).id
        while True:
            job = self._jobs[name]
            yield job
            if job.ended:
                return
            if self._jobs[name] is job:
                await self._changed.setdefault(name, trio.Event()).wait()

    async def finish(self, job_id: str, report: Callable[[Mapping[str, Any]], None]) -> Job:
        """Wait for a job's end, showing its progress. Errors: `JobFailed` with the cause's code and exit code."""
        async with aclosing(self.watch(job_id)) as states:
            async for job in states:
                if job.ended:
                    return _or_raise(job)
                report({"job": job.id, "state": job.state, **job.progress})
        raise AssertionError("a watch ends with the job")

    # ---- running -------------------------------------------------------------------------------------------------

    async def _run_one(self, job: Job) -> None:
        self._empty(job.id)
        job = self._save_or_remember(replace(job, state=RUNNING, attempts=job.attempts + 1, error=None, progress={},
                                             started_unix_s=self._clock.now_unix_s()))
        if job.ended:
            return
        running = Running(job=job, folder=f"{FOLDER}/{job.id}/work", evidence={},
                          report=lambda progress: self._progress(job.id, progress))
        outcome: dict[str, Any]
        with trio.CancelScope() as scope:
            self._running = (job.id, scope)
            try:
                result = await self._kinds[job.kind](running)
                outcome = {"state": DONE, "result": dict(result)}
            except Exception as error:  # whatever it is, it costs this job and not the agent
                outcome = {"state": FAILED, "error": as_node_error(error).as_json()}
            finally:
                self._running = None
        if scope.cancelled_caught:
            outcome = {"state": CANCELLED}
        started = job.started_unix_s or job.created_unix_s
        now = self._clock.now_unix_s()
        evidence = {**running.evidence, "seconds": round(max(0.0, now - started), 3)}
        self._save_or_remember(replace(self._jobs[job.id], ended_unix_s=now, evidence=_plain(evidence),
                                       **_plain(outcome)))
        self._empty(job.id)
        await trio.lowlevel.checkpoint()

    def _progress(self, job_id: str, progress: Mapping[str, Any]) -> None:
        self._remember(replace(self._jobs[job_id], progress=_plain(progress)))

    def _remember(self, job: Job) -> Job:
        """The job's new state, for those who ask or watch."""
        self._jobs[job.id] = job
        event = self._changed.pop(job.id, None)
        if event is not None:
            event.set()
        return job

    # ---- records -------------------------------------------------------------------------------------------------

    def _save(self, job: Job) -> Job:
        record = {**job.as_json(), "schema": "hinet.job/1", "progress": {}}
        self._disk.write_atomic(f"{FOLDER}/{job.id}/record.json", json.dumps(record, sort_keys=True).encode())
        return self._remember(job)

    def _save_or_remember(self, job: Job) -> Job:
        """Save; on a full disk keep the state in memory, so that the job is repeated after a restart."""
        try:
            return self._save(job)
        except NoSpace as error:
            failed = job if job.state == FAILED else replace(job, state=FAILED, error=error.as_json(), result=None)
            return self._remember(failed)

    def _read(self, job_id: str) -> Job | None:
        """A record, or None for a folder that holds none that can be read (it was never acknowledged)."""
        try:
            record = json.loads(self._disk.read(f"{FOLDER}/{job_id}/record.json"))
            names = Job.__dataclass_fields__
            job = Job(**{name: value for name, value in record.items() if name in names})
        except (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):
            return None
        maps = (job.args, job.progress, job.evidence, job.result or {}, job.error or {})
        whole = (type(job.attempts) is int and isinstance(job.kind, str) and isinstance(job.state, str)
                 and all(isinstance(one, dict) for one in maps))
        return job if whole and job.id == job_id and job_id.partition("-")[0].isdigit() else None

    def _empty(self, job_id: str) -> None:
        empty_folder(self._disk, f"{FOLDER}/{job_id}/work")

    def _forget_old(self) -> None:
        ended = [job.id for job in self.list() if job.ended]
        for job_id in ended[:max(0, len(ended) - RECORDS_MAX)]:
            self._disk.remove(f"{FOLDER}/{job_id}/record.json")
            del self._jobs[job_id]


def empty_folder(disk: Disk, folder: str) -> None:
    """Remove everything below a folder of the home, through the port; bare folders too where the disk is real."""
    for name in disk.list(folder):
        inner = f"{folder}/{name}"
        try:
            disk.remove(inner)
        except (IsADirectoryError, PermissionError):
            empty_folder(disk, inner)
    real = Path(disk.path(folder))
    if real.is_dir() and not real.is_symlink():
        shutil.rmtree(real, ignore_errors=True)


def _or_raise(job: Job) -> Job:
    if job.state == DONE:
        return job
    if job.state == CANCELLED:
        raise JobFailed(f"the job {job.id} was cancelled", next_step=f"hinet-node {job.kind}", code="E_CANCELLED",
                        exit_code=130)
    error = dict(job.error or {})
    raise JobFailed(str(error.get("what") or "the job failed"), next_step=error.get("next"), code=error.get("code"),
                    exit_code=int(error.get("exit_code") or 1))


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: bytes as hex, other numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
