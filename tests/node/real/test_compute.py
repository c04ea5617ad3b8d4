"""Workers as processes: answers, progress, crashes, limits, and that nothing outlives its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import trio

from hinet_node.errors import NodeError, WorkerDied, WorkerFailed
from hinet_node.real.compute import ProcessCompute, default_memory_bytes_max

HERE = Path(__file__).parent


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> ProcessCompute:
    monkeypatch.syspath_prepend(str(HERE))
    return ProcessCompute(module="rough_worker")


def alive(process_id: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone_within(process_id: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not alive(process_id):
            return True
        time.sleep(0.02)
    return False


def test_a_call_returns_the_result_and_shows_progress_in_order(compute: ProcessCompute) -> None:
    async def main() -> None:
        steps: list[int] = []
        async with compute.worker() as worker:
            result = await worker.call("echo", {"steps": 3, "text": "å"}, on_progress=lambda p: steps.append(p["step"]))
            again = await worker.call("echo", {"text": "again"})
        assert result["said"] == {"steps": 3, "text": "å"}
        assert steps == [0, 1, 2]
        assert again["pid"] == result["pid"], "one process serves many calls"
        assert result["wait"] == "PASSIVE"
        assert not alive(result["pid"])

    trio.run(main)


def test_a_workers_own_error_keeps_its_code_and_the_worker_goes_on(compute: ProcessCompute) -> None:
    async def main() -> None:
        async with compute.worker() as worker:
            with pytest.raises(WorkerFailed, match="other base") as caught:
                await worker.call("refuse", {})
            assert (caught.value.code, caught.value.exit_code) == ("E_BASE_MISMATCH", 7)
            assert (await worker.call("echo", {"n": 1}))["said"] == {"n": 1}

    trio.run(main)


@pytest.mark.parametrize(("name", "words"), [("SIGSEGV", "not its own"), ("SIGABRT", "aborted itself")])
def test_a_crash_is_one_clear_error(compute: ProcessCompute, name: str, words: str) -> None:
    async def main() -> None:
        async with compute.worker() as worker:
            with pytest.raises(WorkerDied, match=words) as caught:
                await worker.call("crash", {"signal": name})
            assert caught.value.code == "E_WORKER_DIED"
            assert "about to go" in caught.value.what
            with pytest.raises(WorkerDied, match="already gone"):
                await worker.call("echo", {})

    trio.run(main)


def test_a_kill_from_outside_is_told_as_lack_of_memory(compute: ProcessCompute) -> None:
    async def main() -> None:
        async with compute.worker() as worker:
            with pytest.raises(WorkerDied) as caught:
                await worker.call("crash", {"signal": "SIGKILL"})
            assert caught.value.code == "E_WORKER_MEMORY"

    trio.run(main)


def test_an_early_end_and_a_garbled_pipe_are_errors(compute: ProcessCompute) -> None:
    async def main() -> None:
        async with compute.worker() as worker:
            with pytest.raises(WorkerDied, match=r"ended \(3\)"):
                await worker.call("leave", {})
        async with compute.worker() as worker:
            with pytest.raises(WorkerDied, match="4,294,967,295 bytes"):
                await worker.call("garble", {})

    trio.run(main)


def test_a_memory_limit_costs_the_worker_only(compute: ProcessCompute) -> None:
    async def main() -> None:
        async with compute.worker(memory_bytes_max=150 * 2**20) as worker:
            with pytest.raises(WorkerDied, match="150 MiB") as caught:
                await worker.call("hoard", {})
            assert caught.value.code == "E_WORKER_MEMORY"

    trio.run(main)


def test_cancelling_a_call_kills_the_worker_and_what_it_started(compute: ProcessCompute) -> None:
    seen: dict[str, int] = {}

    async def main() -> None:
        async with compute.worker() as worker:
            with trio.move_on_after(30) as scope:
                await worker.call("child", {}, on_progress=lambda p: (seen.update(p), scope.cancel()))
            assert scope.cancelled_caught
        assert gone_within(seen["own"], 5)
        assert gone_within(seen["child"], 5)

    trio.run(main)


def test_a_child_that_holds_the_pipe_does_not_hang_the_call(compute: ProcessCompute) -> None:
    seen: dict[str, int] = {}

    async def main() -> None:
        with trio.fail_after(20):
            async with compute.worker() as worker:
                with pytest.raises(WorkerDied):
                    await worker.call("orphan", {}, on_progress=seen.update)
        assert gone_within(seen["child"], 5)

    trio.run(main)


def test_no_worker_outlives_an_agent_that_is_killed(tmp_path: Path) -> None:
    agent = textwrap.dedent("""
        import sys, trio
        from hinet_node.real.compute import ProcessCompute
        async def main():
            async with ProcessCompute(module="rough_worker").worker() as worker:
                await worker.call("child", {}, on_progress=lambda p: print(p["own"], p["child"], flush=True))
        trio.run(main)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *(entry for entry in sys.path if entry)])}
    process = subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    own, child = (int(word) for word in process.stdout.readline().split())
    assert alive(own)
    assert alive(child)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gone_within(own, 5)
    assert gone_within(child, 5)


def test_a_request_too_large_for_a_frame_is_refused_before_it_is_sent(compute: ProcessCompute) -> None:
    async def main() -> None:
        async with compute.worker() as worker:
            with pytest.raises(NodeError, match="a frame holds at most"):
                await worker.call("echo", {"text": "x" * 2**21})

    trio.run(main)


def test_an_error_leaves_the_worker_as_itself_and_not_as_a_group(compute: ProcessCompute) -> None:
    async def main() -> None:
        with pytest.raises(WorkerFailed, match="other base"):
            async with compute.worker() as worker:
                await worker.call("refuse", {})

    trio.run(main)


def test_the_default_limit_leaves_a_reserve() -> None:
    assert default_memory_bytes_max(8 * 2**30) == 8 * 2**30 - 512 * 2**20
    assert default_memory_bytes_max(512 * 2**20) == 256 * 2**20
