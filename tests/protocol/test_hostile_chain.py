"""Attacks on the chain, written from SPEC.md alone: entries are made with msgpack and PyNaCl, not with our builders."""

from __future__ import annotations

import hashlib
import hmac
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
import pytest
from blake3 import blake3
from nacl.public import PrivateKey
from nacl.signing import SigningKey

from hinet_protocol.chain import Chain
from hinet_protocol.errors import (
    ChainForeign,
    EncodingError,
    EntryConflict,
    EntryMalformed,
    EntryOrphan,
    EntryUnauthorised,
    EntryUnsupported,
    LastAdmin,
    ProtocolError,
    SignatureInvalid,
)

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


def name_of(raw: bytes) -> bytes:
    return blake3(raw).digest()


def expand(secret: bytes, label: str) -> bytes:
    """HKDF-SHA-256 without a salt, 32 bytes."""
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, label.encode() + b"\1", hashlib.sha256).digest()


def packed(value: Any) -> bytes:
    return msgpack.packb(in_order(value), use_bin_type=True)


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value, key=str.encode)}
    return [in_order(item) for item in value] if isinstance(value, list | tuple) else value


class Key:
    def __init__(self, label: str, seed: bytes | None = None) -> None:
        self.label = label
        self.signing = SigningKey(seed or name_of(b"sign " + label.encode()))
        self.public = bytes(self.signing.verify_key)
        self.box = bytes(PrivateKey(name_of(b"box " + label.encode())).public_key)

    def sign(self, payload: bytes) -> bytes:
        return self.signing.sign(b"hinet-sign-v1\0\x0bchain-entry" + payload).signature


ROOT = Key("root", expand(b"r" * 32, "hinet/1/root/sign"))
IDENTITY = name_of(ROOT.public)
ANNA, BERT, CARL, DORA = (Key(name) for name in ("anna", "bert", "carl", "dora"))


def entry(signer: Key, parents: Iterable[bytes], kind: str, body: dict[str, Any],
          changes: dict[str, Any] | None = None) -> bytes:
    fields = {"v": 1, "id": IDENTITY, "parents": sorted(name_of(raw) for raw in parents), "signer": signer.public,
              "time": 1, "kind": kind, "body": body, **(changes or {})}
    payload = packed(fields)
    return packed([payload, signer.sign(payload)])


def add(signer: Key, parents: Iterable[bytes], key: Key, role: str = "member", time_s: int = 1, **body: Any) -> bytes:
    made = {"name": key.label, "sign": key.public, "box": key.box, "role": role, "tier": "laptop", "expires": 0,
            "ephemeral": None, "epochs": [], **body}
    return entry(signer, parents, "device.add", made, {"time": time_s})


def revoke(signer: Key, parents: Iterable[bytes], key: Key, time_s: int = 1) -> bytes:
    return entry(signer, parents, "device.revoke", {"device": key.public, "reason": ""}, {"time": time_s})


def epoch(signer: Key, parents: Iterable[bytes], keys: Iterable[Key] = (), previous: Iterable[bytes] = (),
          time_s: int = 1) -> bytes:
    body = {"ephemeral": DORA.box, "check": bytes(32), "wraps": sorted([key.public, bytes(48)] for key in keys),
            "previous": sorted([name, bytes(48)] for name in previous)}
    return entry(signer, parents, "epoch.new", body, {"time": time_s})


GENESIS = entry(ROOT, [], "genesis", {"root": ROOT.public, "box": ROOT.box, "next": None})
ANNA_IN = add(ROOT, [GENESIS], ANNA, "admin")
BERT_IN = add(ANNA, [ANNA_IN], BERT)


@pytest.fixture
def chain() -> Chain:
    """The root, the admin anna and the member bert."""
    return Chain.from_entries([GENESIS, ANNA_IN, BERT_IN])


def refused(chain: Chain, raw: bytes) -> ProtocolError:
    merged = chain.merge([raw])
    assert merged.chain.heads == chain.heads
    (rejected,) = merged.rejected
    return rejected.error


def live(chain: Chain) -> dict[str, str]:
    return {device.name: device.role for device in chain.devices() if device.live}


