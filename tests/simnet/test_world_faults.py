"""What a stage does to real agents: power cuts with torn writes, frozen and cloned devices, full disks, crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import trio

from hinet_node.errors import AgentNotRunning, NodeError, TryAgain
from hinet_simnet.scenario.model import Delay, DeviceSpec, LinkSpec
from hinet_simnet.stage import Stage
from hinet_simnet.trace import parse_line
from hinet_simnet.world import World, run_world

NAMES = ("cloud", "laptop", "pocket")


def devices(*names: str, household: str = "home") -> list[DeviceSpec]:
    return [DeviceSpec(name, household, tier="cloud" if name == "cloud" else "laptop", by="direct") for name in names]


async def meshed(world: World, *names: str, seconds: float = 300) -> None:
    await world.until(lambda: world.meshed(*names), seconds=seconds, every_s=1)


async def holds(world: World, name: str, file: str, content: bytes) -> bool:
    try:
        return bool((await world.call(name, "vault.get", name=file))["content"] == content)
    except NodeError:
        return False


def kinds(world: World, kind: str) -> list[tuple[str, dict[str, str]]]:
    """Node and fields of the trace's events of one kind."""
    return [(node, fields) for _, found, node, fields in map(parse_line, world.trace.lines) if found == kind]


def test_a_world_is_a_stage() -> None:
    wanted = {name for name in vars(Stage) if not name.startswith("_")}
    assert wanted <= set(dir(World)) | {"trace"}
    assert {"found", "join", "kill", "freeze", "cut", "tear", "lie"} <= set(World.supports())


def test_joined_direct_and_joined_by_code_are_the_same_household() -> None:
    async def story(world: World) -> None:
        await world.household(devices("cloud", "laptop"))
        await world.join(DeviceSpec("pocket", "home", tier="pocket"), by="cloud")
        await world.join(DeviceSpec("keeper", "home", role="keeper", by="direct"), by="cloud")
        await meshed(world, "cloud", "laptop", "pocket", "keeper")
        assert world.chains_agree("cloud", "laptop", "pocket", "keeper")
        await world.call("laptop", "vault.put", name="a", content=b"x")
        await world.until(lambda: holds(world, "pocket", "a", b"x"))
        roles = {row["name"]: row["role"] for row in (await world.call("cloud", "devices"))["devices"]}
        assert roles == {"cloud": "admin", "laptop": "member", "pocket": "member", "keeper": "keeper"}
        assert world.names() == ("cloud", "laptop", "pocket", "keeper")

    world = run_world(story, seed=1)
    assert ("laptop", "a") in [(node, fields["file"]) for node, fields in kinds(world, "ack")]
    assert {"opened"} == {fields["what"] for _, fields in kinds(world, "session")}


def test_households_share_an_internet_and_no_lan() -> None:
    async def story(world: World) -> None:
        await world.household(devices("cloud", "laptop"))
        await world.household(devices("other", "one", household="theirs"))
        await meshed(world, "cloud", "laptop")
        await meshed(world, "other", "one")
        await trio.sleep(300)
        assert not kinds(world, "crash")

    world = run_world(story)
    assert {(node, fields["to"]) for node, fields in kinds(world, "send")} == {
        ("cloud", "laptop"), ("laptop", "cloud"), ("other", "one"), ("one", "other")}


def test_a_lossy_slow_link_costs_time_and_no_file() -> None:
    async def story(world: World) -> None:
        world.set_link(LinkSpec(delay=Delay("lognormal", 0.05, 0.5), loss=0.05, duplicate=0.05, reorder=0.1,
                                rate_bytes_s=200_000))
        await world.found(DeviceSpec("cloud", "home"))
        await world.join(DeviceSpec("laptop", "home"), by="cloud")
        await meshed(world, "cloud", "laptop")
        content = os.urandom(4) * 250_000
        await world.call("laptop", "vault.put", name="a", content=content)
        await world.until(lambda: holds(world, "cloud", "a", content), seconds=600)

    run_world(story, seed=2)


def test_a_frozen_device_keeps_its_sessions_for_a_while_and_comes_back() -> None:
    async def story(world: World) -> None:
        await world.household(devices(*NAMES))
        await meshed(world, *NAMES)
        await world.freeze("laptop")
        assert world.running("laptop")
        with pytest.raises(TryAgain, match="frozen"):
            await world.call("laptop", "status")
        before = world.trace.messages
        await trio.sleep(15)
        assert world.meshed("cloud", "laptop"), "a short pause is not noticed"
        assert world.trace.messages > before
        await world.call("cloud", "vault.put", name="a", content=b"x")
        await trio.sleep(60)
        assert not world.meshed("cloud", "laptop"), "a long one is"
        await world.thaw("laptop")
        await meshed(world, *NAMES)
        await world.until(lambda: holds(world, "laptop", "a", b"x"))

    world = run_world(story, seed=3)
    frozen = [float(line.split()[0]) for line in world.trace.lines if " freeze " in line or " thaw " in line]
    said = [float(line.split()[0]) for line in world.trace.lines if " send laptop " in line]
    assert not [at_s for at_s in said if frozen[0] < at_s < frozen[1]], "nothing leaves a frozen device"


