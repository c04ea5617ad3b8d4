"""A second reading of SPEC.md: the chain's vectors, read without this project's code.

Only the standard library, msgpack, PyNaCl and BLAKE3 are used, so that a mistake which the reader and the writer share
is noticed here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from blake3 import blake3
from nacl.exceptions import BadSignatureError, CryptoError
from nacl.public import Box, PrivateKey, PublicKey
from nacl.secret import SecretBox
from nacl.signing import SigningKey, VerifyKey

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
CHAIN = json.loads((FOLDER / "3-chain.json").read_text())
SUCCESSION = json.loads((FOLDER / "3-succession.json").read_text())


def hkdf(secret: bytes, label: str, salt: bytes = b"") -> bytes:
    """RFC 5869 with SHA-256, 32 bytes of output."""
    extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, label.encode() + b"\x01", hashlib.sha256).digest()


def open_entry(raw: bytes) -> dict[str, Any]:
    payload, signature = msgpack.unpackb(raw)
    fields: dict[str, Any] = msgpack.unpackb(payload)
    signed = b"hinet-sign-v1\0" + bytes([len(b"chain-entry")]) + b"chain-entry" + payload
    VerifyKey(fields["signer"]).verify(signed, signature)
    return fields


def test_every_entry_is_signed_and_names_its_parents_by_hash() -> None:
    seen: dict[bytes, int] = {}
    for one in CHAIN["entries"]:
        raw = bytes.fromhex(one["raw"])
        fields = open_entry(raw)
        assert fields["v"] == 1
        assert fields["id"].hex() == CHAIN["identity_id"]
        assert fields["parents"] == sorted(set(fields["parents"]))
        assert list(fields) == sorted(fields)
        height = 1 + max((seen[parent] for parent in fields["parents"]), default=-1)
        assert height == one["height"]
        seen[blake3(raw).digest()] = height
    assert {name.hex() for name in seen} == {one["hash"] for one in CHAIN["entries"]}


def test_the_identity_is_the_hash_of_the_root_key_that_the_words_give() -> None:
    root = SigningKey(hkdf(bytes.fromhex(CHAIN["root_seed"]), "hinet/1/root/sign"))
    genesis = open_entry(bytes.fromhex(CHAIN["entries"][0]["raw"]))
    assert genesis["signer"] == genesis["body"]["root"] == bytes(root.verify_key)
    assert blake3(bytes(root.verify_key)).hexdigest() == CHAIN["identity_id"]


def test_the_epoch_keys_open_as_the_spec_says() -> None:
    box_seed = bytes.fromhex(CHAIN["device_seeds"]["anna"]["box_seed"])
    private = PrivateKey(box_seed)
    anna = bytes.fromhex(CHAIN["devices"][0]["public"])
    found: dict[str, bytes] = {}
    bodies: dict[str, Any] = {}
    for one in CHAIN["entries"]:
        if one["kind"] == "epoch.new":
            body = open_entry(bytes.fromhex(one["raw"]))["body"]
            nonce = blake3(b"hinet/1/wrap\0" + body["ephemeral"] + bytes(private.public_key)).digest(24)
            wrapped = dict(map(tuple, body["wraps"]))[anna]
            found[one["hash"]] = Box(private, PublicKey(body["ephemeral"])).decrypt(wrapped, nonce)
            bodies[one["hash"]] = body
    for epoch_id, key in found.items():
        vector = CHAIN["epoch_keys"][epoch_id]
        assert key.hex() == vector["key"]
        assert hkdf(key, "hinet/1/epoch/check") == bodies[epoch_id]["check"]
        assert hkdf(key, "hinet/1/epoch/chunk-id").hex() == vector["chunk_id"]
        assert hkdf(key, "hinet/1/epoch/pack", bytes(32)).hex() == vector["pack_with_salt_of_zeros"]
        for earlier, sealed in bodies[epoch_id]["previous"]:
            opener = SecretBox(hkdf(key, "hinet/1/epoch/previous", earlier))
            assert opener.decrypt(sealed, bytes(24)) == found[earlier.hex()]


def test_bert_got_the_key_of_the_epoch_with_its_certificate() -> None:
    private = PrivateKey(bytes.fromhex(CHAIN["device_seeds"]["bert"]["box_seed"]))
    bodies = [open_entry(bytes.fromhex(one["raw"]))["body"] for one in CHAIN["entries"] if one["kind"] == "device.add"]
    body = next(one for one in bodies if one["name"] == "bert")
    ((epoch_id, wrapped),) = body["epochs"]
    nonce = blake3(b"hinet/1/wrap\0" + body["ephemeral"] + bytes(private.public_key) + epoch_id).digest(24)
    key = Box(private, PublicKey(body["ephemeral"])).decrypt(wrapped, nonce)
    assert key.hex() == CHAIN["epoch_keys"][epoch_id.hex()]["key"]
    with pytest.raises(CryptoError):
        Box(private, PublicKey(body["ephemeral"])).decrypt(wrapped, bytes(24))


def test_the_changed_signature_is_no_signature() -> None:
    raw = next(one["raw"] for one in CHAIN["refused"] if one["why"] == "signature changed")
    with pytest.raises(BadSignatureError):
        open_entry(bytes.fromhex(raw))


# --- new certificates and a new root ---------------------------------------------------------------------------------


def succession(name: str) -> tuple[bytes, dict[str, Any]]:
    raw = bytes.fromhex(next(one["raw"] for one in SUCCESSION["entries"] if one["name"] == name))
    return blake3(raw).digest(), open_entry(raw)


def test_every_entry_of_the_succession_is_signed_and_follows_its_parents() -> None:
    heights: dict[bytes, int] = {}
    for one in SUCCESSION["entries"]:
        raw = bytes.fromhex(one["raw"])
        fields = open_entry(raw)
        assert fields["kind"] == one["kind"]
        assert one["height"] == 1 + max((heights[parent] for parent in fields["parents"]), default=-1)
        heights[blake3(raw).digest()] = one["height"]


def test_the_new_root_is_the_promised_one_and_signs_its_own_entry() -> None:
    _, genesis = succession("genesis")
    _, rotation = succession("new root")
    seed = bytes.fromhex(SUCCESSION["root_seeds"][1])
    root = bytes(SigningKey(hkdf(seed, "hinet/1/root/sign")).verify_key)
    assert rotation["signer"] == rotation["body"]["root"] == root
    assert rotation["body"]["box"] == bytes(PrivateKey(hkdf(seed, "hinet/1/root/box")).public_key)
    assert blake3(b"hinet/1/next-root\0" + root).digest() == genesis["body"]["next"]
    assert rotation["body"]["next"].hex() == SUCCESSION["next_root_commitment"]
    assert rotation["id"] == genesis["id"] == blake3(genesis["signer"]).digest()


def test_the_new_root_opens_its_epoch_and_through_it_all_before() -> None:
    private = PrivateKey(hkdf(bytes.fromhex(SUCCESSION["root_seeds"][1]), "hinet/1/root/box"))
    _, rotation = succession("new root")
    name, epoch = succession("epoch for the new root")
    body = epoch["body"]
    nonce = blake3(b"hinet/1/wrap\0" + body["ephemeral"] + bytes(private.public_key)).digest(24)
    wraps = dict(map(tuple, body["wraps"]))
    found = {name: Box(private, PublicKey(body["ephemeral"])).decrypt(wraps[rotation["signer"]], nonce)}
    for later, earlier in (("epoch for the new root", "second epoch"), ("second epoch", "first epoch")):
        at, entry = succession(later)
        before, sealing = succession(earlier)
        sealed = dict(map(tuple, entry["body"]["previous"]))[before]
        found[before] = SecretBox(hkdf(found[at], "hinet/1/epoch/previous", before)).decrypt(sealed, bytes(24))
        assert hkdf(found[before], "hinet/1/epoch/check") == sealing["body"]["check"]
    assert sorted(one.hex() for one in found) == SUCCESSION["opened_by"]["root 1"]
    assert succession("genesis")[1]["signer"] not in wraps


def test_a_device_gets_the_vault_under_its_new_keys_and_a_renewal_keeps_the_old_ones() -> None:
    seeds = SUCCESSION["device_seeds"]
    old, new = (bytes(PrivateKey(bytes.fromhex(seeds[name]["box_seed"])).public_key) for name in ("bert", "bert again"))
    _, added = succession("bert's certificate")
    _, renewed = succession("bert's renewal")
    _, rotated = succession("bert's new keys")
    assert renewed["body"]["sign"] == renewed["body"]["device"] == added["body"]["sign"] == rotated["body"]["device"]
    assert (renewed["body"]["box"], rotated["body"]["box"]) == (old, new)
    ((epoch_id, wrapped),) = rotated["body"]["epochs"]
    ephemeral = rotated["body"]["ephemeral"]
    nonce = blake3(b"hinet/1/wrap\0" + ephemeral + new + epoch_id).digest(24)
    private = PrivateKey(bytes.fromhex(seeds["bert again"]["box_seed"]))
    key = Box(private, PublicKey(ephemeral)).decrypt(wrapped, nonce)
    assert epoch_id == succession("first epoch")[0]
    assert hkdf(key, "hinet/1/epoch/check") == succession("first epoch")[1]["body"]["check"]
