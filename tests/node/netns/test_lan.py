"""Real agents on LANs as they are: no route, IPv6 only, decoys, no multicast, changing addresses, sleeping machines.

Each device has a network namespace of its own; a userspace switch is the wire. Every scenario ends where an owner would
look: the name in `devices --json`, with an open session.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import trio

from hinet_node.errors import NodeError
from hinet_simnet.processes.device import Device
from hinet_simnet.processes.isolation import enter
from hinet_simnet.processes.realtime import RunClock
from hinet_simnet.processes.stage import ProcessStage, open_stage
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.trace import Trace

PATIENCE_S = 120.0
"""For a busy machine; nothing here takes so long on a quiet one."""
FIRST, SECOND = DeviceSpec("first", "home", "cloud"), DeviceSpec("second", "home", "laptop")
THIRD = DeviceSpec("third", "home", "pocket")


def staged(play: Callable[[ProcessStage], Awaitable[None]]) -> ProcessStage:
    """Play on a new stage, whose agents must not end by themselves, and return it, closed."""
    stages: list[ProcessStage] = []

    async def main() -> None:
        async with open_stage(1, Trace(), form="namespaces") as stage:
            stages.append(stage)
            await play(stage)

    trio.run(main, clock=RunClock())
    assert stages[0].crashes == []
    return stages[0]


async def until(condition: Callable[[], Awaitable[bool]]) -> float:
    """How long it took, in seconds."""
    begun_s = trio.current_time()
    with trio.fail_after(PATIENCE_S):
        while not await condition():
            await trio.sleep(0.1)
    return trio.current_time() - begun_s


async def ip(device: Device, *commands: str) -> None:
    """`ip COMMAND` in the device's network."""
    for command in commands:
        await device.inside("ip", *command.split())


async def row(stage: ProcessStage, name: str, of: str) -> dict[str, Any]:
    """What `devices --json` on one device says of another."""
    rows = (await stage.devices[name].command("devices"))["devices"]
    found: dict[str, Any] = {one["name"]: one for one in rows}[of]
    return found


async def meet(stage: ProcessStage, name: str, other: str, *, shown: bool = False) -> float:
    """Wait until each has a session with the other, and `devices --json` shows it; seconds."""
    async def met() -> bool:
        return all([{one["name"]: one["state"] for one in (await stage.call(here, "devices"))["devices"]}.get(there)
                    == "connected" for here, there in ((name, other), (other, name))])

    took_s = await until(met)
    if shown:
        assert (await row(stage, name, other))["state"] == "connected"
    return took_s


async def addresses(stage: ProcessStage, name: str) -> list[str]:
    """Where the agent says that it can be dialled."""
    found: list[str] = (await stage.call(name, "status"))["agent"]["addresses"]
    return found


def hosts(found: Sequence[str]) -> set[str]:
    return {text.split("/")[-3] for text in found}


async def without_ip4(device: Device, interface: str = "eth0") -> None:
    await ip(device, f"-4 addr flush dev {interface}")

    async def complete() -> bool:
        shown = await device.inside("ip", "-6", "addr", "show", "dev", interface)
        return "fe80" in shown and "tentative" not in shown

    await until(complete)


def with_carrier(name: str, address: str) -> list[str]:
    """The commands for an interface that is up and has a carrier, as a container's bridge with a container on it."""
    return [f"link add {name} type veth peer name veth{name[:8]}", f"link set veth{name[:8]} up",
            f"addr add {address} dev {name}", f"link set {name} up"]


def test_two_devices_meet_on_a_lan_without_a_route_and_decoys_are_not_advertised() -> None:
    async def play(stage: ProcessStage) -> None:
        for spec, number in ((FIRST, 1), (SECOND, 2)):
            made = await stage.add(spec)
            await ip(made, "link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up",
                     "link add veth7 type veth peer name veth8", "link set veth7 master docker0", "link set veth7 up",
                     "link set veth8 up", *with_carrier("br-1f2e3d4c5b6a", f"172.18.0.{number}/16"),
                     *with_carrier("wg0", f"10.8.0.{number}/24"),
                     "tuntap add dev hidden0 mode tun", f"addr add 10.8.1.{number}/24 dev hidden0",
                     "link set hidden0 up")
            assert "default" not in await made.inside("ip", "route")
        await stage.found(FIRST)
        await stage.join(SECOND, by="first")
        await meet(stage, "first", "second", shown=True)
        shown = await stage.call("first", "invite", accept=True, wait=False, carrier="ticket")
        for found in (await addresses(stage, "first"), await addresses(stage, "second"), shown["addresses"]):
            assert found
            assert not [host for host in hosts(found) if host.startswith(("172.", "10.8."))], found
            assert {text.split("/")[2] for text in found if "ip6zone" in text} == {"eth0"}, found

    staged(play)