def test_one_way_cuts_end_sessions_on_both_sides_and_heal() -> None:
    async def story(world: World) -> None:
        await world.household(devices(*NAMES))
        await meshed(world, *NAMES)
        world.cut("cloud", "laptop")
        await trio.sleep(120)
        assert not world.meshed("cloud", "laptop")
        assert world.meshed("cloud", "pocket")
        world.heal()
        await meshed(world, *NAMES)

    run_world(story, seed=4)


def test_a_clone_is_seen_and_a_copied_disk_has_the_files() -> None:
    async def story(world: World) -> None:
        await world.household(devices(*NAMES))
        await meshed(world, *NAMES)
        await world.call("pocket", "vault.put", name="a", content=b"x")
        await world.clone("pocket", "copy")
        await trio.sleep(120)
        assert any("copied" in fields["line"] for _, fields in kinds(world, "log"))
        assert await holds(world, "copy", "a", b"x")

    run_world(story, seed=5)


def test_a_clone_is_refused_with_patience_and_the_original_is_back_soon_after_it_is_gone() -> None:
    async def story(world: World) -> None:
        await world.household(devices(*NAMES))
        await meshed(world, *NAMES)
        await world.clone("pocket", "copy")
        seen: list[str] = []
        world.trace.observers.append(
            lambda kind, node, fields: seen.append(node) if kind == "session" and fields["what"] != "closed" else None)
        await trio.sleep(3600)
        assert 60 < len(seen) < 1200, "four machines that try again about once a minute, not once a second"
        await world.kill("copy")
        await meshed(world, *NAMES)

    run_world(story, seed=5)


def test_a_device_that_crashes_while_it_is_frozen_starts_again() -> None:
    async def story(world: World) -> None:
        await world.household(devices(*NAMES))
        await meshed(world, *NAMES)
        machine = world.machines["laptop"]
        await world.freeze("laptop")

        async def planted() -> None:
            raise RuntimeError("planted")

        agent = world.running_agent("laptop")
        assert agent.peers._nursery is not None
        agent.peers._nursery.start_soon(planted)
        await trio.sleep(10)
        assert [crash.node for crash in world.crashes] == ["laptop"]
        assert not machine.frozen
        await world.start("laptop")
        await meshed(world, *NAMES)

    run_world(story, seed=8)


def test_an_admin_whose_disk_is_full_makes_the_due_epoch_when_there_is_room() -> None:
    async def story(world: World) -> None:
        await world.household([DeviceSpec(name, "home", role="admin", by="direct") for name in NAMES])
        await meshed(world, *NAMES)
        before = world.running_agent("laptop").membership.current_epoch()
        world.partition(["laptop"], ["cloud", "pocket"])
        revoked = world.running_agent("laptop").membership
        real, key = revoked.renew_epoch_if_needed, world.running_agent("pocket").membership.device_public
        revoked.renew_epoch_if_needed = lambda: False  # type: ignore[method-assign]
        revoked.revoke(key, "lost")  # as if the power had gone between the entry and the epoch
        world.fill_disk("laptop")
        revoked.renew_epoch_if_needed = real  # type: ignore[method-assign]
        await trio.sleep(200)
        assert world.running("laptop"), "a full disk ends no agent"
        assert not world.crashes
        assert world.running_agent("laptop").membership.current_epoch() == before
        world.free_disk("laptop")
        await trio.sleep(100)
        assert world.running_agent("laptop").membership.current_epoch() != before

    run_world(story, seed=9)


def test_a_full_disk_refuses_and_with_room_again_takes() -> None:
    async def story(world: World) -> None:
        await world.household(devices("cloud", "laptop"))
        await meshed(world, "cloud", "laptop")
        world.fill_disk("laptop", free_bytes=1000)
        with pytest.raises(NodeError) as caught:
            await world.call("laptop", "vault.put", name="a", content=os.urandom(1) * 300_000 + bytes(range(256)) * 9)
        assert caught.value.code == "E_NO_SPACE"
        world.free_disk("laptop")
        await world.call("laptop", "vault.put", name="a", content=b"x" * 300_000)
        assert not world.crashes

    world = run_world(story, seed=6)
    assert ("laptop", {"verb": "vault.put", "error": "E_NO_SPACE"}) in kinds(world, "call")


