"""Checks that only a hostile peer meets, each with the attack that it stops. `make mutants` takes them away in turn."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hinet_protocol import canonical, join, limits, packs, session
from hinet_protocol import messages as m
from hinet_protocol.chain import Chain, make_device_add, make_device_revoke, make_genesis, make_root_rotate
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.errors import (
    DeviceRevoked,
    EntryConflict,
    EntryMalformed,
    JoinError,
    LimitError,
    MessageError,
    PackMalformed,
    SignatureInvalid,
)
from hinet_protocol.identity import SIGN_CHAIN_ENTRY, SIGN_JOIN_REQUEST, DeviceKeys, RootKey, derive_key
from hinet_protocol.invitations import Invitation, make_code
from hinet_protocol.join.secrets import JoinSecrets, exchange_share, joint_secret

P = 2**255 - 19


@pytest.mark.parametrize("y", [2, 1 << 248, 1, 1 | 1 << 255, P - 1, P - 1 | 1 << 255, P + 1, P + 1 | 1 << 255, P,
                               2**256 - 1])
def test_a_share_that_is_no_element_or_is_written_in_a_second_form_is_refused(y: int) -> None:
    """The neutral element has several spellings; with any of them the joint secret hangs on less than it should."""
    for side, letter in (("joiner", b"B"), ("inviter", b"A")):
        with pytest.raises(JoinError):
            joint_secret("code", side, b"words", b"j" * 32, b"i" * 32, b"e" * 32, letter + y.to_bytes(32, "little"))


def test_a_genesis_that_names_another_root_than_its_signer_is_refused() -> None:
    """Else whoever holds the words could hide from their owner who commands the household."""
    root, other = RootKey(b"r" * 32), RootKey(b"o" * 32)
    body = {"root": other.public, "box": other.box_public, "next": None}
    with pytest.raises(EntryMalformed):
        Chain.from_entries([sign_entry(root, root.identity_id, (), "genesis", body, 1)])


def test_a_root_that_was_replaced_does_not_come_back(household: Any) -> None:
    """Two roots that promise each other would let the one that was stolen return."""
    first, second = RootKey(b"r" * 32), RootKey(b"s" * 32)
    chain = Chain.from_entries([make_genesis(first, 1, second.public)])
    chain = chain.with_entries([make_root_rotate(chain, second, time_s=2, next_root_public=first.public)])
    with pytest.raises(EntryConflict):
        make_root_rotate(chain, first, time_s=3, next_root_public=None)


def test_a_renewal_that_slips_in_another_box_key_is_refused(household: Any) -> None:
    """Whoever renews a device's certificate must not be able to read its vault keys from then on."""
    bert = household.add("bert")
    other = DeviceKeys.from_entropy(b"m" * 64)
    body = {"device": bert.public, "name": "bert", "sign": bert.public, "box": other.box_public,
            "expires": 99, "ephemeral": None, "epochs": []}
    entry = sign_entry(household.admin, household.chain.identity_id, household.chain.heads, "device.rotate", body, 5)
    assert isinstance(household.chain.merge([entry]).cause, EntryMalformed)


@pytest.mark.parametrize(("field", "value"), [("boot_nonce", bytes(15)), ("device", bytes(33)), ("identity_id", b"")])
def test_a_key_or_nonce_of_another_length_is_refused(field: str, value: bytes) -> None:
    hello = m.Hello((1,), bytes(32), bytes(32), bytes(16), 0, (bytes(32),), "laptop", (), 0, (), (), "", 0)
    tag, fields = m.to_value(hello)
    with pytest.raises(MessageError):
        m.from_value([tag, {**fields, field: value}])


# --- a joiner who knows the code and lies -----------------------------------------------------------------------------


