"""The root's own entries: the promised root that takes over, and checkpoints that close the past."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from blake3 import blake3

from hinet_protocol import limits
from hinet_protocol.chain import (
    Chain,
    make_checkpoint,
    make_device_add,
    make_device_revoke,
    make_device_rotate,
    make_epoch,
    make_genesis,
    make_root_rotate,
    needs_epoch,
    open_keyring,
    parse_entry,
)
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.errors import EntryConflict, EntryUnauthorised, LastAdmin, LimitError
from hinet_protocol.identity import DeviceKeys, RootKey, root_commitment

ROOT, SPARE, THIRD = (RootKey(letter * 32) for letter in (b"r", b"s", b"t"))


@functools.cache
def keys(label: str) -> DeviceKeys:
    return DeviceKeys.from_entropy(blake3(b"root " + label.encode()).digest(64))


def add(chain: Chain, signer: Any, label: str, role: str = "member") -> Chain:
    one = keys(label)
    raw = make_device_add(chain, signer, name=label, public=one.public, box_public=one.box_public, role=role,
                          tier="laptop", time_s=5)
    return chain.with_entries([raw])


def revoke(chain: Chain, signer: Any, label: str) -> Chain:
    return chain.with_entries([make_device_revoke(chain, signer, keys(label).public, time_s=6)])


def rotate(chain: Chain, root: RootKey = SPARE, following: RootKey | None = THIRD, time_s: int = 7) -> Chain:
    promised = None if following is None else following.public
    return chain.with_entries([make_root_rotate(chain, root, time_s=time_s, next_root_public=promised)])


def checkpoint(chain: Chain, root: RootKey = ROOT, time_s: int = 8) -> Chain:
    return chain.with_entries([make_checkpoint(chain, root, time_s=time_s, note="checked")])


def epoch(chain: Chain, signer: Any, label: str) -> Chain:
    seed = blake3(label.encode()).digest(64)
    raw = make_epoch(chain, signer, key=seed[:32], ephemeral_seed=seed[32:], time_s=9,
                     keyring=open_keyring(chain, signer))
    return chain.with_entries([raw])


def union(*chains: Chain) -> Chain:
    merged = chains[0].merge([raw for chain in chains for raw in chain.raws()])
    assert not merged.rejected
    backwards = Chain.from_entries([raw for chain in reversed(chains) for raw in reversed(chain.raws())])
    assert backwards.devices() == merged.chain.devices()
    return merged.chain


def live(chain: Chain) -> set[str]:
    return {device.name for device in chain.members()}


@pytest.fixture
def chain() -> Chain:
    """Anna, bert and carl are admins in this order of seniority, dora is a member; there is an epoch."""
    chain = add(Chain.from_entries([make_genesis(ROOT, 1, SPARE.public)]), ROOT, "anna", "admin")
    chain = add(add(chain, keys("anna"), "bert", "admin"), keys("bert"), "carl", "admin")
    return epoch(add(chain, keys("anna"), "dora"), keys("anna"), "first")


EVERYBODY = {"anna", "bert", "carl", "dora"}


# --- a new root ------------------------------------------------------------------------------------------------------


def test_the_promised_root_takes_over_and_the_identity_stays(chain: Chain) -> None:
    assert chain.root_promise == root_commitment(SPARE.public)
    after = rotate(chain)
    assert after.identity_id == chain.identity_id == ROOT.identity_id
    assert (after.root_public, after.root_box_public) == (SPARE.public, SPARE.box_public)
    assert after.root_promise == root_commitment(THIRD.public)
    assert live(after) == EVERYBODY
    assert (after.can_sign(SPARE.public), after.can_sign(ROOT.public)) == (True, False)
    assert live(add(after, SPARE, "eve")) == {*EVERYBODY, "eve"}
    for act in (lambda: add(after, ROOT, "eve"), lambda: revoke(after, ROOT, "dora"), lambda: checkpoint(after)):
        with pytest.raises(EntryUnauthorised):
            act()
    assert rotate(after, THIRD, None).root_public == THIRD.public


def test_only_the_promised_key_takes_over_and_only_once(chain: Chain) -> None:
    with pytest.raises(EntryUnauthorised, match="promised"):
        rotate(chain, THIRD)
    with pytest.raises(EntryUnauthorised, match="promised"):
        rotate(rotate(chain, following=None), THIRD)
    unpromised = Chain.from_entries([make_genesis(ROOT, 1)])
    with pytest.raises(EntryUnauthorised, match="promised"):
        rotate(unpromised)
    body = {"root": SPARE.public, "box": SPARE.box_public, "next": None}
    for signer in (ROOT, keys("anna"), THIRD):
        raw = sign_entry(signer, chain.identity_id, chain.heads, "root.rotate", body, 1)
        assert isinstance(chain.merge([raw]).rejected[0].error, EntryUnauthorised)


def test_a_key_is_root_or_device_and_neither_twice(chain: Chain) -> None:
    back = rotate(chain, following=ROOT)
    with pytest.raises(EntryConflict, match="before"):
        rotate(back, ROOT, None)
    for former in (ROOT, SPARE):
        with pytest.raises(EntryConflict):
            make_device_add(back, keys("anna"), name="x", public=former.public, role="admin", tier="laptop",
                            box_public=keys("eve").box_public, time_s=1)


def test_what_the_old_root_signs_beside_its_successor_counts_nowhere(chain: Chain) -> None:
    """The stolen words make an admin, remove everybody and close the past, all on a branch of their own."""
    stolen = add(chain, ROOT, "eve", "admin")
    for label in ("anna", "bert", "dora"):
        stolen = revoke(stolen, ROOT, label)
    stolen = checkpoint(epoch(revoke(stolen, keys("eve"), "carl"), ROOT, "stolen"))
    assert live(stolen) == {"eve"}
    merged = union(stolen, rotate(chain))
    assert live(merged) == EVERYBODY
    assert merged.checkpoints() == ()
    assert merged.root_public == SPARE.public
    assert merged.device(keys("eve").public).void
    assert [one.standing for one in merged.epochs()] == [True, False]


def test_what_the_old_root_signed_before_its_successor_stays(chain: Chain) -> None:
    before = checkpoint(revoke(add(chain, ROOT, "eve"), ROOT, "dora"))
    after = rotate(before)
    assert live(after) == {"anna", "bert", "carl", "eve"}
    assert len(after.checkpoints()) == 1


def test_admins_go_on_beside_a_rotation(chain: Chain) -> None:
    """Their grants and removals are no worse for not knowing of it."""
    merged = union(rotate(chain), revoke(add(chain, keys("anna"), "eve"), keys("carl"), "dora"))
    assert live(merged) == {"anna", "bert", "carl", "eve"}


def test_the_vault_opens_for_the_new_root_and_later_epochs_not_for_the_old(chain: Chain) -> None:
    rotated = rotate(chain)
    assert needs_epoch(rotated, open_keyring(rotated, keys("anna")))
    after = epoch(rotated, keys("anna"), "second")
    assert not needs_epoch(after, open_keyring(after, keys("anna")))
    assert len(open_keyring(after, SPARE)) == 2
    assert len(open_keyring(after, ROOT)) == 1
    beside = union(after, epoch(chain, keys("bert"), "beside"))
    assert beside.current_epoch.epoch_id == after.current_epoch.epoch_id
    assert needs_epoch(beside)


def test_of_two_rotations_apart_the_lowest_counts_and_both_branches_live_on(chain: Chain) -> None:
    low = rotate(chain, following=THIRD)
    high = rotate(add(chain, keys("anna"), "eve"), following=None)
    merged = union(low, add(high, SPARE, "fritz"), add(low, SPARE, "gerd"))
    assert merged.root_public == SPARE.public
    assert merged.root_promise == root_commitment(THIRD.public)
    assert live(merged) == {*EVERYBODY, "eve", "fritz", "gerd"}
    assert len(merged.root_rotations()) == 1


def test_a_root_that_only_a_passed_over_rotation_promised_has_no_say(chain: Chain) -> None:
    low = rotate(chain, following=None)
    high = rotate(rotate(add(chain, keys("anna"), "eve")), THIRD, None)
    high = revoke(add(high, THIRD, "fritz"), THIRD, "dora")
    merged = union(low, high)
    assert merged.root_public == SPARE.public
    assert live(merged) == {*EVERYBODY, "eve"}


def test_the_last_admin_is_removed_by_the_new_root_and_no_longer_by_the_old(chain: Chain) -> None:
    alone = rotate(revoke(revoke(chain, ROOT, "bert"), ROOT, "carl"))
    with pytest.raises(LastAdmin):
        revoke(alone, keys("anna"), "anna")
    with pytest.raises(EntryUnauthorised):
        revoke(alone, ROOT, "anna")
    assert live(add(revoke(alone, SPARE, "anna"), SPARE, "eve", "admin")) == {"dora", "eve"}


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_only_the_root_makes_a_checkpoint(chain: Chain) -> None:
    body = {"note": ""}
    for signer in (keys("anna"), keys("dora"), SPARE):
        raw = sign_entry(signer, chain.identity_id, chain.heads, "checkpoint", body, 1)
        assert isinstance(chain.merge([raw]).rejected[0].error, EntryUnauthorised)
    assert [one.body["note"] for one in checkpoint(chain).checkpoints()] == ["checked"]


def test_a_removed_admin_can_not_insert_anything_below_a_checkpoint(chain: Chain) -> None:
    """Without one, what its stolen key removes on an old branch is removed."""
    old = add(chain, keys("bert"), "eve", "admin")
    forged = revoke(revoke(revoke(old, keys("eve"), "dora"), keys("bert"), "carl"), keys("bert"), "anna")
    removed = revoke(chain, keys("anna"), "bert")
    assert live(union(removed, forged)) == {"anna"}
    assert live(union(checkpoint(removed), forged)) == {"anna", "carl", "dora"}


def test_a_removed_senior_can_not_answer_from_below_a_checkpoint(chain: Chain) -> None:
    """Anna is removed by carl; her stolen key says on an old branch that it had removed carl before."""
    removed, answer = revoke(chain, keys("carl"), "anna"), revoke(chain, keys("anna"), "carl")
    assert live(union(removed, answer)) == {"anna", "bert", "dora"}
    assert live(union(checkpoint(removed), answer)) == {"bert", "carl", "dora"}


def test_a_live_admin_grants_nothing_below_a_checkpoint_but_still_removes(chain: Chain) -> None:
    closed = checkpoint(chain)
    assert live(union(closed, add(chain, keys("anna"), "eve"))) == EVERYBODY
    assert live(union(closed, add(chain, ROOT, "eve"))) == {*EVERYBODY, "eve"}
    assert live(add(closed, keys("anna"), "eve")) == {*EVERYBODY, "eve"}
    assert live(union(closed, revoke(chain, keys("carl"), "dora"))) == {"anna", "bert", "carl"}
    assert live(union(closed, revoke(chain, keys("dora"), "dora"))) == {"anna", "bert", "carl"}
    renewed = chain.with_entries([make_device_rotate(chain, keys("anna"), keys("dora").public, time_s=1, expires_s=9)])
    assert union(closed, renewed).device(keys("dora").public).expires_s == 0
    assert live(union(closed, add(renewed, keys("anna"), "eve"))) == EVERYBODY


def test_a_stranger_to_the_checkpoint_removes_nobody_below_it(chain: Chain) -> None:
    """Eve was made admin on a branch that the root did not see."""
    beside = revoke(add(chain, keys("carl"), "eve", "admin"), keys("eve"), "anna")
    assert live(union(checkpoint(chain), beside)) == EVERYBODY


def test_whom_the_checkpoint_knows_as_a_member_does_not_remove_as_an_admin_below_it(chain: Chain) -> None:
    """Eve is a member where the root looked, and an admin on carl's branch."""
    beside = revoke(add(chain, keys("carl"), "eve", "admin"), keys("eve"), "dora")
    assert live(union(checkpoint(add(chain, keys("anna"), "eve")), beside)) == {*EVERYBODY, "eve"}


