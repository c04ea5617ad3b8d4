"""Heads: signed, strictly read, placed among the known ones; pack lists; the vault's digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import canonical, heads, limits
from hinet_protocol.errors import HeadMalformed, HeadUnauthorised, PackMalformed, SignatureInvalid
from hinet_protocol.heads import Head, judge, make_head, read_head
from hinet_protocol.identity import SIGN_PASSPORT, DeviceKeys
from hinet_protocol.packs import pack_name

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "6-heads.json").read_text())
KEYS, OTHER = DeviceKeys.from_entropy(bytes(range(64))), DeviceKeys.from_entropy(bytes(64))
IDENTITY = b"I" * 32


def head(seq: int = 1, keys: DeviceKeys = KEYS, **more: Any) -> Head:
    fields: dict[str, Any] = {
        "identity": IDENTITY, "device": keys.public, "seq": seq, "prev": b"", "epoch": b"e" * 32,
        "tree_chunk": b"t" * 32, "tree_pack": b"p" * 32, "packs": [b"p" * 32], "lists": [],
        "vector": ((keys.public, seq),), "time": 1}
    return make_head(more.pop("sign", keys.sign), **{**fields, **more})


def read(raw: bytes, members: Any = (KEYS.public, OTHER.public)) -> Head:
    return read_head(raw, identity=IDENTITY, members=members)


@given(st.integers(1, 2**63 - 1), st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=128),
       st.integers(0, 2**40))
def test_a_head_comes_back_as_it_was_signed(seq: int, packs: list[bytes], time: int) -> None:
    made = head(seq, packs=packs, time=time)
    assert read(made.raw) == made
    assert made.packs == tuple(sorted(set(packs)))


def test_a_head_of_the_largest_household_fits() -> None:
    vector = tuple(sorted([(KEYS.public, 2**62), *((number.to_bytes(32, "big"), 2**62)
                                                   for number in range(limits.devices_max - 1))]))
    made = head(2**62, packs=[number.to_bytes(32, "big") for number in range(heads.packs_inline_max)],
                lists=[number.to_bytes(32, "big") for number in range(heads.pack_lists_max)], vector=vector,
                settles=[number.to_bytes(32, "big") for number in range(heads.settles_max)])
    assert len(made.raw) <= limits.head_bytes_max


def test_heads_of_strangers_of_revoked_devices_and_of_other_households_are_refused() -> None:
    with pytest.raises(HeadUnauthorised):
        read(head().raw, members=(OTHER.public,))
    with pytest.raises(HeadUnauthorised):
        read(head(identity=b"J" * 32).raw)


def test_a_signature_by_another_key_or_for_another_purpose_is_refused() -> None:
    with pytest.raises(SignatureInvalid):
        read(head(sign=OTHER.sign).raw)
    with pytest.raises(SignatureInvalid):
        read(head(sign=lambda domain, message: KEYS.sign(SIGN_PASSPORT, message)).raw)


@given(st.data())
def test_any_changed_byte_is_refused(data: Any) -> None:
    raw = bytearray(head().raw)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((HeadMalformed, HeadUnauthorised, SignatureInvalid)):
        read(bytes(raw))


@given(st.binary(max_size=300))
def test_random_bytes_are_no_head(raw: bytes) -> None:
    with pytest.raises(HeadMalformed):
        read(raw)


@pytest.mark.parametrize("wrong", [
    {"seq": 0}, {"prev": b"short"}, {"packs": []}, {"vector": ((b"x" * 32, 1),)}, {"vector": ((KEYS.public, 2),)},
    {"epoch": b""}, {"time": -1}, {"tree_chunk": b""},
    {"packs": [bytes([number]) * 32 for number in range(heads.packs_inline_max + 1)]},
    {"vector": tuple(sorted([(KEYS.public, 1), (b"x" * 32, 1), (b"x" * 32, 2)]))},
])
def test_a_head_with_a_wrong_field_can_neither_be_made_nor_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(HeadMalformed):
        head(**wrong)


def test_an_unknown_field_is_refused_and_a_marked_one_is_left_alone() -> None:
    body = canonical.decode(canonical.decode(head().raw)[0])
    for name, fine in (("new", False), ("x-new", True)):
        changed = canonical.encode({**body, name: 1})
        raw = canonical.encode([changed, KEYS.sign(b"vault-head", changed)])
        if fine:
            assert read(raw).seq == 1
        else:
            with pytest.raises(HeadMalformed):
                read(raw)


def test_settled_heads_are_sorted_few_and_not_named_when_there_are_none() -> None:
    made = head(settles=[b"s" * 32, b"a" * 32, b"s" * 32])
    assert read(made.raw).settles == (b"a" * 32, b"s" * 32)
    body = canonical.decode(canonical.decode(made.raw)[0])
    many = [number.to_bytes(32, "big") for number in range(heads.settles_max + 1)]
    for wrong in ([], [b"s" * 32, b"a" * 32], [b"s" * 32, b"s" * 32], [b"short"], many, None, b"s" * 32):
        changed = canonical.encode({**body, "settles": wrong})
        with pytest.raises(HeadMalformed):
            read(canonical.encode([changed, KEYS.sign(b"vault-head", changed)]))
    assert "settles" not in canonical.decode(canonical.decode(head().raw)[0])
    assert heads.settled_by([made, head(2), head(3, settles=[b"x" * 32])]) == {b"a" * 32, b"s" * 32, b"x" * 32}


def test_a_head_that_goes_on_without_the_one_before_it_is_noticed() -> None:
    first = head(1)
    second, third = head(2, prev=first.hash), head(3, prev=first.hash)
    assert heads.skips(third, second, 1)
    assert heads.skips(head(3), second, None)
    assert not heads.skips(head(3, prev=second.hash), second, 2)
    assert not heads.skips(third, second, None), "the head before is not known"
    assert not heads.skips(head(4, prev=third.hash), second, 3)
    assert not heads.skips(second, third, 1)
    assert not heads.skips(head(3, OTHER, prev=first.hash), second, 1)


def test_heads_of_one_number_contradict_each_other() -> None:
    one, other, alone, another = head(2), head(2, time=5), head(3), head(2, OTHER)
    assert heads.contradictions([one, alone, other, another]) == [(one, other)]
    assert heads.contradictions([one, alone, another]) == []


def test_a_fork_is_told_from_a_new_a_known_and_an_older_head() -> None:
    first, second, twin = head(1), head(3), head(3, time=2)
    known = {1: {first.hash}, 3: {second.hash}}
    assert judge(second, known).kind == "known"
    assert judge(twin, known) == heads.Standing("fork", second.hash)
    assert judge(head(1, time=9), known).kind == "fork"
    assert judge(head(2), known).kind == "older"
    assert judge(head(4), known).kind == "new"
    assert judge(head(1), {}).kind == "new"


# --- pack lists ---


@given(st.sets(st.binary(min_size=32, max_size=32), min_size=1, max_size=50))
def test_pack_lists_come_back_sorted(names: set[bytes]) -> None:
    raw = heads.encode_pack_list(names)
    assert heads.is_pack_list(raw[:8])
    assert heads.decode_pack_list(raw) == tuple(sorted(names))


@given(st.binary(max_size=200))
def test_random_bytes_are_no_pack_list(raw: bytes) -> None:
    for wrong in (raw, heads.pack_list_magic + raw):
        try:
            names = heads.decode_pack_list(wrong)
        except PackMalformed:
            continue
        assert heads.encode_pack_list(names) == wrong


def test_pack_lists_that_lie_are_refused() -> None:
    good = heads.encode_pack_list([b"a" * 32, b"b" * 32])
    swapped = good[:12] + good[44:76] + good[12:44]
    for wrong in (good + b"x", good[:-1], swapped, good[:8] + (3).to_bytes(4, "big") + good[12:],
                  good[:8] + (2**32 - 1).to_bytes(4, "big") + good[12:], heads.pack_list_magic + bytes(4)):
        with pytest.raises(PackMalformed):
            heads.decode_pack_list(wrong)
    for names in ([], [b"short"]):
        with pytest.raises(ValueError):
            heads.encode_pack_list(names)


@given(st.lists(st.binary(min_size=32, max_size=32), unique=True, max_size=8), st.randoms(use_true_random=False))
def test_the_vault_digest_depends_on_the_sets_alone(names: list[bytes], random: Any) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)
    assert heads.vault_digest(names, names) == heads.vault_digest(shuffled, shuffled)
    if names:
        digests = {heads.vault_digest(names, []), heads.vault_digest([], names), heads.vault_digest(names, names)}
        assert len(digests) == 3
        assert heads.vault_digest(names, names[1:]) != heads.vault_digest(names, names)


def test_the_vectors_hold() -> None:
    for vector in VECTORS["heads"]:
        found = read_head(bytes.fromhex(vector["raw"]), identity=IDENTITY, members=(KEYS.public,))
        assert found.hash.hex() == vector["hash"]
        assert [found.tree_chunk.hex(), found.tree_pack.hex()] == vector["tree"]
        again = head(vector["seq"], prev=bytes.fromhex(vector["prev"]), time=vector["time"],
                     packs=[bytes.fromhex(name) for name in vector["packs"]],
                     lists=[bytes.fromhex(name) for name in vector["lists"]],
                     vector=tuple((bytes.fromhex(key), counter) for key, counter in vector["vector"]),
                     settles=[bytes.fromhex(name) for name in vector["settles"]])
        assert found.settles == again.settles
        assert again.raw.hex() == vector["raw"]
    for vector in VECTORS["pack_lists"]:
        raw = heads.encode_pack_list(map(bytes.fromhex, vector["names"]))
        assert (raw.hex(), pack_name(raw).hex()) == (vector["raw"], vector["name"])
    for vector in VECTORS["digests"]:
        sets = [[bytes.fromhex(name) for name in vector[part]] for part in ("heads", "packs")]
        assert heads.vault_digest(*sets).hex() == vector["digest"]
