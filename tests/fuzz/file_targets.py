"""Fuzz targets of SPEC sections 6 to 8: vault objects, task vectors and passports, which siblings and keepers send."""

from __future__ import annotations

import io
import struct
from random import Random
from typing import Any

import msgpack
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fuzz.mutate import damaged
from fuzz.target import Target, unhexed, vectors
from hinet_protocol import heads, packs, passports, past, taskvectors, tau_blocks, trees
from hinet_protocol.identity import SIGN_PASSPORT, SIGN_VAULT_HEAD, DeviceKeys, derive_key

PACKS = vectors("6-packs")["packs"]
EPOCH_KEY = bytes.fromhex(PACKS[0]["epoch_key"])
EPOCH_KEYS = {bytes.fromhex(one["id_epoch"]): bytes.fromhex(one["id_epoch_key"]) for one in PACKS if "id_epoch" in one}
"""Of the earlier epochs that chunks were moved from."""
IDENTITY = bytes.fromhex(vectors("6-heads")["heads"][0]["identity"])
HEAD_SIGNER = bytes.fromhex(vectors("6-heads")["heads"][0]["sign_seed"])
PASSPORT_IDENTITY = bytes.fromhex(vectors("8-passports")["passports"][0]["identity"])


def head(raw: bytes) -> None:
    found = heads._read(raw)[0]
    heads.read_head(raw, identity=found.identity, members=(found.device,))
    heads.judge(found, {found.seq: {bytes(32)}})


def signed_head(body: bytes, random: Random) -> bytes:
    keys = DeviceKeys(HEAD_SIGNER, bytes(32))
    return bytes(msgpack.packb([body, keys.sign(SIGN_VAULT_HEAD, body)]))


def pack_list(raw: bytes) -> None:
    assert heads.encode_pack_list(heads.decode_pack_list(raw)) == raw


def page(raw: bytes) -> None:
    found = trees.decode_page(raw)
    assert trees.encode_page(found, list(found)) == raw, "a page has two forms"
    merged = trees.merge_trees([found, found])
    assert merged == found
    trees.shown(merged)
    trees.check_room({}, merged)


def past_chunk(raw: bytes) -> None:
    rows = past.decode_past(raw)
    assert past.encode_past(rows) == raw, "a past has two forms"
    for _, version in rows:
        past.past_of(version)


def tree_root(raw: bytes) -> None:
    assert trees.encode_root(trees.decode_root(raw)) == raw


def pack(raw: bytes) -> None:
    """Every slot that the footer tells of is opened."""
    reader, slots = packs.open_pack(raw, EPOCH_KEY)
    for slot in slots:
        key = packs.chunk_id_key(EPOCH_KEYS.get(slot.id_epoch, EPOCH_KEY))
        assert len(reader.open_slot(slot, raw[slot.offset:slot.offset + slot.sealed_bytes], key)) <= 4 << 20


def whole_pack(of: dict[str, Any]) -> bytes:
    """A pack of the vectors, its padding sealed as 6.2 says."""
    first = bytes.fromhex(of["head"])
    key = derive_key(EPOCH_KEY, "hinet/1/epoch/pack", first[40:72])
    padding = _sealed(key, 0xF2, 0xFFFFFFFD, bytes(of["padding_bytes"]))
    return first + padding + bytes.fromhex(of["tail"]) + bytes.fromhex(of["end"])


def _sealed(key: bytes, kind: int, slot: int, plain: bytes, chunk: bytes = bytes(32)) -> bytes:
    associated = b"HINETPK\1" + bytes([kind]) + struct.pack(">I", slot) + chunk
    return ChaCha20Poly1305(key).encrypt(slot.to_bytes(12, "big"), plain, associated)


def sealed_pack(inner: bytes, random: Random) -> bytes:
    """A pack with a right name, right seals and this footer; the chunks and the trailer are as `inner` and luck say."""
    salt = bytes.fromhex(PACKS[1]["salt"])
    key = derive_key(EPOCH_KEY, "hinet/1/epoch/pack", salt)
    first = bytes.fromhex(PACKS[1]["head"])
    rows = len(inner) // 42 if random.random() < 0.7 else random.choice((0, 1, 3, 65_536, 2**32 - 1))
    footer = _sealed(key, 0xF0, 0xFFFFFFFF, struct.pack(">I", rows) + inner)
    padding = -(len(first) + 16 + len(footer) + 32) % 65_536
    body = first + _sealed(key, 0xF2, 0xFFFFFFFD, bytes(padding))
    offset, length = len(body), len(footer)
    if random.random() < 0.2:
        offset, length = random.choice((0, 72, 2**63, offset - 1)), random.choice((length, 0, 2**32 - 1))
    trailer = struct.pack(">QII", offset, length, rows)
    return body + footer + _sealed(key, 0xF1, 0xFFFFFFFE, trailer)


