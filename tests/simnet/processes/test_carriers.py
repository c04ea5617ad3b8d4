"""Bytes between two devices without any node: through the switch where the kernel permits namespaces, and through
relays everywhere."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest
import trio

from hinet_simnet.errors import BadScenario
from hinet_simnet.processes.isolation import NetSpace, _in_own_thread, enter, net_refusal
from hinet_simnet.processes.links import Links
from hinet_simnet.processes.relay import Relays, free_port
from hinet_simnet.processes.stage import chosen_form
from hinet_simnet.processes.switch import Switch
from hinet_simnet.scenario.model import Delay, LinkSpec

Connected = Callable[[], tuple[socket.socket, socket.socket]]
Counts = Callable[[], Mapping[tuple[str, str], tuple[int, int]]]
FORMS = ("loopback",) if net_refusal() else ("loopback", "namespaces")


def inside(space: NetSpace, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket of that network: a socket stays in the namespace that it was made in."""
    def work() -> socket.socket:
        enter(space.namespace)
        return make()

    return _in_own_thread(work)


@contextmanager
def switched(links: Links) -> Iterator[tuple[Connected, Counts]]:
    with ExitStack() as stack:
        a, b = NetSpace.make(0), NetSpace.make(1)
        stack.callback(a.close)
        stack.callback(b.close)
        switch = stack.enter_context(Switch(links))
        switch.plug("a", a)
        switch.plug("b", b)
        listener = stack.enter_context(inside(b, lambda: socket.create_server((b.address, 7000))))

        def connected() -> tuple[socket.socket, socket.socket]:
            caller = inside(a, lambda: socket.create_connection((b.address, 7000), timeout=60))
            return caller, listener.accept()[0]

        yield connected, switch.take_counts


@contextmanager
def relayed(links: Links) -> Iterator[tuple[Connected, Counts]]:
    ready, done = threading.Event(), trio.Event()
    held: dict[str, object] = {}

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            relays = Relays(links, nursery)
            await relays.plug("a", free_port())
            await relays.plug("b", int(str(held["port"])))
            held.update(relays=relays, token=trio.lowlevel.current_trio_token(), done=done)
            ready.set()
            await done.wait()
            nursery.cancel_scope.cancel()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        held["port"] = port = listener.getsockname()[1]
        thread = threading.Thread(target=trio.run, args=(main,))
        thread.start()
        assert ready.wait(30)
        relays, token = held["relays"], held["token"]
        assert isinstance(relays, Relays)
        assert isinstance(token, trio.lowlevel.TrioToken)
        told = links.changed
        links.changed = lambda: token.run_sync_soon(told)  # the test's thread is not the relays' own

        def connected() -> tuple[socket.socket, socket.socket]:
            relay = relays.routes("a")[f"/ip4/127.0.0.1/tcp/{port}"].rpartition("/")[2]
            return socket.create_connection(("127.0.0.1", int(relay)), timeout=60), listener.accept()[0]

        try:
            yield connected, relays.take_counts
        finally:
            token.run_sync_soon(done.set)
            thread.join()


CARRIERS = {"loopback": relayed, "namespaces": switched}


def sent_through(connected: Connected, data: bytes) -> tuple[bytes, float]:
    """What arrives of the data, and the seconds that it took."""
    caller, called = connected()
    with caller, called:
        begun_s = time.monotonic()
        sender = threading.Thread(target=lambda: (caller.sendall(data), caller.shutdown(socket.SHUT_WR)))
        sender.start()
        got = bytearray()
        while piece := called.recv(1 << 20):
            got += piece
        sender.join()
    return bytes(got), time.monotonic() - begun_s


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_over_a_bad_link_arrives_whole_and_is_counted(form: str) -> None:
    data = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(8_000))
    spec = LinkSpec(delay=Delay("uniform", 0.0, 0.01), loss=0.02, duplicate=0.05, reorder=0.05)
    with CARRIERS[form](Links(3, spec)) as (connected, counts):
        got, _ = sent_through(connected, data)
        counted = counts()
    assert got == data
    assert counted["a", "b"][1] >= len(data)
    assert counted["a", "b"][0] >= 1


@pytest.mark.parametrize("form", FORMS)
def test_delay_and_rate_are_felt(form: str) -> None:
    with CARRIERS[form](Links(3, LinkSpec(delay=Delay("constant", 0.3), rate_bytes_s=400_000))) as (connected, _):
        got, took_s = sent_through(connected, bytes(200_000))
    assert len(got) == 200_000
    assert took_s > 0.3 + 200_000 / 400_000 * 0.8


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_stops_one_direction_and_its_end_lets_the_bytes_through(form: str) -> None:
    links = Links(3, LinkSpec(delay=Delay("constant", 0.0)))
    with CARRIERS[form](links) as (connected, _):
        caller, called = connected()
        with caller, called:
            caller.sendall(b"before")
            assert called.recv(100) == b"before"
            links.cut("a", "b")
            caller.sendall(b"during")
            called.settimeout(0.5)
            with pytest.raises(TimeoutError):
                called.recv(100)
            called.settimeout(60)
            links.heal()
            assert called.recv(100) == b"during"


def test_the_form_is_chosen_by_what_the_kernel_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HINET_SIMNET_NET", raising=False)
    assert chosen_form() == FORMS[-1]
    monkeypatch.setenv("HINET_SIMNET_NET", "loopback")
    assert chosen_form() == "loopback"
    monkeypatch.setenv("HINET_SIMNET_NET", "carrier pigeons")
    with pytest.raises(BadScenario, match="carrier pigeons"):
        chosen_form()
    if net_refusal():
        with pytest.raises(BadScenario, match="it takes root"):
            chosen_form("namespaces")