def test_a_full_chain_is_still_open_for_the_root(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "chain_entries_max", len(chain))
    monkeypatch.setattr(limits, "chain_root_entries_max", 3)
    with pytest.raises(LimitError, match="nothing can be added"):
        epoch(chain, keys("anna"), "second")
    cleared = checkpoint(rotate(revoke(chain, ROOT, "carl")), SPARE)
    assert live(add(cleared, SPARE, "eve")) == {"anna", "bert", "dora", "eve"}
    with pytest.raises(LimitError):
        add(add(cleared, SPARE, "eve"), SPARE, "fritz")


def test_an_old_height_gives_no_seniority_below_a_checkpoint(chain: Chain) -> None:
    """A key is certified a second time, lower, so that it would come before carl; and the root had closed that."""
    base = [raw for raw in chain.raws() if (chain.height_of(parse_entry(raw).hash) or 0) <= 1]
    low = add(Chain.from_entries(base), keys("anna"), "eve", "admin")
    for first, order in ((epoch(chain, keys("anna"), "second"), ["eve", "carl"]), (checkpoint(chain), ["carl", "eve"])):
        merged = union(add(first, keys("anna"), "eve", "admin"), low)
        assert [one.name for one in merged.devices() if one.name in order] == order


def test_two_checkpoints_apart_each_close_their_past(chain: Chain) -> None:
    one = add(checkpoint(chain), keys("anna"), "eve")
    other = add(checkpoint(revoke(chain, keys("anna"), "dora"), time_s=9), keys("anna"), "fritz")
    merged = union(one, other)
    assert len(merged.checkpoints()) == 2
    assert live(merged) == {"anna", "bert", "carl"}
    assert live(add(checkpoint(merged), keys("anna"), "gerd")) == {"anna", "bert", "carl", "gerd"}