def test_two_devices_meet_by_link_local_addresses_alone_and_announce_what_comes_later() -> None:
    async def play(stage: ProcessStage) -> None:
        for spec in (FIRST, SECOND):
            await without_ip4(await stage.add(spec))
        await stage.found(FIRST)
        await stage.join(SECOND, by="first")
        await meet(stage, "first", "second", shown=True)
        found = await addresses(stage, "first")
        assert [text for text in found if not text.startswith("/ip6zone/eth0/ip6/fe80::")] == []
        third = await stage.add(THIRD)
        await ip(third, "link set eth0 down", "link set eth0 name lan7", "link set lan7 up")
        await without_ip4(third, "lan7")
        stage.block_multicast_dns()
        await stage.join(THIRD, by="first", how="ticket")  # the ticket names the inviter's eth0, and here is none
        await meet(stage, "first", "third")
        stage.block_multicast_dns(False)
        for spec, number in ((FIRST, 1), (SECOND, 2)):
            await ip(stage.devices[spec.name], f"addr add fd77::{number}/64 dev eth0 nodad")

        async def told() -> bool:
            return all([f"fd77::{number}" in hosts(await addresses(stage, name))
                        for name, number in (("first", 1), ("second", 2))])

        await until(told)
        await stage.kill("second")
        await stage.start("second")
        await meet(stage, "first", "second")
        assert b"fd77::" in (stage.devices["first"].home / "peers" / "addresses").read_bytes()

    staged(play)


def test_where_multicast_is_blocked_an_address_or_a_ticket_joins_and_stored_addresses_find_again() -> None:
    async def play(stage: ProcessStage) -> None:
        stage.block_multicast_dns()
        await stage.found(FIRST)
        made = await stage.add(SECOND)
        shown = await stage.call("first", "invite", accept=True, wait=False)
        with pytest.raises(NodeError, match="nobody on this network waits") as caught:
            await made.command("join", shown["code"], "--name", "second", "--timeout", "1")
        assert "--address" in (caught.value.next_step or "")
        where = next(text for text in await addresses(stage, "first") if "/ip4/" in text)
        await stage.join(SECOND, by="first", options=["--address", where])
        await stage.join(THIRD, by="first", how="ticket")
        await meet(stage, "first", "second", shown=True)
        await meet(stage, "first", "third")
        await stage.stop("second")  # without the setting: what finds again is the address book
        settings = made.home / "config.toml"
        kept = [line for line in settings.read_text().splitlines() if not line.startswith("static")]
        settings.write_text("\n".join(kept))
        await stage.start("second")
        await meet(stage, "first", "second")
        for name in ("first", "second"):
            await stage.kill(name)
            await trio.sleep(1)
            await stage.start(name)
            print(f"{name} was killed and is met again {await meet(stage, 'first', 'second'):.1f} s after its start")
            await meet(stage, "first", "third")

    staged(play)


