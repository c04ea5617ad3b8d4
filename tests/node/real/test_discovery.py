"""The real Discovery: processes on this machine find each other, with and without a LAN."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from zeroconf import EventLoopBlocked

from hinet_node.errors import UsageError
from hinet_node.ports import Announcement
from hinet_node.real import discovery as discovery_module
from hinet_node.real import interfaces as interfaces_module
from hinet_node.real.discovery import ZeroconfDiscovery, listening_addresses, read_service, service_info
from hinet_node.real.interfaces import Interface, dialable, interfaces
from hinet_node.sessions.addresses import Address, parse_address

SERVICE = f"_hinet-t{os.getpid() % 100000}._tcp"

PLACE = ("/ip4/127.0.0.1/tcp/4001",)

SPEAKER = """
import sys, trio
from hinet_node.real.discovery import ZeroconfDiscovery
from hinet_node.ports import Announcement
async def main():
    async with ZeroconfDiscovery().announce(Announcement(sys.argv[2], sys.argv[1], (sys.argv[3],), {"boot": "77"})):
        await trio.to_thread.run_sync(sys.stdin.read)
trio.run(main)
"""

FINDER = """
import sys, time, trio
from hinet_node.real.discovery import ZeroconfDiscovery
from hinet_node.real.interfaces import dialable
from hinet_node.sessions.addresses import parse_address
from hinet_node.ports import Announcement
async def main():
    addresses = tuple(str(place) for place in dialable([parse_address("/ip4/0.0.0.0/tcp/4001"),
                                                        parse_address("/ip6/::/tcp/4001")]))
    discovery = ZeroconfDiscovery()
    async with discovery.announce(Announcement(sys.argv[2], sys.argv[1], addresses, {})):
        async with discovery.browse(sys.argv[1]) as found:
            with trio.fail_after(20):
                async for announcement in found:
                    if announcement.name != sys.argv[2]:
                        print(announcement.name, *announcement.addresses, flush=True)
                        break
            await trio.sleep(3)
trio.run(main)
"""


def python(code: str, *args: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen([*prefix, sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_another_process_on_this_machine_is_found_with_its_addresses_and_properties() -> None:
    process = python(SPEAKER, SERVICE, "speaker", "/ip4/127.0.0.1/tcp/4123")

    async def main() -> Announcement:
        async with ZeroconfDiscovery().browse(SERVICE) as found:
            with trio.fail_after(20):
                return await anext(aiter(found))

    try:
        assert trio.run(main) == Announcement("speaker", SERVICE, ("/ip4/127.0.0.1/tcp/4123",), {"boot": "77"})
    finally:
        process.communicate("")
    assert process.returncode == 0


def test_own_announcements_are_heard_and_a_change_is_heard_again() -> None:
    async def main() -> None:
        discovery = ZeroconfDiscovery()
        heard: list[tuple[str, ...]] = []
        with trio.fail_after(20):
            async with discovery.browse(SERVICE) as found:
                for port in (4001, 4002):
                    async with discovery.announce(Announcement("me", SERVICE, (f"/ip4/127.0.0.1/tcp/{port}",), {})):
                        heard.append((await anext(aiter(found))).addresses)
        assert heard == [("/ip4/127.0.0.1/tcp/4001",), ("/ip4/127.0.0.1/tcp/4002",)]

    trio.run(main)


def test_what_the_body_raises_comes_out_as_it_is_and_threads_end() -> None:
    async def main() -> None:
        async with ZeroconfDiscovery().announce(Announcement("me", SERVICE, (), {})):
            await trio.sleep(0.5)
            raise UsageError("the body's own")

    with pytest.raises(UsageError, match="the body's own"):
        trio.run(main)


def namespace() -> list[str]:
    """The command that runs another one without any network but loopback; [] where the system has none (macOS)."""
    commands = (["unshare", "-n"], ["unshare", "-rn"]) if shutil.which("unshare") else ()
    for command in commands:
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return []


@pytest.mark.parametrize("error", [EventLoopBlocked(), OSError("no such device")])
def test_a_process_that_stood_still_while_it_announced_goes_on(error: Exception,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP or a laptop's sleep: zeroconf's calls then end with EventLoopBlocked, and the agent must not."""
    asked: list[str] = []

    def stand_still(*arguments: object) -> None:
        asked.append("register")
        raise error

    monkeypatch.setattr(discovery_module, "_register", stand_still)

    async def main() -> None:
        discovery = ZeroconfDiscovery()
        async with discovery.announce(Announcement("still", SERVICE, (), {})):
            with trio.fail_after(30):
                while not asked:
                    await trio.sleep(0.01)
            await trio.sleep(0.05)
        assert (discovery.problem is None) == isinstance(error, EventLoopBlocked)

    trio.run(main)


