"""Branches that grew apart: what the merged chain says must not depend on the order, and removal must win."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from hinet_protocol.chain import (
    Chain,
    make_base_adopt,
    make_checkpoint,
    make_consent,
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
from hinet_protocol.chain.members import members_settled
from hinet_protocol.errors import EntryUnauthorised, ProtocolError
from hinet_protocol.identity import DeviceKeys, RootKey

ROOT = RootKey(b"m" * 32)
ROOTS = [ROOT, RootKey(b"n" * 32), RootKey(b"o" * 32)]


@functools.cache
def keys(label: int) -> DeviceKeys:
    return DeviceKeys.from_entropy(blake3(b"merge %d" % label).digest(64))


def add(chain: Chain, signer: Any, label: int, role: str = "member", name: str | None = None) -> Chain:
    one = keys(label)
    raw = make_device_add(
        chain, signer, name=name or f"d{label}", public=one.public, box_public=one.box_public, role=role,
        tier="laptop", time_s=label,
    )  # fmt: skip
    return chain.with_entries([raw])


def revoke(chain: Chain, signer: Any, label: int) -> Chain:
    return chain.with_entries([make_device_revoke(chain, signer, keys(label).public, time_s=1)])


def union(*chains: Chain) -> Chain:
    merged = chains[0].merge([raw for chain in chains for raw in chain.raws()])
    assert not merged.rejected
    return merged.chain


def live(chain: Chain) -> set[str]:
    return {device.name for device in chain.members()}


@pytest.fixture
def three_admins() -> Chain:
    """Admins d1, d2, d3 in order of seniority, and a member d4."""
    chain = add(Chain.from_entries([make_genesis(ROOT, 1)]), ROOT, 1, "admin")
    return add(add(add(chain, keys(1), 2, "admin"), keys(2), 3, "admin"), keys(1), 4)


def test_a_revoked_device_stays_revoked_after_a_merge(three_admins: Chain) -> None:
    left, right = revoke(three_admins, keys(3), 4), add(three_admins, keys(1), 5)
    for merged in (union(left, right), union(right, left)):
        assert live(merged) == {"d1", "d2", "d3", "d5"}
    later = add(union(left, right), keys(1), 6)
    assert not later.is_member(keys(4).public)


def test_what_a_revoked_admin_added_without_knowing_it_does_not_count(three_admins: Chain) -> None:
    """A stolen key can't make members on an old height."""
    stolen = add(add(three_admins, keys(2), 6, "admin"), keys(6), 7)
    merged = union(revoke(three_admins, keys(1), 2), stolen)
    assert live(merged) == {"d1", "d3", "d4"}
    assert merged.device(keys(7).public).void
    assert merged.device(keys(3).public).live  # added by d2 before it was removed, which stays good


def test_a_void_device_can_sign_nothing_on_the_merged_chain(three_admins: Chain) -> None:
    merged = union(revoke(three_admins, keys(1), 2), add(three_admins, keys(2), 6, "admin"))
    with pytest.raises(EntryUnauthorised):
        add(merged, keys(6), 7)
    with pytest.raises(EntryUnauthorised):
        add(merged, keys(2), 7)


def test_of_two_admins_who_revoke_each_other_the_senior_prevails(three_admins: Chain) -> None:
    merged = union(revoke(three_admins, keys(1), 3), revoke(three_admins, keys(3), 1))
    assert live(merged) == {"d1", "d2", "d4"}
    assert live(add(merged, keys(1), 5)) == {"d1", "d2", "d4", "d5"}
    with pytest.raises(EntryUnauthorised):
        add(merged, keys(3), 5)


def test_a_removed_junior_does_not_escape_through_a_helper(three_admins: Chain) -> None:
    """d3 adds a helper apart from its own removal, and the helper removes the senior who removed d3."""
    helper = revoke(add(three_admins, keys(3), 8, "admin"), keys(8), 1)
    merged = union(revoke(three_admins, keys(1), 3), helper)
    assert live(merged) == {"d1", "d2", "d4"}


def test_a_junior_admin_can_remove_a_senior_one_that_does_not_answer(three_admins: Chain) -> None:
    merged = union(revoke(three_admins, keys(3), 1), add(three_admins, keys(1), 5))
    assert live(merged) == {"d2", "d3", "d4"}
    assert merged.device(keys(5).public).void


