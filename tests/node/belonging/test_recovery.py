"""A household that comes back from its words: who is in it, what can be read, what is refused."""

from __future__ import annotations

import pytest

from hinet_node.belonging import recovery
from hinet_node.belonging.membership import Membership, draw_keys, draw_root, grown
from hinet_node.errors import NotAuthorised
from hinet_node.real.system import SystemClock
from hinet_protocol.chain import (
    EPOCH_NEW,
    Chain,
    make_device_add,
    make_epoch,
    needs_epoch,
    open_keyring,
    parse_entry,
)
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.errors import EntryConflict
from hinet_protocol.identity import DeviceKeys, RootKey
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.randomness import SeededRandomness

CLOCK, RANDOM = SystemClock(), SeededRandomness("recovery")
ROOT, SPARE = draw_root(RANDOM), draw_root(RANDOM)
NOW_S = 1_800_000_000


def household() -> tuple[Membership, DeviceKeys, DeviceKeys]:
    """cloud (admin), pocket (member) and store (keeper), after a revocation: two epochs."""
    cloud = Membership.found(MemoryDisk(), RANDOM, CLOCK, name="cloud", tier="cloud", root=ROOT,
                             next_root_public=SPARE.public)
    keys = []
    for name, role in (("pocket", "member"), ("store", "keeper"), ("gone", "member")):
        keys.append(draw_keys(RANDOM))
        keeper = role == "keeper"
        cloud.take_in([make_device_add(
            cloud.chain(), cloud.keys, name=name, public=keys[-1].public, box_public=keys[-1].box_public, role=role,
            tier="pocket", time_s=1, keyring=None if keeper else cloud.keyring,
            ephemeral_seed=None if keeper else RANDOM.draw(32))])
    cloud.revoke(keys[2].public, "lost")
    return cloud, keys[0], keys[1]


def recovered(chain: Chain, root: RootKey = ROOT, *, name: str = "new", revoke_others: bool = False,
              replaces: bytes | None = None) -> tuple[Membership, Chain]:
    keys = draw_keys(RANDOM)
    made = recovery.recovered(chain, root, recovery.NewDevice(keys, name, "laptop", replaces), RANDOM, NOW_S,
                              revoke_others=revoke_others)
    return Membership.adopt(MemoryDisk(), RANDOM, CLOCK, keys, made), made


def test_a_recovered_admin_reads_everything_that_was_ever_written() -> None:
    cloud, pocket, _ = household()
    new, chain = recovered(cloud.chain())
    assert (new.name, new.role) == ("new", "admin")
    assert cloud.epoch_keys().items() < new.epoch_keys().items()
    assert len(cloud.epoch_keys()) == 2
    assert new.current_epoch() not in cloud.epoch_keys()
    assert not needs_epoch(chain)
    assert open_keyring(chain, pocket).keys() == new.keyring.keys()
    assert open_keyring(chain, ROOT).keys() == new.keyring.keys()
    assert [device.name for device in chain.members()] == ["cloud", "pocket", "store", "new"]
    new.revoke(cloud.device_public, "lost")
    assert not new.chain().is_member(cloud.device_public)


def test_everybody_else_is_put_out_in_the_same_step_and_opens_nothing_later() -> None:
    cloud, pocket, store = household()
    new, chain = recovered(cloud.chain(), name="cloud", revoke_others=True)
    assert [device.name for device in chain.members()] == ["cloud"]
    assert new.current_epoch() is not None
    for keys in (cloud.keys, pocket, store):
        assert new.current_epoch() not in open_keyring(chain, keys)
    cloud.take_in(chain.raws())
    assert not cloud.device.live
    with pytest.raises(NotAuthorised):
        cloud.revoke(new.device_public, "revenge")


def test_a_keepers_home_comes_back_as_an_admin_under_its_old_name() -> None:
    cloud, _, store = household()
    new, chain = recovered(cloud.chain(), name="store", replaces=store.public)
    assert [device.name for device in chain.members()] == ["cloud", "pocket", "store"]
    assert (new.role, new.epoch_keys().keys() > cloud.epoch_keys().keys()) == ("admin", True)
    assert not chain.is_member(store.public)


def test_a_household_without_any_admin_gets_one() -> None:
    cloud, _, _ = household()
    _, alone = recovered(cloud.chain(), name="x", revoke_others=True)
    [only] = alone.members()
    new, chain = recovered(alone, name="y", replaces=only.public)
    assert [device.name for device in chain.members()] == ["y"]
    assert set(new.epoch_keys()) > set(cloud.epoch_keys())


def test_other_words_are_refused_and_told_apart() -> None:
    cloud, _, _ = household()
    with pytest.raises(NotAuthorised, match="spare words") as caught:
        recovered(cloud.chain(), SPARE)
    assert "rotate" in (caught.value.next_step or "")
    with pytest.raises(NotAuthorised, match="another identity"):
        recovered(cloud.chain(), draw_root(RANDOM))


def test_a_name_that_a_live_device_has_is_refused() -> None:
    cloud, _, _ = household()
    with pytest.raises(EntryConflict, match="Pocket"):
        recovered(cloud.chain(), name="Pocket")


def test_an_epoch_that_nobody_honest_can_open_holds_no_recovery_up() -> None:
    """A bad admin wraps its epoch's key to itself alone, not to the root either."""
    cloud, _, _ = household()
    raw = make_epoch(cloud.chain(), cloud.keys, key=RANDOM.draw(32), ephemeral_seed=RANDOM.draw(32),
                     keyring=cloud.keyring, time_s=1, recipients=[])
    entry = parse_entry(raw)
    body = {**entry.body, "wraps": [row for row in entry.body["wraps"] if row[0] == cloud.device_public]}
    bad = sign_entry(cloud.keys, entry.identity_id, entry.parents, EPOCH_NEW, body, 1)
    chain = grown(cloud.chain(), [bad])
    assert len(open_keyring(chain, ROOT)) == 2
    new, chain = recovered(chain)
    assert new.current_epoch() is not None
    assert set(new.epoch_keys()) > set(cloud.epoch_keys())
