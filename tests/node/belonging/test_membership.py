"""This device's place in the household, over the in-memory disk."""

import pytest

from hinet_node import home
from hinet_node.belonging.chain_store import SEGMENTS_MAX
from hinet_node.belonging.membership import Membership, draw_keys, draw_root
from hinet_node.errors import ConflictError, IntegrityError, NoSpace, NotAuthorised, NotInitialised
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_protocol import canonical
from hinet_protocol.chain import Chain, make_device_add
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys, verify
from hinet_simnet.disk import MemoryDisk

CLOCK, RANDOM = SystemClock(), SystemRandomness()


def founded(disk: MemoryDisk, name: str = "first") -> Membership:
    return Membership.found(disk, RANDOM, CLOCK, name=name, tier="cloud", root=draw_root(RANDOM))


def added(admin: Membership, name: str, role: str = "member") -> DeviceKeys:
    keys = draw_keys(RANDOM)
    admin.take_in([make_device_add(
        admin.chain(), admin.keys, name=name, public=keys.public, box_public=keys.box_public, role=role, tier="laptop",
        time_s=1, keyring=admin.keyring, ephemeral_seed=RANDOM.draw(32))])
    return keys


def test_a_new_household_has_one_admin_and_an_epoch_that_it_can_open() -> None:
    disk = MemoryDisk()
    made = founded(disk)
    again = Membership.load(disk, RANDOM, CLOCK)
    assert again.chain() == made.chain()
    assert (again.name, again.tier, again.role) == ("first", "cloud", "admin")
    current = again.current_epoch()
    assert current is not None
    assert again.epoch_keys() == made.epoch_keys()
    assert again.members() == {made.device_public: "first"}
    verify(made.device_public, b"test", b"message", again.sign(b"test", b"message"))


def test_a_second_identity_is_refused_and_the_first_is_untouched() -> None:
    disk = MemoryDisk()
    founded(disk)
    before = {name: disk.read(name) for name in (home.DEVICE_KEY, home.CHAIN_HEAD)}
    with pytest.raises(ConflictError) as caught:
        founded(disk, "second")
    assert caught.value.exit_code == 6
    assert {name: disk.read(name) for name in before} == before


def test_a_full_or_read_only_disk_leaves_nothing_half_made() -> None:
    for capacity_bytes in range(0, 1_400, 50):
        disk = MemoryDisk(capacity_bytes=capacity_bytes)
        try:
            founded(disk)
        except NoSpace:
            assert disk.used_bytes() == 0, f"something was left with room for {capacity_bytes} bytes"
        else:
            Membership.load(disk, RANDOM, CLOCK)
            break
    else:
        pytest.fail("no size was enough")
    assert capacity_bytes > 0
    disk = MemoryDisk()
    disk.read_only = True
    with pytest.raises(NoSpace):
        founded(disk)
    assert not disk.exists(home.DEVICE_KEY)


def test_an_empty_home_is_not_initialised() -> None:
    with pytest.raises(NotInitialised):
        Membership.load(MemoryDisk(), RANDOM, CLOCK)


def test_a_chain_that_was_cut_short_is_noticed() -> None:
    disk = MemoryDisk()
    made = founded(disk)
    added(made, "second")
    newest = disk.list(home.CHAIN)[-2]
    assert newest.endswith(".entries")
    disk.remove(f"{home.CHAIN}/{newest}")
    with pytest.raises(IntegrityError) as caught:
        Membership.load(disk, RANDOM, CLOCK)
    assert (caught.value.code, caught.value.exit_code) == ("E_CHAIN_CUT", 7)


def test_a_changed_entry_is_noticed() -> None:
    disk = MemoryDisk()
    founded(disk)
    name = f"{home.CHAIN}/000000.entries"
    raw = bytearray(disk.read(name))
    raw[len(raw) // 2] ^= 1
    disk.write_atomic(name, bytes(raw))
    with pytest.raises(IntegrityError):
        Membership.load(disk, RANDOM, CLOCK)


def test_entries_are_on_disk_before_they_count() -> None:
    disk = MemoryDisk()
    made = founded(disk)
    seen: list[Chain] = []
    made.on_growth(lambda: seen.append(Membership.load(disk, RANDOM, CLOCK).chain()))
    added(made, "second")
    assert seen == [made.chain()]
    height = made.chain().height
    disk.full = True
    with pytest.raises(NoSpace):
        added(made, "third")
    assert made.chain().height == height


def test_a_refused_entry_holds_back_no_other() -> None:
    made = founded(MemoryDisk())
    sibling_disk = MemoryDisk()
    keys = added(made, "second")
    sibling = Membership.adopt(sibling_disk, RANDOM, CLOCK, keys, made.chain())
    made.revoke(added(made, "third").public, "lost")
    news = [b"nonsense", *made.chain().raws()]
    with pytest.raises(ProtocolError):
        sibling.take_in(news)
    assert sibling.chain() == made.chain()
    assert [device.name for device in sibling.chain().devices() if device.revoked] == ["third"]


def test_revoking_gives_the_rest_a_new_epoch_that_the_revoked_cannot_open() -> None:
    made = founded(MemoryDisk())
    kept_keys, lost_keys = added(made, "kept"), added(made, "lost")
    kept = Membership.adopt(MemoryDisk(), RANDOM, CLOCK, kept_keys, made.chain())
    lost = Membership.adopt(MemoryDisk(), RANDOM, CLOCK, lost_keys, made.chain())
    before = made.current_epoch()
    assert kept.current_epoch() == lost.current_epoch() == before
    made.revoke(lost_keys.public, "stolen")
    for other in (kept, lost):
        other.take_in(made.chain().raws())
    assert kept.current_epoch() == made.current_epoch() != before
    assert lost.current_epoch() is None
    assert made.current_epoch() not in lost.epoch_keys()


def test_a_keeper_holds_no_key_and_is_no_writer() -> None:
    made = founded(MemoryDisk())
    keeper = Membership.adopt(MemoryDisk(), RANDOM, CLOCK, added(made, "store", "keeper"), made.chain())
    assert keeper.role == "keeper"
    assert keeper.current_epoch() is None
    assert not keeper.epoch_keys()
    assert keeper.device_public not in made.members()
    with pytest.raises(NotAuthorised, match="store is a keeper") as caught:
        keeper.revoke(made.device_public, "")
    assert "first" in (caught.value.next_step or "")


def test_many_segments_are_written_into_one() -> None:
    disk = MemoryDisk()
    made = founded(disk)
    for number in range(SEGMENTS_MAX + 2):
        added(made, f"device-{number}")
    assert len(disk.list(home.CHAIN)) < 6
    assert Membership.load(disk, RANDOM, CLOCK).chain() == made.chain()


def test_a_crash_between_segment_and_head_loses_nothing() -> None:
    disk = MemoryDisk()
    made = founded(disk)
    head = disk.read(home.CHAIN_HEAD)
    added(made, "second")
    disk.write_atomic(home.CHAIN_HEAD, head)
    assert Membership.load(disk, RANDOM, CLOCK).chain() == made.chain()
    disk.write_atomic(home.CHAIN_HEAD, canonical.encode([1]))
    with pytest.raises(IntegrityError, match="head"):
        Membership.load(disk, RANDOM, CLOCK)