def test_a_removed_device_that_knew_of_its_removal_can_not_answer(three_admins: Chain) -> None:
    removed = revoke(three_admins, keys(3), 1)
    with pytest.raises(EntryUnauthorised):
        revoke(removed, keys(1), 3)


def test_the_root_settles_what_admins_can_not(three_admins: Chain) -> None:
    all_gone = union(
        revoke(three_admins, keys(1), 2), revoke(three_admins, keys(2), 3), revoke(three_admins, keys(3), 1)
    )
    assert live(all_gone) == {"d4"}
    assert live(add(all_gone, ROOT, 9, "admin")) == {"d4", "d9"}


def test_the_root_prevails_over_every_admin(three_admins: Chain) -> None:
    merged = union(revoke(three_admins, ROOT, 1), add(three_admins, keys(1), 5), revoke(three_admins, keys(1), 2))
    assert live(merged) == {"d3", "d4"}


def test_two_devices_of_one_name_are_told_apart(three_admins: Chain) -> None:
    merged = union(add(three_admins, keys(1), 5, name="desk"), add(three_admins, keys(2), 6, name="Desk"))
    names = sorted(device.name for device in merged.members() if device.name.lower().startswith("desk"))
    assert len({name.casefold() for name in names}) == 2
    assert sum(name.casefold() == "desk" for name in names) == 1


def test_one_device_added_twice_apart_gets_the_certificate_of_the_root_or_the_senior(three_admins: Chain) -> None:
    by_senior, by_junior = add(three_admins, keys(1), 5, "keeper"), add(three_admins, keys(3), 5, "admin")
    assert union(by_senior, by_junior).role_of(keys(5).public) == "keeper"
    by_root = add(three_admins, ROOT, 5, "member")
    assert union(by_senior, by_junior, by_root).role_of(keys(5).public) == "member"


def test_many_heads_are_merged_eight_at_a_time(three_admins: Chain) -> None:
    chain = union(*(add(three_admins, keys(1), 20 + number) for number in range(20)))
    assert len(chain.heads) == 20
    for number in range(3):
        chain = add(chain, keys(1), 50 + number)
    assert len(chain.heads) == 1


def test_a_device_on_any_of_many_branches_can_be_removed(three_admins: Chain) -> None:
    branches = [add(three_admins, keys(1), 20 + number) for number in range(20)]
    chain = union(*branches)
    for number in range(20):
        assert not revoke(chain, keys(1), 20 + number).is_member(keys(20 + number).public)


# --- any history -----------------------------------------------------------------------------------------------------

KINDS = ("add admin", "add member", "revoke", "merge", "renew", "new keys", "root", "checkpoint", "epoch", "in", "out",
         "base")
step = st.tuples(
    st.integers(0, 3),  # branch
    st.sampled_from(KINDS),
    st.integers(0, 4),  # signer, 0 for the root in force
    st.integers(1, 8),  # target
)
Step = tuple[int, str, int, int]


def said(chain: Chain) -> tuple[Any, ...]:
    """All that a chain says."""
    return (chain.raws(), chain.devices(), chain.epochs(), chain.epoch_tips, chain.current_epoch, chain.root_public,
            chain.root_box_public, chain.consents(), chain.bases(), chain.checkpoints(), chain.root_rotations(),
            chain.standing_entries(), needs_epoch(chain))


def act(chain: Chain, what: str, signer: int, target: int, serial: int) -> Chain:
    """One step on one branch; what is not allowed there is refused by the builder."""
    roots = {one.public: one for one in ROOTS}
    root = roots[chain.root_public]
    by: Any = root if signer == 0 else keys(signer)
    if what == "revoke":
        return revoke(chain, by, target)
    if what.startswith("add "):
        return add(chain, by, target, what.removeprefix("add "))
    if what in ("renew", "new keys"):
        new = keys(target + 10)
        more = {"new_public": new.public, "new_box_public": new.box_public} if what == "new keys" else {}
        old = keys(target) if serial % 3 else keys(target + 10)
        raw = make_device_rotate(chain, by, old.public, time_s=serial, expires_s=serial % 4, **more)
    elif what == "root":
        at = ROOTS.index(root) + 1
        following = ROOTS[at + 1].public if at + 1 < len(ROOTS) else None
        raw = make_root_rotate(chain, ROOTS[min(at, 2)], time_s=serial, next_root_public=following)
    elif what == "checkpoint":
        raw = make_checkpoint(chain, root, time_s=serial)
    elif what == "epoch":
        raw = make_epoch(chain, by, key=bytes([serial]) * 32, ephemeral_seed=b"e" * 32, time_s=serial,
                         keyring=open_keyring(chain, by))
    elif what == "base":
        raw = make_base_adopt(chain, by, base=bytes([serial]) * 32, time_s=serial)
    else:
        raw = make_consent(chain, by, commune=b"c" * 32, terms=bytes(32), agreed=what == "in", round_number=serial,
                           time_s=serial)
    return chain.with_entries([raw])


