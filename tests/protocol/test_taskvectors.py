"""`.tau` files: what goes in comes out, what is not well formed is refused, and blocks are read alone."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from hinet_protocol import canonical, identity, tau_blocks
from hinet_protocol import taskvectors as tv
from hinet_protocol.errors import ProtocolError

VECTORS = json.loads((Path(__file__).parents[2] / "protocol/vectors/7-tau.json").read_text())
BASE = bytes(range(32))


def sample(size: int = 5000, kept: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    positions = np.sort(source.choice(size, kept, replace=False)).astype(np.int64)
    return positions, (source.standard_normal(kept) * 1e-3).astype(np.float32)


def write(codec: str = "fp16", **passport: object) -> bytes:
    out = io.BytesIO()
    writer = tv.TauWriter(io.BytesIO(), BASE, {"kind": "chunk", "keep": 64, "chunk": 4096}, passport)
    writer.add("a.weight", (50, 100), *sample(), codec)
    writer.add("b.weight", (10,), np.arange(10, dtype=np.int64), np.linspace(-1, 1, 10, dtype=np.float32), codec)
    writer.add("c.weight", (3, 3), np.array([8], np.int64), np.array([-0.5], np.float32), codec)
    writer.finish(out)
    return out.getvalue()


def read(raw: bytes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    file = io.BytesIO(raw)
    header = tv.read_header(file, len(raw))
    return {row.name: tv.read_tensor(file, header, row.name) for row in header.tensors}


@pytest.mark.parametrize("vector", VECTORS["files"], ids=lambda vector: vector["name"])
def test_the_vectors_decode_to_the_same_bits(vector: dict) -> None:
    raw = bytes.fromhex(vector["file"])
    header = tv.read_header(io.BytesIO(raw), len(raw))
    assert header.base.hex() == vector["base"]
    assert tv.signing_message(header).hex() == vector["signing_message"]
    assert tv.check_signature(header).hex() == vector["signer"]
    for name, (positions, values) in read(raw).items():
        assert positions.tolist() == vector["tensors"][name]["positions"]
        assert values.astype("<f4").tobytes().hex() == vector["tensors"][name]["values"]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["name"])
def test_the_refused_vectors_are_refused(vector: dict) -> None:
    with pytest.raises(tv.TauError, match=vector["because"]):
        read(bytes.fromhex(vector["file"]))


@given(
    size=st.integers(1, 3000),
    density=st.floats(0, 1),
    codec=st.sampled_from(sorted(tv.CODECS)),
    scale=st.sampled_from([1e-38, 1e-6, 1.0, 1e30]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_positions_come_back_exactly_and_values_as_near_as_the_codec_promises(
    size: int, density: float, codec: str, scale: float, seed: int
) -> None:
    kept = round(size * density)
    positions, values = sample(size, kept, seed)
    values = (values * scale * 1e3).astype(np.float32)
    raw = tau_blocks.encode_block("t", positions, values, size, codec)
    there, back = tau_blocks.decode_block("t", raw, size, kept, codec)
    assert np.array_equal(there, positions)
    assert back.dtype == np.float32
    top = float(np.abs(values).max(initial=0.0))
    if codec in ("fp16", "bf16"):
        share, least = {"fp16": (2**-11, top * 2**-25 + 2e-45), "bf16": (2**-8, 2**-134)}[codec]
        assert (np.abs(back.astype(float) - values) <= share * np.abs(values.astype(float)) + least).all()
    elif codec == "int8":
        assert (np.abs(back.astype(float) - values) <= top * (0.5 / 127 + 2**-10) + 2e-45).all()
    else:
        assert np.array_equal(np.signbit(back), np.signbit(values))


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_never_a_task_vector(raw: bytes) -> None:
    for start in (b"", tv.MAGIC + (1).to_bytes(4, "little")):
        with pytest.raises(tv.TauMalformed):
            tv.read_header(io.BytesIO(start + raw), len(start + raw))


@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), codec=st.sampled_from(sorted(tv.CODECS)))
@settings(max_examples=300, deadline=None)
def test_any_changed_byte_is_refused_or_breaks_the_signature(at: float, flip: int, codec: str) -> None:
    raw = bytearray(signed(write(codec)))
    raw[int(at * len(raw))] ^= flip

    def accept() -> None:
        read(bytes(raw))
        tv.check_signature(tv.read_header(io.BytesIO(bytes(raw)), len(raw)))

    with pytest.raises(ProtocolError):
        accept()


@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), codec=st.sampled_from(sorted(tv.CODECS)))
@settings(max_examples=300, deadline=None)
def test_a_block_that_lies_is_refused_or_decodes_to_finite_values_in_place(at: float, flip: int, codec: str) -> None:
    """What the digest does not catch, because the liar made the digest: the block itself."""
    positions, values = sample()
    raw = bytearray(tau_blocks.encode_block("t", positions, values, 5000, codec))
    raw[int(at * len(raw))] ^= flip
    try:
        there, back = tau_blocks.decode_block("t", bytes(raw), 5000, 100, codec)
    except tv.TauMalformed:
        return
    assert len(there) == len(back) == 100
    assert np.isfinite(back).all()
    assert (np.diff(there) > 0).all()
    assert there[0] >= 0
    assert there[-1] < 5000


@pytest.mark.parametrize("cut", [0, 7, 50, 111, 112, 200, -1])
def test_a_truncated_file_is_refused(cut: int) -> None:
    with pytest.raises(tv.TauMalformed):
        read(write()[:cut])


def test_one_tensor_can_be_read_without_the_others() -> None:
    raw = bytearray(write())
    file = io.BytesIO(bytes(raw))
    header = tv.read_header(file, len(raw))
    first = header.tensor("a.weight")
    raw[header.blocks_at + first.offset] ^= 1
    file = io.BytesIO(bytes(raw))
    positions, values = tv.read_tensor(file, header, "c.weight")
    assert (positions.tolist(), values.tolist()) == ([8], [-0.5])
    with pytest.raises(tv.TauDamaged, match=r"a\.weight"):
        tv.read_tensor(file, header, "a.weight")


def signed(raw: bytes) -> bytes:
    key = SigningKey(bytes(32))
    header = tv.read_header(io.BytesIO(raw), len(raw))
    signature = key.sign(identity.signed_bytes(tv.SIGNING_DOMAIN, tv.signing_message(header))).signature
    return tv.with_signature(header, bytes(key.verify_key), signature) + raw[tv.LEAD_BYTES :]


def test_a_signature_holds_for_its_file_only() -> None:
    raw, other = signed(write()), write(note="other")
    header = tv.read_header(io.BytesIO(raw), len(raw))
    assert tv.check_signature(header) == bytes(SigningKey(bytes(32)).verify_key)
    with pytest.raises(tv.TauUnsigned, match="not signed"):
        tv.check_signature(tv.read_header(io.BytesIO(other), len(other)))
    moved = raw[: tv.LEAD_BYTES] + other[tv.LEAD_BYTES :]
    moved = moved[:12] + other[12:16] + moved[16:]
    with pytest.raises(tv.TauUnsigned, match="changed after signing"):
        tv.check_signature(tv.read_header(io.BytesIO(moved), len(moved)))


def test_displacement_is_the_length_of_what_a_reader_decodes() -> None:
    raw = write("sign")
    header = tv.read_header(io.BytesIO(raw), len(raw))
    length = np.sqrt(sum(float((values.astype(float) ** 2).sum()) for _, values in read(raw).values()))
    assert header.displacement == pytest.approx(length, abs=1e-9)
    assert header.kept == 111
    assert header.density == pytest.approx(111 / 5019)


@pytest.mark.parametrize(
    ("positions", "values", "match"),
    [
        ([3, 3], [1, 1], "not ascending"), ([4, 3], [1, 1], "not ascending"), ([-1, 3], [1, 1], "not ascending"),
        ([3, 10], [1, 1], "not ascending"), ([3], [1, 1], "positions"), ([1, 2], [1, float("nan")], "not finite"),
        ([1, 2], [1, float("inf")], "not finite"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(positions: list[int], values: list[float], match: str) -> None:
    with pytest.raises(tv.TauRefused, match=match):
        tau_blocks.encode_block("t", np.array(positions, np.int64), np.array(values, np.float32), 10, "fp16")


def test_tensors_out_of_order_or_twice_are_refused() -> None:
    writer = tv.TauWriter(io.BytesIO(), BASE, {"kind": "all"})
    writer.add("b", (1,), np.array([0], np.int64), np.array([1], np.float32))
    for name in ("b", "a"):
        with pytest.raises(tv.TauRefused, match="name order"):
            writer.add(name, (1,), np.array([0], np.int64), np.array([1], np.float32))


def edited(change: dict[str, object], row: dict[int, object] | None = None) -> bytes:
    """A file whose header was changed and written anew: the framing is right, the content is not."""
    raw = write()
    header = tv.read_header(io.BytesIO(raw), len(raw))
    value = canonical.decode(header.raw, 1 << 20)
    value |= change
    for index, item in (row or {}).items():
        value["tensors"][0][index] = item
    fresh = canonical.encode(value)
    return raw[:12] + len(fresh).to_bytes(4, "little") + raw[16:112] + fresh + raw[header.blocks_at :]


@pytest.mark.parametrize(
    ("change", "row", "match"),
    [
        ({"base": b"short"}, None, "base digest"),
        ({"extra": 1}, None, "exactly the fields"),
        ({"format": "hinet.tau/2"}, None, "exactly the fields"),
        ({"displacement_nano": -1}, None, "displacement"),
        ({"selection": {"kind": "magic"}}, None, "selection"),
        ({"passport": {"x": bytes(70_000)}}, None, "passport"),
        ({"tensors": [[1]]}, None, "row"),
        ({}, {0: ""}, "name"),
        ({}, {0: "z.weight"}, "out of order"),
        ({}, {1: []}, "shape"),
        ({}, {1: [0, 5]}, "shape"),
        ({}, {1: [1 << 39, 1 << 39]}, "entries"),
        ({}, {2: 5001}, "keeps 5001 of 5000"),
        ({}, {2: -1}, "keeps"),
        ({}, {2: True}, "keeps"),
        ({}, {3: "zip"}, "codec"),
        ({}, {3: ["fp16"]}, "codec"),
        ({}, {4: 5}, "does not follow"),
        ({}, {5: 1 << 40}, "longer than its entries can need"),
        ({}, {5: 3}, "follow|bytes where"),
        ({}, {6: b"short"}, "digest"),
    ],
)
def test_a_header_that_lies_is_refused(change: dict, row: dict | None, match: str) -> None:
    with pytest.raises(tv.TauMalformed, match=match):
        read(edited(change, row))


def test_another_count_than_the_block_holds_is_refused() -> None:
    with pytest.raises(tv.TauMalformed, match=r"add up|gap bytes|gaps"):
        read(edited({}, {2: 99}))


def test_a_frame_that_unpacks_to_more_than_it_says_is_stopped() -> None:
    """A zstandard frame may announce a small content and hold a large one."""
    import zstandard

    bomb = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(50_000_000)))
    honest = zstandard.ZstdCompressor(level=1).compress(bytes(100))
    assert zstandard.get_frame_parameters(bytes(bomb)).content_size == 50_000_000
    del bomb[:9]  # magic, descriptor and a four-byte content size
    lying = honest[:4] + b"\x20" + bytes([100]) + bytes(bomb)
    values = tau_blocks.CODECS["sign"].encode("t", np.ones(100, np.float32))
    block = (100).to_bytes(8, "little") + len(lying).to_bytes(8, "little") + lying + values
    with pytest.raises(tv.TauMalformed, match="zstandard"):
        tau_blocks.decode_block("t", block, 5000, 100, "sign")


def peak_bytes(raw: bytes, size: int, kept: int, codec: str) -> int:
    tracemalloc.start()
    try:
        tau_blocks.decode_block("t", raw, size, kept, codec)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_block_of_a_huge_tensor_takes_little_memory() -> None:
    """Two KiB can say 67 million gap bytes: one entry at the end of the largest tensor."""
    size = tau_blocks.VALUES_MAX
    at = np.array([size - 1], np.int64)
    raw = tau_blocks.encode_block("t", at, np.ones(1, np.float32), size, "sign")
    assert len(raw) < 5_000
    assert tau_blocks.decode_block("t", raw, size, 1, "sign")[0].tolist() == [size - 1]
    assert peak_bytes(raw, size, 1, "sign") < 48 << 20


@pytest.mark.parametrize("codec", sorted(tv.CODECS))
def test_decoding_takes_little_more_memory_than_its_result(codec: str) -> None:
    kept = 2_000_000
    values = np.random.default_rng(4).standard_normal(kept).astype(np.float32)
    raw = tau_blocks.encode_block("t", np.arange(kept), values, kept, codec)
    assert peak_bytes(raw, kept, kept, codec) < 30 * kept


def test_gaps_that_come_in_many_pieces_lead_where_one_piece_does(monkeypatch: pytest.MonkeyPatch) -> None:
    positions, values = sample(2_000_000, 4_000)
    raw = tau_blocks.encode_block("t", positions, values, 2_000_000, "bf16")
    for packed, piece in ((1, 1), (7, 3), (1 << 20, 1 << 20)):
        monkeypatch.setattr(tau_blocks, "PACKED_BYTES", packed)
        monkeypatch.setattr(tau_blocks, "PIECE_BYTES", piece)
        assert np.array_equal(tau_blocks.decode_block("t", raw, 2_000_000, 4_000, "bf16")[0], positions)


def test_position_bytes_stay_within_the_bar_at_one_in_sixty_four() -> None:
    source = np.random.default_rng(3)
    chunks = [np.sort(source.choice(4096, 64, replace=False)) + 4096 * index for index in range(1024)]
    positions = np.concatenate(chunks).astype(np.int64)
    values = source.standard_normal(len(positions)).astype(np.float32)
    size = 4096 * 1024
    raw = tau_blocks.encode_block("t", positions, values, size, "sign")
    packed = int.from_bytes(raw[8:16], "little")
    assert 8 * packed / len(positions) <= 7.364 * 1.03
    assert len(raw) / size <= 0.0171


def test_every_block_names_its_own_digest() -> None:
    raw = write()
    header = tv.read_header(io.BytesIO(raw), len(raw))
    for row in header.tensors:
        start = header.blocks_at + row.offset
        assert blake3(raw[start : start + row.length]).digest() == row.digest
