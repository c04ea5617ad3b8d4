"""New certificates: renewals, names, new keys, and what removals on other branches do to them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from blake3 import blake3

from hinet_protocol.chain import (
    Chain,
    make_device_add,
    make_device_revoke,
    make_device_rotate,
    make_genesis,
    needs_epoch,
    open_keyring,
)
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.errors import EntryConflict, EntryMalformed, EntryUnauthorised, LastAdmin
from hinet_protocol.identity import DeviceKeys, RootKey

ROOT = RootKey(b"c" * 32)


@functools.cache
def keys(label: str) -> DeviceKeys:
    return DeviceKeys.from_entropy(blake3(b"certificate " + label.encode()).digest(64))


def add(chain: Chain, signer: Any, label: str, role: str = "member", name: str | None = None) -> Chain:
    one = keys(label)
    raw = make_device_add(chain, signer, name=name or label, public=one.public, box_public=one.box_public, role=role,
                          tier="pocket", time_s=5, expires_s=100)
    return chain.with_entries([raw])


def revoke(chain: Chain, signer: Any, label: str) -> Chain:
    return chain.with_entries([make_device_revoke(chain, signer, keys(label).public, time_s=6)])


def renew(chain: Chain, signer: Any, label: str, to: str | None = None, expires_s: int = 200, **more: Any) -> Chain:
    if to is not None:
        more |= {"new_public": keys(to).public, "new_box_public": keys(to).box_public}
    raw = make_device_rotate(chain, signer, keys(label).public, time_s=7, expires_s=expires_s, **more)
    return chain.with_entries([raw])


def union(*chains: Chain) -> Chain:
    merged = chains[0].merge([raw for chain in chains for raw in chain.raws()])
    assert not merged.rejected
    return merged.chain


def live(chain: Chain) -> set[str]:
    """The labels of the keys that belong; a name may stay through many keys."""
    labels = {keys(label).public: label for label in ("anna", "bert", "carl", "dora", "eve", "new", "newer")}
    return {labels[device.public] for device in chain.members()}


@pytest.fixture
def chain() -> Chain:
    """Anna, bert and carl are admins in this order of seniority, dora is a member."""
    chain = add(Chain.from_entries([make_genesis(ROOT, 1)]), ROOT, "anna", "admin")
    return add(add(add(chain, keys("anna"), "bert", "admin"), keys("anna"), "carl", "admin"), keys("anna"), "dora")


def test_a_renewal_changes_the_end_and_nothing_else(chain: Chain) -> None:
    before = chain.device(keys("dora").public)
    renewed = renew(chain, keys("bert"), "dora", expires_s=900)
    after = renewed.device(keys("dora").public)
    assert after.expires_s == 900
    assert renewed.heads == (after.entry,)
    same = ("name", "public", "box_public", "role", "tier", "height", "added_s", "added_by", "revoked", "void")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert len(renewed.devices()) == len(chain.devices())
    assert renew(renewed, keys("anna"), "dora", expires_s=300).device(keys("dora").public).expires_s == 300


def test_of_renewals_made_apart_the_one_that_ends_latest_counts(chain: Chain) -> None:
    short, long = (renew(chain, keys(by), "dora", expires_s=end) for by, end in (("anna", 300), ("carl", 400)))
    forever = renew(chain, keys("bert"), "dora", expires_s=0)
    assert union(short, long).device(keys("dora").public).expires_s == 400
    assert union(short, long, forever).device(keys("dora").public).expires_s == 0


def test_a_renewal_of_one_introduction_does_not_continue_another(chain: Chain) -> None:
    """The senior's certificate is in force; the junior's renewal was of another one."""
    merged = union(add(chain, keys("anna"), "eve"), renew(add(chain, keys("carl"), "eve"), keys("carl"), "eve"))
    assert merged.device(keys("eve").public).expires_s == 100
    assert renew(merged, keys("carl"), "eve", expires_s=300).device(keys("eve").public).expires_s == 300


def test_a_new_name_frees_the_old_one_and_takes_no_other(chain: Chain) -> None:
    renamed = renew(chain, keys("anna"), "dora", name="desk")
    assert renamed.device_named("desk").public == keys("dora").public
    assert renamed.device_named("dora") is None
    assert "eve" in live(add(renamed, keys("anna"), "eve", name="dora"))
    for name in ("DESK", "bert"):
        with pytest.raises(EntryConflict, match="Choose another"):
            add(renamed, keys("anna"), "eve", name=name)
    with pytest.raises(EntryConflict, match="Choose another"):
        renew(chain, keys("anna"), "dora", name="Bert")


def test_devices_that_took_one_name_apart_are_both_renewed_and_keep_it(chain: Chain) -> None:
    """What is shown for the junior is lengthened; its certificate has the bare name, and must not run out for that."""
    both = union(add(chain, keys("anna"), "eve", name="desk"), add(chain, keys("bert"), "new", name="desk"))
    for label, other in (("eve", "new"), ("new", "eve")):
        after = renew(both, keys("carl"), label)
        assert after.device(keys(label).public).expires_s == 200
        assert len({device.name for device in after.members()}) == 6
        assert revoke(after, keys("anna"), other).device(keys(label).public).name == "desk"
        assert live(renew(both, keys("carl"), label, to="newer")) == {*live(both), "newer"} - {label}
    with pytest.raises(EntryConflict, match="Choose another"):
        renew(both, keys("carl"), "dora", name="Desk")


def test_nobody_prolongs_itself_while_another_admin_could(chain: Chain) -> None:
    with pytest.raises(EntryUnauthorised, match="own certificate"):
        renew(chain, keys("anna"), "anna")
    with pytest.raises(EntryUnauthorised, match="own certificate"):
        renew(chain, keys("anna"), "anna", to="new")
    alone = revoke(revoke(chain, keys("anna"), "bert"), keys("anna"), "carl")
    assert renew(alone, keys("anna"), "anna", expires_s=999).device(keys("anna").public).expires_s == 999
    assert live(renew(alone, keys("anna"), "anna", to="new")) == {"new", "dora"}
    assert renew(chain, ROOT, "anna", expires_s=999).device(keys("anna").public).expires_s == 999


def test_members_keepers_and_strangers_renew_nobody(chain: Chain) -> None:
    for signer in (keys("dora"), keys("eve")):
        for label in ("dora", "anna"):
            with pytest.raises(EntryUnauthorised):
                renew(chain, signer, label)


def test_only_what_belongs_is_renewed_and_with_both_keys_or_none(chain: Chain) -> None:
    gone = revoke(chain, keys("anna"), "dora")
    with pytest.raises(EntryMalformed, match="does not belong"):
        renew(gone, keys("anna"), "dora")
    with pytest.raises(EntryMalformed, match="does not belong"):
        renew(chain, keys("anna"), "eve")
    with pytest.raises(EntryMalformed, match="both"):
        renew(chain, keys("anna"), "dora", new_public=keys("new").public)
    body = {"device": keys("dora").public, "name": "dora", "sign": keys("dora").public, "expires": 0,
            "box": keys("new").box_public, "ephemeral": None, "epochs": []}
    raw = sign_entry(keys("anna"), chain.identity_id, chain.heads, "device.rotate", body, 1)
    assert "both" in str(chain.merge([raw]).rejected[0].error)
    for used in ("bert", "dora"):
        with pytest.raises(EntryConflict):
            renew(chain, keys("anna"), "carl", to=used)
    with pytest.raises(EntryConflict):
        renew(chain, keys("anna"), "carl", new_public=ROOT.public, new_box_public=keys("new").box_public)


def test_new_keys_take_the_place_of_the_old_ones(chain: Chain) -> None:
    after = renew(chain, keys("anna"), "bert", to="new")
    old, new = after.device(keys("bert").public), after.device(keys("new").public)
    assert (old.revoked, old.replaced_by, new.live) == (True, new.public, True)
    assert (new.name, new.role, new.tier) == ("bert", "admin", "pocket")
    with pytest.raises(EntryUnauthorised):
        add(after, keys("bert"), "eve")
    assert "eve" in live(add(after, keys("new"), "eve"))
    with pytest.raises(EntryConflict, match="new keys"):
        add(after, keys("anna"), "bert", name="again")


def test_new_keys_get_the_vault_and_the_old_ones_nothing_later(household: Any, random_bytes: Any) -> None:
    bert, new = household.add("bert"), DeviceKeys.from_entropy(random_bytes("rekeyed", 64))
    raw = make_device_rotate(household.chain, household.admin, bert.public, time_s=1, expires_s=0,
                             new_public=new.public, new_box_public=new.box_public, ephemeral_seed=b"s" * 32,
                             keyring=open_keyring(household.chain, household.admin))
    household.take(raw)
    assert len(open_keyring(household.chain, new)) == 1
    assert needs_epoch(household.chain)
    household.epoch("after")
    assert len(open_keyring(household.chain, new)) == 2
    assert len(open_keyring(household.chain, bert)) == 1


def test_what_the_old_key_granted_without_knowing_of_the_new_one_is_void(chain: Chain) -> None:
    merged = union(renew(chain, keys("anna"), "bert", to="new"), add(chain, keys("bert"), "eve", "admin"))
    assert live(merged) == {"anna", "new", "carl", "dora"}
    assert merged.device(keys("eve").public).void


def test_what_the_old_key_granted_before_stays(chain: Chain) -> None:
    assert "eve" in live(renew(add(chain, keys("bert"), "eve"), keys("anna"), "bert", to="new"))


def test_a_device_that_is_removed_while_it_takes_new_keys_elsewhere_is_gone_under_both(chain: Chain) -> None:
    rotated = renew(chain, keys("anna"), "dora", to="new")
    merged = union(rotated, revoke(chain, keys("bert"), "dora"))
    assert live(merged) == {"anna", "bert", "carl"}
    with pytest.raises(EntryUnauthorised):
        revoke(merged, keys("new"), "new")
    later = union(renew(rotated, keys("anna"), "new", to="newer"), revoke(chain, keys("bert"), "dora"))
    assert live(later) == {"anna", "bert", "carl"}


def test_new_keys_signed_by_an_admin_who_was_removed_elsewhere_are_void_and_the_old_ones_stay_gone(
    chain: Chain,
) -> None:
    """A removal counts from every branch, also this one: the old key may have been given up because it was copied."""
    merged = union(renew(chain, keys("carl"), "dora", to="new"), revoke(chain, keys("anna"), "carl"))
    assert live(merged) == {"anna", "bert"}
    assert merged.device(keys("new").public).void
    assert merged.device(keys("dora").public).replaced_by is None


def test_a_device_that_got_two_new_keys_apart_has_both_until_somebody_chooses(chain: Chain) -> None:
    merged = union(renew(chain, keys("anna"), "dora", to="new"), renew(chain, keys("bert"), "dora", to="newer"))
    assert live(merged) == {"anna", "bert", "carl", "new", "newer"}
    assert len({device.name for device in merged.members()}) == 5
    assert live(revoke(merged, keys("anna"), "newer")) == {"anna", "bert", "carl", "new"}


def test_a_renewal_gives_no_standing_to_a_certificate_that_fell(chain: Chain) -> None:
    """Carl makes eve an admin, and bert renews her without knowing that carl was removed."""
    raised = renew(add(chain, keys("carl"), "eve", "admin"), keys("bert"), "eve", expires_s=0)
    merged = union(raised, revoke(chain, keys("anna"), "carl"))
    assert merged.device(keys("eve").public).void
    assert "new" not in live(union(renew(raised, keys("bert"), "eve", to="new"), revoke(chain, keys("anna"), "carl")))


@pytest.mark.parametrize(("high", "low"), [("admin", "member"), ("member", "keeper")])
def test_a_role_that_a_void_certificate_gave_is_not_carried_over(chain: Chain, high: str, low: str) -> None:
    """Bert and carl add eve apart, in two roles; bert is senior to carl, who renews her as what she seems."""
    raised = union(add(chain, keys("bert"), "eve", high), add(chain, keys("carl"), "eve", low))
    assert raised.role_of(keys("eve").public) == high
    renewed = renew(raised, keys("carl"), "eve", expires_s=0)
    merged = union(renewed, revoke(chain, keys("anna"), "bert"))
    assert merged.role_of(keys("eve").public) == low
    assert merged.device(keys("eve").public).expires_s == 100
    rekeyed = renew(raised, keys("carl"), "eve", to="new")
    assert rekeyed.role_of(keys("new").public) == high
    assert live(union(rekeyed, revoke(chain, keys("anna"), "bert"))) == {"anna", "carl", "dora"}


def test_a_removed_junior_does_not_escape_under_new_keys(chain: Chain) -> None:
    """Carl removes anna, who removed him, with keys that bert gave him in the meantime."""
    rekeyed = revoke(renew(chain, keys("bert"), "carl", to="new"), keys("new"), "anna")
    merged = union(rekeyed, revoke(chain, keys("anna"), "carl"))
    assert live(merged) == {"anna", "bert", "dora"}


def test_a_removed_juniors_helper_does_not_escape_under_new_keys_either(chain: Chain) -> None:
    helper = renew(add(chain, keys("carl"), "eve", "admin"), keys("bert"), "eve", to="new")
    merged = union(revoke(helper, keys("new"), "anna"), revoke(chain, keys("anna"), "carl"))
    assert live(merged) == {"anna", "bert", "dora"}


def test_a_senior_who_answers_by_giving_the_junior_new_keys_prevails(chain: Chain) -> None:
    merged = union(renew(chain, keys("anna"), "carl", to="new"), revoke(chain, keys("carl"), "anna"))
    assert live(merged) == {"anna", "bert", "new", "dora"}


def test_new_keys_do_not_bring_seniority(chain: Chain) -> None:
    """Else a junior could sit down in a senior's place by giving it new keys."""
    taken = renew(chain, keys("carl"), "anna", to="new")
    merged = union(revoke(taken, keys("new"), "bert"), revoke(taken, keys("bert"), "new"))
    assert live(merged) == {"bert", "carl", "dora"}


def test_new_keys_of_the_last_admin_leave_an_admin_and_its_removal_does_not(chain: Chain) -> None:
    alone = revoke(revoke(chain, keys("anna"), "bert"), keys("anna"), "carl")
    rotated = renew(alone, keys("anna"), "anna", to="new")
    assert rotated.can_sign(keys("new").public)
    with pytest.raises(LastAdmin):
        revoke(rotated, keys("new"), "new")


def test_a_keeper_is_renewed_without_vault_keys(household: Any) -> None:
    kept = household.add("kept", role="keeper")
    body = {"device": kept.public, "name": "kept", "sign": kept.public, "box": kept.box_public, "expires": 0,
            "ephemeral": b"e" * 32, "epochs": [(household.chain.epochs()[0].epoch_id, bytes(48))]}
    raw = sign_entry(household.admin, household.chain.identity_id, household.chain.heads, "device.rotate", body, 1)
    assert "keepers get none" in str(household.chain.merge([raw]).rejected[0].error)
    household.take(make_device_rotate(household.chain, household.admin, kept.public, time_s=1, expires_s=0))
    assert household.chain.role_of(kept.public) == "keeper"