def lying_joiner(household: Any, keys: DeviceKeys, change: Callable[[dict[str, Any], bytes], dict[str, Any]],
                 tier: str | None = None) -> tuple[join.Inviter, tuple[join.Action, ...]]:
    """The inviter after a request that `change(request, transcript)` made."""
    code, peer = make_code(bytes(16)), household.admin.public
    record = Invitation.for_code(code, role="member", tier=tier, expires_at_s=600)
    inviter = join.Inviter.start(household.chain, [record], public=peer, peer=keys.public, entropy=b"i" * 32, now_s=1.0)
    share = exchange_share("code", "joiner", code.secret, keys.public, peer, b"j" * 32)
    inviter, (sent,) = inviter.step(join.Received(m.JoinOpen((1,), "code", code.selector, share)), 1.0)
    theirs = sent.message.exchange  # type: ignore[union-attr]
    joint = joint_secret("code", "joiner", code.secret, keys.public, peer, b"j" * 32, theirs)
    secrets = JoinSecrets.begin(joint, (1,), 1, "code", code.selector, keys.public, peer, share, theirs)
    inviter, (sent,) = inviter.step(join.Received(m.JoinConfirm(secrets.joiner_mac)), 1.0)
    secrets, _ = secrets.open_to_joiner(sent.message.sealed)  # type: ignore[union-attr]
    request = change({"box": keys.box_public, "name": "new", "tier": "laptop", "proof": bytes(64)}, secrets.transcript)
    _, sealed = secrets.seal_to_inviter(canonical.encode(request))
    return inviter.step(join.Received(m.JoinRequest(sealed)), 1.0)


def proved(by: DeviceKeys, transcript: bytes, request: dict[str, Any]) -> dict[str, Any]:
    said = canonical.encode([transcript, request["box"], request["name"], request["tier"]])
    return {**request, "proof": by.sign(SIGN_JOIN_REQUEST, said)}


def outcome(stepped: tuple[join.Inviter, tuple[join.Action, ...]]) -> Any:
    return next((one.error for one in stepped[1] if isinstance(one, join.Failed)), stepped[0].phase)


def test_a_request_that_the_joiners_own_key_did_not_sign_is_refused(household: Any) -> None:
    """The key that Noise proved must be at the joining end itself, and its X25519 key be its own choice."""
    keys, other = DeviceKeys.from_entropy(b"n" * 64), DeviceKeys.from_entropy(b"o" * 64)
    honest = lying_joiner(household, keys, lambda request, t: proved(keys, t, request))
    assert outcome(honest) == "approving"
    for lie in (
        lambda request, t: proved(other, t, request),
        lambda request, t: proved(keys, bytes(32), request),
        lambda request, t: {**proved(keys, t, request), "box": other.box_public},
        lambda request, t: {**proved(keys, t, request), "name": "else"},
    ):
        assert isinstance(outcome(lying_joiner(household, keys, lie)), SignatureInvalid)


def test_a_joiner_can_not_choose_another_tier_than_the_invitations(household: Any) -> None:
    keys = DeviceKeys.from_entropy(b"n" * 64)
    assert isinstance(outcome(lying_joiner(household, keys, lambda one, t: proved(keys, t, one), "pocket")), JoinError)
    assert outcome(lying_joiner(household, keys, lambda one, t: proved(keys, t, one), "laptop")) == "approving"


# --- sessions and packs -----------------------------------------------------------------------------------------------


def test_a_removed_device_is_refused_before_anything_is_asked_of_it(household: Any) -> None:
    """With heads that nobody knows it could else make us pull and check whatever it sends."""
    bert = household.add("bert")
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=3))
    chain = household.chain
    own = m.Hello((1,), chain.identity_id, household.admin.public, bytes(16), 1, chain.heads, "laptop", (), 0, (), (),
                  "", 0)
    state, _ = session.Session.start(own, bert.public, chain, 0)
    theirs = dataclasses.replace(own, device=bert.public, heads=(b"h" * 32,), height=99)
    state, actions = state.step(session.Received(theirs), 0)
    assert [type(one.message) for one in actions if isinstance(one, session.Send)] == [m.Goodbye]
    assert isinstance(state.error, DeviceRevoked)