# ---- forged bytes ----------------------------------------------------------------------------------------------------


def test_a_signature_by_another_key_than_the_named_signer_is_refused(chain: Chain) -> None:
    payload = msgpack.unpackb(add(ANNA, [BERT_IN], CARL, "admin"))[0]
    for forged in (BERT.sign(payload), bytes(64), CARL.signing.sign(payload).signature):
        assert isinstance(refused(chain, packed([payload, forged])), SignatureInvalid)


def test_a_signature_over_the_bare_payload_or_in_another_domain_is_refused(chain: Chain) -> None:
    """A device signs heads and passports too; none of those bytes may become an entry."""
    payload = msgpack.unpackb(add(ANNA, [BERT_IN], CARL, "admin"))[0]
    for prefix in (b"", b"\x0avault-head", b"chain-entry", b"\x0cchain-entry", b"\x0bChain-entry"):
        forged = ANNA.signing.sign((prefix and b"hinet-sign-v1\0" + prefix) + payload).signature
        assert isinstance(refused(chain, packed([payload, forged])), SignatureInvalid)


def test_a_signature_with_a_second_form_of_its_number_is_refused(chain: Chain) -> None:
    """S and S + L both satisfy the equation; if both held, anybody could rename an entry."""
    payload, signature = msgpack.unpackb(add(ANNA, [BERT_IN], CARL))
    number = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    twin = signature[:32] + number.to_bytes(32, "little")
    assert isinstance(refused(chain, packed([payload, twin])), SignatureInvalid)


