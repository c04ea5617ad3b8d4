"""New keys for a home that keeps its vault and chain; a power cut at any write leaves the old device or the new one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from hinet_node import home
from hinet_node.belonging import exchange, recovery
from hinet_node.belonging.chain_store import SEGMENTS_MAX
from hinet_node.belonging.membership import Membership, draw_keys, draw_root
from hinet_node.errors import ConflictError, NoSpace, NotAuthorised
from hinet_node.real.system import SystemClock
from hinet_protocol.chain import make_device_add
from hinet_protocol.errors import EntryConflict
from hinet_protocol.identity import DeviceKeys, RootKey
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness

CLOCK, RANDOM = SystemClock(), SeededRandomness("exchange")


class PowerCut(BaseException):
    """A BaseException, so that no handler of errors can act on it."""


class FailingDisk:
    """A MemoryDisk whose changing call number `at` fails, before or after it was done; nothing is done after that."""

    def __init__(self, inner: MemoryDisk, at: int, error: BaseException, *, after: bool) -> None:
        self._inner, self._at, self._error, self._after = inner, at, error, after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if name not in ("write_atomic", "remove"):
            return real

        def call(*args: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls < self._at or (isinstance(self._error, NoSpace) and self.calls > self._at):
                return real(*args, **more)
            if self.calls == self._at and self._after:
                real(*args, **more)
            raise self._error
        return call


def founded(disk: MemoryDisk, root: RootKey | None = None, name: str = "cloud") -> Membership:
    return Membership.found(disk, RANDOM, CLOCK, name=name, tier="cloud", root=root or draw_root(RANDOM))


def added(admin: Membership, name: str, role: str = "member", keys: DeviceKeys | None = None) -> DeviceKeys:
    keys = keys or draw_keys(RANDOM)
    keeper = role == "keeper"
    admin.take_in([make_device_add(
        admin.chain(), admin.keys, name=name, public=keys.public, box_public=keys.box_public, role=role, tier="laptop",
        time_s=1, keyring=None if keeper else admin.keyring, ephemeral_seed=None if keeper else RANDOM.draw(32))])
    return keys


def reloaded(disk: MemoryDisk) -> Membership:
    return Membership.load(disk, RANDOM, CLOCK)


def test_a_copied_admin_certifies_its_own_new_key_and_the_other_copy_stays_what_it_was() -> None:
    disk = MemoryDisk()
    old = founded(disk)
    copy = disk.copy("copy")
    new = exchange.rekey_as_admin(copy, RANDOM, CLOCK)
    assert (new.name, new.role, new.tier) == ("cloud-2", "admin", "cloud")
    assert new.device_public != old.device_public
    assert new.epoch_keys() == old.epoch_keys()
    again = reloaded(copy)
    assert (again.device_public, again.chain()) == (new.device_public, new.chain())
    assert not copy.exists(home.DEVICE_KEY_NEXT)
    other = reloaded(disk)
    other.take_in(new.chain().raws())
    assert [device.name for device in other.chain().members()] == ["cloud", "cloud-2"]
    assert (other.name, other.role) == ("cloud", "admin")


def test_a_third_copy_gets_the_next_number_and_a_taken_name_is_refused() -> None:
    disk = MemoryDisk()
    founded(disk)
    first = exchange.rekey_as_admin(disk, RANDOM, CLOCK)
    second = exchange.rekey_as_admin(disk, RANDOM, CLOCK)
    assert (first.name, second.name) == ("cloud-2", "cloud-3")
    with pytest.raises(EntryConflict):
        exchange.rekey_as_admin(disk, RANDOM, CLOCK, "cloud")
    assert reloaded(disk).name == "cloud-3"
    assert exchange.free_name(second.chain(), "x" * 63) == "x" * 61 + "-2"


@pytest.mark.parametrize("role", ["member", "keeper"])
def test_a_copied_device_that_is_no_admin_needs_a_code(role: str) -> None:
    admin = founded(MemoryDisk())
    disk = MemoryDisk()
    Membership.adopt(disk, RANDOM, CLOCK, added(admin, "laptop", role), admin.chain())
    before = {name: disk.read(name) for name in (home.DEVICE_KEY, home.CHAIN_HEAD)}
    with pytest.raises(NotAuthorised, match=f"laptop is a {role}") as caught:
        exchange.rekey_as_admin(disk, RANDOM, CLOCK)
    assert "--rekey CODE" in (caught.value.next_step or "")
    assert {name: disk.read(name) for name in before} == before


def test_a_revoked_admin_does_not_certify_itself_again() -> None:
    admin = founded(MemoryDisk())
    disk = MemoryDisk()
    lost = Membership.adopt(disk, RANDOM, CLOCK, added(admin, "lost", "admin"), admin.chain())
    admin.revoke(lost.device_public, "lost")
    lost.take_in(admin.chain().raws())
    with pytest.raises(NotAuthorised, match="revoked"):
        exchange.rekey_as_admin(disk, RANDOM, CLOCK)


def test_a_code_of_another_household_changes_nothing() -> None:
    disk = MemoryDisk()
    mine, theirs = founded(disk), founded(MemoryDisk(), name="foreign")
    keys = exchange.prepare_next(disk, RANDOM, mine.chain())
    added(theirs, "cloud-2", keys=keys)
    with pytest.raises(ConflictError, match="another one") as caught:
        exchange.take_up(disk, RANDOM, CLOCK, mine.chain(), keys, theirs.chain())
    assert caught.value.code == "E_CHAIN_FOREIGN"
    assert reloaded(disk).device_public == mine.device_public


def test_a_certificate_by_code_keeps_what_only_this_home_knew() -> None:
    """Both sides' entries are in the chain afterwards, and the fingerprint stays from try to try."""
    disk, admin_disk = MemoryDisk(), MemoryDisk()
    admin = founded(admin_disk)
    second = added(admin, "second", "admin")
    mine = Membership.adopt(disk, RANDOM, CLOCK, second, admin.chain())
    added(mine, "only-here", "keeper")
    keys = exchange.prepare_next(disk, RANDOM, mine.chain())
    assert exchange.prepare_next(disk, RANDOM, mine.chain()) == keys
    added(admin, "second-2", keys=keys)
    new = exchange.take_up(disk, RANDOM, CLOCK, mine.chain(), keys, admin.chain())
    assert {device.name for device in new.chain().members()} == {"cloud", "second", "only-here", "second-2"}
    assert reloaded(disk).name == "second-2"


