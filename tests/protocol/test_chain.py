from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import canonical, limits
from hinet_protocol.chain import (
    Chain,
    make_device_add,
    make_device_revoke,
    make_genesis,
    parse_entry,
)
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.errors import (
    ChainError,
    ChainForeign,
    EntryConflict,
    EntryMalformed,
    EntryOrphan,
    EntryUnauthorised,
    EntryUnsupported,
    LastAdmin,
    LimitError,
    ProtocolError,
    SignatureInvalid,
)
from hinet_protocol.identity import DeviceKeys, RootKey


def add(chain: Chain, signer: Any, keys: DeviceKeys, name: str, role: str = "member", **more: Any) -> bytes:
    return make_device_add(
        chain,
        signer,
        name=name,
        public=keys.public,
        box_public=keys.box_public,
        role=role,
        tier="laptop",
        time_s=9,
        **more,
    )


def entry_raw(signer: Any, identity: bytes, parents: tuple[bytes, ...], kind: str, body: dict[str, Any]) -> bytes:
    """An entry signed without any check of its form."""
    payload = canonical.encode(
        {"v": 1, "id": identity, "parents": parents, "signer": signer.public, "time": 1, "kind": kind, "body": body}
    )
    return canonical.encode([payload, signer.sign(b"chain-entry", payload)])


def raw_add(
    signer: Any, chain: Chain, parents: tuple[bytes, ...], keys: DeviceKeys, name: str, role: str = "member"
) -> bytes:
    """A certificate without the builder's checks, as a hostile signer would make it."""
    body = {
        "name": name, "sign": keys.public, "box": keys.box_public, "role": role, "tier": "laptop", "expires": 0,
        "ephemeral": None, "epochs": [],
    }  # fmt: skip
    return entry_raw(signer, chain.identity_id, parents, "device.add", body)


def raw_revoke(signer: Any, chain: Chain, parents: tuple[bytes, ...], public: bytes) -> bytes:
    return entry_raw(signer, chain.identity_id, parents, "device.revoke", {"device": public, "reason": ""})


def refusal(chain: Chain, raw: bytes) -> ProtocolError:
    merged = chain.merge([raw])
    assert merged.chain == chain
    assert not merged.added
    (rejected,) = merged.rejected
    return rejected.error


def test_a_household_has_its_devices_in_order_of_seniority(household: Any) -> None:
    household.add("bert", tier="pocket")
    household.add("kept", role="keeper")
    chain = household.chain
    assert [(one.name, one.role, one.tier) for one in chain.devices()] == [
        ("anna", "admin", "cloud"),
        ("bert", "member", "pocket"),
        ("kept", "keeper", "laptop"),
    ]
    assert chain.height == 4
    assert len(chain) == 5
    assert chain.role_of(household.admin.public) == "admin"
    assert chain.can_sign(household.admin.public)
    assert chain.can_sign(household.root.public)
    assert chain.device_named("BERT") == chain.devices()[1]
    assert chain.role_of(b"x" * 32) is None
    assert chain.devices()[1].peer_id.startswith("12D3KooW")


def test_a_chain_comes_back_from_its_bytes_and_from_any_order(household: Any) -> None:
    household.add("bert")
    chain = household.chain
    assert Chain.from_bytes(chain.to_bytes(), chain.identity_id) == chain
    assert Chain.from_entries(reversed(chain.raws())).devices() == chain.devices()
    assert chain.with_entries(chain.raws()) is chain


def test_an_expired_device_keeps_only_the_rights_of_a_keeper(
    household: Any, keys_of: Callable[[str], DeviceKeys]
) -> None:
    keys = keys_of("short")
    household.take(add(household.chain, household.admin, keys, "short", expires_s=500))
    assert household.chain.role_of(keys.public) == "member"
    assert household.chain.role_of(keys.public, 499) == "member"
    assert household.chain.role_of(keys.public, 500) == "keeper"
    assert household.chain.role_of(household.admin.public, 2**40) == "admin"


