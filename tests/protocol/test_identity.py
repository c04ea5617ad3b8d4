from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from hinet_protocol.errors import KeyInvalid, PhraseError, SignatureInvalid
from hinet_protocol.identity import (
    DeviceKeys,
    RootKey,
    derive_key,
    device_id,
    device_public,
    fingerprint,
    identity_id,
    peer_id,
    peer_public,
    verify,
)

seeds = st.binary(min_size=32, max_size=32)


@given(seeds)
def test_the_root_comes_back_from_its_words(seed: bytes) -> None:
    root = RootKey(seed)
    assert len(root.words()) == 24
    assert RootKey.from_words(root.words()) == root
    typed = "  ".join(word[:4].upper() for word in root.words())
    assert RootKey.from_words(f" {typed}\n").public == root.public


def test_the_words_are_those_of_bip39() -> None:
    # The first test vector of BIP39 for 256 bits.
    assert RootKey(bytes(32)).words() == ("abandon",) * 23 + ("art",)


def test_a_mistyped_word_is_named_by_its_position() -> None:
    words = list(RootKey(bytes(32)).words())
    words[16] = "abandom"
    with pytest.raises(PhraseError, match=r"Word 17 .* Did you mean 'abandon'") as caught:
        RootKey.from_words(words)
    assert caught.value.position == 17


def test_a_wrong_but_existing_word_fails_the_checksum() -> None:
    words = ["zoo", *RootKey(bytes(32)).words()[1:]]
    with pytest.raises(PhraseError, match="not a phrase") as caught:
        RootKey.from_words(words)
    assert caught.value.position is None


@pytest.mark.parametrize("count", [0, 12, 23, 25])
def test_another_number_of_words_is_refused(count: int) -> None:
    with pytest.raises(PhraseError, match=f"{count} were given"):
        RootKey.from_words(["abandon"] * count)


@given(st.text(max_size=200) | st.lists(st.text(max_size=12), max_size=30))
def test_any_other_text_is_refused_as_a_phrase(typed: str | list[str]) -> None:
    with pytest.raises(PhraseError):
        RootKey.from_words(typed)


def test_a_signature_holds_for_its_domain_message_and_key_only(keys_of: Callable[[str], DeviceKeys]) -> None:
    anna, bert = keys_of("anna"), keys_of("bert")
    signature = anna.sign(b"one", b"message")
    verify(anna.public, b"one", b"message", signature)
    flipped = bytes([signature[0] ^ 1]) + signature[1:]
    for public, domain, message, proof in (
        (bert.public, b"one", b"message", signature),
        (anna.public, b"two", b"message", signature),
        (anna.public, b"one", b"massage", signature),
        # The border between domain and message is part of what is signed.
        (anna.public, b"onem", b"essage", signature),
        (anna.public, b"one", b"message", flipped),
        (anna.public, b"one", b"message", signature[:-1]),
        (anna.public[:-1], b"one", b"message", signature),
        (bytes(32), b"one", b"message", bytes(64)),
    ):
        with pytest.raises(SignatureInvalid):
            verify(public, domain, message, proof)


def test_the_root_signs_with_a_derived_key_not_with_its_seed() -> None:
    root = RootKey(bytes(range(32)))
    assert root.public != DeviceKeys(root.seed, root.seed).public
    assert root.identity_id == identity_id(root.public)
    assert derive_key(root.seed, "hinet/1/root/sign") != derive_key(root.seed, "hinet/1/root/other")


def test_secrets_do_not_show_in_repr(keys_of: Callable[[str], DeviceKeys]) -> None:
    assert repr(RootKey(b"s" * 32)) == "RootKey()"
    assert repr(keys_of("anna")) == "DeviceKeys()"


@given(seeds)
def test_peer_ids_are_those_of_libp2p(seed: bytes) -> None:
    public = DeviceKeys(seed, seed).public
    expected = ID.from_pubkey(create_new_key_pair(seed).public_key).to_base58()
    assert peer_id(public) == expected
    assert peer_public(expected) == public


@given(st.text(max_size=70))
def test_other_texts_are_no_peer_ids(text: str) -> None:
    with pytest.raises(KeyInvalid):
        peer_public(text)


@given(seeds)
def test_a_device_id_gives_its_key_back(public: bytes) -> None:
    assert device_public(device_id(public)) == public
    assert len(device_id(public)) == 52


@given(st.text(max_size=60))
def test_other_texts_are_no_device_ids(text: str) -> None:
    with pytest.raises(KeyInvalid):
        device_public(text)


def test_a_fingerprint_has_two_groups_of_four() -> None:
    assert len(fingerprint(bytes(32))) == 9
    assert fingerprint(bytes(32))[4] == "-"
    assert fingerprint(bytes(32)) != fingerprint(bytes(31) + b"\1")


def test_a_key_file_comes_back_and_a_damaged_one_is_refused(keys_of: Callable[[str], DeviceKeys]) -> None:
    raw = keys_of("anna").to_bytes()
    assert DeviceKeys.from_bytes(raw) == keys_of("anna")
    for damaged in (raw[:-1], raw + b"\0", b"X" + raw[1:], b""):
        with pytest.raises(KeyInvalid, match="key file"):
            DeviceKeys.from_bytes(damaged)
