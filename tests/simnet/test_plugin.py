"""The pytest plugin and the households in plain calls: replayed exactly, failing loudly, leaving nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.errors import AgentNotRunning, NodeError, NoSpace
from hinet_simnet import household as plain_household
from hinet_simnet.findings import Finding
from hinet_simnet.house import HouseholdFailed
from hinet_simnet.pytest_plugin import MakeHousehold
from hinet_simnet.stage import Stage
from hinet_simnet.steering import WorldEnded, WorldHangs

NAMES = ("cloud", "laptop", "pocket")


def simnet_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("simnet")]


def test_a_file_crosses_a_partition_once_it_heals(household: MakeHousehold) -> None:
    with household(*NAMES, seed=1) as h:
        h.until_meshed()
        h.partition(["cloud"], ["laptop", "pocket"])
        h.put("laptop", "notes/a.md", b"Bello is a beagle.")
        h.sleep(60)
        assert h.holds("pocket", "notes/a.md")
        assert not h.holds("cloud", "notes/a.md")
        h.heal()
        h.until_meshed()
        h.until(lambda: h.holds("cloud", "notes/a.md"))
        assert h.get("cloud", "notes/a.md") == b"Bello is a beagle."
        assert h.files("cloud") == ["notes/a.md"]


def test_the_world_stands_still_between_calls_so_real_time_changes_nothing(household: MakeHousehold) -> None:
    def story(seed: int, pause_s: float) -> str:
        with household(*NAMES, seed=seed, join="code") as h:
            h.until_meshed()
            time.sleep(pause_s)
            before = h.now_s()
            h.put("laptop", "a", b"1" * 100_000)
            time.sleep(pause_s)
            h.restart("pocket")
            h.until(lambda: h.holds("pocket", "a"))
            assert h.now_s() > before
            return str(h.digest())

    assert story(5, 0.0) == story(5, 0.3) != story(6, 0.0)


def test_every_fault_of_the_world_has_a_call(household: MakeHousehold) -> None:
    with household(*NAMES, seed=2) as h:
        h.until_meshed()
        h.freeze("pocket")
        with pytest.raises(NodeError, match="frozen"):
            h.call("pocket", "status")
        h.thaw("pocket")
        h.fill_disk("laptop")
        with pytest.raises(NoSpace):
            h.put("laptop", "big", b"x" * 500_000)
        h.free_disk("laptop")
        h.put("laptop", "big", b"x" * 500_000)
        h.kill("cloud")
        with pytest.raises(AgentNotRunning):
            h.agent("cloud")
        h.start("cloud")
        h.stop("pocket")
        h.start("pocket")
        h.until_meshed()
        h.add("desk", tier="laptop")
        h.add("stranger", household="next door")
        h.until_meshed("cloud", "desk")
        assert not h.meshed("cloud", "stranger")
        h.link("cloud", "laptop", delay_s=0.2, loss=0.1, rate_bytes_s=50_000)
        h.set_clock("desk", offset_s=86_400)
        h.cut("cloud", "desk")
        h.sleep(120)
        h.heal()
        h.tear("desk", share=1.0)
        h.clone("desk", "twin")
        h.sleep(60)
        h.revoke("desk")
        h.until(lambda: not h.agent("desk").peers.sessions)
        assert [device["name"] for device in h.call("cloud", "devices")["devices"] if device["state"] == "revoked"] == [
            "desk"]
        assert any("connected" in line for line in h.log("cloud"))
        assert all(line.split()[2] == "desk" for line in h.history("desk"))
        assert h.run(lambda world: world.until(lambda: world.running("cloud"))) == 0.0


def test_devices_take_tier_and_role_by_keyword(household: MakeHousehold) -> None:
    with household("cloud", "shelf", roles={"shelf": "keeper"}, tiers={"shelf": "cloud"}) as h:
        h.until_meshed()
        own = h.call("shelf", "status")["device"]
        assert (own["role"], own["tier"]) == ("keeper", "cloud")
        h.put("cloud", "a", "text")
        h.sleep(30)
        with pytest.raises(NodeError):
            h.get("shelf", "a")


def test_an_error_inside_the_world_comes_out_with_its_traceback(household: MakeHousehold) -> None:
    async def broken(world: Any) -> None:
        await trio.sleep(1)
        raise KeyError("deep inside")

    with household("cloud") as h:
        with pytest.raises(KeyError, match="deep inside") as caught:
            h.run(broken)
        assert "broken" in [entry.name for entry in caught.traceback]
        h.sleep(1)


def test_a_crashed_agent_fails_the_test_with_node_and_seed(household: MakeHousehold) -> None:
    async def crash(world: Any) -> None:
        def burst() -> Any:
            raise ZeroDivisionError("planted")

        world.running_agent("laptop").membership.chain = burst

    def story() -> None:
        with household("cloud", "laptop", seed=7) as h:
            h.until_meshed()
            h.run(crash)
            h.sleep(300)

    with pytest.raises(HouseholdFailed, match=r"(?s)seed 7.*on laptop.*planted") as caught:
        story()
    assert caught.value.findings[0].checker == "crash"
    assert "--simnet-seed 7" in str(caught.value.next_step)
    assert not simnet_threads()


class Grumbler:
    """A checker that is content once a file is on both devices, and finds fault with revocations."""

    name = "grumbler"

    def __init__(self) -> None:
        self.looked = 0

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        return [Finding(self.name, "somebody was killed", 0.0, node)] if kind == "kill" else []

    async def look(self, stage: Stage) -> Sequence[Finding]:
        self.looked += 1
        return []

    async def settled(self, stage: Stage) -> Sequence[str]:
        held = [len((await stage.call(name, "vault.ls"))["items"]) for name in stage.names()]
        return [] if held == [1, 1] else [f"they hold {held}"]


def test_the_block_ends_when_the_checkers_are_content(household: MakeHousehold) -> None:
    checker = Grumbler()
    with household("cloud", "laptop", checkers=[checker]) as h:
        h.partition(["cloud"], ["laptop"])
        h.stop("cloud")
        h.put("laptop", "a", b"x")
        h.sleep(25)
    assert checker.looked >= 3


def test_a_checkers_finding_fails_the_test_at_once_and_a_lasting_complaint_at_the_end(household: MakeHousehold) -> None:
    def kill() -> None:
        with household("cloud", "laptop", checkers=[Grumbler()]) as h:
            h.kill("laptop")
            pytest.fail("the finding did not end the block")

    with pytest.raises(HouseholdFailed, match=r"grumbler on laptop.*somebody was killed"):
        kill()
    with pytest.raises(HouseholdFailed, match=r"they hold \[0, 0\]"), \
            household("cloud", "laptop", checkers=[Grumbler()]):
        pass


def test_a_finding_that_the_block_mistook_for_another_error_is_raised_at_the_end(household: MakeHousehold) -> None:
    def story() -> None:
        with household("cloud", "laptop", checkers=[Grumbler()]) as h:
            with pytest.raises(NodeError):
                h.kill("laptop")
            h.put("cloud", "a", b"x")

    with pytest.raises(HouseholdFailed, match="somebody was killed"):
        story()


def test_an_exception_in_the_block_goes_through_and_ends_the_world() -> None:
    houses = []

    def story() -> None:
        with plain_household("cloud", "laptop", checkers=[Grumbler()]) as h:
            houses.append(h)
            h.sleep(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        story()
    assert not simnet_threads()
    with pytest.raises(WorldEnded):
        houses[0].sleep(1)


def test_ctrl_c_in_a_long_call_ends_the_program_at_once() -> None:
    code = ("import threading, os, signal\n"
            "from hinet_simnet import household\n"
            "with household('cloud', 'laptop') as h:\n"
            "    h.until_meshed()\n"
            "    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
            "    h.sleep(1e9)\n")
    begun_s = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert "KeyboardInterrupt" in ran.stderr
    assert "HouseholdFailed" not in ran.stderr
    assert ran.returncode != 0
    assert time.monotonic() - begun_s < 50, "thirty virtual years would take longer"


def test_two_worlds_at_once_do_not_disturb_each_other(household: MakeHousehold) -> None:
    def alone(seed: int) -> str:
        with household("cloud", "laptop", seed=seed) as h:
            h.until_meshed()
            h.put("laptop", "a", b"x")
            h.sleep(100)
            return str(h.digest())

    with household("cloud", "laptop", seed=1) as one, household("cloud", "laptop", seed=2) as two:
        one.until_meshed()
        two.until_meshed()
        one.put("laptop", "a", b"x")
        two.put("laptop", "a", b"x")
        one.sleep(100)
        two.sleep(100)
        together = [one.digest(), two.digest()]
    assert together == [alone(1), alone(2)]


def test_a_hang_becomes_a_failure_that_says_where(household: MakeHousehold) -> None:
    release = threading.Event()

    async def stuck(world: Any) -> None:
        release.wait(30)

    with household("cloud", patience_s=0.5, checkers=()) as h:
        threading.Timer(1.0, release.set).start()
        h.now_s()
        with pytest.raises(WorldHangs, match=r"(?s)seed 0.*in stuck"):
            h.run(stuck)
        with pytest.raises(WorldEnded):
            h.now_s()


def test_a_wait_for_what_never_happens_ends_in_virtual_time(household: MakeHousehold) -> None:
    with household("cloud") as h, pytest.raises(TimeoutError, match=r"60 virtual seconds \(seed 0\)"):
        h.until(lambda: h.holds("cloud", "nothing"), seconds=60, every_s=5)


SUITE = """
import pytest, sys

