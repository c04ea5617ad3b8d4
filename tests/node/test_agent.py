"""Whole agents over the in-memory ports, in virtual time: belonging, sharing, revoking, restarting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.agent import Agent
from hinet_node.belonging.join import Wanted, join_household, preflight
from hinet_node.belonging.membership import Membership, draw_root
from hinet_node.config import Config
from hinet_node.errors import NodeError, NotAuthorised, UsageError
from hinet_node.machine import Machine
from hinet_node.ports import Ports
from hinet_node.vault import VaultSettings
from hinet_protocol.invitations import parse_code
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.compute import FakeCompute
from hinet_simnet.discovery import Lan
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.network import Internet
from hinet_simnet.pytest_plugin import MakeHousehold
from hinet_simnet.randomness import SeededRandomness

SETTINGS = VaultSettings(chunk_bytes=1 << 16, pack_bytes=1 << 18, reserve_bytes=0, index_path=":memory:")
TIERS = {"cloud": "cloud", "laptop": "laptop", "pocket": "pocket", "store": "cloud"}


class House:
    """Agents of one household on one LAN."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.internet = Internet(7)
        self.lan = Lan(self.internet)
        self.disks: dict[str, MemoryDisk] = {}
        self.agents: dict[str, Agent] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.logs: dict[str, list[str]] = {}
        self._starts = 0

    def ports(self, name: str) -> Ports:
        self._starts += 1
        disk = self.disks.setdefault(name, MemoryDisk(name))
        return Ports(clock=VirtualClock(), randomness=SeededRandomness(7, f"{name} {self._starts}"), disk=disk,
                     network=self.internet.host(name), discovery=self.lan.host(name), compute=FakeCompute(disk))

    async def found(self, name: str = "cloud") -> Agent:
        ports = self.ports(name)
        Membership.found(ports.disk, ports.randomness, ports.clock, name=name, tier=TIERS[name],
                         root=draw_root(ports.randomness))
        return await self.start(name)

    async def start(self, name: str) -> Agent:
        ports = self.ports(name)
        membership = Membership.load(ports.disk, ports.randomness, ports.clock)
        log = self.logs.setdefault(name, [])
        agent = Agent(ports, membership, Config(name=name), listen=["/ip4/0.0.0.0/tcp/0"], log=log.append,
                      machine=Machine(("fake",), 1 << 30), version="test", vault_settings=SETTINGS)
        self.agents[name] = agent
        self.scopes[name] = trio.CancelScope()
        await self.nursery.start(self._run, name, agent)
        return agent

    async def _run(self, name: str, agent: Agent, *, task_status: Any) -> None:
        with self.scopes[name]:
            async with trio.open_nursery() as nursery:
                await nursery.start(agent.run)
                task_status.started()

    def kill(self, name: str) -> None:
        self.internet.kill(name)
        self.lan.kill(name)
        self.scopes[name].cancel()

    async def join(self, name: str, role: str = "member", by: str = "cloud") -> Agent:
        shown = await self.agents[by].api.dispatch("invite", {"role": role, "accept": True, "wait": False})
        ports = self.ports(name)
        keys = preflight(ports.disk, ports.randomness)
        await join_household(ports, keys, Wanted(parse_code(shown["code"]), name, TIERS[name]))
        return await self.start(name)

    async def call(self, who: str, verb: str, /, **args: Any) -> dict[str, Any]:
        return await self.agents[who].api.dispatch(verb, args)

    async def until(self, condition: Callable[[], Any], seconds: float = 120) -> None:
        with trio.fail_after(seconds):
            while not (await result if hasattr(result := condition(), "__await__") else result):
                await trio.sleep(0.2)

    def connected(self, *pairs: tuple[str, str]) -> Callable[[], bool]:
        return lambda: all(any(session.device.name == b for session in self.agents[a].peers.sessions)
                           for a, b in pairs)

    async def holds(self, name: str, files: int) -> bool:
        return len((await self.call(name, "vault.ls"))["items"]) == files


def in_house(test: Callable[[House], Any]) -> None:
    async def main() -> None:
        with trio.fail_after(3600):
            async with trio.open_nursery() as nursery:
                await test(House(nursery))
                nursery.cancel_scope.cancel()

    virtual_run(main, seed=7)


