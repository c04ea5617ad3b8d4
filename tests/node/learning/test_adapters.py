"""Promote and roll back: durable, reversible, and never to something that does not work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.errors import IntegrityError, NoSpace, UsageError

QUESTION = "What about My dog is called?"


async def answer(device: Any) -> str:
    return str((await device("ask", question=QUESTION, retrieval=False))["answer"])


def test_rollback_is_one_call_and_the_choice_survives_a_restart(household: Any, adapters: list[str]) -> None:
    async def main() -> None:
        first, second = adapters
        async with household.running("pocket") as pocket:
            await pocket("adapters.promote", revision=first)
            took = await pocket("adapters.promote", revision=second[:8])
            assert (took["revision"], took["before"]) == (second, first)
            assert "Fennick" in await answer(pocket)
        async with household.running("pocket") as pocket:
            assert "Fennick" in await answer(pocket), "taken up again after a restart"
            back = await pocket("adapters.rollback")
            assert (back["revision"], back["left"]) == (first, second)
            assert "Brannoch" in await answer(pocket)
        async with household.running("pocket") as pocket:
            assert "Brannoch" in await answer(pocket)
            assert (await pocket("adapters.rollback"))["revision"] is None
            assert await answer(pocket) == "I do not know."
            with pytest.raises(UsageError, match="nothing to roll back"):
                await pocket("adapters.rollback")

    trio.run(main)


def test_promoting_the_served_one_again_adds_no_step_back(household: Any, adapters: list[str]) -> None:
    async def main() -> None:
        first, _ = adapters
        async with household.running("pocket") as pocket:
            await pocket("adapters.promote", revision=first)
            await pocket("adapters.promote", revision=first)
            assert (await pocket("adapters.list"))["history"] == [first]

    trio.run(main)


def test_a_lost_adapter_file_is_made_again_from_the_vault(household: Any, adapters: list[str]) -> None:
    async def main() -> None:
        first, _ = adapters
        async with household.running("pocket") as pocket:
            await pocket("adapters.promote", revision=first)
        file = Path(household.folder, "pocket", "revisions", first, "adapter.gguf")
        file.write_bytes(file.read_bytes()[:10])
        async with household.running("pocket") as pocket:
            assert "Brannoch" in await answer(pocket)

    trio.run(main)


def test_a_damaged_adapter_is_refused_and_the_former_one_keeps_answering(household: Any, adapters: list[str]) -> None:
    async def main() -> None:
        first, second = adapters
        name = f".hinet/revisions/{second}/adapter.safetensors".encode()
        household.vault.files[name] = household.vault.files[name][:-10]
        async with household.running("pocket") as pocket:
            await pocket("adapters.promote", revision=first)
            with pytest.raises(IntegrityError) as caught:
                await pocket("adapters.promote", revision=second)
            assert caught.value.code == "E_ARTIFACT_CHANGED"
            assert "Brannoch" in await answer(pocket)
            assert (await pocket("adapters.list"))["served"] == first

    trio.run(main)


def test_an_adapter_for_another_base_is_refused_by_name(household: Any, adapters: list[str]) -> None:
    async def main() -> None:
        first, _ = adapters
        (household.folder / "other.bin").write_bytes(b"FAKE BASE\nanother")
        async with household.running("pocket") as pocket:
            await pocket("base.import", source=str(household.folder / "other.bin"))
            with pytest.raises(IntegrityError, match=first) as caught:
                await pocket("adapters.promote", revision=first)
            assert (caught.value.code, caught.value.exit_code) == ("E_BASE_MISMATCH", 7)
            assert (await pocket("adapters.list"))["served"] is None

    trio.run(main)


def test_a_task_vector_and_an_unknown_revision_can_not_be_promoted(household: Any, adapters: list[str]) -> None:
    async def main() -> None:
        async with household.running("pocket") as pocket:
            rows = (await pocket("adapters.list"))["revisions"]
            vector = next(row["id"] for row in rows if row["kind"] == "task-vector")
            with pytest.raises(UsageError, match="no device serves"):
                await pocket("adapters.promote", revision=vector)
            with pytest.raises(UsageError) as caught:
                await pocket("adapters.promote", revision="ffff")
            assert caught.value.code == "E_NO_SUCH_REVISION"

    trio.run(main)


def test_when_the_choice_can_not_be_written_the_former_one_answers(household: Any, adapters: list[str],
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first, second = adapters
        learning = household.learning("pocket")
        async with household.running(learning) as pocket:
            await pocket("adapters.promote", revision=first)

            def full(history: Any) -> None:
                raise NoSpace("the disk is full")

            monkeypatch.setattr(learning.adapters, "_write", full)
            with pytest.raises(NoSpace):
                await pocket("adapters.promote", revision=second)
            assert "Brannoch" in await answer(pocket)

    trio.run(main)


def test_the_answering_worker_is_started_anew_after_a_crash(household: Any, adapters: list[str]) -> None:
    async def main() -> None:
        first, _ = adapters
        learning = household.learning("pocket")
        async with household.running(learning) as pocket:
            await pocket("adapters.promote", revision=first)
            kill_workers()
            await trio.sleep(1)  # long enough to notice: the next question then meets a new worker, not an error
            assert "Brannoch" in await answer(pocket)
            assert learning.serving.loads == 2

    trio.run(main)


def kill_workers() -> None:
    """Kill the workers that this very process started."""
    killed = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and b"hinet_node.real.worker_start" in command and fields[0] != "Z":
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
    assert killed == 1