@pytest.mark.parametrize("weak", [bytes(32), b"\1" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"],
                         ids=["zero", "one", "minus one"])
def test_a_weak_key_signs_nothing(chain: Chain, weak: bytes) -> None:
    """Under a key of small order a constant is a signature of everything."""
    fields = {"v": 1, "id": IDENTITY, "parents": [name_of(BERT_IN)], "signer": weak, "time": 1, "kind": "device.revoke",
              "body": {"device": BERT.public, "reason": ""}}
    for signature in (bytes(64), b"\1" + bytes(63)):
        assert isinstance(refused(chain, packed([packed(fields), signature])), ProtocolError)


@pytest.mark.parametrize("change", [
    lambda raw: raw + b"\0", lambda raw: raw[:-1], lambda raw: b"\xdc\0\2" + raw[1:], lambda raw: b"\xc0" * 10,
    lambda raw: b"\x93" + raw[1:] + b"\xc0", lambda raw: b"\x92\xc6\0\0" + raw[2:], lambda raw: b"",
])
def test_an_envelope_in_another_form_is_refused(chain: Chain, change: Callable[[bytes], bytes]) -> None:
    raw = add(ANNA, [BERT_IN], CARL)
    assert isinstance(refused(chain, change(raw)), ProtocolError)


def test_a_rightly_signed_payload_in_another_form_is_refused(chain: Chain) -> None:
    good = msgpack.unpackb(add(ANNA, [BERT_IN], CARL))[0]
    fields = msgpack.unpackb(good)
    long_integer = good.replace(b"\xa4time\x01", b"\xa4time\xcc\x01")
    key_twice = bytes([good[0] + 1]) + good[1:] + b"\xa1v\x01"
    out_of_order = msgpack.packb(dict(reversed(list(fields.items()))), use_bin_type=True)
    text_for_bytes = packed({**fields, "signer": "s" * 32})
    a_float = packed({**fields, "time": 1.0})
    for payload in (long_integer, key_twice, out_of_order, text_for_bytes, a_float, good + b"\xc0"):
        assert payload != good
        error = refused(chain, packed([payload, ANNA.sign(payload)]))
        assert isinstance(error, EncodingError | EntryMalformed), error


@pytest.mark.parametrize(("kind", "changes"), [
    ("device.add", {"v": 2}), ("device.add", {"extra": 1}), ("consent", {}), ("checkpoint", {}), ("root.rotate", {}),
    ("device.rotate", {}), ("base.adopt", {}), ("device.promote", {}),
])
def test_what_this_version_does_not_know_is_refused_with_all_that_follows(
    chain: Chain, kind: str, changes: dict[str, Any]
) -> None:
    body = msgpack.unpackb(msgpack.unpackb(add(ANNA, [BERT_IN], CARL))[0])["body"]
    strange = entry(ANNA, [BERT_IN], kind, body, changes)
    child = add(ANNA, [strange], DORA)
    merged = chain.merge([child, strange])
    assert {type(rejected.error) for rejected in merged.rejected} == {EntryUnsupported, EntryOrphan}
    assert merged.chain.heads == chain.heads


@pytest.mark.parametrize("changes", [
    {"time": -1}, {"time": 2**63}, {"time": "1"}, {"time": True}, {"kind": ""}, {"kind": "k" * 33}, {"parents": []},
    {"parents": [b"x" * 31]}, {"parents": None}, {"signer": b""}, {"body": []}, {"v": 0}, {"v": True},
])
def test_a_field_of_another_form_is_refused(chain: Chain, changes: dict[str, Any]) -> None:
    assert isinstance(refused(chain, entry(ANNA, [BERT_IN], "device.revoke", {"device": BERT.public, "reason": ""},
                                           changes)), ProtocolError)


@pytest.mark.parametrize("body", [
    {"name": ""}, {"name": "n" * 64}, {"name": "a\nb"}, {"name": "\x1b[2J"}, {"name": "\x9b31m"}, {"role": "root"},
    {"role": "Admin"}, {"tier": "moon"}, {"expires": -1}, {"expires": 2**63}, {"sign": ROOT.public}, {"box": bytes(31)},
    {"epochs": [[bytes(32), bytes(48)]]}, {"ephemeral": DORA.box},
    {"ephemeral": DORA.box, "epochs": [[b"e" * 32, bytes(48)]]},
    {"ephemeral": DORA.box, "epochs": [[bytes([i]) * 32, bytes(48)] for i in range(65)]}, {"owner": True},
])
def test_a_certificate_of_another_form_is_refused(chain: Chain, body: dict[str, Any]) -> None:
    assert isinstance(refused(chain, add(ANNA, [BERT_IN], CARL, **body)), ProtocolError)


def test_a_hundred_and_twenty_eight_kibibytes_are_the_most_that_is_read(chain: Chain) -> None:
    huge = add(ANNA, [BERT_IN], CARL, **{"x-note": "n" * 131_072})
    assert len(huge) > 131_072
    assert isinstance(refused(chain, huge), ProtocolError)
    assert not chain.merge([add(ANNA, [BERT_IN], CARL, **{"x-note": "n" * 120_000})]).rejected


def test_nine_parents_and_parents_out_of_order_or_twice_are_refused(chain: Chain) -> None:
    branches = [epoch(ANNA, [BERT_IN], time_s=number) for number in range(9)]
    wide = chain.with_entries(branches)
    names = sorted(name_of(raw) for raw in branches)
    assert not wide.merge([epoch(ANNA, branches[:8])]).rejected
    for parents in (names, names[:2][::-1], [names[0], names[0]]):
        body = {"ephemeral": DORA.box, "check": bytes(32), "wraps": [], "previous": []}
        assert isinstance(refused(wide, entry(ANNA, [], "epoch.new", body, {"parents": parents})), EntryMalformed)


# ---- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["member", "keeper"])
def test_members_and_keepers_can_not_raise_themselves_or_anybody(role: str) -> None:
    bert = add(ANNA, [ANNA_IN], BERT, role)
    chain = Chain.from_entries([GENESIS, ANNA_IN, bert])
    attempts = [add(BERT, [bert], BERT, "admin", name="other"), add(BERT, [bert], CARL, "admin"),
                add(BERT, [bert], CARL, "keeper"), revoke(BERT, [bert], ANNA), epoch(BERT, [bert], [BERT]),
                add(CARL, [bert], CARL, "admin")]
    for raw in attempts:
        assert isinstance(refused(chain, raw), EntryUnauthorised | EntryConflict)


def test_rights_begin_after_the_certificate_and_not_beside_it(chain: Chain) -> None:
    """Carl is admin, but an entry that does not have his certificate in its past is signed by nobody."""
    carl = add(ANNA, [BERT_IN], CARL, "admin")
    grown = chain.with_entries([carl])
    assert isinstance(refused(grown, add(CARL, [BERT_IN], DORA)), EntryUnauthorised)
    assert not grown.merge([add(CARL, [carl], DORA)]).rejected


def test_a_certificate_can_not_be_taken_back_into_another_household(chain: Chain) -> None:
    other = Key("other root")
    identity = name_of(other.public)
    theirs = entry(other, [], "genesis", {"root": other.public, "box": other.box, "next": None}, {"id": identity})
    body = msgpack.unpackb(msgpack.unpackb(ANNA_IN)[0])["body"]
    replayed = entry(other, [theirs], "device.add", body, {"id": identity})
    spy = {**body, "name": "spy", "sign": CARL.public, "box": CARL.box}
    in_ours = entry(other, [BERT_IN], "device.add", spy, {"id": identity})
    assert isinstance(refused(chain, theirs), ChainForeign)
    assert isinstance(refused(chain, in_ours), ChainForeign)
    assert {type(one.error) for one in chain.merge([replayed, theirs]).rejected} <= {ChainForeign, EntryOrphan}
    with pytest.raises(ChainForeign):
        Chain.from_entries([theirs, replayed], identity_id=IDENTITY)


def test_a_genesis_for_the_identity_by_another_key_is_refused() -> None:
    thief = Key("thief")
    for root in (thief.public, ROOT.public):
        with pytest.raises(ProtocolError):
            Chain.from_entries([entry(thief, [], "genesis", {"root": root, "box": thief.box, "next": None})])


def test_a_second_genesis_by_the_same_root_changes_nothing(chain: Chain) -> None:
    second = entry(ROOT, [], "genesis", {"root": ROOT.public, "box": DORA.box, "next": None}, {"time": 2})
    assert isinstance(refused(chain, second), ChainForeign | EntryMalformed)
    assert chain.root_box_public == ROOT.box


def test_neither_key_of_a_device_can_be_used_for_another_one(chain: Chain) -> None:
    for body in ({"sign": BERT.public}, {"box": BERT.box}):
        assert isinstance(refused(chain, add(ANNA, [BERT_IN], CARL, **body)), EntryConflict)


@pytest.mark.parametrize("name", ["BERT", "Bert", "bErT"])
def test_a_name_is_taken_in_every_letter_case(chain: Chain, name: str) -> None:
    assert isinstance(refused(chain, add(ANNA, [BERT_IN], CARL, name=name)), EntryConflict)


def test_the_only_admin_can_not_remove_itself_even_beside_an_admin_whose_certificate_is_void() -> None:
    carl = add(ANNA, [BERT_IN], CARL, "admin")
    dora = add(CARL, [carl], DORA, "admin")
    carl_out = revoke(ANNA, [carl], CARL)
    chain = Chain.from_entries([GENESIS, ANNA_IN, BERT_IN, carl, dora, carl_out])
    assert live(chain) == {"anna": "admin", "bert": "member"}
    assert isinstance(refused(chain, revoke(ANNA, [carl_out, dora], ANNA)), LastAdmin)
    assert isinstance(refused(chain, revoke(DORA, [carl_out, dora], ANNA)), EntryUnauthorised)


# ---- what stands -----------------------------------------------------------------------------------------------------


def test_a_stolen_admin_key_and_a_member_together_make_no_admin() -> None:
    """The member's own certificate must not lend standing to what it signed as the admin that a void one made it."""
    carl = add(ROOT, [ANNA_IN], CARL, "admin")
    bert = add(ANNA, [carl], BERT)
    carl_out = revoke(ANNA, [bert], CARL)
    raised = add(CARL, [carl], BERT, "admin")
    spy = add(BERT, [raised], DORA, "admin")
    key_for_the_spy = epoch(BERT, [spy], [DORA])
    chain = Chain.from_entries([GENESIS, ANNA_IN, carl, bert, carl_out, raised, spy, key_for_the_spy])
    assert live(chain) == {"anna": "admin", "bert": "member"}
    assert not [one for one in chain.epochs() if one.standing]


def test_an_admin_certified_again_by_the_root_keeps_what_it_signed() -> None:
    carl = add(ROOT, [ANNA_IN], CARL, "admin")
    bert = add(CARL, [carl], BERT, "admin")
    dora = add(BERT, [bert], DORA)
    carl_out = revoke(ROOT, [carl], CARL)
    void = Chain.from_entries([GENESIS, ANNA_IN, carl, bert, dora, carl_out])
    assert live(void) == {"anna": "admin"}
    later = epoch(ROOT, [epoch_before := epoch(ROOT, [carl_out])])
    again = add(ROOT, [later], BERT, "admin")
    chain = void.with_entries([epoch_before, later, again])
    assert live(chain) == {"anna": "admin", "bert": "admin", "dora": "member"}


def test_two_void_admins_do_not_hold_each_other_up() -> None:
    """Each certified the other on a branch of its own; without carl nothing ties them to the root."""
    carl = add(ROOT, [ANNA_IN], CARL, "admin")
    bert, dora = add(CARL, [carl], BERT, "admin"), add(CARL, [carl], DORA, "admin")
    by_dora, by_bert = add(DORA, [dora], BERT, "admin"), add(BERT, [bert], DORA, "admin")
    carl_out = revoke(ROOT, [carl], CARL)
    chain = Chain.from_entries([GENESIS, ANNA_IN, carl, bert, dora, by_dora, by_bert, carl_out])
    assert live(chain) == {"anna": "admin"}


def test_a_void_device_takes_no_part_in_what_is_valid() -> None:
    carl = add(ROOT, [ANNA_IN], CARL, "admin")
    bert = add(CARL, [carl], BERT)
    carl_out = revoke(ROOT, [carl], CARL)
    both = [bert, carl_out]
    chain = Chain.from_entries([GENESIS, ANNA_IN, carl, *both])
    assert isinstance(refused(chain, revoke(BERT, both, BERT)), EntryUnauthorised)
    assert isinstance(refused(chain, epoch(ANNA, both, [BERT])), EntryMalformed)
    assert not chain.merge([add(ANNA, both, DORA, name="bert")]).rejected


# ---- too much --------------------------------------------------------------------------------------------------------


def test_entries_in_the_worst_order_with_rubbish_between_are_all_sorted_out(chain: Chain) -> None:
    line = [BERT_IN]
    for number in range(300):
        line.append(epoch(ANNA, [line[-1]], time_s=number))
    rubbish = [name_of(raw) * 20 for raw in line]
    merged = chain.merge([piece for pair in zip(reversed(line), rubbish, strict=True) for piece in pair])
    assert len(merged.rejected) == len(rubbish)
    assert merged.chain.height == chain.height + 300


def test_hundreds_of_branches_and_removals_cost_little(chain: Chain) -> None:
    dice = random.Random(1)
    begun_s = time.process_time()
    branches = [epoch(ANNA, [BERT_IN], time_s=number) for number in range(400)]
    removals = [revoke(ANNA, [BERT_IN], BERT, number) for number in range(800)]
    wide = chain.merge(branches + removals).chain
    merges = [epoch(ANNA, dice.sample(branches + removals, 8), time_s=9_999 + number) for number in range(60)]
    wide = wide.merge(merges).chain
    assert live(wide) == {"anna": "admin"}
    assert len(wide.epochs()) == 460
    # Minutes or hours are what a blow-up costs; this needs half a second on a slow core.
    assert time.process_time() - begun_s < 20


def test_thirty_admins_who_all_remove_each_other_are_settled_quickly() -> None:
    admins = [Key(f"admin {number}") for number in range(30)]
    raws = [GENESIS, *(add(ROOT, [GENESIS], key, "admin") for key in admins)]
    fight = [revoke(one, raws[1:9], other) for one in admins[:8] for other in admins[:8] if one is not other]
    begun_s = time.process_time()
    chain = Chain.from_entries([*raws, *fight])
    senior = min(admins[:8], key=lambda key: name_of(raws[1 + admins.index(key)]))
    assert set(live(chain)) & {key.label for key in admins[:8]} == {senior.label}
    assert time.process_time() - begun_s < 20