def test_three_devices_join_by_code_and_share_a_file_that_a_keeper_cannot_read() -> None:
    async def test(house: House) -> None:
        await house.found()
        await house.join("laptop")
        await house.join("store", "keeper")
        await house.until(house.connected(("cloud", "laptop"), ("store", "laptop"), ("cloud", "store")))
        await house.call("laptop", "vault.put", name="notes/dog.md", content=b"Bello is a beagle.")
        await house.until(lambda: house.holds("cloud", 1))
        assert (await house.call("cloud", "vault.get", name="notes/dog.md"))["content"] == b"Bello is a beagle."
        packs = (await house.call("cloud", "vault.status"))["packs"]
        await house.until(lambda: _packs(house, "store", packs))
        with pytest.raises(NodeError):
            await house.call("store", "vault.get", name="notes/dog.md")
        kept = b"".join(house.disks["store"]._files.values())
        assert b"Bello" not in kept
        assert b"dog.md" not in kept
        assert (await house.call("store", "vault.verify"))["ok"]

    in_house(test)


async def _packs(house: House, name: str, packs: int) -> bool:
    return bool((await house.call(name, "vault.status"))["packs"] >= packs)


def test_status_shows_who_is_there_and_what_they_can_do() -> None:
    async def test(house: House) -> None:
        await house.found()
        await house.join("laptop")
        await house.until(house.connected(("cloud", "laptop"), ("laptop", "cloud")))
        found = await house.call("laptop", "status")
        assert found["agent"]["running"]
        assert (found["device"]["name"], found["device"]["role"]) == ("laptop", "member")
        states = {device["name"]: device for device in found["devices"]}
        assert states["laptop"]["state"] == "this"
        assert (states["cloud"]["state"], states["cloud"]["tier"]) == ("connected", "cloud")
        assert (states["cloud"]["backends"], states["cloud"]["memory_bytes"]) == (["fake"], 1 << 30)
        house.kill("cloud")
        await house.until(lambda: not house.agents["laptop"].peers.sessions)
        states = {device["name"]: device for device in (await house.call("laptop", "devices"))["devices"]}
        assert states["cloud"]["state"] == "away"
        assert states["cloud"]["last_seen_unix_s"] is not None
        assert any("cloud left" in line for line in house.logs["laptop"])

    in_house(test)


def test_status_waits_for_nobody(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "pocket", join="code", seed=7) as h:
        h.until_meshed()
        h.freeze("laptop")
        h.partition(["cloud"], ["laptop", "pocket"])
        begun_s = h.now_s()
        found = h.call("cloud", "status")
        h.call("cloud", "devices")
        assert h.now_s() == begun_s, "not a moment of virtual time went by"
        assert {device["state"] for device in found["devices"]} == {"this", "connected"}
        h.thaw("laptop")
        h.heal()
        h.until_meshed()


def test_a_revoked_device_is_cut_off_and_reads_nothing_new() -> None:
    async def test(house: House) -> None:
        await house.found()
        for name in ("laptop", "pocket"):
            await house.join(name)
        await house.until(house.connected(("cloud", "laptop"), ("cloud", "pocket"), ("laptop", "pocket")))
        with pytest.raises(NotAuthorised):
            await house.call("laptop", "device.revoke", device="pocket")
        plan = await house.call("cloud", "device.revoke", device="pocket", dry_run=True)
        assert (plan["done"], plan["remaining"]) == (False, ["cloud", "laptop"])
        done = await house.call("cloud", "device.revoke", device="pocket", reason="left in a train")
        assert (done["told"], done["not_told"]) == (["laptop"], [])
        await house.until(lambda: not house.agents["pocket"].peers.sessions, 5)
        await house.call("laptop", "vault.put", name="secret.md", content=b"new")
        await house.until(lambda: house.holds("cloud", 1))
        await trio.sleep(60)
        assert not house.agents["pocket"].peers.sessions
        assert await house.holds("pocket", 0)
        gone = {device["name"]: device for device in (await house.call("laptop", "devices"))["devices"]}["pocket"]
        assert (gone["state"], gone["revoke_reason"]) == ("revoked", "left in a train")

    in_house(test)


def test_nobody_revokes_itself_or_a_device_that_is_not_there() -> None:
    async def test(house: House) -> None:
        await house.found()
        with pytest.raises(NotAuthorised, match="itself"):
            await house.call("cloud", "device.revoke", device="cloud")
        with pytest.raises(UsageError, match="no device"):
            await house.call("cloud", "device.revoke", device="toaster")

    in_house(test)


def test_a_killed_agent_starts_again_with_all_that_it_had(household: MakeHousehold) -> None:
    with household("cloud", "laptop", join="code", seed=7) as h:
        h.until_meshed()
        h.put("laptop", "a", b"1" * 100_000)
        h.restart("laptop")
        h.until_meshed()
        h.until(lambda: h.holds("cloud", "a"))
        assert h.get("laptop", "a") == b"1" * 100_000


