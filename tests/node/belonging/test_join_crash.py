"""Power cuts during a join, at every operation of either side's disk: nothing is half granted, and everybody can go on.

In virtual time over the in-memory ports. The disk dies before its k-th change takes effect, or right after it, and the
host's network with it in the same instant; then the host starts again from what its disk holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import pytest
import trio

from hinet_node import home
from hinet_node.belonging.invitation_store import InvitationStore
from hinet_node.belonging.invite import Inviter
from hinet_node.belonging.join import Wanted, join_household, preflight
from hinet_node.belonging.join_stream import JOIN_PROTOCOL
from hinet_node.belonging.membership import Membership, draw_root
from hinet_node.errors import NodeError
from hinet_node.foreign_errors import as_node_error, is_foreign
from hinet_node.ports import Ports
from hinet_node.sessions.address_book import AddressBook
from hinet_protocol.invitations import parse_code, parse_ticket
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.network import Internet
from hinet_simnet.randomness import SeededRandomness

OPERATIONS_MAX = 40


class PowerCut(BaseException):
    """Not an error that anything could catch and go on from."""


class MortalDisk(MemoryDisk):
    """Dies at the change with the given number, counted from `arm`; `died` is called in that instant."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.dead = False
        self._left, self._after = 1 << 30, False
        self._died: Callable[[], None] = lambda: None

    def arm(self, at: int, *, after: bool, died: Callable[[], None]) -> None:
        self._left, self._after, self._died = at, after, died

    def _change(self, work: Callable[[], None]) -> None:
        if self.dead:
            raise PowerCut
        self._left -= 1
        if self._left == 0:
            if self._after:
                work()
            self.dead = True
            self._died()
            raise PowerCut
        work()

    def write_atomic(self, name: str, data: bytes, *, private: bool = False) -> None:
        self._change(lambda: super(MortalDisk, self).write_atomic(name, data, private=private))

    def remove(self, name: str) -> None:
        if self.exists(name) or self.dead:
            self._change(lambda: super(MortalDisk, self).remove(name))


@dataclass
class Place:
    """One internet and the devices on it, which outlive their starts by their disks."""

    seed: int
    internet: Internet = field(init=False)
    log: list[str] = field(default_factory=list)
    starts: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.internet = Internet(self.seed)

    def ports(self, name: str, disk: MemoryDisk) -> Ports:
        none: Any = cast(Any, None)
        return Ports(clock=VirtualClock(), randomness=SeededRandomness(self.seed, f"{name} {next(self.starts)}"),
                     network=self.internet.host(name), discovery=none, disk=disk, compute=none)

    @asynccontextmanager
    async def inviter(self, disk: MemoryDisk) -> AsyncIterator[tuple[Membership, Inviter, tuple[str, ...]]]:
        ports = self.ports("first", disk)
        if disk.exists(home.CHAIN_HEAD):
            membership = Membership.load(disk, ports.randomness, ports.clock)
        else:
            membership = Membership.found(disk, ports.randomness, ports.clock, name="first", tier="cloud",
                                          root=draw_root(ports.randomness))
        listening: list[str] = []
        inviter = Inviter(ports, membership, self.log.append, lambda: listening, discover=False)
        async with trio.open_nursery() as nursery:
            await nursery.start(inviter.run)
            async with ports.network.serve(membership.keys.sign_seed, ["/ip4/0.0.0.0/tcp/0"],
                                           {JOIN_PROTOCOL: inviter.handle}) as addresses:
                listening += addresses
                yield membership, inviter, tuple(addresses)
            nursery.cancel_scope.cancel()

    async def join(self, disk: MemoryDisk, shown: str, addresses: tuple[str, ...]) -> Membership | NodeError:
        """The membership, or the error as its owner sees it."""
        ports = self.ports("second", disk)
        invitation = parse_ticket(shown) if shown.startswith("hinet1") else parse_code(shown)

        def settle(device: Any) -> None:
            disk.write_atomic(home.CONFIG, b"settled")

        try:
            keys = preflight(disk, ports.randomness)
            return await join_household(ports, keys, Wanted(invitation, "second", "laptop", addresses, 30.0),
                                        settle=settle)
        except Exception as error:
            if not isinstance(error, NodeError) and not is_foreign(error):
                raise
            return as_node_error(error)


async def invited(inviter: Inviter, carrier: str) -> str:
    shown = await inviter.verbs()["invite"]({"accept": True, "wait": False, "carrier": carrier}, lambda news: None)
    return str(shown[carrier])


def record_states(disk: MemoryDisk) -> list[str]:
    """What the disk says of the invitations, before any start settles it."""
    store = InvitationStore(disk, VirtualClock())
    found = []
    store.save_if_possible = lambda record: None  # type: ignore[method-assign]
    for name in disk.list(home.INVITATIONS):
        raw = disk.read(f"{home.INVITATIONS}/{name}")
        found += [state for state in ("open", "consumed", "certified", "burned", "cancelled") if state.encode() in raw]
    return found