def test_what_was_merged_before_the_checkpoint_stands(chain: Chain) -> None:
    merged = union(add(chain, keys("anna"), "eve"), revoke(chain, keys("carl"), "dora"))
    assert live(checkpoint(merged)) == {"anna", "bert", "carl", "eve"}


def test_a_checkpoint_needs_all_branches_that_matter_and_leaves_the_others_out(chain: Chain) -> None:
    many = union(*(add(chain, keys("anna"), f"n{number}") for number in range(9)))
    with pytest.raises(LimitError, match="9 branches"):
        make_checkpoint(many, ROOT, time_s=1)
    joined = add(many, keys("anna"), "eve")
    assert live(checkpoint(joined)) == live(joined)
    removed = revoke(chain, keys("anna"), "carl")
    flood = union(removed, *(add(chain, keys("carl"), f"n{number}") for number in range(20)))
    assert len(flood.heads) == 21
    assert live(checkpoint(flood)) == {"anna", "bert", "dora"}


def test_a_rotation_finds_what_the_old_root_signed_among_many_branches(chain: Chain) -> None:
    flood = union(add(chain, ROOT, "eve"), *(add(chain, keys("carl"), f"n{number}") for number in range(20)))
    assert "eve" in live(rotate(flood))


def test_a_grant_among_many_branches_follows_the_roots_own_word(chain: Chain) -> None:
    """Eight of them are named as parents; without the checkpoint and the rotation among these the grant would fall."""
    closed = rotate(checkpoint(chain))
    higher = [epoch(epoch(epoch(chain, keys("bert"), f"a{number}"), keys("bert"), "b"), keys("bert"), "c")
              for number in range(20)]
    flood = union(closed, *higher)
    assert len(flood.heads) > 8
    assert "eve" in live(add(flood, keys("anna"), "eve"))
    assert "eve" in live(add(flood, SPARE, "eve"))
    assert flood.current_epoch.epoch_id == chain.current_epoch.epoch_id
    after = epoch(flood, keys("anna"), "second")
    assert after.current_epoch.epoch_id not in {one.epoch_id for one in flood.epochs()}
    assert SPARE.public in after.current_epoch.wraps
