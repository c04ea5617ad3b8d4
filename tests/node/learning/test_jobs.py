"""Jobs are durable, run one at a time, and their end is never missed. In virtual time over the in-memory disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest
import trio

from hinet_node.errors import IntegrityError, JobFailed, NoSpace, TryAgain, UsageError
from hinet_node.learning.jobs import ATTEMPTS_MAX, QUEUE_MAX, RECORDS_MAX, Job, Jobs, Running
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness


def jobs_on(disk: MemoryDisk, work: Any, seed: str = "jobs") -> Jobs:
    jobs = Jobs(disk, VirtualClock(), SeededRandomness(seed))
    jobs.kind("train", work)
    return jobs


async def count_to_three(running: Running) -> Mapping[str, Any]:
    for step in range(3):
        running.report({"step": step, "total": 3, "note": "counting"})
        await trio.sleep(1)
    running.evidence["counted"] = 3
    return {"answer": running.job.args.get("n", 0)}


async def for_ever(running: Running) -> Mapping[str, Any]:
    await trio.sleep_forever()
    return {}


def test_a_job_runs_to_its_end_and_its_record_says_so() -> None:
    disk = MemoryDisk()

    async def main() -> None:
        jobs = jobs_on(disk, count_to_three)
        async with trio.open_nursery() as nursery:
            await nursery.start(jobs.run)
            seen: list[int] = []
            job = await jobs.finish(jobs.submit("train", {"n": 7}).id, lambda p: seen.append(p.get("step", -1)))
            nursery.cancel_scope.cancel()
        assert job.result == {"answer": 7}
        assert job.evidence["counted"] == 3
        assert job.evidence["seconds"] == 3
        assert [step for step in seen if step >= 0] == [0, 1, 2]
        record = json.loads(disk.read(f"jobs/{job.id}/record.json"))
        assert (record["state"], record["result"], record["schema"]) == ("done", {"answer": 7}, "hinet.job/1")

    virtual_run(main)


def test_jobs_run_one_at_a_time_and_oldest_first() -> None:
    order: list[Any] = []

    async def work(running: Running) -> Mapping[str, Any]:
        order.append(("begins", running.job.args["n"]))
        await trio.sleep(5)
        order.append(("ends", running.job.args["n"]))
        return {}

    async def main() -> None:
        jobs = jobs_on(MemoryDisk(), work)
        names = [jobs.submit("train", {"n": n}).id for n in range(3)]
        async with trio.open_nursery() as nursery:
            await nursery.start(jobs.run)
            await jobs.finish(names[-1], lambda p: None)
            nursery.cancel_scope.cancel()

    virtual_run(main)
    assert order == [(word, n) for n in range(3) for word in ("begins", "ends")]


def test_an_interrupted_job_is_queued_again_and_its_folder_is_empty() -> None:
    disk = MemoryDisk()
    leftovers: list[bool] = []

    async def leaves_a_file(running: Running) -> Mapping[str, Any]:
        leftovers.append(disk.exists(f"{running.folder}/deep/half.bin"))
        disk.write_atomic(f"{running.folder}/deep/half.bin", b"half")
        await trio.sleep(100 if running.job.attempts == 1 else 0)
        return {"attempts": running.job.attempts}

    async def first() -> None:
        jobs = jobs_on(disk, leaves_a_file)
        jobs.submit("train", {})
        with trio.move_on_after(10):
            await jobs.run()

    async def second() -> Job:
        jobs = jobs_on(disk, leaves_a_file)
        async with trio.open_nursery() as nursery:
            await nursery.start(jobs.run)
            job = await jobs.finish("000001", lambda p: None)
            nursery.cancel_scope.cancel()
        return job

    virtual_run(first)
    disk.crash()
    job = virtual_run(second)
    assert job.result == {"attempts": 2}
    assert leftovers == [False, False]
    assert not disk.exists(f"jobs/{job.id}/work/deep/half.bin")


def test_a_job_that_takes_the_agent_down_every_time_is_given_up() -> None:
    disk = MemoryDisk()

    async def start_and_die(submit: bool) -> None:
        jobs = jobs_on(disk, for_ever)
        if submit:
            jobs.submit("train", {})
        with trio.move_on_after(1):
            await jobs.run()

    async def look() -> Job:
        jobs = jobs_on(disk, for_ever)
        jobs.load()
        (job,) = jobs.list()
        return job

    for attempt in range(ATTEMPTS_MAX):
        virtual_run(start_and_die, attempt == 0)
    job = virtual_run(look)
    assert job.state == "failed"
    assert job.error is not None
    assert job.error["code"] == "E_JOB_GIVEN_UP"


def test_a_failure_keeps_its_code_and_the_next_job_runs() -> None:
    async def work(running: Running) -> Mapping[str, Any]:
        if running.job.args["n"] == 0:
            raise IntegrityError("another base", next_step="import it", code="E_BASE_MISMATCH")
        if running.job.args["n"] == 1:
            raise ZeroDivisionError("our own bug")
        return {}

    async def main() -> None:
        jobs = jobs_on(MemoryDisk(), work)
        async with trio.open_nursery() as nursery:
            await nursery.start(jobs.run)
            with pytest.raises(JobFailed, match="another base") as caught:
                await jobs.finish(jobs.submit("train", {"n": 0}).id, lambda p: None)
            assert (caught.value.code, caught.value.exit_code) == ("E_BASE_MISMATCH", 7)
            assert caught.value.next_step == "import it"
            with pytest.raises(JobFailed, match="ZeroDivisionError"):
                await jobs.finish(jobs.submit("train", {"n": 1}).id, lambda p: None)
            assert (await jobs.finish(jobs.submit("train", {"n": 2}).id, lambda p: None)).state == "done"
            nursery.cancel_scope.cancel()

    virtual_run(main)


def test_cancelling_stops_a_running_job_and_drops_a_waiting_one() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        jobs = jobs_on(disk, for_ever)
        running, waiting = jobs.submit("train", {"n": 1}), jobs.submit("train", {"n": 2})
        async with trio.open_nursery() as nursery:
            await nursery.start(jobs.run)
            await trio.sleep(1)
            assert jobs.get(running.id).state == "running"
            assert jobs.cancel(waiting.id).state == "cancelled"
            jobs.cancel(running.id)
            with pytest.raises(JobFailed) as caught:
                await jobs.finish(running.id, lambda p: None)
            assert caught.value.exit_code == 130
            nursery.cancel_scope.cancel()
        assert json.loads(disk.read(f"jobs/{running.id}/record.json"))["state"] == "cancelled"

    virtual_run(main)


def test_the_same_job_is_not_queued_twice_and_the_queue_is_bounded() -> None:
    jobs = jobs_on(MemoryDisk(), for_ever)

    async def main() -> None:
        first = jobs.submit("train", {"n": 0})
        assert jobs.submit("train", {"n": 0}).id == first.id
        for n in range(1, QUEUE_MAX):
            jobs.submit("train", {"n": n})
        with pytest.raises(TryAgain) as caught:
            jobs.submit("train", {"n": QUEUE_MAX})
        assert caught.value.code == "E_QUEUE_FULL"

    virtual_run(main)


def test_a_full_disk_refuses_a_new_job_and_fails_a_running_one_without_harm() -> None:
    disk = MemoryDisk()

    async def fills_the_disk(running: Running) -> Mapping[str, Any]:
        disk.full = True
        disk.write_atomic(f"{running.folder}/x", b"1")
        return {}

    async def main() -> None:
        jobs = jobs_on(disk, fills_the_disk)
        async with trio.open_nursery() as nursery:
            await nursery.start(jobs.run)
            with pytest.raises(JobFailed) as caught:
                await jobs.finish(jobs.submit("train", {}).id, lambda p: None)
            assert (caught.value.code, caught.value.exit_code) == ("E_NO_SPACE", 8)
            with pytest.raises(NoSpace):
                jobs.submit("train", {"n": 1})
            assert len(jobs.list()) == 1
            nursery.cancel_scope.cancel()

    virtual_run(main)


def test_old_records_are_forgotten_and_a_damaged_one_is_passed_over() -> None:
    disk = MemoryDisk()

    async def nothing(running: Running) -> Mapping[str, Any]:
        return {}

    async def main() -> None:
        jobs = jobs_on(disk, nothing)
        async with trio.open_nursery() as nursery:
            await nursery.start(jobs.run)
            for n in range(RECORDS_MAX + 5):
                await jobs.finish(jobs.submit("train", {"n": n}).id, lambda p: None)
            nursery.cancel_scope.cancel()
        assert len(jobs.list()) <= RECORDS_MAX + 1
        disk.write_atomic(f"jobs/{jobs.list()[-1].id}/record.json", b"{torn")
        again = jobs_on(disk, nothing)
        again.load()
        assert len(again.list()) == len(jobs.list()) - 1

    virtual_run(main)


def test_a_watcher_that_sleeps_through_everything_still_sees_the_end() -> None:
    async def chatty(running: Running) -> Mapping[str, Any]:
        for step in range(1000):
            running.report({"step": step})
        return {}

    async def main() -> None:
        jobs = jobs_on(MemoryDisk(), chatty)
        job = jobs.submit("train", {})
        states: list[str] = []
        async with trio.open_nursery() as nursery:
            async with aclosing(jobs.watch(job.id)) as watched:
                async for state in watched:
                    if not states:
                        await nursery.start(jobs.run)
                    states.append(state.state)
                    await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert states[-1] == "done"

    virtual_run(main)


def test_an_unknown_job_is_a_usage_error() -> None:
    jobs = jobs_on(MemoryDisk(), for_ever)
    with pytest.raises(UsageError) as caught:
        jobs.get("nothing")
    assert caught.value.code == "E_NO_SUCH_JOB"