async def kill_inviter_at(place: Place, at: int, after: bool, carrier: str) -> bool:
    """One life and death of an inviter; False when the disk was asked for fewer changes than that."""
    disk, joiner = MortalDisk("first"), MemoryDisk("second")
    outcome: list[Membership | NodeError] = []
    shown = ""
    try:
        async with place.inviter(disk) as (_, inviter, addresses):
            disk.arm(at, after=after, died=lambda: place.internet.kill("first"))
            shown = await invited(inviter, carrier)
            outcome.append(await place.join(joiner, shown, addresses))
    except* PowerCut:
        pass  # at the change that was asked for
    if not disk.dead:
        assert isinstance(outcome[0], Membership)
        return False
    kept = disk.copy()
    kept_chain = Membership.load(kept, SeededRandomness(0, ""), VirtualClock()).chain()
    has_certificate = kept_chain.device_named("second") is not None
    if has_certificate:
        assert record_states(kept) in (["consumed"], ["certified"]), "no certificate without a consumed invitation"
    if shown and not outcome:  # the joiner was cancelled with the inviter's test; it starts again below
        assert not joiner.exists(home.CHAIN_HEAD) or has_certificate
    if outcome and isinstance(outcome[0], NodeError):
        assert outcome[0].next_step, f"the joiner needs a next step after: {outcome[0].what}"
    place.log.clear()
    async with place.inviter(kept) as (membership, inviter, addresses):
        if shown and record_states(disk) == ["consumed"]:
            assert [line for line in place.log if "hinet-node invite" in line or "valid again" in line], (
                "the owner needs a next step")
        if not joiner.exists(home.CHAIN_HEAD):
            if shown and carrier == "ticket" and not has_certificate:
                again: Membership | NodeError = await place.join(joiner, shown, addresses)
            else:
                if shown:
                    refused = await place.join(joiner.copy(), shown, addresses)
                    assert isinstance(refused, NodeError)
                    assert "hinet-node" in (refused.next_step or ""), "the old code says how to get a new one"
                again = await place.join(joiner, await invited(inviter, carrier), addresses)
            assert isinstance(again, Membership), again
        names = [device.name for device in membership.chain().devices()]
        assert names == ["first", "second"], "nobody is there twice, and no name is blocked"
        mine = Membership.load(joiner, SeededRandomness(0, ""), VirtualClock())
        assert mine.chain().is_member(mine.device_public)
        assert membership.chain().is_member(mine.device_public)
    return True


@pytest.mark.parametrize("carrier", ["code", "ticket"])
@pytest.mark.parametrize("after", [False, True], ids=["before the change", "after the change"])
def test_an_inviter_that_is_killed_at_any_change_of_its_disk_grants_nothing_by_halves(carrier: str,
                                                                                      after: bool) -> None:
    for at in range(1, OPERATIONS_MAX):
        lived: list[bool] = []

        async def main(at: int = at, lived: list[bool] = lived) -> None:
            lived.append(not await kill_inviter_at(Place(at), at, after, carrier))

        virtual_run(main, seed=at)
        if lived[0]:
            assert at > 4, "record, consumption, certificate and head are changes of the disk"
            return
    raise AssertionError("a join changes the disk without end")


async def kill_joiner_at(place: Place, at: int, after: bool) -> bool:
    disk, joiner = MemoryDisk("first"), MortalDisk("second")
    async with place.inviter(disk) as (membership, inviter, addresses):
        joiner.arm(at, after=after, died=lambda: place.internet.kill("second"))
        outcome: list[Membership | NodeError] = []
        try:
            outcome.append(await place.join(joiner, await invited(inviter, "code"), addresses))
        except* PowerCut:
            pass  # at the change that was asked for
        if not joiner.dead:
            assert isinstance(outcome[0], Membership)
            return False
        kept = joiner.copy()
        await trio.sleep(120)  # the inviter's machine gives the silent joiner up
        if not kept.exists(home.CHAIN_HEAD):
            again = await place.join(kept, await invited(inviter, "code"), addresses)
            assert isinstance(again, Membership), again
        mine = Membership.load(kept, SeededRandomness(0, ""), VirtualClock())
        assert [device.name for device in membership.chain().devices()] == ["first", "second"]
        assert membership.chain().is_member(mine.device_public)
        assert kept.read(home.CONFIG) == b"settled", "whoever belongs has its settings"
        assert AddressBook(kept).find(membership.device_public) == addresses, "and knows where to go"
    return True


@pytest.mark.parametrize("after", [False, True], ids=["before the change", "after the change"])
def test_a_joiner_that_is_killed_at_any_change_of_its_disk_is_free_or_joined_and_can_join_again(after: bool) -> None:
    for at in range(1, OPERATIONS_MAX):
        lived: list[bool] = []

        async def main(at: int = at, lived: list[bool] = lived) -> None:
            lived.append(not await kill_joiner_at(Place(at), at, after))

        virtual_run(main, seed=at)
        if lived[0]:
            assert at > 5, "key, addresses, settings, chain and head are changes of the disk"
            return
    raise AssertionError("a join changes the disk without end")
