from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError

from hinet_protocol.chain import (
    Chain,
    make_device_add,
    make_device_revoke,
    make_epoch,
    needs_epoch,
    open_keyring,
    parse_entry,
)
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.epochs import (
    _SMALL_ORDER,
    EpochKey,
    Keyring,
    box_key,
    ephemeral_public,
    key_check,
    open_previous,
    seal_previous,
    unwrap_key,
    wrap_key,
)
from hinet_protocol.errors import EpochError, KeyInvalid, MessageError
from hinet_protocol.identity import DeviceKeys

KEY, SEED = b"k" * 32, b"e" * 32


def test_a_wrapped_key_opens_for_its_device_only(keys_of: Callable[[str], DeviceKeys]) -> None:
    anna, bert = keys_of("anna"), keys_of("bert")
    wrapped = wrap_key(KEY, anna.box_public, SEED)
    ephemeral = ephemeral_public(SEED)
    assert unwrap_key(wrapped, anna, ephemeral) == KEY
    damaged = bytes([wrapped[0] ^ 1]) + wrapped[1:]
    for blob, keys, public, context in (
        (wrapped, bert, ephemeral, b""),
        (wrapped, anna, ephemeral_public(b"f" * 32), b""),
        (wrapped, anna, ephemeral, b"other"),
        (damaged, anna, ephemeral, b""),
        (wrapped[:-1], anna, ephemeral, b""),
        (wrapped, anna, bytes(32), b""),
    ):
        with pytest.raises(EpochError):
            unwrap_key(blob, keys, public, context)


def test_a_key_of_low_order_is_not_wrapped_to() -> None:
    with pytest.raises(KeyInvalid):
        wrap_key(KEY, bytes(32), SEED)
    with pytest.raises(KeyInvalid):
        wrap_key(KEY, bytes(31), SEED)


def test_the_list_of_points_of_small_order_is_what_multiplying_says(random_bytes: Callable[..., bytes]) -> None:
    prime = 2**255 - 19
    points = [*range(4), *range(prime - 3, prime + 4), *_SMALL_ORDER]
    raws = [(point % 2**255).to_bytes(32, "little") for point in points]
    raws += [raw[:31] + bytes([raw[31] | 0x80]) for raw in raws] + [random_bytes(f"point {at}") for at in range(20)]
    for raw in raws:
        try:
            usable = any(crypto_scalarmult(bytes(32), raw))
        except CryptoError:
            usable = False
        if usable:
            assert box_key(raw, "box") == raw
        else:
            with pytest.raises(MessageError, match="small order"):
                box_key(raw, "box")


def test_a_sealed_earlier_key_opens_with_the_later_key_and_its_own_name_only() -> None:
    sealed = seal_previous(KEY, b"p" * 32, b"n" * 32)
    assert open_previous(sealed, b"p" * 32, b"n" * 32) == KEY
    for previous, key in ((b"q" * 32, b"n" * 32), (b"p" * 32, b"m" * 32)):
        with pytest.raises(EpochError):
            open_previous(sealed, previous, key)


def test_each_purpose_has_its_own_key() -> None:
    epoch = EpochKey(b"i" * 32, KEY)
    keys = {epoch.id_key, epoch.head_key, epoch.pack_key(bytes(32)), epoch.pack_key(b"\1" * 32), key_check(KEY), KEY}
    assert len(keys) == 6
    with pytest.raises(KeyInvalid):
        epoch.pack_key(bytes(31))
    assert KEY.hex() not in repr(epoch)


def test_a_new_member_reads_all_earlier_epochs_and_a_keeper_none(household: Any) -> None:
    household.epoch("second")
    household.epoch("third")
    member = household.add("bert")
    keeper = household.add("kept", role="keeper")
    ring = open_keyring(household.chain, member)
    assert set(ring) == {epoch.epoch_id for epoch in household.chain.epochs()}
    assert len(ring) == 3
    assert ring.current == open_keyring(household.chain, household.admin).current
    assert open_keyring(household.chain, keeper) == {}
    assert open_keyring(household.chain, keeper).current is None
    assert not needs_epoch(household.chain)