def test_the_entry_is_verified_on_the_bytes_as_received(household: Any) -> None:
    raw = household.chain.raws()[1]
    payload, signature = canonical.decode(raw)
    fields = canonical.decode(payload)
    fields["time"] += 1
    forged = canonical.encode([canonical.encode(fields), signature])
    with pytest.raises(SignatureInvalid):
        parse_entry(forged)
    with pytest.raises(ProtocolError):
        parse_entry(raw + b"\0")


@given(st.binary(max_size=300))
def test_random_bytes_are_no_entry(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_entry(raw)


def test_each_kind_of_refusal_names_itself(household: Any, keys_of: Callable[[str], DeviceKeys]) -> None:
    chain, admin, heads = household.chain, household.admin, household.chain.heads
    bert, eve = household.add("bert"), keys_of("eve")
    chain, heads = household.chain, household.chain.heads
    fresh = keys_of("fresh")
    cases: list[tuple[bytes, type[ProtocolError]]] = [
        (raw_add(eve, chain, heads, fresh, "fresh"), EntryUnauthorised),
        (raw_add(bert, chain, heads, fresh, "fresh"), EntryUnauthorised),
        (raw_add(admin, chain, heads, bert, "bert two"), EntryConflict),
        (raw_add(admin, chain, heads, DeviceKeys(fresh.sign_seed, bert.box_seed), "fresh"), EntryConflict),
        (raw_add(admin, chain, heads, fresh, "Bert"), EntryConflict),
        (raw_add(admin, chain, heads, fresh, ""), EntryMalformed),
        (raw_add(admin, chain, heads, fresh, "x" * 64), EntryMalformed),
        (raw_add(admin, chain, heads, fresh, "a\nb"), EntryMalformed),
        (raw_add(admin, chain, heads, fresh, "fresh", role="owner"), EntryMalformed),
        (raw_add(admin, chain, (b"z" * 32,), fresh, "fresh"), EntryOrphan),
        (raw_revoke(bert, chain, heads, admin.public), EntryUnauthorised),
        (raw_revoke(admin, chain, heads, eve.public), EntryMalformed),
        (raw_revoke(admin, chain, heads, admin.public), LastAdmin),
    ]
    for raw, kind in cases:
        assert type(refusal(chain, raw)) is kind


@pytest.mark.parametrize("kind", ["household.rename", "genesis2"])
def test_an_unknown_kind_or_field_asks_for_an_upgrade(household: Any, kind: str) -> None:
    chain = household.chain
    error = refusal(chain, entry_raw(household.admin, chain.identity_id, chain.heads, kind, {}))
    assert isinstance(error, EntryUnsupported)
    assert "Upgrade" in str(error)
    body = {"device": household.admin.public, "reason": "", "later": 1}
    error = refusal(chain, entry_raw(household.root, chain.identity_id, chain.heads, "device.revoke", body))
    assert isinstance(error, EntryUnsupported)


def test_an_optional_field_of_a_later_version_is_kept_in_the_signed_bytes(household: Any) -> None:
    bert = household.add("bert")
    body = {"device": bert.public, "reason": "", "x-later": [1]}
    raw = entry_raw(household.admin, household.chain.identity_id, household.chain.heads, "device.revoke", body)
    household.take(raw)
    assert raw in household.chain.raws()
    assert not household.chain.is_member(bert.public)


def test_entries_of_another_identity_are_foreign(household: Any, new_household: Callable[[str], Any]) -> None:
    other = new_household("otto")
    assert isinstance(refusal(household.chain, other.chain.raws()[0]), ChainForeign)
    assert isinstance(refusal(household.chain, make_genesis(household.root, 77)), ChainForeign)
    stolen = raw_add(household.root, other.chain, household.chain.heads, other.admin, "x")
    assert isinstance(refusal(household.chain, stolen), ChainForeign)
    with pytest.raises(ChainForeign):
        Chain.from_entries(other.chain.raws(), household.chain.identity_id)


def test_a_chain_needs_exactly_one_genesis_by_its_own_root(household: Any) -> None:
    with pytest.raises(ChainError, match="0 were found"):
        Chain.from_entries(household.chain.raws()[1:])
    with pytest.raises(ChainError, match="2 were found"):
        Chain.from_entries([make_genesis(household.root, 1), make_genesis(household.root, 2)])
    eve = RootKey(b"e" * 32)
    body = {"root": household.root.public, "box": household.root.box_public, "next": None}
    with pytest.raises(EntryMalformed, match="genesis"):
        Chain.from_entries([entry_raw(eve, household.root.identity_id, (), "genesis", body)])
    body["root"] = eve.public
    with pytest.raises(EntryMalformed, match="genesis"):
        Chain.from_entries([entry_raw(eve, household.root.identity_id, (), "genesis", body)])


def test_what_descends_from_a_refused_entry_is_refused_and_the_rest_is_kept(
    household: Any, keys_of: Callable[[str], DeviceKeys]
) -> None:
    chain = household.chain
    bad = raw_add(keys_of("eve"), chain, chain.heads, keys_of("x"), "x")
    child = raw_add(household.admin, chain, (parse_entry(bad).hash,), keys_of("y"), "y")
    good = raw_add(household.admin, chain, chain.heads, keys_of("z"), "z")
    merged = chain.merge([child, good, bad, b"rubbish"])
    assert merged.added == (parse_entry(good).hash,)
    assert {type(one.error).__name__ for one in merged.rejected} == {
        "EntryUnauthorised", "EntryOrphan", "EncodingError",
    }  # fmt: skip


def test_the_last_admin_can_be_removed_by_the_root_alone(household: Any) -> None:
    household.add("bert")
    with pytest.raises(LastAdmin, match="24 words"):
        make_device_revoke(household.chain, household.admin, household.admin.public, time_s=1)
    household.take(make_device_revoke(household.chain, household.root, household.admin.public, time_s=1))
    assert not household.chain.can_sign(household.admin.public)
    assert isinstance(
        refusal(
            household.chain, raw_revoke(household.admin, household.chain, household.chain.heads, household.admin.public)
        ),
        EntryUnauthorised,
    )


def test_a_member_may_leave_by_itself_but_not_twice(household: Any) -> None:
    bert = household.add("bert")
    household.take(make_device_revoke(household.chain, bert, bert.public, time_s=1, reason="sold"))
    device = household.chain.device(bert.public)
    assert device.revoked
    assert device.revoke_reason == "sold"
    with pytest.raises(EntryUnauthorised):
        make_device_revoke(household.chain, bert, bert.public, time_s=1)


def test_a_revoked_name_is_free_but_its_keys_never_come_back(
    household: Any, keys_of: Callable[[str], DeviceKeys]
) -> None:
    bert = household.add("bert")
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=1))
    with pytest.raises(EntryConflict, match="new keys"):
        add(household.chain, household.admin, bert, "bert")
    household.take(add(household.chain, household.admin, keys_of("bert again"), "bert"))
    assert household.chain.device_named("bert").public == keys_of("bert again").public


