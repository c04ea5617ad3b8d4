"""A second reading of SPEC.md: every vector, read by the text's words alone, without this project's code.

Only the standard library, msgpack, PyNaCl and BLAKE3 are used, so that a mistake which the reader and the writer share
is noticed here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import math
import re
import struct
import unicodedata
from pathlib import Path
from typing import Any

import msgpack
import pytest
from blake3 import blake3
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_aead_xchacha20poly1305_ietf_decrypt,
)
from nacl.exceptions import BadSignatureError, CryptoError
from nacl.public import Box, PrivateKey, PublicKey
from nacl.pwhash import argon2id
from nacl.secret import SecretBox
from nacl.signing import SigningKey, VerifyKey

ROOT = Path(__file__).parents[2]
SPEC = (ROOT / "SPEC.md").read_text()


def vectors(name: str) -> Any:
    return json.loads((ROOT / "protocol" / "vectors" / f"{name}.json").read_text())


CHAIN = vectors("3-chain")
JOIN = vectors("4-join")
SUCCESSION = vectors("3-succession")


def hkdf(secret: bytes, label: str, salt: bytes = b"", length: int = 32) -> bytes:
    """RFC 5869 with SHA-256."""
    extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    made = part = b""
    for number in range(1, -(-length // 32) + 1):
        part = hmac.new(extracted, part + label.encode() + bytes([number]), hashlib.sha256).digest()
        made += part
    return made[:length]


def as_signed(domain: str, message: bytes) -> bytes:
    """What a signature is over, 2.3."""
    return b"hinet-sign-v1\0" + bytes([len(domain)]) + domain.encode() + message


def open_entry(raw: bytes) -> dict[str, Any]:
    payload, signature = msgpack.unpackb(raw)
    fields: dict[str, Any] = msgpack.unpackb(payload)
    VerifyKey(fields["signer"]).verify(as_signed("chain-entry", payload), signature)
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


def test_every_body_has_the_fields_that_the_text_gives_its_kind() -> None:
    text = SPEC[SPEC.index("### 3.2 Kinds"):SPEC.index("An *introduction* of a key")]
    kinds = re.findall(r"^\*\*`([\w.]+)`\*\*(.*)", text, re.M)
    told = {kind: set(re.findall(r"`(\w+)` \(", rest)) for kind, rest in kinds}
    certificate = told["device.add"] - {"role", "tier"}
    told["device.rotate"], told["root.rotate"] = {"device"} | certificate, told["genesis"]
    met = set()
    for chain in (CHAIN, SUCCESSION):
        for one in chain["entries"]:
            fields = open_entry(bytes.fromhex(one["raw"]))
            assert set(fields) == {"v", "id", "parents", "signer", "time", "kind", "body"}
            assert set(fields["body"]) == told[fields["kind"]], fields["kind"]
            met.add(fields["kind"])
    assert met == set(told)


# --- 1.2, 5.1, 5.2: values, frames, messages --------------------------------------------------------------------------


def value(form: Any) -> Any:
    """A value of the vectors from its JSON form."""
    if isinstance(form, dict):
        return bytes.fromhex(form["$hex"]) if "$hex" in form else {key: value(one) for key, one in form.items()}
    return [value(one) for one in form] if isinstance(form, list) else form


def in_order(found: Any) -> Any:
    """Maps in rising order of the UTF-8 bytes of their keys, at every depth."""
    if isinstance(found, dict):
        return {key: in_order(found[key]) for key in sorted(found, key=lambda key: key.encode())}
    return [in_order(one) for one in found] if isinstance(found, list) else found


def canonical(found: Any) -> bytes:
    packed: bytes = msgpack.packb(in_order(found))
    return packed


def test_canonical_values_are_sorted_shortest_msgpack() -> None:
    for one in vectors("1-canonical")["valid"]:
        raw = bytes.fromhex(one["hex"])
        assert canonical(value(one["value"])) == raw
        assert msgpack.unpackb(raw) == value(one["value"])


def test_refused_bytes_are_no_msgpack_or_not_the_shortest_or_break_a_rule_of_the_text() -> None:
    def depth(found: Any) -> int:
        inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    def odd(found: Any) -> bool:
        if isinstance(found, dict):
            return any(not isinstance(key, str) for key in found) or len(found) > 1_024 or any(map(odd, found.values()))
        return isinstance(found, float | msgpack.ExtType | msgpack.Timestamp) or (
            isinstance(found, list) and (len(found) > 65_536 or any(map(odd, found))))

    for one in vectors("1-canonical")["refused"]:
        raw = bytes.fromhex(one["hex"])
        try:
            found = msgpack.unpackb(raw, strict_map_key=False)
        except (ValueError, msgpack.exceptions.UnpackException):
            continue  # ends early, follows after, reserved byte, no UTF-8, a length beyond the bytes
        assert odd(found) or depth(found) > 16 or canonical(found) != raw, one["why"]


def test_frames_are_a_length_and_a_body() -> None:
    frames = vectors("5-frames")
    for one in frames["frames"]:
        body = bytes.fromhex(one["body"])
        assert struct.pack(">I", len(body)) + body == bytes.fromhex(one["frame"])
    for one in frames["refused"]:
        raw = bytes.fromhex(one["stream"])
        length = int.from_bytes(raw[:4], "big")
        assert len(raw) < 4 or not 1 <= length <= 1_048_576 or len(raw) < 4 + length, one["why"]


def test_each_message_is_its_tag_and_the_fields_of_the_table() -> None:
    section = SPEC[SPEC.index("### 5.3"):SPEC.index("### 5.4")]
    table = re.findall(r"^\| ([0-9, ]+) \| ([\w, ]+) \| (.*) \|$", section, re.M)
    fields = {int(tag): (name, set(re.findall(r"`(\w+)`", text.split("(a message")[0])))
              for tags, names, text in table for tag, name in zip(tags.split(", "), names.split(", "), strict=True)}
    said = vectors("5-messages")["messages"]
    assert sorted(one["tag"] for one in said) == sorted(fields)
    for one in said:
        tag, found = msgpack.unpackb(bytes.fromhex(one["hex"]))
        assert [tag, found] == value(one["value"])
        assert (tag, one["name"]) == (one["tag"], fields[tag][0])
        assert set(found) <= fields[tag][1] | {"number", "body"}
        assert canonical([tag, found]).hex() == one["hex"]


# --- 5.12: bulk connections -------------------------------------------------------------------------------------------


def der(raw: bytes) -> tuple[int, bytes, bytes]:
    """Tag, content and rest of one DER value."""
    length, at = raw[1], 2
    if length >= 0x80:
        at += length & 0x7F
        length = int.from_bytes(raw[2:at], "big")
    return raw[0], raw[at:at + length], raw[at + length:]


def der_items(raw: bytes) -> list[tuple[int, bytes]]:
    found = []
    while raw:
        tag, content, raw = der(raw)
        found.append((tag, content))
    return found


def test_a_bulk_certificate_is_the_seeds_key_signed_by_itself() -> None:
    ed25519, name = bytes.fromhex("06032b6570"), b"\x31\x0e\x30\x0c\x06\x03\x55\x04\x03\x0c\x05hinet"
    for one in vectors("5-bulk")["certificates"]:
        raw, key = bytes.fromhex(one["der"]), SigningKey(bytes.fromhex(one["seed"]))
        assert len(raw) <= 1024
        tag, whole, rest = der(raw)
        assert (tag, rest) == (0x30, b"")
        (_, signed), (_, algorithm), (_, signature) = der_items(whole)
        version, serial, scheme, issuer, validity, subject, holder = der_items(signed)
        assert (version, serial) == ((0xA0, b"\x02\x01\x02"), (0x02, b"\x01"))
        assert algorithm == scheme[1] == ed25519
        assert issuer[1] == subject[1] == name
        assert [text for _, text in der_items(validity[1])] == [b"700101000000Z", b"99991231235959Z"]
        assert [content for _, content in der_items(holder[1])] == [ed25519, b"\0" + bytes(key.verify_key)]
        begin = raw[len(raw) - len(whole):]
        key.verify_key.verify(begin[:len(begin) - len(der(begin)[2])], signature[1:])


def test_a_bulk_request_and_answer_have_the_sizes_of_the_text() -> None:
    found = vectors("5-bulk")
    for one in found["requests"]:
        assert one["hex"] == one["pack"] + one["offset"].to_bytes(8, "big").hex()
    for one in found["answers"]:
        assert one["hex"] == ("01" if one["size"] is None else "00") + (one["size"] or 0).to_bytes(8, "big").hex()
    for raw in map(bytes.fromhex, found["refused"]["answers"]):
        size = int.from_bytes(raw[1:], "big")
        assert len(raw) != 9 or raw[0] > 1 or (size != 0 if raw[0] else not 0 < size <= 64 << 20)



# --- 6.6: ranges of packs ---------------------------------------------------------------------------------------------


def range_fingerprint(names: list[bytes]) -> bytes:
    return blake3(b"hinet/1/range\0" + len(names).to_bytes(8, "big") + b"".join(names)).digest()[:16]


def test_ranges_of_packs_are_told_apart_as_the_text_says() -> None:
    found = vectors("6-ranges")
    for one in found["fingerprints"]:
        assert range_fingerprint([bytes.fromhex(name) for name in one["names"]]).hex() == one["fingerprint"]
    held = [(bytes.fromhex(name), size) for name, size in found["held"]]
    kinds = []
    for one in found["answers"]:
        lower, upper, theirs = map(bytes.fromhex, one["asked"])
        inside = [[name, size] for name, size in held if name >= lower and (name < upper or not upper)]
        tag, fields = msgpack.unpackb(bytes.fromhex(one["hex"]))
        ((kind, names, more, parts),) = fields["answers"]
        kinds.append(kind)
        assert (tag, more) == (51, False)
        if kind == 0:
            assert range_fingerprint([name for name, _ in inside]) == theirs
        elif kind == 1:
            assert names == inside
            assert not theirs or len(inside) <= 32
        else:
            assert 2 <= len(parts) <= 64
            assert parts[-1][0] == b""
            for begin, (end, said) in zip([lower, *(end for end, _ in parts)], parts, strict=False):
                part = [name for name, _ in inside if name >= begin and (name < end or not end)]
                assert range_fingerprint(part) == said
    assert set(kinds) == {0, 1, 2}


# --- 2: keys and their names ------------------------------------------------------------------------------------------


def base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=")


def base58(raw: bytes) -> str:
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = alphabet[rest] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text


def test_roots_and_devices_have_the_keys_and_names_of_section_2() -> None:
    found = vectors("2-identity")
    for one in found["roots"]:
        seed = bytes.fromhex(one["seed"])
        public = bytes(SigningKey(hkdf(seed, "hinet/1/root/sign")).verify_key)
        assert public.hex() == one["public"]
        assert bytes(PrivateKey(hkdf(seed, "hinet/1/root/box")).public_key).hex() == one["box_public"]
        assert blake3(public).hexdigest() == one["identity_id"]
        text = base32(blake3(public).digest()[:10])
        assert "-".join(text[at:at + 4] for at in range(0, 16, 4)) == one["identity_text"]
        assert blake3(b"hinet/1/next-root\0" + public).hexdigest() == one["as_next_root"]
    for one in found["devices"]:
        public = bytes(SigningKey(bytes.fromhex(one["sign_seed"])).verify_key)
        assert public.hex() == one["public"]
        assert bytes(PrivateKey(bytes.fromhex(one["box_seed"])).public_key).hex() == one["box_public"]
        assert base58(bytes.fromhex("002408011220") + public) == one["peer_id"]
        assert base32(public).lower() == one["device_id"]
        short = base32(blake3(b"hinet/1/fingerprint\0" + public).digest()[:5])
        assert f"{short[:4]}-{short[4:]}" == one["fingerprint"]
        for signed in one["signatures"]:
            bytes_signed = as_signed(signed["domain"], bytes.fromhex(signed["message"]))
            assert bytes_signed.hex() == signed["signed_bytes"]
            VerifyKey(public).verify(bytes_signed, bytes.fromhex(signed["signature"]))
    for one in found["derived_keys"]:
        assert hkdf(bytes.fromhex(one["secret"]), one["label"], bytes.fromhex(one["salt"])).hex() == one["key"]


def test_the_words_carry_the_seed_and_its_checksum_in_the_order_of_one_list() -> None:
    """The list itself is in no allowed library; it is sorted, so the numbers must be in the order of the words."""
    numbers: dict[str, int] = {}
    for one in vectors("2-identity")["roots"]:
        seed = bytes.fromhex(one["seed"])
        bits = int.from_bytes(seed + hashlib.sha256(seed).digest()[:1], "big")
        words = one["words"].split()
        assert len(words) == 24
        for at, word in enumerate(words):
            assert numbers.setdefault(word, bits >> 11 * (23 - at) & 2_047) == bits >> 11 * (23 - at) & 2_047
    assert len(numbers) > 20
    assert [numbers[word] for word in sorted(numbers)] == sorted(numbers.values())


def opened_root(raw: bytes, passphrase: str) -> bytes | None:
    """2.4: the seed; None for what a reader must refuse, or what does not open."""
    memory_kib, passes = struct.unpack(">II", raw[21:29])
    if len(raw) != 117 or raw[:21] != b"hinet-sealed-root-v1\n":
        return None
    if not (8 <= memory_kib <= 1_048_576 and 1 <= passes <= 16 and len(passphrase) <= 1_024):
        return None
    typed = unicodedata.normalize("NFKC", passphrase).encode()
    key = argon2id.kdf(32, typed, raw[29:45], opslimit=passes, memlimit=memory_kib * 1_024)
    try:
        seed: bytes = crypto_aead_xchacha20poly1305_ietf_decrypt(raw[69:], raw[:69], raw[45:69], key)
    except CryptoError:
        return None
    return seed


def test_sealed_roots_open_with_their_passphrase_and_no_others() -> None:
    found = vectors("2-identity")
    for one in found["sealed_roots"]:
        raw = bytes.fromhex(one["file"])
        assert opened_root(raw, one["passphrase"]) == bytes.fromhex(one["seed"])
        assert struct.unpack(">II", raw[21:29]) == (one["memory_kib"], one["passes"])
        assert raw[29:69].hex() == one["entropy"]
    for one in found["refused_sealed_roots"]:
        assert opened_root(bytes.fromhex(one["file"]), one["passphrase"]) is None, one["why"]


# --- 4: codes, tickets, the exchange ----------------------------------------------------------------------------------


def test_a_codes_number_and_words_come_from_its_entropy() -> None:
    words: dict[int, str] = {}
    for one in JOIN["codes"]:
        rest = int.from_bytes(bytes.fromhex(one["entropy"]), "big")
        assert one["nameplate"] == 1 + rest % 9_999
        rest //= 9_999
        secret = one["secret"].split("-")
        assert one["text"] == f"{one['nameplate']}-{one['secret']}"
        for word in secret:
            assert words.setdefault(rest % 2_048, word) == word
            rest //= 2_048
    assert [words[number] for number in sorted(words)] == sorted(words.values())


def test_a_ticket_is_bech32m_of_its_canonical_array() -> None:
    def check(values: list[int]) -> int:
        found = 1
        for one in values:
            top, found = found >> 25, (found & 0x1FFFFFF) << 5 ^ one
            for bit, word in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
                found ^= word if top >> bit & 1 else 0
        return found

    prefix = [3] * 5 + [0] + [ord(one) & 31 for one in "hinet"]
    for one in JOIN["tickets"]:
        assert one["text"].startswith("hinet1")
        assert len(one["text"]) <= 2_048
        data = ["qpzry9x8gf2tvdw0s3jn54khce6mua7l".index(char) for char in one["text"][6:]]
        assert check(prefix + data) == 0x2BC830A3
        bits = "".join(f"{five:05b}" for five in data[:-6])
        spare = len(bits) % 8
        assert spare < 5
        assert set(bits[len(bits) - spare:]) <= {"0"}
        raw = bytes(int(bits[at:at + 8], 2) for at in range(0, len(bits) - spare, 8))
        keys = [bytes.fromhex(one[name]) for name in ("secret", "identity_id", "inviter")]
        assert msgpack.unpackb(raw) == [1, *keys, one["addresses"], one["role"], one["tier"], one["expires"]]
        assert canonical(msgpack.unpackb(raw)) == raw
        assert hkdf(keys[0], "hinet/1/ticket/id")[:16].hex() == one["selector"]


P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def plus(left: Point, right: Point) -> Point:
    """The curve of Ed25519."""
    product = D * left[0] * right[0] * left[1] * right[1] % P
    return ((left[0] * right[1] + right[0] * left[1]) * pow(1 + product, -1, P) % P,
            (left[1] * right[1] + left[0] * right[0]) * pow(1 - product, -1, P) % P)


def times(number: int, point: Point) -> Point:
    found: Point = (0, 1)
    while number:
        found, point, number = plus(found, point) if number & 1 else found, plus(point, point), number >> 1
    return found


def even_x(y: int) -> int | None:
    """The even one of the two x at this y; None when there is no point."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    return None if (x * x - square) % P else min(x, P - x, key=lambda one: one & 1)