def test_a_pack_with_bytes_between_its_footer_and_its_trailer_is_refused() -> None:
    """What no seal covers could be anything, and the same chunks would have many names."""
    epoch_key, salt, first = b"k" * 32, b"s" * 32, b"HINETPK\1" + b"e" * 32 + b"s" * 32
    key = derive_key(epoch_key, "hinet/1/epoch/pack", salt)

    def sealed(kind: int, slot: int, plain: bytes) -> bytes:
        associated = b"HINETPK\1" + bytes([kind]) + struct.pack(">I", slot) + bytes(32)
        return ChaCha20Poly1305(key).encrypt(slot.to_bytes(12, "big"), plain, associated)

    footer = sealed(0xF0, 0xFFFFFFFF, bytes(4))
    for gap in (0, 64):
        padding = sealed(0xF2, 0xFFFFFFFD, bytes(65_536 - 72 - 16 - len(footer) - gap - 32))
        trailer = sealed(0xF1, 0xFFFFFFFE, struct.pack(">QII", 72 + len(padding), len(footer), 0))
        raw = first + padding + footer + b"?" * gap + trailer
        if gap:
            with pytest.raises(PackMalformed):
                packs.open_pack(raw, epoch_key)
        else:
            assert packs.open_pack(raw, epoch_key)[1] == ()


# --- a chain that somebody fills --------------------------------------------------------------------------------------


def test_a_chain_that_was_filled_up_is_read_back_and_removals_still_fit(household: Any, monkeypatch: pytest.MonkeyPatch,
                                                                        ) -> None:
    """A stolen admin key can add until the bounds. The bytes of all entries must stay below what a reader takes in one
    piece, or the household's devices could never start again; and the thief must still be removed."""
    bert = household.add("bert", role="admin")
    monkeypatch.setattr(limits, "chain_additions_bytes_max", 20_000)

    def bloated() -> bytes:
        payload = canonical.encode({
            "v": 1, "id": household.chain.identity_id, "parents": list(household.chain.heads), "signer": bert.public,
            "time": 1, "kind": "base.adopt", "x-fill": bytes(4_000),
            "body": {"base": bytes(32), "previous": None, "commune": None, "round": 0}})
        return canonical.encode([payload, bert.sign(SIGN_CHAIN_ENTRY, payload)])

    for _ in range(9):
        household.chain = household.chain.merge([bloated()]).chain
    assert isinstance(household.chain.merge([bloated()]).cause, LimitError)
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=3))
    assert not household.chain.is_member(bert.public)
    assert len(household.chain.to_bytes()) < 20_000 + 1_024
    assert Chain.from_bytes(household.chain.to_bytes()).heads == household.chain.heads


def test_the_bounds_of_a_chain_leave_room_below_what_is_read_in_one_piece() -> None:
    removals = limits.chain_reducing_entries_max + limits.chain_entries_max  # those beyond the first bound are news
    additions = limits.chain_entries_max + limits.chain_root_entries_max
    most = (limits.chain_additions_bytes_max + limits.chain_root_bytes_max
            + removals * limits.reducing_entry_bytes_max)
    assert most + 5 * (removals + additions) < limits.chain_bytes_max


def test_a_removal_that_carries_ballast_is_refused(household: Any) -> None:
    bert = household.add("bert")

    def revoke(ballast: int) -> bytes:
        payload = canonical.encode({
            "v": 1, "id": household.chain.identity_id, "parents": list(household.chain.heads), "time": 1,
            "signer": household.admin.public, "kind": "device.revoke", "x-ballast": bytes(ballast),
            "body": {"device": bert.public, "reason": "x" * 200}})
        return canonical.encode([payload, household.admin.sign(SIGN_CHAIN_ENTRY, payload)])

    assert isinstance(household.chain.merge([revoke(1_024)]).cause, LimitError)
    assert household.chain.merge([revoke(10)]).cause is None


# --- an inviter who knows the code and lies ---------------------------------------------------------------------------