def test_removing_is_possible_when_the_household_is_full(household: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "devices_max", 3)
    bert = household.add("bert")
    household.add("cora")
    with pytest.raises(AssertionError, match="most of 3 devices"):
        household.take(
            raw_add(household.admin, household.chain, household.chain.heads, DeviceKeys(b"1" * 32, b"2" * 32), "d")
        )
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=1))
    household.add("dora")
    monkeypatch.setattr(limits, "chain_entries_max", 1)
    monkeypatch.setattr(limits, "chain_reducing_entries_max", 1)
    with pytest.raises(LimitError, match="nothing can be added"):
        raise refusal(
            household.chain,
            raw_add(household.admin, household.chain, household.chain.heads, DeviceKeys(b"1" * 32, b"2" * 32), "d"),
        )
    dora = household.chain.device_named("dora")
    household.take(make_device_revoke(household.chain, household.admin, dora.public, time_s=1))
    assert not household.chain.is_member(dora.public)


def test_keepers_are_given_no_vault_keys(household: Any, keys_of: Callable[[str], DeviceKeys]) -> None:
    kept = household.add("kept", role="keeper")
    body = {
        "ephemeral": b"e" * 32, "check": b"c" * 32, "wraps": [(kept.public, bytes(48))], "previous": [],
    }  # fmt: skip
    raw = sign_entry(household.admin, household.chain.identity_id, household.chain.heads, "epoch.new", body, 1)
    assert "keepers get none" in str(refusal(household.chain, raw))
    fresh = keys_of("k2")
    body = {
        "name": "k2", "sign": fresh.public, "box": fresh.box_public, "role": "keeper", "tier": "laptop", "expires": 0,
        "ephemeral": b"e" * 32, "epochs": [(household.chain.epochs()[0].epoch_id, bytes(48))],
    }  # fmt: skip
    raw = sign_entry(household.admin, household.chain.identity_id, household.chain.heads, "device.add", body, 1)
    assert "keepers get none" in str(refusal(household.chain, raw))