def test_a_changed_address_is_announced_the_old_one_dropped_and_a_lost_interface_survived() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(FIRST)
        await stage.join(SECOND, by="first")
        await meet(stage, "first", "second", shown=True)
        second = stage.devices["second"]
        await ip(second, "addr flush dev eth0", "addr add 10.77.9.9/16 dev eth0")
        begun_s = trio.current_time()

        async def moved() -> bool:
            here = {one["name"]: one for one in (await stage.call("first", "devices"))["devices"]}["second"]
            return hosts(await addresses(stage, "second")) == {"10.77.9.9"} and (
                here["state"] == "connected" and "10.77.9.9" in here["address"])

        await until(moved)
        print(f"met at the new address after {trio.current_time() - begun_s:.1f} s")
        await meet(stage, "first", "second")

        await ip(second, "link set eth0 down", "addr add fd77::9/64 dev eth0")

        async def alone() -> bool:
            return not any("10.77." in text for text in await addresses(stage, "second"))

        await until(alone)
        await ip(second, "link set eth0 up")
        begun_s = trio.current_time()
        await until(lambda: negated(alone))
        early = await addresses(stage, "second")
        if "tentative" in await second.inside("ip", "-6", "addr", "show", "dev", "eth0"):
            assert "fd77::9" not in hosts(early), "an address that the kernel still tests can't be dialled"

        async def complete() -> bool:
            return "fd77::9" in hosts(await addresses(stage, "second"))

        await until(complete)
        await meet(stage, "first", "second")
        print(f"met {trio.current_time() - begun_s:.1f} s after the interface came back")
        await stage.call("second", "vault.put", name="later", content=b"x")

        async def came() -> bool:
            return [item["name"] for item in (await stage.call("first", "vault.ls"))["items"]] == ["later"]

        await until(came)
        await stage.kill("second")
        await trio.sleep(1)  # time to begin to dial in vain where it was
        await stage.start("second")
        await meet(stage, "first", "second")
        book = stage.devices["first"].home / "peers" / "addresses"

        async def forgotten() -> bool:
            return b"10.77.9.9" in book.read_bytes() and b"10.77.0.3" not in book.read_bytes()

        await until(forgotten)

    staged(play)


async def negated(condition: Callable[[], Awaitable[bool]]) -> bool:
    return not await condition()


def test_an_interface_by_name_is_the_only_one_that_is_used_also_loopback() -> None:
    async def play(stage: ProcessStage) -> None:
        made = await stage.add(FIRST)
        await ip(made, *with_carrier("tun9", "10.99.0.1/24"))
        made.run_options = ("--interface", "tun9")
        await stage.found(FIRST)
        assert {host for host in hosts(await addresses(stage, "first")) if not host.startswith("fe80")} == {"10.99.0.1"}
        with pytest.raises(NodeError, match="no network interface 'nosuch'") as caught:
            await made.command("invite", "--yes", "--no-wait", "--interface", "nosuch")
        assert "eth0" in (caught.value.next_step or "")
        await stage.stop("first")
        made.run_options = ("--interface", "lo")
        await stage.start("first")
        shown = await made.command("invite", "--yes", "--no-wait", "--interface", "lo")
        assert hosts(await addresses(stage, "first")) == hosts(shown["addresses"]) == {"127.0.0.1", "::1"}
        # A second device on the same machine: another home, the same network.
        neighbour = Device(SECOND, made.place / "neighbour", made.environment, net=made.net)
        neighbour.place.mkdir(mode=0o700)
        joined = await neighbour.command("join", shown["code"], "--name", "second", "--no-service", "--interface", "lo")
        assert [one["name"] for one in joined["devices"]] == ["first", "second"]
        assert 'interface = "lo"' in (neighbour.home / "config.toml").read_text()

    staged(play)


def test_a_process_that_stood_still_and_a_clock_that_jumps_cost_no_session() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(FIRST)
        await stage.join(SECOND, by="first")
        await meet(stage, "first", "second", shown=True)
        await stage.freeze("second")
        await trio.sleep(2)
        await stage.thaw("second")
        stage.set_clock("second", offset_s=40 * 86_400.0)
        await trio.sleep(0.5)
        stage.set_clock("second", offset_s=-86_400.0)
        await meet(stage, "first", "second")

    assert not [line for line in staged(play).trace.lines if "what=closed" in line]


@pytest.mark.slow
def test_a_laptop_that_slept_longer_than_a_session_lasts_meets_its_siblings_when_it_wakes() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(FIRST)
        await stage.join(SECOND, by="first")
        await meet(stage, "first", "second", shown=True)
        second = stage.devices["second"]
        await stage.freeze("second")
        await ip(second, "link set eth0 down")

        async def missed() -> bool:
            return (await row(stage, "first", "second"))["state"] != "connected"

        await until(missed)
        await ip(second, "link set eth0 up")
        await stage.thaw("second")
        print(f"met {await meet(stage, 'first', 'second'):.1f} s after it woke")

    staged(play)