def lying_inviter(household: Any, lie: str) -> Any:
    """The outcome at a joiner whose inviter shows what `lie` says; "nothing" is an honest one."""
    code, keys, chain = make_code(bytes(16)), DeviceKeys.from_entropy(b"n" * 64), household.chain
    peer = household.keys.get("cast out", household.admin).public if lie == "cast out" else household.admin.public
    joiner, _ = join.Joiner.start(code, keys, peer=peer, entropy=b"j" * 32, name="new", tier="laptop", now_s=1.0)
    shares = [exchange_share("code", side, code.secret, keys.public, peer, entropy)
              for side, entropy in (("joiner", b"j" * 32), ("inviter", b"i" * 32))]
    joint = joint_secret("code", "inviter", code.secret, keys.public, peer, b"i" * 32, shares[0])
    secrets = JoinSecrets.begin(joint, (1,), 1, "code", code.selector, keys.public, peer, *shares)
    joiner, _ = joiner.step(join.Received(m.JoinExchange(1, shares[1])), 1.0)
    offer = {"identity_id": chain.identity_id, "root_public": chain.genesis.signer, "genesis": chain.genesis.hash,
             "heads": list(chain.heads), "role": "member", "tier": None, "inviter_name": ""}
    offer |= {"another identity": {"identity_id": b"o" * 32}, "another genesis": {"genesis": b"g" * 32},
              "heads that do not come": {"heads": [b"h" * 32]}}.get(lie, {})
    mac = secrets.inviter_mac
    secrets, sealed = secrets.seal_to_joiner(canonical.encode(offer))
    joiner, actions = joiner.step(join.Received(m.JoinOffer(mac, sealed)), 1.0)
    sent = [one.message for one in actions if isinstance(one, join.Send)]
    if not isinstance(sent[0], m.JoinRequest):
        return joiner.phase, next(one.error for one in actions if isinstance(one, join.Failed))
    secrets, _ = secrets.open_to_inviter(sent[0].sealed)
    grown = chain.with_entries([make_device_add(
        chain, household.admin, name="new", public=keys.public, box_public=keys.box_public, role="member",
        tier="laptop", time_s=5)])
    if lie == "a certificate that was revoked":
        grown = grown.with_entries([make_device_revoke(grown, household.admin, keys.public, time_s=6)])
    _, sealed = secrets.seal_to_joiner(canonical.encode([False, list(grown.raws())]))
    joiner, actions = joiner.step(join.Received(m.JoinEntries(sealed, False)), 1.0)
    return joiner.phase, next((one.error for one in actions if isinstance(one, join.Failed)), None)


@pytest.mark.parametrize(("lie", "phase"), [
    ("nothing", "storing"), ("another identity", "failed"), ("another genesis", "failed"),
    ("heads that do not come", "failed"), ("a certificate that was revoked", "failed"), ("cast out", "failed"),
])
def test_a_joiner_is_brought_into_no_other_household_than_the_one_offered(household: Any, lie: str, phase: str) -> None:
    """An inviter with the right words could else bring it into a household of its own making, or a dead end."""
    household.keys = {"cast out": household.add("cast out")}
    household.take(make_device_revoke(household.chain, household.admin, household.keys["cast out"].public, time_s=3))
    found, error = lying_inviter(household, lie)
    assert found == phase
    assert isinstance(error, JoinError) == (phase == "failed")


def test_an_identity_that_is_not_the_offered_roots_is_refused_before_anything_is_said(household: Any) -> None:
    _, error = lying_inviter(household, "another identity")
    assert "does not belong to its root" in str(error)


@pytest.mark.parametrize(("state", "code"), [("certified", "E_INVITATION_USED"), ("burned", "E_INVITATION_BURNED"),
                                             ("cancelled", "E_INVITATION_EXPIRED")])
def test_an_invitation_that_is_over_is_refused_before_a_share_is_sent(household: Any, state: str, code: str) -> None:
    """A share for a code that was closed would be one more try at its words."""
    typed, keys = make_code(bytes(16)), DeviceKeys.from_entropy(b"n" * 64)
    record = dataclasses.replace(Invitation.for_code(typed, role="member", tier=None, expires_at_s=600), state=state)
    inviter = join.Inviter.start(household.chain, [record], public=household.admin.public, peer=keys.public,
                                 entropy=b"i" * 32, now_s=1.0)
    share = exchange_share("code", "joiner", typed.secret, keys.public, household.admin.public, b"j" * 32)
    inviter, actions = inviter.step(join.Received(m.JoinOpen((1,), "code", typed.selector, share)), 1.0)
    assert [one.message.code for one in actions if isinstance(one, join.Send)] == [code]


def test_a_key_that_was_removed_joins_no_more(household: Any) -> None:
    bert = household.add("bert")
    household.take(make_device_revoke(household.chain, household.admin, bert.public, time_s=3))
    again = lying_joiner(household, bert, lambda request, t: proved(bert, t, request))
    assert isinstance(outcome(again), DeviceRevoked)