@functools.cache
def household_disk(keepers: int) -> MemoryDisk:
    """To be copied: an admin's home whose chain has so many further segments."""
    disk = MemoryDisk()
    admin = founded(disk, RootKey(bytes(32)))
    for number in range(keepers):
        added(admin, f"d{number}", "keeper")
    return disk


def rekey(disk: Any) -> None:
    exchange.rekey_as_admin(disk, SeededRandomness("new"), CLOCK)


def recover(disk: Any) -> None:
    before = Membership.load(disk, RANDOM, CLOCK)
    random = SeededRandomness("recover")
    exchange.exchange_keys(disk, random, CLOCK, before.chain(), lambda keys: recovery.recovered(
        before.chain(), RootKey(bytes(32)), recovery.NewDevice(keys, before.name, "cloud", before.device_public),
        random, 1_800_000_000))


@pytest.mark.parametrize("work", [rekey, recover])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [PowerCut(), NoSpace("full")], ids=["power", "full"])
@pytest.mark.parametrize("segments", [1, SEGMENTS_MAX])
def test_at_each_write_the_home_is_the_old_device_or_the_new_one(
        work: Callable[[Any], None], after: bool, error: BaseException, segments: int) -> None:
    original = household_disk(segments)
    old = reloaded(original)
    seen = set()
    for at in range(1, 500):
        disk = original.copy()
        failing = FailingDisk(disk, at, error, after=after)
        try:
            work(failing)
        except (PowerCut, NoSpace):
            pass
        else:
            assert at > 4
            break
        found = reloaded(disk)
        assert found.device.live, f"write {at} left a device that does not belong"
        assert found.epoch_keys() == old.epoch_keys() or set(found.epoch_keys()) > set(old.epoch_keys())
        seen.add(found.device_public == old.device_public)
        if found.device_public == old.device_public:
            work(disk)  # the old device tries again, and this time it works
            assert reloaded(disk).device.live
            assert reloaded(disk).device_public != old.device_public
        else:
            exchange.settle_keys(disk, found.chain())
            assert DeviceKeys.from_bytes(disk.read(home.DEVICE_KEY)).public == found.device_public
            assert not disk.exists(home.DEVICE_KEY_NEXT)
    assert seen == {True, False}
