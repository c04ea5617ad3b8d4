"""Packs over bulk connections between whole agents: when one is made, what falls back, what is never sent twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from hinet_node.errors import NodeError
from hinet_protocol import limits
from hinet_protocol.messages import BulkOpen, BulkReady, BulkWant
from hinet_simnet.house import House, household
from hinet_simnet.network.bulk import LABEL, certificate
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.world import SMALL_VAULT

MIB = 1 << 20


def noise(size: int, seed: str = "bulk") -> bytes:
    return SeededRandomness(seed).draw(size)


@contextmanager
def watched(*names: str, **options: Any) -> Iterator[tuple[House, Counter[tuple[str, str, str]]]]:
    """A meshed household, and the bytes from device to device by kind of stream, which grow as they pass."""
    passed: Counter[tuple[str, str, str]] = Counter()

    def tap(source: str, target: str, label: str, data: bytes) -> None:
        passed[source, target, label] += len(data)

    with household(*names, **options) as house:
        house.look(lambda world: world.internet.taps.append(tap))
        house.until_meshed()
        yield house, passed


def holding(house: House, content: bytes, *names: str) -> Callable[[], bool]:
    return lambda: all(house.holds(name, "a", content) for name in names)


def bulk_bytes(passed: Counter[tuple[str, str, str]], source: str = "", target: str = "") -> int:
    return sum(size for (one, other, label), size in passed.items()
               if label == LABEL and source in ("", one) and target in ("", other))


def packs_bytes(house: House, name: str) -> int:
    sizes: int = house.look(lambda world: sum(world.agent(name).vault.core.store.index.packs().values()))
    return sizes


def block(house: House, *names: str, blocked: bool = True) -> None:
    for name in names:
        house.look(lambda world, name=name: setattr(world.internet.hosts[name], "bulk_blocked", blocked))


@pytest.mark.parametrize("writer", ["cloud", "laptop"])
def test_many_bytes_go_over_a_bulk_connection_whoever_dialled_the_session(writer: str) -> None:
    with watched("cloud", "laptop") as (house, passed):
        content = noise(2 * MIB)
        house.put(writer, "a", content)
        house.until(holding(house, content, "cloud", "laptop"))
        reader = {"cloud": "laptop", "laptop": "cloud"}[writer]
        packs = packs_bytes(house, writer)
        assert packs < bulk_bytes(passed, writer, reader) < packs + 4_000
        assert bulk_bytes(passed, reader, writer) < 4_000, "only requests go the other way"
        assert sum(passed.values()) < packs + 20_000


def test_few_bytes_go_over_the_session() -> None:
    with watched("cloud", "laptop") as (house, passed):
        house.put("cloud", "a", b"few")
        house.until(holding(house, b"few", "laptop"))
        assert not bulk_bytes(passed)


def test_a_blocked_bulk_connection_costs_nothing_but_speed() -> None:
    with watched("cloud", "laptop") as (house, passed):
        block(house, "cloud", "laptop")
        content = noise(MIB)
        house.put("cloud", "a", content)
        house.until(holding(house, content, "laptop"), seconds=30)
        assert not bulk_bytes(passed)
        block(house, "cloud", "laptop", blocked=False)
        house.sleep(61)
        more = noise(MIB, "more")
        house.put("cloud", "a", more)
        house.until(holding(house, more, "laptop"), seconds=30)
        assert bulk_bytes(passed) > MIB, "after a while it is tried again"


def test_a_network_without_bulk_connections_replicates_all_the_same() -> None:
    def refuse(*arguments: Any) -> None:
        raise NodeError("none here")

    with watched("cloud", "laptop") as (house, passed):
        house.look(lambda world: setattr(world.internet.hosts["laptop"], "expect_bulk", refuse))
        house.look(lambda world: setattr(world.internet.hosts["cloud"], "bulk_certificate", refuse))
        content = noise(MIB)
        house.put("cloud", "a", content)
        house.until(holding(house, content, "laptop"), seconds=30)
        assert not bulk_bytes(passed)


def test_a_connection_that_breaks_in_the_middle_is_gone_on_with_over_the_session() -> None:
    with watched("cloud", "laptop") as (house, passed):
        house.link(rate_bytes_s=200_000)
        content = noise(2 * MIB)
        house.put("cloud", "a", content)
        house.until(lambda: bulk_bytes(passed) > MIB, seconds=60)

        def cut(world: Any) -> None:
            for host in world.internet.hosts.values():
                for connection in list(host.connections):
                    if any(stream._label == LABEL for stream in connection.streams):
                        connection.snap()
                        world.internet.snap_far_end(connection)

        house.look(cut)
        house.until(holding(house, content, "laptop"), seconds=60)
        packs = packs_bytes(house, "cloud")
        assert bulk_bytes(passed) < packs
        assert sum(passed.values()) - packs < 2.5 * MIB, "what the link held when it was cut: two windows and a piece"


@pytest.mark.parametrize("killed", ["cloud", "laptop"])
def test_a_killed_end_costs_less_than_one_pack(killed: str) -> None:
    with watched("cloud", "laptop", vault=replace(SMALL_VAULT, pack_bytes=2 * MIB)) as (house, passed):
        house.tear("laptop", share=1.0)
        house.link(rate_bytes_s=400_000)
        content = noise(4 * MIB - 65_536)
        house.put("cloud", "a", content)
        house.until(lambda: bulk_bytes(passed) > 3.5 * MIB, seconds=60)
        whole, begun = house.look(lambda world: [sum(sizes.values()) for sizes in (
            world.agent("laptop").vault.core.store.index.packs(), world.agent("laptop").vault.core.store.incoming())])
        assert whole > 0
        passed.clear()
        house.restart(killed)
        house.until(holding(house, content, "laptop"), seconds=120)
        left = packs_bytes(house, "laptop") - whole - begun
        assert begun > 0
        assert left <= bulk_bytes(passed, "cloud", "laptop") < left + 2 * MIB
        if killed == "cloud":
            assert bulk_bytes(passed, "cloud", "laptop") < left + 4_000, "a part file goes on where it stopped"


def test_two_siblings_give_different_packs_at_once() -> None:
    with watched("cloud", "laptop", "pocket") as (house, passed):
        house.link(target="pocket", rate_bytes_s=100_000)
        content = noise(3 * MIB)
        house.put("cloud", "a", content)
        house.until(holding(house, content, "laptop", "pocket"), seconds=120)
        both = [bulk_bytes(passed, source, "pocket") for source in ("cloud", "laptop")]
        assert min(both) > MIB // 2, both
        assert sum(both) < packs_bytes(house, "pocket") + 4_000, "no pack comes twice"


def test_one_sibling_serves_several_at_once() -> None:
    names = ("cloud", "laptop", "pocket", "tablet")
    with watched(*names) as (house, passed):
        house.link(rate_bytes_s=500_000)
        content = noise(3 * MIB)
        house.put("cloud", "a", content)
        house.until(holding(house, content, *names[1:]), seconds=120)
        assert sum(1 for name in names[1:] if bulk_bytes(passed, "cloud", name) > 0) >= 2


def test_a_sibling_that_stands_still_is_given_up_for_another() -> None:
    with watched("cloud", "laptop", "pocket") as (house, passed):
        house.partition(["cloud", "laptop"], ["pocket"])
        content = noise(4 * MIB)
        house.put("cloud", "a", content)
        house.until(holding(house, content, "laptop"))
        house.link(rate_bytes_s=300_000)
        house.heal()
        house.until_meshed()
        house.until(lambda: bulk_bytes(passed, "cloud", "pocket") > MIB // 2, seconds=60)
        house.freeze("cloud")
        house.until(holding(house, content, "pocket"), seconds=90)
        house.thaw("cloud")


def test_bulk_connections_end_with_their_session() -> None:
    with watched("cloud", "laptop") as (house, passed):
        house.link(rate_bytes_s=100_000)
        house.put("cloud", "a", noise(4 * MIB))
        house.until(lambda: bulk_bytes(passed) > MIB // 2, seconds=60)
        house.revoke("laptop", by="cloud")
        house.sleep(2)
        sent = bulk_bytes(passed)
        house.sleep(20)
        assert bulk_bytes(passed) == sent
        house.sleep(60)  # what was on the slow link arrives, and then the news of the end
        assert house.look(lambda world: world.agent("cloud").replicator._bulk._serving.total()) == 0
        assert not house.look(lambda world: [connection for host in world.internet.hosts.values() for connection
                                             in host.connections if any(stream._label == LABEL for stream
                                                                        in connection.streams)])


def test_an_idle_bulk_connection_is_closed_and_made_anew() -> None:
    with watched("cloud", "laptop") as (house, passed):
        for turn in range(2):
            content = noise(MIB, str(turn))
            house.put("cloud", "a", content)
            house.until(holding(house, content, "laptop"))
            assert bulk_bytes(passed) > (turn + 1) * MIB
            house.sleep(100)
            assert house.look(lambda world: world.agent("cloud").replicator._bulk._serving.total()) == 0
            assert not house.look(lambda world: world.agent("laptop").replicator._transfer._kept)


def test_a_limit_holds_in_both_directions() -> None:
    with watched("cloud", "laptop", vault=replace(SMALL_VAULT, rate=100_000)) as (house, passed):
        content = noise(2 * MIB)
        house.put("cloud", "a", content)
        house.sleep(10)
        said = house.call("laptop", "status")["vault"]
        assert said["rate"] == 100_000
        assert said["coming_packs"] >= 1
        assert 800_000 < bulk_bytes(passed, "cloud") < 1_100_000
        house.until(holding(house, content, "laptop"), seconds=60)
        block(house, "cloud", "laptop")
        house.sleep(100)  # the kept connection ends meanwhile
        passed.clear()
        more = noise(2 * MIB, "more")
        house.put("cloud", "a", more)
        house.sleep(12)
        assert sum(passed.values()) < 2.4 * MIB
        house.until(holding(house, more, "laptop"), seconds=60)
        assert not bulk_bytes(passed)


def test_a_sibling_can_not_have_more_connections_or_other_roles_than_it_may() -> None:
    async def ask(world: Any) -> list[str]:
        cloud, laptop = world.agent("cloud"), world.agent("laptop")
        there = cloud.peers.session_with(laptop.peers.public)
        here = laptop.peers.session_with(cloud.peers.public)
        opener, other = (there, here) if there.dialled_by_us else (here, there)
        codes = []
        for session, message in (
                (other, BulkOpen(bytes(16), certificate(bytes(32)), True)),
                (opener, BulkWant()),
                (opener, BulkOpen(bytes(16), certificate(bytes(32)), False)),
                *((opener, BulkOpen(bytes([number]) * 16, certificate(bytes(32)), True))
                  for number in range(limits.bulk_connections_each_max + 1))):
            try:
                codes.append(type(await session.request(message)).__name__)
            except NodeError as error:
                codes.append(error.code)
        await trio.sleep(11)  # none of them came
        codes.append(type(await opener.request(BulkOpen(bytes(16), certificate(bytes(32)), True))).__name__)
        return codes

    with watched("cloud", "laptop") as (house, _):
        ready = BulkReady.__name__
        assert house.run(ask) == ["E_VIOLATION"] * 3 + [ready] * limits.bulk_connections_each_max + ["E_BUSY", ready]
        house.sleep(11)


@pytest.mark.parametrize("what", ["another form", "another size"])
def test_a_sibling_that_answers_otherwise_than_it_may_is_let_go_and_packs_still_come(what: str) -> None:
    with watched("cloud", "laptop") as (house, passed):
        async def lie(stream: Any, request: Any) -> int:
            if what == "another form":
                await stream.send_all(b"\x07" * 9)
                return 9
            size = sizes[request.pack] + 65_536
            await stream.send_all(b"\0" + size.to_bytes(8, "big"))
            await stream.send_from(iter([bytes(size - request.offset)]))
            return size

        content, sizes = noise(MIB), dict[bytes, int]()
        house.partition(["cloud"], ["laptop"])
        house.put("cloud", "a", content)
        sizes.update(house.look(lambda world: world.agent("cloud").vault.core.store.index.packs()))
        house.look(lambda world: setattr(world.agent("cloud").replicator._server, "send_pack", lie))
        house.heal()
        house.until(holding(house, content, "laptop"), seconds=60)
        assert bulk_bytes(passed) < 10_000 or what == "another size"


def test_wrong_bytes_on_a_bulk_connection_are_thrown_away_and_told_of() -> None:
    with watched("cloud", "laptop", checkers=()) as (house, _):
        async def lie(stream: Any, request: Any) -> int:
            size = house_size[request.pack]
            await stream.send_all(b"\0" + size.to_bytes(8, "big"))
            await stream.send_from(iter([bytes(size - request.offset)]))
            return size

        content = noise(MIB)
        house_size: dict[bytes, int] = {}
        house.partition(["cloud"], ["laptop"])
        house.put("cloud", "a", content)
        house_size.update(house.look(lambda world: world.agent("cloud").vault.core.store.index.packs()))
        house.look(lambda world: setattr(world.agent("cloud").replicator._server, "send_pack", lie))
        house.heal()
        house.until_meshed()
        house.until(lambda: any(code == "E_PACK_REFUSED" for code, _ in house.look(
            lambda world: list(world.agent("laptop").vault.core.trouble))), seconds=60)
        assert not house.look(lambda world: world.agent("laptop").vault.core.store.incoming())
        assert not house.holds("laptop", "a")
