"""Attacks on the chain, written from SPEC.md alone: entries are made with msgpack and PyNaCl, never with our builders,
and sections 3.3 and 3.4 are modelled a second time by brute force."""

from __future__ import annotations

import hashlib
import hmac
import random
import time
from collections.abc import Callable, Iterable, Sequence
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


class Model:
    """Sections 3.3 and 3.4 word by word, without regard to time or memory."""

    def __init__(self) -> None:
        self.entries: dict[bytes, dict[str, Any]] = {}

    def read(self, raw: bytes) -> dict[str, Any]:
        read: dict[str, Any] = msgpack.unpackb(msgpack.unpackb(raw)[0])
        past: set[bytes] = set()
        for parent in read["parents"]:
            past |= {parent} | self.entries[parent]["past"]
        height = 1 + max((self.entries[parent]["height"] for parent in read["parents"]), default=-1)
        return {**read, "name": name_of(raw), "past": past, "height": height}

    def settle(self, names: set[bytes]) -> Settled:
        return Settled([self.entries[name] for name in names])

    def take(self, raw: bytes) -> bool:
        new = self.read(raw)
        if new["kind"] != "genesis" and not self.valid(new, self.settle(new["past"])):
            return False
        self.entries[new["name"]] = new
        return True

    def valid(self, new: dict[str, Any], before: Settled) -> bool:
        signer, body = new["signer"], new["body"]
        admins = [key for key, one in before.live.items() if one["body"]["role"] == "admin"]
        may = signer == ROOT.public or signer in admins
        if new["kind"] == "device.revoke":
            target = body["device"]
            leaves = signer == target and target in before.live
            return (may or leaves) and target in before.adds and (signer == ROOT.public or admins != [target])
        if new["kind"] == "device.add":
            added = [one["body"] for adds in before.adds.values() for one in adds]
            names = [one["body"]["name"].casefold() for key in before.live for one in before.adds[key]]
            return (may and body["sign"] not in before.adds and body["box"] not in [one["box"] for one in added]
                    and body["name"].casefold() not in names)
        reads = all(key in before.live and any(one["body"]["role"] != "keeper" for one in before.adds[key])
                    for key, _ in body["wraps"])
        return may and reads and all(name in new["past"] and self.entries[name]["kind"] == "epoch.new"
                                     for name, _ in body["previous"])


class Settled:
    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.adds: dict[bytes, list[dict[str, Any]]] = {}
        self.revokes: dict[bytes, list[dict[str, Any]]] = {}
        for one in entries:
            if one["kind"] == "device.add":
                self.adds.setdefault(one["body"]["sign"], []).append(one)
            elif one["kind"] == "device.revoke":
                self.revokes.setdefault(one["body"]["device"], []).append(one)
        self.rank = {key: min((one["height"], one["name"]) for one in adds) for key, adds in self.adds.items()}
        self.removed = {key: [one for one in found if not self.fell_to(one, key)]
                        for key, found in self.revokes.items()}
        self.standing: set[bytes] = set()
        grants = [one for one in entries if one["kind"] in ("device.add", "epoch.new")]
        while more := [one for one in grants if one["name"] not in self.standing and self.stands(one)]:
            self.standing |= {one["name"] for one in more}
        self.live = {key: min(found, key=self.order) for key, adds in self.adds.items() if not self.removed.get(key)
                     and (found := [one for one in adds if one["name"] in self.standing])}

    def fell_to(self, one: dict[str, Any], target: bytes) -> bool:
        signer = one["signer"]
        if signer in (target, ROOT.public):
            return False
        answers = [answer for answer in self.revokes.get(signer, []) if answer["signer"] == target]
        senior = self.rank[target] < self.rank[signer]
        if senior and any(not follows(answer, one) for answer in answers):
            return True
        return all(self.fell_to(cert, target) for cert in self.adds[signer] if cert["name"] in one["past"])

    def stands(self, one: dict[str, Any]) -> bool:
        signer = one["signer"]
        return signer == ROOT.public or (
            any(cert["name"] in self.standing and cert["body"]["role"] == "admin" for cert in self.adds.get(signer, []))
            and all(follows(removal, one) for removal in self.removed.get(signer, []))
        )

    def order(self, one: dict[str, Any]) -> tuple[Any, ...]:
        return (0, b"", one["name"]) if one["signer"] == ROOT.public else (*self.rank[one["signer"]], one["name"])


def follows(later: dict[str, Any], earlier: dict[str, Any]) -> bool:
    return later["name"] == earlier["name"] or earlier["name"] in later["past"]


def random_entry(dice: random.Random, model: Model, raws: Sequence[bytes], keys: Sequence[Key], number: int) -> bytes:
    """An entry that is often valid: somebody adds, removes or leaves, on parents anywhere."""
    recent = raws[-dice.choice([1, 2, 4, 8, 99]):]
    parents = dice.sample(recent, min(dice.choice([1, 1, 1, 2, 2, 3]), len(recent)))
    past = {name_of(raw) for raw in parents}.union(*(model.entries[name_of(raw)]["past"] for raw in parents))
    before = model.settle(past)
    admins = [key for key in keys if before.live.get(key.public, {"body": {"role": ""}})["body"]["role"] == "admin"]
    signer = dice.choice(admins) if admins and dice.random() < 0.8 else dice.choice([ROOT, *keys])
    known = [key for key in keys if key.public in before.adds] or list(keys)
    fresh = [key for key in keys if key.public not in before.adds] or list(keys)
    act = dice.choice(["add", "add", "add", "revoke", "revoke", "revoke", "leave", "epoch"])
    if act == "add":
        key = dice.choice(fresh if dice.random() < 0.9 else keys)
        role = dice.choice(["admin", "admin", "admin", "member", "keeper"])
        return add(signer, parents, key, role, number, name=dice.choice([key.label] * 6 + ["KEY 0", "same"]))
    if act == "epoch":
        previous = [name for name in past if model.entries[name]["kind"] == "epoch.new"][:1]
        return epoch(signer, parents, dice.sample(known, min(len(known), dice.randint(0, 2))), previous, number)
    key = dice.choice(known)
    return revoke(key if act == "leave" else signer, parents, key, number)


@pytest.mark.parametrize("seed", [1, 9, 27, 35, 60, 65, 110, 163, 1031, *range(200, 206)])
def test_every_history_says_what_the_text_says(seed: int) -> None:
    dice, model = random.Random(seed), Model()
    keys = [Key(f"key {number}") for number in range(6)]
    raws = [GENESIS, *(add(ROOT, [GENESIS], key, "admin") for key in keys[:3])]
    assert all(model.take(raw) for raw in raws)
    chain = Chain.from_entries(raws)
    for number in range(22):
        raw = random_entry(dice, model, raws, keys, number)
        if raw in raws:
            continue
        valid, merged = model.take(raw), chain.merge([raw])
        assert valid == (not merged.rejected), (number, merged.rejected)
        raws += [raw] if valid else []
        chain = merged.chain
    dice.shuffle(raws)
    chain, settled = Chain.from_entries(raws), model.settle(set(model.entries))
    assert ({device.public: (device.entry, device.role) for device in chain.devices() if device.live}
            == {key: (one["name"], one["body"]["role"]) for key, one in settled.live.items()})
    assert ({one.epoch_id for one in chain.epochs() if one.standing}
            == {name for name in settled.standing if model.entries[name]["kind"] == "epoch.new"})


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