def test_a_removed_device_reads_what_it_had_and_nothing_later(household: Any) -> None:
    bert = household.add("bert")
    before = set(open_keyring(household.chain, bert))
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=1))
    assert needs_epoch(household.chain)
    household.epoch("after")
    assert not needs_epoch(household.chain)
    assert set(open_keyring(household.chain, bert)) == before
    assert open_keyring(household.chain, bert).current is None
    assert len(open_keyring(household.chain, household.admin)) == len(before) + 1


def test_an_epoch_is_not_made_without_the_keys_of_those_before(household: Any) -> None:
    with pytest.raises(EpochError, match="lacks the key"):
        make_epoch(household.chain, household.admin, key=KEY, ephemeral_seed=SEED, time_s=1, keyring=Keyring())


def test_two_epochs_made_apart_merge_into_one_choice_and_ask_for_a_third(household: Any) -> None:
    start, ring = household.chain, open_keyring(household.chain, household.admin)
    raws = [
        make_epoch(start, household.admin, key=key * 32, ephemeral_seed=key * 32, time_s=1, keyring=ring)
        for key in (b"1", b"2")
    ]
    one, two = start.with_entries(raws), start.with_entries(reversed(raws))
    assert one.current_epoch == two.current_epoch
    assert len(one.epoch_tips) == 2
    assert needs_epoch(one)
    household.chain = one
    assert len(open_keyring(one, household.admin)) == 3
    household.epoch("merged")
    assert len(household.chain.epoch_tips) == 1
    assert not needs_epoch(household.chain)
    bert = household.add("bert")
    assert len(open_keyring(household.chain, bert)) == 4


def test_twenty_epochs_made_apart_are_joined_step_by_step(household: Any) -> None:
    """One entry joins eight branches at most; nothing is lost on the way."""
    start, ring = household.chain, open_keyring(household.chain, household.admin)
    raws = [
        make_epoch(start, household.admin, key=bytes([n]) * 32, ephemeral_seed=bytes([n]) * 32, time_s=1, keyring=ring)
        for n in range(1, 21)
    ]
    household.chain = start.with_entries(raws)
    rounds = 0
    while needs_epoch(household.chain):
        household.epoch(f"round {rounds}")
        rounds += 1
    assert rounds <= 4
    assert len(household.chain.epoch_tips) == 1
    bert = household.add("bert")
    assert len(open_keyring(household.chain, bert)) == len(household.chain.epochs()) == 21 + rounds


def test_the_epoch_that_reaches_no_removed_device_is_preferred(household: Any) -> None:
    bert = household.add("bert")
    start, ring = household.chain, open_keyring(household.chain, household.admin)
    stale = [
        make_epoch(start, household.admin, key=key * 32, ephemeral_seed=key * 32, time_s=1, keyring=ring)
        for key in (b"1", b"2", b"3", b"4")
    ]
    apart = start.with_entries([make_device_revoke(start, household.admin, bert.public, time_s=1)])
    clean = make_epoch(apart, household.admin, key=b"c" * 32, ephemeral_seed=b"c" * 32, time_s=1, keyring=ring)
    both = apart.with_entries([clean, *stale])
    assert both.current_epoch is not None
    assert both.current_epoch.epoch_id == parse_entry(clean).hash


def test_a_member_whom_the_current_epoch_does_not_reach_asks_for_a_new_one(
    household: Any, keys_of: Callable[[str], DeviceKeys]
) -> None:
    keys = keys_of("late")
    raw = make_device_add(
        household.chain, household.admin, name="late", public=keys.public, box_public=keys.box_public, role="member",
        tier="pocket", time_s=1,
    )  # fmt: skip
    household.take(raw)
    assert needs_epoch(household.chain)
    household.epoch("for all")
    assert not needs_epoch(household.chain)
    assert len(open_keyring(household.chain, keys)) == 2


