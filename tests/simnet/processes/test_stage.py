"""Real processes as a stage: in namespaces where the kernel permits them, else on loopback (each test prints which)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest
import trio

from hinet_node.errors import NodeError
from hinet_simnet.errors import NotAtThisLevel, SimnetError
from hinet_simnet.processes.folder import PREFIX, remove_leftovers
from hinet_simnet.processes.isolation import disk_refusal
from hinet_simnet.processes.realtime import RunClock
from hinet_simnet.processes.stage import ProcessStage, open_stage
from hinet_simnet.scenario.model import Delay, DeviceSpec, LinkSpec
from hinet_simnet.trace import Trace

PATIENCE_S = 120.0
"""For a busy machine; nothing here takes so long on a quiet one."""


def device(name: str, tier: str = "laptop", *, clock_offset_s: float = 0.0) -> DeviceSpec:
    return DeviceSpec(name, "home", tier, clock_offset_s=clock_offset_s)


def staged(play: Callable[[ProcessStage], Awaitable[None]], *, form: str | None = None, link: LinkSpec | None = None,
           small_disks: Collection[str] = ()) -> ProcessStage:
    """Play on a new stage and return it, closed."""
    stages: list[ProcessStage] = []

    async def main() -> None:
        async with open_stage(1, Trace(), form=form, link=link, small_disks=small_disks) as stage:
            print(f"form: {stage.form}")
            stages.append(stage)
            await play(stage)

    trio.run(main, clock=RunClock())
    return stages[0]


async def until(condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
    with trio.fail_after(patience_s):
        while not await condition():
            await trio.sleep(0.1)


async def files(stage: ProcessStage, name: str) -> list[str]:
    return [item["name"] for item in (await stage.call(name, "vault.ls"))["items"]]


async def put(stage: ProcessStage, name: str, file: str, content: bytes = b"content") -> None:
    await stage.call(name, "vault.put", name=file, content=content)


async def all_hold(stage: ProcessStage, *wanted: str, on: tuple[str, ...] = ()) -> bool:
    return all([set(wanted) <= set(await files(stage, name)) for name in on or stage.names()])


async def states(stage: ProcessStage, name: str) -> dict[str, str]:
    return {row["name"]: row["state"] for row in (await stage.call(name, "status"))["devices"]}


async def code_of(attempt: Awaitable[object]) -> str:
    """The code of the error that this ends with; "" when it does not fail."""
    try:
        await attempt
    except NodeError as error:
        return error.code
    return ""


def running_in(folder: str) -> list[int]:
    """Processes whose command line or home lies in that folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if folder.encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("form", [None, "loopback"])
def test_a_household_of_three_lives_through_a_partition_a_one_way_cut_and_a_freeze(form: str | None) -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(device("cloud", "cloud"))
        await stage.join(device("laptop"), by="cloud")  # by code, found by multicast DNS
        await stage.join(device("pocket", "pocket"), by="cloud")
        await put(stage, "pocket", "first")
        await until(lambda: all_hold(stage, "first"))

        stage.partition(["cloud", "laptop"], ["pocket"])
        await put(stage, "cloud", "apart")
        await put(stage, "pocket", "alone")
        await until(lambda: all_hold(stage, "apart", on=("laptop",)))
        assert await files(stage, "pocket") == ["alone", "first"]
        assert "alone" not in await files(stage, "cloud")
        stage.heal()
        await until(lambda: all_hold(stage, "first", "apart", "alone"))

        stage.cut("laptop", "*")
        await put(stage, "laptop", "unheard")
        await put(stage, "cloud", "beside")
        await until(lambda: all_hold(stage, "beside", on=("pocket",)))
        assert "unheard" not in await files(stage, "cloud") + await files(stage, "pocket")
        stage.heal()
        await until(lambda: all_hold(stage, "unheard"))

        await stage.freeze("pocket")
        assert stage.running("pocket")
        assert await code_of(stage.call("pocket", "status")) == "E_SIMNET"
        await put(stage, "laptop", "meanwhile")
        await until(lambda: all_hold(stage, "meanwhile", on=("cloud",)))
        await stage.thaw("pocket")
        await until(lambda: all_hold(stage, "meanwhile"))

    stage = staged(play, form=form)
    assert stage.crashes == []
    sent = [line for line in stage.trace.lines if " send pocket to=cloud on=bytes " in line]
    assert sent, "bytes per pair are in the trace"
    assert any(" session cloud what=opened peer=pocket" in line for line in stage.trace.lines)


@pytest.mark.slow
def test_a_device_that_stood_still_for_longer_than_a_session_lasts_comes_back_and_catches_up() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(device("cloud", "cloud"))
        await stage.join(device("laptop"), by="cloud")
        await stage.freeze("laptop")  # in the midst of its first announcement
        await put(stage, "cloud", "meanwhile")

        async def is_away() -> bool:
            return (await states(stage, "cloud"))["laptop"] != "connected"

        await trio.sleep(2)
        await until(is_away)
        await trio.sleep(13)  # longer than zeroconf's own patience
        await stage.thaw("laptop")
        await until(lambda: all_hold(stage, "meanwhile"))
        await trio.sleep(2)

    assert staged(play).crashes == []