@pytest.mark.parametrize("seed", range(3))
def test_torn_writes_in_the_middle_of_a_transfer_lose_no_acknowledged_byte(seed: int) -> None:
    content = bytes(SEQUENCE := [(seed * 7 + number * number) % 251 for number in range(2_000)]) * 500

    async def story(world: World) -> None:
        assert SEQUENCE
        await world.household(devices("cloud", "laptop"))
        await meshed(world, "cloud", "laptop")
        world.set_link(LinkSpec(rate_bytes_s=20_000))
        await world.call("cloud", "vault.put", name="a", content=bytes(content))
        for _ in range(3):
            await trio.sleep(0.4 + seed * 0.3)
            world.tear("laptop", share=0.8)
            await world.kill("laptop")
            assert not world.running("laptop")
            with pytest.raises(AgentNotRunning):
                await world.call("laptop", "status")
            await world.start("laptop")
        await world.until(lambda: holds(world, "laptop", "a", bytes(content)), seconds=1200, every_s=5)

    run_world(story, seed=seed)


def test_a_killed_agent_writes_nothing_after_the_power_cut() -> None:
    async def story(world: World) -> None:
        await world.household(devices("cloud"))
        disk = world.machines["cloud"].disk
        await world.kill("cloud")
        disk.write_atomic("ghost", b"from a task that still ran")
        assert not world.machines["cloud"].disk.exists("ghost")
        await world.start("cloud")

    run_world(story)


def test_a_crash_is_a_finding_with_its_traceback_and_the_others_go_on() -> None:
    told: list[Any] = []

    async def story(world: World) -> None:
        world.on_crash.append(told.append)
        await world.household(devices(*NAMES))
        await meshed(world, *NAMES)

        def burst() -> Any:
            raise RuntimeError(f"a planted bug in {object()}")

        world.agent("laptop").peers._facts = burst  # type: ignore[union-attr]
        await world.kill("cloud")
        await world.start("cloud")  # a new session needs the laptop's facts
        await trio.sleep(30)
        assert not world.running("laptop")
        await meshed(world, "cloud", "pocket")
        await world.start("laptop")
        await meshed(world, *NAMES)

    world = run_world(story, seed=7)
    assert [(crash.checker, crash.node) for crash in world.crashes] == [("crash", "laptop")]
    assert world.crashes == told
    assert "RuntimeError: a planted bug in <object object at 0x…>" in world.crashes[0].message
    assert "hinet_node.sessions.peers" in world.crashes[0].traceback
    assert "/" not in world.crashes[0].traceback, "no paths: a trace is the same on every machine"
    assert [(node, fields["traceback"]) for node, fields in kinds(world, "crash")] == [
        ("laptop", world.crashes[0].traceback)]


def test_a_call_that_fails_unexpectedly_is_a_finding_and_its_agent_goes_on() -> None:
    async def story(world: World) -> None:
        await world.household(devices("cloud"))
        world.agent("cloud").vault.core = None  # type: ignore[union-attr,assignment]
        with pytest.raises(NodeError, match="AttributeError"):
            await world.call("cloud", "vault.put", name="a", content=b"x")
        assert [crash.node for crash in world.crashes] == ["cloud"]
        assert world.running("cloud")

    run_world(story)


def test_a_call_ends_when_its_agent_loses_power() -> None:
    async def story(world: World) -> None:
        await world.household(devices("cloud"))

        async def wait_for_somebody() -> None:
            with pytest.raises(AgentNotRunning, match="went away"):
                await world.call("cloud", "invite", role="member", accept=True)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_somebody)
                await trio.sleep(1)
                await world.kill("cloud")

    run_world(story)


def test_an_agent_that_can_not_start_says_why_and_is_no_crash() -> None:
    async def story(world: World) -> None:
        await world.household(devices("cloud"))
        await world.stop("cloud")
        world.machines["cloud"].disk.remove("chain/head")
        with pytest.raises(NodeError) as caught:
            await world.start("cloud")
        assert caught.value.code == "E_NOT_INITIALISED"
        assert not world.running("cloud")
        assert not world.crashes

    run_world(story)


def test_clocks_jump_and_drift() -> None:
    async def story(world: World) -> None:
        await world.found(DeviceSpec("cloud", "home", clock_drift=0.01))
        clock = world.machines["cloud"].clock
        begun_s = clock.now_unix_s()
        await trio.sleep(1000)
        assert clock.now_unix_s() - begun_s == pytest.approx(1010)
        world.set_clock("cloud", offset_s=-3600)
        assert clock.now_unix_s() - begun_s == pytest.approx(1010 - 3600)

    run_world(story)


def test_the_world_imports_no_transport_and_no_machine_learning() -> None:
    code = ("import sys, hinet_simnet.world, hinet_simnet.levels\n"
            "print([name for name in ('libp2p', 'zeroconf', 'torch', 'transformers', 'mlx', 'llama_cpp')"
            " if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout.strip() == "[]"