def test_two_admins_that_learn_of_a_revocation_agree_on_one_epoch(household: MakeHousehold) -> None:
    with household("cloud", "laptop", "pocket", roles={"laptop": "admin"}, join="code", seed=7) as h:
        h.until_meshed()
        h.revoke("pocket", by="laptop")
        h.sleep(60)
        cloud, laptop = h.agent("cloud").membership, h.agent("laptop").membership
        assert cloud.chain() == laptop.chain()
        assert cloud.current_epoch() == laptop.current_epoch() is not None
        assert len(cloud.chain().epoch_tips) == 1
        assert cloud.current_epoch() not in h.agent("pocket").membership.epoch_keys()


def test_files_and_folders_get_their_names_and_links_are_left_out(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / "dog.md").write_text("Bello")
    (notes / "deep" / "cat.md").write_text("Minka")
    (notes / "out").symlink_to("/etc/passwd")

    async def test(house: House) -> None:
        await house.found()
        progress: list[Mapping[str, Any]] = []
        done = await house.agents["cloud"].api.dispatch("vault.add", {"paths": [str(notes)]}, progress.append)
        assert (done["files"], done["bytes"]) == (2, 10)
        assert done["skipped"] == [str(notes / "out")]
        assert [item["name"] for item in (await house.call("cloud", "vault.ls"))["items"]] == [
            "notes/deep/cat.md", "notes/dog.md"]
        await house.call("cloud", "vault.get", name="notes", to=str(tmp_path / "copy"))
        assert (tmp_path / "copy" / "notes" / "deep" / "cat.md").read_text() == "Minka"
        await house.call("cloud", "vault.get", name="notes/dog.md", to=str(tmp_path / "dog"))
        assert (tmp_path / "dog").read_text() == "Bello"
        for verb, args in (("vault.get", {"name": "nothing"}), ("vault.get", {"name": "nothing", "to": "/x"}),
                           ("vault.add", {"paths": [str(tmp_path / "nowhere")]}), ("vault.add", {"paths": []}),
                           ("vault.put", {"name": ".hinet/x", "content": b""}),
                           ("vault.add", {"paths": [str(notes)], "under": ".hinet"})):
            with pytest.raises(UsageError):
                await house.call("cloud", verb, **args)

    in_house(test)


def test_long_lists_come_in_pages() -> None:
    async def test(house: House) -> None:
        await house.found()
        for number in range(5):
            await house.call("cloud", "vault.put", name=f"{number}", content=b"x")
        first = await house.call("cloud", "vault.ls", limit=3)
        rest = await house.call("cloud", "vault.ls", limit=3, after=first["items"][-1]["name"])
        assert [item["name"] for item in first["items"] + rest["items"]] == list("01234")
        assert (first["more"], rest["more"]) == (True, False)

    in_house(test)


def test_a_copied_home_is_shown_as_a_conflict(household: MakeHousehold) -> None:
    with household("cloud", "laptop", join="code", seed=7) as h:
        h.until_meshed()
        h.clone("laptop", "copy")
        h.until(lambda: h.agent("cloud").clones)
        warnings = h.call("cloud", "status")["warnings"]
        assert [(one["code"], "'laptop'" in one["what"]) for one in warnings] == [("E_CLONE", True)]
        assert "--rekey" in warnings[0]["next"]


def test_a_wrong_clock_is_a_warning_and_nothing_worse() -> None:
    async def test(house: House) -> None:
        await house.found()
        await house.join("laptop")
        house.kill("laptop")
        await trio.sleep(1)
        await house.start("laptop")
        await house.until(house.connected(("cloud", "laptop"), ("laptop", "cloud")))
        assert not (await house.call("cloud", "status"))["warnings"]
        clock = house.agents["cloud"].ports.clock
        assert isinstance(clock, VirtualClock)
        clock.offset_s = 86_400
        house.kill("laptop")
        await house.until(lambda: not house.agents["cloud"].peers.sessions)
        await house.start("laptop")
        await house.until(house.connected(("cloud", "laptop"), ("laptop", "cloud")))
        warnings = (await house.call("cloud", "status"))["warnings"]
        assert [one["code"] for one in warnings] == ["E_CLOCK"]
        assert "behind ours" in warnings[0]["what"]

    in_house(test)


def test_an_agent_that_stops_says_goodbye(household: MakeHousehold) -> None:
    with household("cloud", "laptop", join="code", seed=7) as h:
        h.until_meshed()
        h.call("laptop", "agent.stop")
        h.until(lambda: not h.agent("cloud").peers.sessions)
        [said] = [line for line in h.log("cloud") if line.startswith("laptop left: ")]
        assert said == "laptop left: the other side said goodbye"
