"""Plays many jobs on a Ray cluster (the extra `simnet-ray`): the one file that imports Ray, and only when asked.

`RAY_ADDRESS` says which cluster; without it Ray starts on this machine. Each machine of a cluster needs the same
hinet-node. Leaves what a job is to `job`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterable
from dataclasses import asdict
from typing import Any

from hinet_node.errors import UsageError
from hinet_simnet.runs.job import Done, Job, done_of, limit_s, lost, work

AHEAD = 4
WAIT_S = 0.5


def play_all_on_ray(jobs: Iterable[Job], *, workers: int) -> Generator[Done, None, None]:
    """Play the jobs, each on one core of the cluster, and give each as it is done. `workers` bounds a local Ray."""
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        path = os.pathsep.join(path for path in sys.path if path)
        local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": {"PYTHONPATH": path}}, **local)
    try:
        yield from _play(ray, jobs, int(ray.cluster_resources().get("CPU", workers)) * AHEAD)
    finally:
        if ours:
            ray.shutdown()


def _play(ray: Any, jobs: Iterable[Job], at_once: int) -> Generator[Done, None, None]:
    task = ray.remote(num_cpus=1, max_retries=0, max_calls=64)(work)
    source, given = iter(jobs), True
    running: dict[Any, Job] = {}
    given_up_s: dict[Any, float] = {}
    while given or running:
        while given and len(running) < at_once:
            job = next(source, None)
            given = job is not None
            if job is not None:
                reference = task.remote(asdict(job))
                running[reference] = job
                given_up_s[reference] = time.monotonic() + limit_s(job) * AHEAD  # it may have to wait for its core
        ready, _ = ray.wait(list(running), timeout=WAIT_S) if running else ([], [])
        for reference in ready:
            given_up_s.pop(reference)
            yield _result(ray, reference, running.pop(reference))
        for reference in [one for one, at_s in given_up_s.items() if time.monotonic() > at_s]:
            ray.cancel(reference, force=True)
            given_up_s.pop(reference)
            yield lost(running.pop(reference), "hang", "the Ray task did not answer in time and was cancelled")


def _result(ray: Any, reference: Any, job: Job) -> Done:
    try:
        return done_of(job, ray.get(reference))
    except ray.exceptions.RayError as error:
        return lost(job, "crash", f"the Ray task ended: {type(error).__name__}: {str(error)[:2000]}")


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise UsageError("Ray is not installed here", next_step="pip install 'hinet-node[simnet-ray]', or leave out "
                                                                "--engine ray to use this machine's cores") from missing
    return ray