def grow(steps: list[Step]) -> list[Chain]:
    """Four branches that live apart and sometimes learn from each other; what is not allowed is left out."""
    start = add(Chain.from_entries([make_genesis(ROOT, 1, ROOTS[1].public)]), ROOT, 1, "admin")
    branches = [add(start, keys(1), 2, "admin")] * 4
    for serial, (branch, what, signer, target) in enumerate(steps):
        try:
            if what == "merge":
                branches[branch] = union(branches[branch], branches[target % 4])
            else:
                branches[branch] = act(branches[branch], what, signer, target, serial)
        except ProtocolError:
            continue
    return branches


def test_a_device_whose_certificates_all_fell_is_the_same_whichever_came_first() -> None:
    left, right, *_ = grow([(0, "add admin", 2, 3), (0, "revoke", 0, 1), (1, "add admin", 1, 3), (1, "revoke", 0, 2)])
    one, other = union(left, right), union(right, left)
    assert one.device(keys(3).public) == other.device(keys(3).public)
    assert not one.is_member(keys(3).public)
    assert one.devices() == other.devices()


@settings(max_examples=200)
@given(st.lists(step, max_size=24), st.randoms(use_true_random=False))
def test_the_merged_chain_does_not_depend_on_order(steps: list[Step], shuffle: Any) -> None:
    branches = grow(steps)
    whole = union(*branches)
    raws = list(whole.raws())
    shuffle.shuffle(raws)
    at_once = Chain.from_entries(raws)
    genesis = [raw for raw in raws if parse_entry(raw).kind == "genesis"]
    one_by_one = Chain.from_entries(genesis)
    for raw in sorted(raws, key=lambda raw: whole.height_of(parse_entry(raw).hash) or 0):
        one_by_one = one_by_one.with_entries([raw])
    backwards = union(*reversed(branches))
    in_pieces = union(union(*branches[2:]), union(branches[1], branches[0], branches[2]))
    for other in (at_once, one_by_one, backwards, in_pieces):
        assert other == whole
        assert said(other) == said(whole)


@settings(max_examples=150)
@given(st.lists(step, max_size=20))
def test_removal_wins_in_every_history(steps: list[Step]) -> None:
    """Unless the root closed the place where it was made, or the removed one had itself removed the remover."""
    whole = union(*grow([one for one in steps if one[1] not in ("root", "checkpoint")]))
    removers = {entry.signer for entry in whole.entries() if entry.removes is not None}
    for entry in whole.entries():
        target = entry.removes
        if target is not None and whole.is_member(target):
            assert entry.signer != ROOT.public
            assert target in removers
    for device in whole.members():
        adder = whole.device(device.added_by)
        assert device.added_by == ROOT.public or (adder is not None and not adder.void)


@settings(max_examples=150)
@given(st.lists(step, max_size=20))
def test_the_running_state_is_what_settling_the_whole_past_gives(steps: list[Step]) -> None:
    graph = union(*grow(steps))._graph
    for node in graph.ordered():
        assert node.members == members_settled(graph, node.past)


def test_a_chain_value_never_changes(three_admins: Chain) -> None:
    before = (three_admins.heads, three_admins.raws(), three_admins.devices(), len(three_admins))
    revoke(add(three_admins, keys(1), 5), keys(1), 2)
    assert (three_admins.heads, three_admins.raws(), three_admins.devices(), len(three_admins)) == before


def test_members_are_the_same_by_every_question(three_admins: Chain, random_bytes: Callable[..., bytes]) -> None:
    chain = revoke(three_admins, keys(1), 4)
    for device in chain.devices():
        assert chain.is_member(device.public) == device.live == (device in chain.members())
        assert (chain.role_of(device.public) is not None) == device.live
    assert not chain.is_member(random_bytes("nobody"))