async def clone_warnings(stage: ProcessStage, name: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = (await stage.devices[name].command("status"))["warnings"]
    return [one for one in found if one["code"] == "E_CLONE"]


async def copied(stage: ProcessStage) -> None:
    """A household of two, and a copy of the second's home that runs too: until all three say so."""
    await stage.found(FIRST)
    await stage.join(SECOND, by="first")
    await meet(stage, "first", "second", shown=True)
    await stage.clone("second", "twin")
    for name in ("first", "second", "twin"):
        async def is_warned(name: str = name) -> bool:
            return any("init --rekey" in one["next"] for one in await clone_warnings(stage, name))

        await until(is_warned)


def test_a_copied_home_is_said_by_both_copies_and_by_their_sibling_which_keeps_both_out() -> None:
    async def play(stage: ProcessStage) -> None:
        await copied(stage)
        here = {one["name"]: one["state"] for one in (await stage.call("first", "devices"))["devices"]}
        assert here["second"] != "connected"

    staged(play)


@pytest.mark.slow
def test_a_new_key_for_one_of_two_copies_ends_the_quarantine_of_both() -> None:
    async def play(stage: ProcessStage) -> None:
        await copied(stage)
        await stage.stop("twin")
        shown = await stage.call("first", "invite", accept=True, wait=False)
        mended = await stage.devices["twin"].command("init", "--rekey", shown["code"], "--name", "twin", "--yes")
        assert mended["device"]["name"] == "twin"
        await stage.start("twin")
        await meet(stage, "first", "twin", shown=True)
        await meet(stage, "first", "second")

        async def well() -> bool:
            return not any([await clone_warnings(stage, name) for name in ("first", "second", "twin")])

        await until(well)

    staged(play)


def test_a_joiners_machine_is_checked_before_the_code_is_used_and_the_same_code_serves_once_it_is_mended() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(FIRST)
        made = await stage.add(replace(SECOND, disk_bytes=32 << 20, clock_offset_s=-50 * 365 * 86_400.0))
        assert made.disk is not None
        code = (await stage.call("first", "invite", accept=True, wait=False))["code"]
        listener = inside(made, lambda: socket.create_server(("0.0.0.0", 4555)))

        async def refused(*options: str) -> tuple[str, str]:
            with pytest.raises(NodeError) as caught:
                await made.command("join", "--code-stdin", "--name", "second", "--no-service", *options,
                                   typed=code + "\n")
            assert "the code was not used" in str(caught.value) or caught.value.code == "E_HOME_OPEN"
            return caught.value.code, caught.value.next_step or ""

        with listener:
            assert (await refused())[0] == "E_NO_SPACE"
            made.disk.resize(512 << 20)
            made.home_from_here.chmod(0o777)
            what, mended = await refused()
            assert (what, mended.split()[0]) == ("E_HOME_OPEN", "chmod")
            made.home_from_here.chmod(0o700)
            what, mended = await refused()
            assert (what, "--any-clock" in mended) == ("E_CLOCK", True)
            stage.set_clock("second", offset_s=0.0)
            what, mended = await refused("--port", "4555")
            assert (what, "--port 0" in mended) == ("E_PORT_BUSY", True)
        assert len((await stage.call("first", "devices"))["devices"]) == 1
        joined = await made.command("join", "--code-stdin", "--name", "second", "--no-service", "--port", "4555",
                                    typed=code + "\n")
        assert joined["device"]["name"] == "second"
        await stage.start("second")
        await meet(stage, "first", "second", shown=True)
        assert all(text.endswith("/tcp/4555") for text in await addresses(stage, "second"))

    staged(play)


def test_of_two_that_join_with_one_code_exactly_one_does_and_the_other_is_told_what_to_do() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(FIRST)
        code = (await stage.call("first", "invite", accept=True, wait=False))["code"]
        joiners = [await stage.add(spec) for spec in (SECOND, THIRD)]
        outcomes: list[dict[str, Any] | NodeError] = []

        async def join(made: Device) -> None:
            try:
                outcomes.append(await made.command("join", "--code-stdin", "--name", made.name, "--no-service",
                                                   typed=code + "\n"))
            except NodeError as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            for made in joiners:
                nursery.start_soon(join, made)
        (winner,) = [one for one in outcomes if isinstance(one, dict)]
        (loser,) = [one for one in outcomes if isinstance(one, NodeError)]
        assert loser.code == "E_INVITATION_USED"
        assert "hinet-node invite" in (loser.next_step or "")
        named = [one["name"] for one in (await stage.call("first", "devices"))["devices"]]
        assert named == ["first", winner["device"]["name"]]

    staged(play)


def inside(device: Device, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket of the device's network: it stays in the namespace that it was made in."""
    assert device.net is not None
    namespace = device.net.namespace

    def work() -> socket.socket:
        enter(namespace)
        return make()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()
