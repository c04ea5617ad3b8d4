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
