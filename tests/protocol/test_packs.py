"""Packs: sealing, names, strict reading of anything."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import packs
from hinet_protocol.errors import PackDamaged, PackMalformed
from hinet_protocol.packs import DATA, TREE_PAGE, PackBuilder, PackReader, chunk_id, chunk_id_key, open_pack

EPOCH, KEY, SALT = b"e" * 32, b"k" * 32, b"s" * 32
OLD, OLD_KEY = b"d" * 32, b"o" * 32
ID_KEY = chunk_id_key(KEY)
VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "6-packs.json").read_text())


def build(*plaintexts: bytes, salt: bytes = SALT, epoch: bytes = EPOCH, key: bytes = KEY) -> bytes:
    builder = PackBuilder(epoch, key, salt)
    taken = b""
    for plaintext in plaintexts:
        builder.add(DATA, chunk_id(chunk_id_key(key), plaintext), plaintext)
        taken += builder.take()
    last, summary = builder.finish()
    raw = taken + last
    assert packs.pack_name(raw) == summary.name
    assert len(raw) == summary.size_bytes
    return raw


def read_all(raw: bytes, key: bytes = KEY, id_keys: Mapping[bytes, bytes] = {}) -> list[bytes]:
    """All chunks; `id_keys` are the keys of earlier epochs, by epoch id."""
    reader, slots = open_pack(raw, key)
    return [reader.open_slot(slot, raw[slot.offset:slot.offset + slot.sealed_bytes],
                             chunk_id_key(id_keys.get(slot.id_epoch, key))) for slot in slots]


def moved(*plaintexts: bytes, beside: bytes = b"") -> bytes:
    """A pack of chunks that were moved from the epoch `d…`, whose key is `o…`, and keep their ids."""
    builder = PackBuilder(EPOCH, KEY, SALT, OLD)
    for plaintext in plaintexts:
        builder.add(DATA, chunk_id(chunk_id_key(OLD_KEY), plaintext), plaintext, foreign=True)
    if beside:
        builder.add(DATA, chunk_id(ID_KEY, beside), beside)
    return builder.finish()[0]


RAW = build(b"first", b"second" * 1_000, b"")


@given(st.lists(st.binary(max_size=5_000), max_size=20, unique=True))
def test_what_is_sealed_comes_back(plaintexts: list[bytes]) -> None:
    raw = build(*plaintexts)
    assert read_all(raw) == plaintexts
    assert len(raw) % 65_536 == 0
    packs.verify_pack_name(packs.pack_name(raw), raw)


def test_a_pack_shows_nothing_but_epoch_and_salt() -> None:
    raw = build(b"The dog is called Bo." * 100)
    assert b"dog" not in raw
    assert raw[:72] == b"HINETPK\x01" + EPOCH + SALT
    # The rest looks like noise: no byte value is much more frequent than in noise.
    counts = [raw[72:].count(bytes([value])) for value in range(256)]
    assert max(counts) < 2 * len(raw) / 256


def test_equal_content_under_another_salt_gives_an_unrelated_pack() -> None:
    one, other = build(b"x" * 1_000), build(b"x" * 1_000, salt=b"t" * 32)
    assert sum(left == right for left, right in zip(one[72:], other[72:], strict=True)) < len(one) / 128


@given(st.integers(0, len(RAW) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed_by_name_and_by_seal_or_padding(at: int, flip: int) -> None:
    changed = bytearray(RAW)
    changed[at] ^= flip
    with pytest.raises(PackDamaged):
        packs.verify_pack_name(packs.pack_name(RAW), bytes(changed))
    try:
        assert read_all(bytes(changed)) == read_all(RAW)
    except (PackDamaged, PackMalformed):
        return
    _, slots = open_pack(RAW, KEY)
    padding_begins = slots[-1].offset + slots[-1].sealed_bytes
    assert at >= padding_begins or 8 <= at < 40, "only the padding and the epoch's id may change unseen"


@given(st.binary(max_size=300))
def test_random_bytes_are_no_pack(raw: bytes) -> None:
    with pytest.raises((PackDamaged, PackMalformed)):
        open_pack(raw, KEY)
    with pytest.raises((PackDamaged, PackMalformed)):
        open_pack(RAW[:72] + raw + bytes(-len(RAW[:72] + raw) % 65_536), KEY)


@given(st.integers(0, len(RAW) - 1))
def test_a_pack_that_was_cut_short_is_refused(length: int) -> None:
    with pytest.raises((PackDamaged, PackMalformed)):
        open_pack(RAW[:length], KEY)


def test_the_key_of_another_epoch_does_not_open_it() -> None:
    with pytest.raises(PackDamaged):
        open_pack(RAW, b"K" * 32)


def test_a_newer_version_is_refused_with_a_hint() -> None:
    with pytest.raises(PackMalformed, match="newer hinet-node"):
        open_pack(RAW[:7] + b"\x02" + RAW[8:], KEY)


def test_a_size_beyond_the_bound_is_refused_before_anything_is_read() -> None:
    for size in (0, 65_535, 65_537, packs.pack_bytes_max + 65_536):
        with pytest.raises(PackMalformed):
            PackReader(RAW[:72], size, KEY)


def test_a_builder_is_good_for_one_pack() -> None:
    builder = PackBuilder(EPOCH, KEY, SALT)
    builder.finish()
    with pytest.raises(ValueError, match="finished"):
        builder.add(DATA, chunk_id(ID_KEY, b"x"), b"x")
    with pytest.raises(ValueError, match="finished"):
        builder.finish()


def test_a_builder_refuses_what_a_reader_would() -> None:
    builder = PackBuilder(EPOCH, KEY, SALT)
    builder.add(DATA, b"i" * 32, b"x")
    for kind, name, plaintext in ((DATA, b"i" * 32, b"x"), (9, b"j" * 32, b"x"), (DATA, b"short", b"x"),
                                  (DATA, b"j" * 32, bytes(packs.chunk_bytes_max + 1))):
        with pytest.raises(ValueError):
            builder.add(kind, name, plaintext)


def test_a_moved_chunk_keeps_its_id_and_opens_under_the_key_of_its_own_epoch() -> None:
    raw = moved(b"moved", b"moved as well " * 99, beside=b"sealed here")
    assert read_all(raw, id_keys={OLD: OLD_KEY}) == [b"moved", b"moved as well " * 99, b"sealed here"]
    _, slots = open_pack(raw, KEY)
    assert [(slot.id_epoch, slot.form) for slot in slots] == [(OLD, 2), (OLD, 3), (b"", 0)]
    assert slots[0].chunk_id == chunk_id(chunk_id_key(OLD_KEY), b"moved")
    assert OLD not in raw, "which epoch the chunks came from is nobody's business without the key"


def test_a_moved_chunk_is_not_taken_under_the_id_key_of_the_pack_or_of_a_third_epoch() -> None:
    raw = moved(b"moved")
    for wrong in (KEY, b"x" * 32):
        with pytest.raises(PackDamaged):
            read_all(raw, id_keys={OLD: wrong})


def test_a_builder_takes_ids_of_one_other_epoch_only_if_it_was_told_which() -> None:
    with pytest.raises(ValueError):
        PackBuilder(EPOCH, KEY, SALT).add(DATA, b"i" * 32, b"x", foreign=True)
    for wrong in (EPOCH, b"short"):
        with pytest.raises(ValueError):
            PackBuilder(EPOCH, KEY, SALT, wrong)
    raw = build_with_unused_epoch()
    assert raw == build(b"x"), "an epoch that no chunk is of leaves no trace"


def build_with_unused_epoch() -> bytes:
    builder = PackBuilder(EPOCH, KEY, SALT, OLD)
    builder.add(DATA, chunk_id(ID_KEY, b"x"), b"x")
    return builder.finish()[0]


@pytest.mark.parametrize("end", [b"", EPOCH, OLD[:31], OLD + b"d", OLD * 2])
def test_a_foreign_id_whose_epoch_is_not_told_or_is_the_packs_own_is_refused(end: bytes) -> None:
    for form in (2, 3):
        stored = b"12345" if form == 2 else b"1234"
        with pytest.raises(PackMalformed):
            open_pack(sealed_by_a_member(row(DATA, form, len(stored), 5), stored, end=end), KEY)


@pytest.mark.parametrize(("form", "end"), [(0, OLD), (1, OLD), (4, b""), (4, OLD), (6, OLD), (255, OLD)])
def test_an_epoch_without_a_foreign_id_and_an_unknown_form_are_refused(form: int, end: bytes) -> None:
    stored = b"1234" if form & 1 else b"12345"
    with pytest.raises(PackMalformed):
        open_pack(sealed_by_a_member(row(DATA, form, len(stored), 5), stored, end=end), KEY)


def sealed_by_a_member(row: bytes, stored: bytes, *, count: int = 1, end: bytes = b"") -> bytes:
    """A pack whose seals are right and whose footer says what a faulty member wrote."""
    header = packs.PackHeader(EPOCH, SALT)
    seals = packs._Seals(header, KEY)
    body = seals.seal(DATA, 0, row[2:34], stored)
    footer_plain = count.to_bytes(4, "big") + row * count + end
    fixed = 72 + len(body) + 16 + len(footer_plain) + 16 + 32
    padding = seals.seal(0xF2, 0xFFFFFFFD, bytes(32), bytes(-fixed % 65_536))
    footer = seals.seal(0xF0, 0xFFFFFFFF, bytes(32), footer_plain)
    at = 72 + len(body) + len(padding)
    trailer = seals.seal(0xF1, 0xFFFFFFFE, bytes(32), packs._TRAILER_FORM.pack(at, len(footer), count))
    return packs.magic + EPOCH + SALT + body + padding + footer + trailer


def row(kind: int, form: int, stored: int, plain: int, name: bytes = b"i" * 32) -> bytes:
    return packs._ROW.pack(kind, form, name, stored, plain)


@pytest.mark.parametrize(("wrong", "stored"), [
    (row(9, 0, 5, 5), b"12345"), (row(DATA, 4, 5, 5), b"12345"), (row(DATA, 0, 5, 6), b"12345"),
    (row(DATA, 1, 5, 5), b"12345"), (row(DATA, 1, 5, 4), b"12345"), (row(DATA, 0, 2**32 - 1, 2**32 - 1), b"12345"),
    (row(DATA, 1, 5, packs.chunk_bytes_max + 1), b"12345"), (row(DATA, 0, 4, 4), bytes(140_000)),
    (row(DATA, 0, 140_000, 140_000), b"12345"),
])
def test_a_footer_that_lies_is_refused(wrong: bytes, stored: bytes) -> None:
    with pytest.raises(PackMalformed):
        open_pack(sealed_by_a_member(wrong, stored), KEY)


def test_a_chunk_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(PackMalformed):
        open_pack(sealed_by_a_member(row(DATA, 0, 5, 5), b"12345" * 9, count=2), KEY)


def test_a_bomb_is_stopped_at_the_promised_size() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28))
    raw = sealed_by_a_member(row(DATA, 1, len(bomb), packs.chunk_bytes_max), bomb)
    reader, (slot,) = open_pack(raw, KEY)
    tracemalloc.start()
    try:
        with pytest.raises(PackDamaged):
            reader.open_slot(slot, raw[slot.offset:slot.offset + slot.sealed_bytes], ID_KEY)
        assert tracemalloc.get_traced_memory()[1] < 3 * packs.chunk_bytes_max
    finally:
        tracemalloc.stop()


def test_a_chunk_under_a_wrong_id_is_refused() -> None:
    raw = sealed_by_a_member(row(DATA, 0, 5, 5), b"12345")
    reader, (slot,) = open_pack(raw, KEY)
    with pytest.raises(PackDamaged):
        reader.open_slot(slot, raw[slot.offset:slot.offset + slot.sealed_bytes], ID_KEY)


def test_a_chunk_moved_to_another_slot_or_type_does_not_open() -> None:
    raw = build(b"11111", b"22222")
    reader, (first, second) = open_pack(raw, KEY)
    sealed = raw[first.offset:first.offset + first.sealed_bytes]
    for wrong in (second, packs.Slot(0, TREE_PAGE, first.chunk_id, 0, 5, 5, False),
                  packs.Slot(0, DATA, second.chunk_id, 0, 5, 5, False)):
        with pytest.raises(PackDamaged):
            reader.open_slot(wrong, sealed, ID_KEY)


@pytest.mark.parametrize("vector", VECTORS["packs"], ids=lambda vector: vector["note"])
def test_packs_of_earlier_versions_still_open(vector: dict[str, object]) -> None:
    """zstd may choose other bytes in another version, so packs with compressed chunks are read, not built again."""
    key = bytes.fromhex(str(vector["epoch_key"]))
    head, tail, end = (bytes.fromhex(str(vector[part])) for part in ("head", "tail", "end"))
    padding = int(str(vector["padding_bytes"]))
    seals = packs._Seals(packs.read_header(head), key)
    raw = head + seals.seal(0xF2, 0xFFFFFFFD, bytes(32), bytes(padding)) + tail + end
    assert blake3(raw).hexdigest() == vector["name"]
    id_keys = {bytes.fromhex(str(vector.get("id_epoch", ""))): bytes.fromhex(str(vector.get("id_epoch_key", "")))}
    assert [plain.hex() for plain in read_all(raw, key, {k: v for k, v in id_keys.items() if k})] == (
        vector["plaintexts"])
    _, slots = open_pack(raw, key)
    assert [slot.chunk_id.hex() for slot in slots] == vector["chunk_ids"]