def test_a_lookup_during_which_the_process_stood_still_is_made_again_and_leaves_the_browser_its_thread() -> None:
    tries: list[int] = []

    class Slept:
        """A lookup that a stopped process ran out of time for."""

        def __init__(self, stops: int) -> None:
            self.stops = stops

        def request(self, zeroconf: object, timeout_ms: int) -> bool:
            tries.append(timeout_ms)
            if len(tries) <= self.stops:
                raise EventLoopBlocked
            return True

    assert discovery_module._looked_up(Slept(1), None)
    assert len(tries) == 2
    tries.clear()
    assert not discovery_module._looked_up(Slept(9), None)
    assert len(tries) == discovery_module.LOOKUPS_MAX


def test_a_search_that_can_not_begin_is_a_problem_to_tell_of_and_is_tried_again(monkeypatch: pytest.MonkeyPatch,
                                                                               ) -> None:
    tries: list[str] = []
    begin = discovery_module._browse

    def fail_once(*arguments: Any) -> None:
        tries.append("browse")
        if len(tries) == 1:
            raise RuntimeError("the loop has ended")
        begin(*arguments)

    monkeypatch.setattr(discovery_module, "_browse", fail_once)
    monkeypatch.setattr(discovery_module, "POLL_S", 0.1)

    async def main() -> None:
        discovery = ZeroconfDiscovery()
        with trio.fail_after(30):
            async with discovery.browse(SERVICE) as found, discovery.announce(Announcement("me", SERVICE, PLACE, {})):
                assert (await anext(aiter(found))).name == "me"

    trio.run(main)
    assert len(tries) == 2


def test_an_announcement_that_can_not_be_read_leaves_the_browser_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an interface goes while its addresses are read: the thread that hears would end, and nobody notice."""
    def refuse(*arguments: object) -> None:
        raise OSError("no such device")

    async def main() -> None:
        monkeypatch.setattr(discovery_module, "read_service", refuse)
        discovery = ZeroconfDiscovery()
        with trio.fail_after(30):
            async with discovery.browse(SERVICE) as found:
                async with discovery.announce(Announcement("first", SERVICE, PLACE, {})):
                    await trio.sleep(1)
                monkeypatch.undo()
                async with discovery.announce(Announcement("second", SERVICE, PLACE, {})):
                    assert (await anext(aiter(found))).name == "second"

    trio.run(main)


def test_three_processes_without_any_lan_or_multicast_route_find_each_other() -> None:
    alone = namespace()
    script = ("ip link set lo up; " if alone else "") + " & ".join(
        f'"$PYTHON" -c "$FINDER" {SERVICE} {name}' for name in ("one", "two", "three")) + " & wait"
    process = subprocess.run([*alone, "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "FINDER": FINDER,
                                  "PYTHON": sys.executable})
    lines = process.stdout.splitlines()
    assert len(lines) == 3, process.stderr
    assert all("/ip4/127.0.0.1/tcp/4001" in line for line in lines) or not alone


def waits() -> int:
    """How often a thread of this process has gone to sleep; a busy machine does not add to it as to processor time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def test_searching_wakes_next_to_nothing() -> None:
    async def main() -> None:
        discovery = ZeroconfDiscovery()
        async with discovery.browse(SERVICE), discovery.announce(Announcement("me", SERVICE, (), {})):
            await trio.sleep(4)
            before = waits()
            await trio.sleep(3)
            assert waits() - before < 60, "something polls"

    trio.run(main)


def test_an_announcement_survives_its_records_and_drops_foreign_zones() -> None:
    addresses = ("/ip4/192.0.2.7/tcp/4001", "/ip6zone/elsewhere0/ip6/fe80::1/tcp/4001", "/ip6/fd00::7/tcp/4001")
    read = read_service(service_info(Announcement("12D3KooWabc", SERVICE, addresses, {"boot": "ab"})))
    assert read is not None
    assert (read.name, read.service, read.properties) == ("12D3KooWabc", SERVICE, {"boot": "ab"})
    assert addresses[0] in read.addresses
    assert addresses[2] in read.addresses
    assert not any("elsewhere0" in address for address in read.addresses)