def packed(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def unpacked(raw: bytes) -> Point:
    number = int.from_bytes(raw, "little")
    x = even_x(number & 2**255 - 1)
    assert x is not None
    return (P - x if number >> 255 else x, number & 2**255 - 1)


def blinding(seed: str) -> Point:
    y = int.from_bytes(hkdf(seed.encode(), "SPAKE2 arbitrary element", length=48), "big") % P
    while (x := even_x(y)) is None:
        y = (y + 1) % P
    return times(8, (x, y))


def spake2(one: dict[str, str]) -> tuple[bytes, bytes, bytes]:
    """Both shares and the joint secret, by the words of 4.4."""
    secret, keys = bytes.fromhex(one["secret"]), [bytes.fromhex(one[side]) for side in ("joiner", "inviter")]
    password = int.from_bytes(hkdf(secret, "SPAKE2 pw", length=48), "big") % ORDER
    base = unpacked((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    shares, scalars = [], []
    for side, blind in (("joiner", blinding("M")), ("inviter", blinding("N"))):
        drawn = blake3(b"hinet/1/join/entropy\0" + bytes.fromhex(one[f"{side}_entropy"])).digest(64)
        scalars.append(int.from_bytes(drawn, "big") % ORDER)
        shares.append(packed(plus(times(scalars[-1], base), times(password, blind))))
    joint = times(scalars[0], plus(unpacked(shares[1]), times(ORDER - password, blinding("N"))))
    hashed = [hashlib.sha256(part).digest() for part in (secret, *keys)]
    return b"A" + shares[0], b"B" + shares[1], hashlib.sha256(b"".join([*hashed, *shares, packed(joint)])).digest()


@pytest.mark.parametrize("one", vectors("4-join")["exchanges"], ids=lambda one: one["carrier"])
def test_an_exchange_has_the_shares_proofs_and_seals_of_section_4(one: dict[str, str]) -> None:
    joiner, inviter = bytes.fromhex(one["joiner"]), bytes.fromhex(one["inviter"])
    shares = [bytes.fromhex(one["joiner_share"]), bytes.fromhex(one["inviter_share"])]
    joint = hkdf(bytes.fromhex(one["secret"]), "hinet/1/join/ticket", b"".join(shares))
    if one["carrier"] == "code":
        *made, joint = spake2(one)
        assert made == shares
    assert joint.hex() == one["joint"]
    said = canonical([[1], 1, one["carrier"], one["selector"], joiner, inviter, *shares])
    transcript = blake3(b"hinet/1/join\0" + said).digest()
    assert transcript.hex() == one["transcript"]
    for side in ("joiner", "inviter"):
        assert hkdf(joint, f"hinet/1/join/proof/{side}", transcript).hex() == one[f"{side}_mac"]
    for name, label in (("offer", "to-joiner"), ("request", "to-inviter"), ("entries", "to-joiner")):
        sealed = bytes.fromhex(one[f"sealed_{name}"])
        key = hkdf(joint, f"hinet/1/join/{label}", transcript)
        assert crypto_aead_chacha20poly1305_ietf_decrypt(sealed, transcript, bytes(12), key) == name.encode()
        transcript = blake3(transcript + sealed).digest()
    assert transcript.hex() == one["transcript_at_the_end"]
    assert hkdf(joint, "hinet/1/join/done", transcript).hex() == one["done_mac"]


def test_the_proof_of_a_recovery_is_the_roots_for_these_two_ends_alone() -> None:
    found = vectors("4-recover")
    root = SigningKey(hkdf(bytes.fromhex(found["root_seed"]), "hinet/1/root/sign"))
    ends = [bytes.fromhex(found[name]) for name in ("asker", "asked")]

    def right(raw: bytes) -> bool:
        tag, fields = msgpack.unpackb(raw)
        said = as_signed("recover", canonical([fields["versions"], fields["root"], *ends]))
        try:
            VerifyKey(fields["root"]).verify(said, fields["proof"])
        except BadSignatureError:
            return False
        return bool(tag == 68 and 1 in fields["versions"] and fields["root"] == bytes(root.verify_key))

    assert right(bytes.fromhex(found["message"]))
    _, fields = msgpack.unpackb(bytes.fromhex(found["message"]))
    assert as_signed("recover", canonical([fields["versions"], fields["root"], *ends])).hex() == found["signed_bytes"]
    for one in found["refused"]:
        assert not right(bytes.fromhex(one["message"])), one["why"]


# --- 6: vault ---------------------------------------------------------------------------------------------------------


def test_heads_are_signed_and_say_what_the_vectors_say() -> None:
    found = vectors("6-heads")
    for one in found["heads"]:
        raw = bytes.fromhex(one["raw"])
        body, signature = msgpack.unpackb(raw)
        fields = msgpack.unpackb(body)
        VerifyKey(fields["device"]).verify(as_signed("vault-head", body), signature)
        assert blake3(raw).hexdigest() == one["hash"]
        assert canonical(fields) == body
        assert fields["version"] == 1
        for name in ("identity", "device", "prev", "epoch"):
            assert fields[name].hex() == one[name]
        assert (fields["seq"], fields["time"]) == (one["seq"], one["time"])
        assert [part.hex() for part in fields["tree"]] == one["tree"]
        for name in ("packs", "lists", "settles"):
            assert [part.hex() for part in fields.get(name, [])] == one[name] == sorted(one[name])
        assert ("settles" in fields) == bool(one["settles"])
        assert [[key.hex(), number] for key, number in fields["vector"]] == one["vector"] == sorted(one["vector"])
        assert dict(map(tuple, one["vector"]))[one["device"]] == one["seq"]
    for one in found["pack_lists"]:
        names = b"".join(map(bytes.fromhex, one["names"]))
        raw = b"HINETPL\1" + struct.pack(">I", len(one["names"])) + names
        assert raw.hex() == one["raw"]
        assert blake3(raw).hexdigest() == one["name"]
    for one in found["digests"]:
        said = b""
        for word in ("heads", "packs"):
            said += word.encode() + struct.pack(">Q", len(one[word])) + b"".join(sorted(map(bytes.fromhex, one[word])))
        assert blake3(said).hexdigest() == one["digest"]


def sealed_part(key: bytes, sealed: bytes, kind: int, slot: int, chunk: bytes = bytes(32)) -> bytes:
    associated = b"HINETPK\1" + bytes([kind]) + struct.pack(">I", slot) + chunk
    opened: bytes = crypto_aead_chacha20poly1305_ietf_decrypt(sealed, associated, slot.to_bytes(12, "big"), key)
    return opened


@pytest.mark.parametrize("one", vectors("6-packs")["packs"], ids=lambda one: one["note"])
def test_packs_open_from_their_trailer_to_each_chunk(one: dict[str, Any]) -> None:
    epoch_key, head = bytes.fromhex(one["epoch_key"]), bytes.fromhex(one["head"])
    assert head[:72].hex() == b"HINETPK\1".hex() + one["epoch_id"] + one["salt"]
    key = hkdf(epoch_key, "hinet/1/epoch/pack", bytes.fromhex(one["salt"]))
    id_key = hkdf(epoch_key, "hinet/1/epoch/chunk-id")
    assert id_key.hex() == one["chunk_id_key"]
    associated = b"HINETPK\1\xf2" + struct.pack(">I", 0xFFFFFFFD) + bytes(32)
    padding = crypto_aead_chacha20poly1305_ietf_encrypt(
        bytes(one["padding_bytes"]), associated, 0xFFFFFFFD.to_bytes(12, "big"), key)
    raw = head + padding + bytes.fromhex(one["tail"]) + bytes.fromhex(one["end"])
    assert len(raw) == one["size_bytes"]
    assert len(raw) % 65_536 == 0
    assert blake3(raw).hexdigest() == one["name"]
    offset, length, rows = struct.unpack(">QII", sealed_part(key, raw[-32:], 0xF1, 0xFFFFFFFE))
    assert offset + length + 32 == len(raw)
    footer = sealed_part(key, raw[offset:offset + length], 0xF0, 0xFFFFFFFF)
    assert struct.unpack(">I", footer[:4]) == (rows,) == (len(one["plaintexts"]),)
    at = 72
    for slot, text in enumerate(map(bytes.fromhex, one["plaintexts"])):
        kind, form, chunk, stored, plain = struct.unpack(">BB32sII", footer[4 + 42 * slot:46 + 42 * slot])
        opened = sealed_part(key, raw[at:at + stored + 16], kind, slot, chunk)
        at += stored + 16
        its_key = id_key
        if form >= 2:  # moved from the epoch that the footer ends with
            its_key = hkdf(bytes.fromhex(one["id_epoch_key"]), "hinet/1/epoch/chunk-id")
            assert footer[-32:].hex() == one["id_epoch"]
        assert chunk.hex() == one["chunk_ids"][slot] == blake3(text, key=its_key).hexdigest()
        assert len(text) == plain
        assert opened == text if form in (0, 2) else opened[:4] == bytes.fromhex("28b52ffd")  # a frame of zstandard
        assert (form >= 2) == one.get("foreign", [False] * rows)[slot]
    assert len(footer) == 4 + 42 * rows + (32 if any(one.get("foreign", [])) else 0)


def test_pages_and_roots_are_canonical_rows() -> None:
    found = vectors("6-trees")
    order = ("device", "counter", "seen", "beside", "time", "generation", "deleted", "size", "digest", "indirect",
             "chunks", "attributes")

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(one) for one in part]
        return bytes.fromhex(part) if isinstance(part, str) else part

    rows = {name: [plain(one[key]) for key in order] for name, one in found["versions"].items()}
    for one in found["pages"]:
        names = [[bytes.fromhex(name), [rows[which] for which in versions]] for name, versions in one["entries"]]
        assert msgpack.packb(["page", 1, names]).hex() == one["raw"]
        assert [name for name, _ in names] == sorted(name for name, _ in names)
    for one in found["roots"]:
        assert msgpack.packb(["root", 1, plain(one["pages"])]).hex() == one["raw"]
    for one in found["pasts"]:
        pairs = [[bytes.fromhex(name), rows[which]] for name, which in one["rows"]]
        assert msgpack.packb(["past", 1, pairs]).hex() == one["raw"]
        assert [msgpack.packb(pair) for pair in pairs] == sorted({msgpack.packb(pair) for pair in pairs})
    for name, raw in found["moved"]:
        assert canonical({"moved": bytes.fromhex(name)}).hex() == raw
    for which, digest in found["version_hashes"].items():
        assert blake3(msgpack.packb(rows[which])).hexdigest() == digest
    for one in found["attributes"]:
        said = {"mode": one["mode"], "mtime": one["mtime"], "past": one["past"] and bytes.fromhex(one["past"])}
        other = {key: value for key, value in msgpack.unpackb(bytes.fromhex(one["others"])).items() if key not in said}
        assert canonical({**other, **{key: value for key, value in said.items() if value is not None}}).hex() \
            == one["raw"]


# --- 7 and 8: bases, task vectors, passports --------------------------------------------------------------------------


def test_a_bases_digest_is_that_of_its_tensors_in_order() -> None:
    found = vectors("7-base")
    for one in found["bases"]:
        said = struct.pack("<Q", len(one["tensors"]))
        for tensor in sorted(one["tensors"], key=lambda tensor: tensor["name"].encode()):
            values = struct.pack(f"<{len(tensor['values'])}f", *tensor["values"])
            digest = blake3(values, derive_key_context=found["tensor_context"]).digest()
            assert digest.hex() == tensor["digest"]
            name = tensor["name"].encode()
            said += struct.pack("<I", len(name)) + name + struct.pack("<I", 3) + b"F32"
            said += struct.pack(f"<I{len(tensor['shape'])}Q", len(tensor["shape"]), *tensor["shape"]) + digest
        assert blake3(said, derive_key_context=found["base_context"]).hexdigest() == one["digest"]


@pytest.mark.parametrize("one", vectors("7-tau")["files"], ids=lambda one: one["name"])
def test_a_task_vector_is_signed_and_its_blocks_hold_the_values(one: dict[str, Any]) -> None:
    raw = bytes.fromhex(one["file"])
    length = int.from_bytes(raw[12:16], "little")
    assert raw[:12] == b"HINETTAU" + struct.pack("<I", 1)
    header, blocks = raw[112:112 + length], raw[112 + length:]
    assert blake3(header).hexdigest() == one["signing_message"]
    assert raw[16:48].hex() == one["signer"]
    VerifyKey(raw[16:48]).verify(as_signed("tau", blake3(header).digest()), raw[48:112])
    fields = msgpack.unpackb(header)
    assert canonical(fields) == header
    assert fields["base"].hex() == one["base"]
    at = 0
    for name, shape, kept, codec, offset, size, digest in fields["tensors"]:
        block, told = blocks[offset:offset + size], one["tensors"][name]
        assert (offset, shape, kept, codec) == (at, told["shape"], len(told["positions"]), one["codec"])
        assert blake3(block).digest() == digest
        at += size
        gap_bytes, frame_bytes = struct.unpack("<QQ", block[:16])
        everything = kept in (0, math.prod(shape))
        gaps = [] if everything else [here - there - 1 for there, here in itertools.pairwise([-1, *told["positions"]])]
        assert gap_bytes == sum(gap // 255 + 1 for gap in gaps)
        assert (frame_bytes == 0) == (gap_bytes == 0)
        if codec in ("fp16", "bf16"):
            assert decoded(codec, block[16 + frame_bytes:], kept) == bytes.fromhex(told["values"])
    assert at == len(blocks)


def decoded(codec: str, raw: bytes, kept: int) -> bytes:
    if codec == "bf16":
        return b"".join(b"\0\0" + raw[2 * at:2 * at + 2] for at in range(kept))
    exponent = struct.unpack("<h", raw[:2])[0]
    return struct.pack(f"<{kept}f", *(one * 2.0**exponent for one in struct.unpack(f"<{kept}e", raw[2:])))


def test_passports_are_signed_and_name_their_revision() -> None:
    for one in vectors("8-passports")["passports"]:
        outer = msgpack.unpackb(bytes.fromhex(one["raw"]))
        assert canonical(outer).hex() == one["raw"]
        body = outer["body"]
        fields = msgpack.unpackb(body)
        assert canonical(fields) == body
        VerifyKey(fields["device"]).verify(as_signed("passport", body), outer["signature"])
        assert bytes(SigningKey(bytes.fromhex(one["device_entropy"])[:32]).verify_key) == fields["device"]
        assert (fields["v"], fields["kind"], fields["identity"].hex()) == (1, one["kind"], one["identity"])
        assert blake3(body).hexdigest()[:16] == one["id"]
        assert fields["parents"] == sorted(fields["parents"])