def test_quiet():
    loaded = [name for name in ("trio", "hinet_node", "hinet_simnet.house", "numpy", "libp2p") if name in sys.modules]
    assert not loaded, loaded

def test_ok(household):
    with household("cloud", "laptop", seed=3) as h:
        h.until_meshed()
        print("seed", h.seed)
    assert not [name for name in ("torch", "transformers", "libp2p", "zeroconf") if name in sys.modules]

def test_bad(household):
    with household("cloud", seed=3) as h:
        h.sleep(10)
        assert h.seed == "planted"
"""


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(SUITE)
    path = os.pathsep.join(part for part in sys.path if part.endswith(("protocol", "tiers", "node", "simnet")))
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider",
                           "-p", "hinet_simnet.pytest_plugin", *options, "test_suite.py"], cwd=folder,
                          capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


def test_a_failing_test_reports_its_seed_and_how_to_see_it_again(tmp_path: Path) -> None:
    ran = pytest_in(tmp_path)
    assert "1 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    assert 'again: pytest "test_suite.py::test_bad" --simnet-seed 3' in ran.stdout
    assert "seed 3, " in ran.stdout


def test_seeds_are_chosen_and_repeated_on_the_command_line(tmp_path: Path) -> None:
    ran = pytest_in(tmp_path, "--simnet-seed", "40", "--simnet-seeds", "3", "-k", "ok or bad")
    assert "3 failed, 3 passed" in ran.stdout, ran.stdout + ran.stderr
    assert [f"seed {seed}" in ran.stdout for seed in (3, 40, 41, 42, 43)] == [False, True, True, True, False]
    assert 'again: pytest "test_suite.py::test_bad" --simnet-seed 42' in ran.stdout
    refused = pytest_in(tmp_path, "--simnet-seeds", "0")
    assert refused.returncode == 4
    assert "between 1 and" in refused.stderr