def test_foreign_or_hostile_records_are_left_out() -> None:
    info = service_info(Announcement("me", SERVICE, (), {}))
    for properties in ({b"n": b"\xff\xfe"}, {b"n": b"x" * 300}, {b"other": b"1"}, {b"n": None}):
        info._properties, info.text = properties, b""
        info._decoded_properties = None
        assert read_service(info) is None


def test_decoys_are_left_out_and_loopback_counts_only_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Adapter:
        def __init__(self, name: str, index: int, *addresses: str | tuple[str, int, int]) -> None:
            self.name, self.index = name, index
            self.ips = [type("Ip", (), {"ip": address}) for address in addresses]

    lo = Adapter("lo", 1, "127.0.0.1", ("::1", 0, 0))
    real = Adapter("hinet-x0", 2, "192.168.1.5", ("fe80::5%2", 0, 2))
    names = ("docker0", "tun0", "wg0", "tailscale0", "br-5f", "utun3", "veth1")
    decoys = [Adapter(name, 9, "10.9.9.9") for name in names]
    monkeypatch.setattr(interfaces_module.ifaddr, "get_adapters", lambda: [lo, *decoys, real])
    assert interfaces() == [Interface("hinet-x0", 2, ("192.168.1.5",), ("fe80::5",)),
                            Interface("lo", 1, ("127.0.0.1",), ("::1",))]
    listening = [parse_address("/ip4/0.0.0.0/tcp/7"), parse_address("/ip6/::/tcp/7")]
    assert [str(place) for place in dialable(listening)] == ["/ip4/192.168.1.5/tcp/7",
                                                            "/ip6zone/hinet-x0/ip6/fe80::5/tcp/7"]
    assert listening_addresses() == ["127.0.0.1", "192.168.1.5", "fe80::5"]
    assert [str(place) for place in dialable(listening, ["tun0"])] == ["/ip4/10.9.9.9/tcp/7"]
    monkeypatch.setattr(interfaces_module.ifaddr, "get_adapters", lambda: [lo, *decoys])
    assert [str(place) for place in dialable(listening)] == ["/ip4/127.0.0.1/tcp/7", "/ip6/::1/tcp/7"]


@pytest.mark.parametrize("text", ["/ip4/192.0.2.7/tcp/4001", "/ip6/fd00::1/tcp/0", "/dns/nas.lan/tcp/80",
                                  "/ip6zone/eth0/ip6/fe80::1/tcp/4001"])
def test_addresses_are_read_and_written_alike(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "/", "ip4/1.2.3.4/tcp/1", "/ip4/1.2.3/tcp/1", "/ip4/1.2.3.4/tcp/",
                                  "/ip4/::1/tcp/1", "/ip4/1.2.3.4/tcp/65536", "/ip4/1.2.3.4/tcp/-1",
                                  "/ip4/1.2.3.4/tcp/1/", "/unix/x/tcp/1",
                                  "/ip6zone/e/ip4/1.2.3.4/tcp/1", "/dns/-x/tcp/1", "/dns/" + "a" * 200 + "/tcp/1",
                                  "/ip4/1.2.3.4/tcp/1²", "/ip6zone//ip6/fe80::1/tcp/1"])
def test_what_is_no_address_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "/ip4/192.0.2.7/tcp/4001" in str(caught.value.next_step)


def test_an_address_knows_what_it_is() -> None:
    assert Address("ip6", "::", 1).is_wildcard
    assert parse_address("/ip6/::1/tcp/1").is_loopback
    assert parse_address("/ip6zone/eth0/ip6/fe80::1/tcp/1").socket_host == "fe80::1%eth0"
    assert not parse_address("/dns/localhost/tcp/1").is_loopback


def test_only_the_listening_files_import_zeroconf() -> None:
    folder = Path(interfaces_module.__file__).parent
    users = [place.name for place in folder.rglob("*.py") if "import zeroconf" in place.read_text() or
             "from zeroconf" in place.read_text()]
    assert users == ["discovery.py"]