def footer_rows(random: Random | None = None) -> bytes:
    """The footer of the vectors' second pack, from the SPEC's words: per slot type, form, id, stored and plain size."""
    plain = [bytes.fromhex(one) for one in PACKS[1]["plaintexts"]]
    ids = unhexed([{"id": one} for one in PACKS[1]["chunk_ids"]], "id")
    return b"".join(struct.pack(">BB32sII", 1, 0, chunk, len(text), len(text))
                    for chunk, text in zip(ids, plain, strict=True))


def moved_rows() -> bytes:
    """The same, with a first slot whose id is of another epoch, which stands at the end."""
    rows = bytearray(footer_rows())
    rows[1] = 2
    return bytes(rows) + b"e" * 32


def passport(raw: bytes) -> None:
    found = passports.open_passport(raw, PASSPORT_IDENTITY)
    assert passports.Passport.body(found)


def signed_passport(body: bytes, random: Random) -> bytes:
    entropy = bytes.fromhex(vectors("8-passports")["passports"][0]["device_entropy"])
    keys = DeviceKeys.from_entropy(entropy)
    return bytes(msgpack.packb({"body": body, "signature": keys.sign(SIGN_PASSPORT, body)}))


def tau(raw: bytes) -> None:
    file = io.BytesIO(raw)
    found = taskvectors.read_header(file, len(raw))
    if found.signer is not None:
        taskvectors.check_signature(found)
    for row in found.tensors:
        if row.kept <= 1_000_000:
            taskvectors.read_tensor(file, found, row.name)


def leading(header: bytes, random: Random) -> bytes:
    """A task vector with this header, unsigned, and the blocks of the vectors behind it."""
    file = bytes.fromhex(vectors("7-tau")["files"][0]["file"])
    length = int.from_bytes(file[12:16], "little")
    return file[:12] + struct.pack("<I", len(header)) + bytes(96) + header + file[112 + length:]


def tau_header() -> bytes:
    file = bytes.fromhex(vectors("7-tau")["files"][0]["file"])
    return file[112:112 + int.from_bytes(file[12:16], "little")]


def tau_block(raw: bytes) -> None:
    """The first byte chooses the codec, the next the size: a block as a header may announce it."""
    if len(raw) < 4:
        return
    codec = ("fp16", "bf16", "int8", "sign")[raw[0] % 4]
    size = (2_000, 1 << 20, 1 << 34, 7)[raw[1] % 4]
    kept = min(size, int.from_bytes(raw[2:4], "big"))
    tau_blocks.decode_block("fuzz", raw[4:], size, kept, codec)


def blocks() -> list[bytes]:
    """A block of each codec, from the vectors."""
    found = []
    for one in vectors("7-tau")["files"]:
        raw = bytes.fromhex(one["file"])
        header = taskvectors.read_header(io.BytesIO(raw), len(raw))
        for row in header.tensors[:2]:
            number = ("fp16", "bf16", "int8", "sign").index(row.codec)
            begin = header.blocks_at + row.offset
            found.append(bytes([number, 0]) + struct.pack(">H", row.kept) + raw[begin:begin + row.length])
    return found


def torn_frame(raw: bytes, random: Random) -> bytes:
    """A block whose lengths still fit after its parts were changed, so that the frame and the values are reached."""
    if len(raw) < 20:
        return raw
    lead, packed_bytes = raw[:4], int.from_bytes(raw[12:20], "little") % (len(raw) + 1)
    frame, values = raw[20:20 + packed_bytes], raw[20 + packed_bytes:]
    frame = damaged(frame, (), random) if random.random() < 0.5 else frame
    return lead + raw[4:12] + struct.pack("<Q", len(frame)) + frame + values


def targets() -> list[Target]:
    held = vectors("6-heads")
    bodies = [msgpack.unpackb(raw)[0] for raw in unhexed(held["heads"], "raw")]
    papers = unhexed(vectors("8-passports")["passports"], "raw")
    forest = vectors("6-trees")
    return [
        Target("head", unhexed(held["heads"], "raw"), head, dress=signed_head, inner=bodies),
        Target("pack list", unhexed(held["pack_lists"], "raw"), pack_list),
        Target("tree page", unhexed(forest["pages"], "raw"), page),
        Target("tree root", unhexed(forest["roots"], "raw"), tree_root),
        Target("past", unhexed(forest["pasts"], "raw"), past_chunk),
        Target("pack", [whole_pack(one) for one in PACKS], pack, dress=sealed_pack,
               inner=[footer_rows(), moved_rows()]),
        Target("passport", papers, passport, dress=signed_passport,
               inner=[msgpack.unpackb(raw)["body"] for raw in papers]),
        Target("tau", unhexed(vectors("7-tau")["files"], "file"), tau, dress=leading, inner=[tau_header()]),
        Target("tau block", blocks(), tau_block, dress=torn_frame, inner=blocks()),
    ]