def test_files_sync_over_a_slow_and_lossy_link_and_no_kill_loses_an_acknowledged_one() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(device("cloud", "cloud"))
        await stage.join(device("laptop"), by="cloud")
        acknowledged: list[str] = []
        for number in range(2):
            before = len(acknowledged)

            async def write(number: int = number) -> None:
                for part in range(1000):
                    name = f"{number}-{part}"
                    if await code_of(put(stage, "laptop", name, name.encode() * 100)):
                        return
                    acknowledged.append(name)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                while len(acknowledged) < before + 2:
                    await trio.sleep(0.001)
                await stage.kill("laptop")  # most likely in the midst of the third write
            await stage.start("laptop")
        assert acknowledged
        assert set(acknowledged) <= set(await files(stage, "laptop"))
        whole = await stage.call("laptop", "vault.get", name=acknowledged[-1])
        assert whole["content"] == acknowledged[-1].encode() * 100
        await until(lambda: all_hold(stage, *acknowledged, on=("cloud",)))

    stage = staged(play, link=LinkSpec(delay=Delay("constant", 0.3), loss=0.02))
    assert stage.crashes == []
    assert sum(" ack laptop file=" in line for line in stage.trace.lines) > 0


def test_a_full_disk_is_said_and_got_over_and_a_clock_a_day_off_is_warned_of() -> None:
    small = () if disk_refusal() else ("laptop",)

    async def play(stage: ProcessStage) -> None:
        await stage.found(device("cloud", "cloud"))
        await stage.join(device("laptop", clock_offset_s=86_400.0), by="cloud")

        async def warned() -> list[str]:
            return [row["what"] for row in (await stage.call("cloud", "status"))["warnings"]
                    if row["code"] == "E_CLOCK"]

        async def is_warned() -> bool:
            return any("laptop is 8640" in what or "laptop is 8639" in what for what in await warned())

        await until(is_warned)
        stage.set_clock("laptop", offset_s=0.0)  # at run time; a new session tells
        await stage.kill("laptop")
        await stage.start("laptop")

        async def is_well() -> bool:
            return (await states(stage, "cloud"))["laptop"] == "connected" and not await warned()

        await until(is_well)
        if not small:
            assert "fill_disk" not in stage.supports()
            with pytest.raises(NotAtThisLevel):
                stage.fill_disk("laptop")
            return
        await put(stage, "laptop", "before")
        stage.fill_disk("laptop", free_bytes=4096)
        assert await code_of(put(stage, "laptop", "too much", b"x" * 100_000)) == "E_NO_SPACE"
        assert await files(stage, "laptop") == ["before"]
        stage.free_disk("laptop")
        await put(stage, "laptop", "too much", b"x" * 100_000)
        await until(lambda: all_hold(stage, "before", "too much"))

    assert staged(play, small_disks=small).crashes == []


def test_an_agent_that_ends_by_itself_is_a_finding_and_a_clone_and_a_tear_are_what_they_say() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(device("cloud", "cloud"))
        await put(stage, "cloud", "mine")
        with pytest.raises(NotAtThisLevel):
            stage.tear("cloud", share=0.5)
        await stage.clone("cloud", "twin")
        assert await files(stage, "twin") == ["mine"]
        stage.devices["twin"].signal(signal.SIGSEGV)

        async def noticed() -> bool:
            return not stage.running("twin")

        await until(noticed)
        assert await code_of(stage.call("twin", "status")) == "E_AGENT_NOT_RUNNING"
        with pytest.raises(SimnetError, match="runs already"):
            await stage.start("cloud")
        await stage.stop("cloud")

    stage = staged(play)
    assert [(finding.checker, finding.node) for finding in stage.crashes] == [("crash", "twin")]
    assert "SIGSEGV" in stage.crashes[0].message
    assert stage.logs is not None
    logs = sorted(stage.logs.iterdir())
    assert len(logs) == 2
    assert "is ready" in logs[0].read_text()
    for log in logs:
        log.unlink()
    stage.logs.rmdir()
    assert not stage.folder.exists()


KILLED = """
import sys, trio
from hinet_simnet.processes.realtime import RunClock
from hinet_simnet.processes.stage import open_stage
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.trace import Trace
async def main():
    async with open_stage(1, Trace()) as stage:
        await stage.found(DeviceSpec("cloud", "home", "cloud"))
        await stage.freeze("cloud")
        print(stage.folder, flush=True)
        await trio.sleep(600)
trio.run(main, clock=RunClock())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_simulator_that_is_killed_or_interrupted_leaves_no_agent_not_even_a_frozen_one(number: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    assert run.stdout is not None
    folder = run.stdout.readline().strip()
    assert Path(folder).name.startswith(PREFIX)
    assert running_in(folder)
    run.send_signal(number)
    run.communicate(timeout=PATIENCE_S)
    deadline_s = time.monotonic() + PATIENCE_S
    while running_in(folder) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert running_in(folder) == []
    assert Path(folder).exists() == (number == signal.SIGKILL)
    remove_leftovers()
    assert not Path(folder).exists()
    assert folder not in Path("/proc/mounts").read_text()
    assert Path(folder).parent == Path(tempfile.gettempdir())