def test_an_epoch_names_only_devices_and_epochs_of_its_past(
    household: Any, keys_of: Callable[[str], DeviceKeys]
) -> None:
    bert = household.add("bert")
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=1))
    chain = household.chain
    for wraps, previous in (
        ([(bert.public, bytes(48))], []),
        ([(keys_of("eve").public, bytes(48))], []),
        ([(household.admin.public, bytes(48)), (household.admin.public, bytes(47) + b"\1")], []),
        ([], [(b"z" * 32, bytes(48))]),
        ([], [(chain.heads[0], bytes(48))]),
    ):
        body = {"ephemeral": b"e" * 32, "check": b"c" * 32, "wraps": wraps, "previous": previous}
        raw = sign_entry(household.admin, chain.identity_id, chain.heads, "epoch.new", body, 1)
        assert isinstance(refusal(chain, raw), EntryMalformed)


def test_a_peer_that_lacks_entries_is_sent_just_those_in_batches(household: Any) -> None:
    old = household.chain
    for name in ("bert", "cora", "dora"):
        household.add(name)
    new = household.chain
    assert old.missing(new.heads) == new.heads
    assert new.missing(old.heads) == ()
    raws, more = new.entries_for(old.locator())
    assert (len(raws), more) == (3, False)
    assert old.with_entries(raws) == new
    pulled, rounds = Chain.from_entries(new.raws()[:1]), 0
    while pulled.missing(new.heads):
        raws, _ = new.entries_for(pulled.locator(), bytes_max=800)
        pulled, rounds = pulled.with_entries(raws), rounds + 1
    assert pulled == new
    assert rounds > 2
    assert new.entries_for([b"?" * 32]) == (new.raws(), False)


def test_a_locator_stays_small_on_a_long_chain(long_chain: Chain) -> None:
    locator = long_chain.locator()
    assert len(locator) < 20
    assert locator[0] == long_chain.heads[0]
    assert locator[-1] == long_chain.genesis.hash


@pytest.fixture(scope="session")
def long_chain() -> Chain:
    """1,000 entries: one admin adds and removes devices in turn."""
    root = RootKey(b"l" * 32)
    admin = DeviceKeys(b"a" * 32, b"b" * 32)
    chain = Chain.from_entries([make_genesis(root, 1)])
    raws = [make_genesis(root, 1), raw_add(root, chain, chain.heads, admin, "admin", role="admin")]
    for number in range(998):
        parents = (parse_entry(raws[-1]).hash,)
        keys = DeviceKeys.from_entropy(blake3(b"%d" % (number // 2)).digest(64))
        if number % 2:
            raws.append(raw_revoke(admin, chain, parents, keys.public))
        else:
            raws.append(raw_add(admin, chain, parents, keys, f"n{number}", role="admin" if number % 4 else "member"))
    return Chain.from_entries(raws)


def test_a_long_chain_is_verified_in_linear_time(long_chain: Chain) -> None:
    raws = long_chain.raws()

    def verified_s(count: int) -> float:
        """The quickest of three: a neighbour on the machine can only slow one down."""
        taken_s = []
        for _ in range(3):
            began = time.process_time()
            chain = Chain.from_entries(raws[:count])
            assert chain.members()
            taken_s.append(time.process_time() - began)
            assert len(chain) == count
        return min(taken_s)

    assert verified_s(len(raws)) < 4 * verified_s(500)