def test_a_wrongly_made_epoch_is_left_out_of_the_keyring(household: Any) -> None:
    """Its check names another key than the one that was wrapped."""
    body = {
        "ephemeral": ephemeral_public(SEED),
        "check": key_check(b"x" * 32),
        "wraps": [(household.admin.public, wrap_key(KEY, household.admin.box_public, SEED))],
        "previous": [],
    }
    chain: Chain = household.chain
    raw = sign_entry(household.admin, chain.identity_id, chain.heads, "epoch.new", body, 1)
    household.take(raw)
    ring = open_keyring(household.chain, household.admin)
    assert parse_entry(raw).hash not in ring
    assert ring.current is None
    assert needs_epoch(household.chain, ring)
    household.epoch("right again")
    assert not needs_epoch(household.chain, open_keyring(household.chain, household.admin))
    # What the wrong one was to pass on is passed on by the right one, to those who come later too.
    before = set(ring)
    late = household.add("late")
    assert before
    assert before < set(open_keyring(household.chain, late))


def test_what_was_written_under_a_void_epoch_stays_readable_for_those_who_come_later(household: Any) -> None:
    """A removed admin made it on an old branch, and members used it before they knew."""
    bert = household.add("bert", role="admin")
    member = household.add("member")
    before: Chain = household.chain
    void = make_epoch(before, bert, key=b"v" * 32, ephemeral_seed=b"v" * 32, time_s=1,
                      keyring=open_keyring(before, bert))  # fmt: skip
    household.take(make_device_revoke(before, household.admin, bert.public, time_s=1))
    household.take(void)
    epoch = household.chain.epoch(parse_entry(void).hash)
    assert epoch is not None
    assert not epoch.standing
    assert open_keyring(household.chain, member)[epoch.epoch_id].key == b"v" * 32
    household.epoch("after")
    late = household.add("late")
    assert open_keyring(household.chain, late)[epoch.epoch_id].key == b"v" * 32
    household.epoch("once more")
    assert household.chain.current_epoch.previous.keys() == {household.chain.epochs()[-2].epoch_id}


def test_an_epoch_that_lies_about_what_it_passes_on_hides_nothing(household: Any) -> None:
    first = household.chain.current_epoch.epoch_id
    chain: Chain = household.chain
    body = {
        "ephemeral": ephemeral_public(SEED),
        "check": key_check(KEY),
        "wraps": sorted((one.public, wrap_key(KEY, one.box_public, SEED)) for one in (household.admin, household.root)),
        "previous": [(first, bytes(48))],
    }
    household.take(sign_entry(household.admin, chain.identity_id, chain.heads, "epoch.new", body, 1))
    household.epoch("after")
    late = household.add("late")
    assert first in open_keyring(household.chain, late)


def test_the_words_alone_recover_every_epoch_for_a_new_admin(
    household: Any, keys_of: Callable[[str], DeviceKeys]
) -> None:
    household.epoch("second")
    household.add("bert")
    found = open_keyring(household.chain, household.root)
    assert len(found) == 2
    assert found.current == open_keyring(household.chain, household.admin).current
    keys = keys_of("new admin")
    raw = make_device_add(
        household.chain, household.root, name="new", public=keys.public, box_public=keys.box_public, role="admin",
        tier="cloud", time_s=1, keyring=found, ephemeral_seed=SEED,
    )  # fmt: skip
    household.take(raw)
    assert len(open_keyring(household.chain, keys)) == 2
    assert not needs_epoch(household.chain)


def test_an_epoch_that_leaves_out_the_root_asks_for_another(household: Any) -> None:
    """Nobody could recover with the words what is written under it."""
    assert not needs_epoch(household.chain)
    tip = household.chain.current_epoch.epoch_id
    body = {
        "ephemeral": ephemeral_public(SEED), "check": key_check(KEY), "previous": [(tip, bytes(48))],
        "wraps": [(household.admin.public, wrap_key(KEY, household.admin.box_public, SEED))],
    }  # fmt: skip
    raw = sign_entry(household.admin, household.chain.identity_id, household.chain.heads, "epoch.new", body, 1)
    household.take(raw)
    assert household.chain.current_epoch.epoch_id == parse_entry(raw).hash
    assert needs_epoch(household.chain)
