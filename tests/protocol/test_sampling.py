"""Sampling: what does not compress is not tried, what does is found."""

from __future__ import annotations

import random

import pytest
import zstandard

from hinet_protocol.packs import DATA, PackBuilder, chunk_bytes_max, chunk_id, chunk_id_key, open_pack
from hinet_protocol.sampling import may_shrink, plain_tried_bytes

NOISE = random.Random(1).randbytes(chunk_bytes_max)
ZSTD = zstandard.ZstdCompressor(level=1, write_content_size=False)


def test_noise_is_not_tried_and_text_is() -> None:
    assert not may_shrink(NOISE, ZSTD)
    assert may_shrink(b"the quick brown fox " * 200_000, ZSTD)
    assert may_shrink(bytes(chunk_bytes_max), ZSTD)


@pytest.mark.parametrize("eighth", range(8))
def test_an_eighth_that_shrinks_is_noticed_wherever_it_is(eighth: int) -> None:
    part = chunk_bytes_max // 8
    mixed = NOISE[:eighth * part] + bytes(part) + NOISE[(eighth + 1) * part:]
    assert may_shrink(mixed, ZSTD)


def test_the_first_and_the_last_bytes_are_looked_at() -> None:
    assert may_shrink(bytes(8_192) + NOISE[8_192:], ZSTD)
    assert may_shrink(NOISE[:-8_192] + bytes(8_192), ZSTD)


def test_a_small_chunk_is_simply_tried() -> None:
    assert may_shrink(NOISE[:plain_tried_bytes], ZSTD)
    assert not may_shrink(NOISE[:plain_tried_bytes + 1], ZSTD)


@pytest.mark.parametrize("size", [0, 1, plain_tried_bytes, plain_tried_bytes + 1, chunk_bytes_max - 1, chunk_bytes_max])
@pytest.mark.parametrize("noisy", [True, False])
def test_whatever_form_is_chosen_the_chunk_comes_back(size: int, noisy: bool) -> None:
    plain = NOISE[:size] if noisy else bytes(size)
    id_key = chunk_id_key(b"k" * 32)
    builder = PackBuilder(b"e" * 32, b"k" * 32, b"s" * 32)
    slot = builder.add(DATA, chunk_id(id_key, plain), plain)
    raw, _ = builder.finish()
    assert slot.compressed == (size > 20 and not noisy)
    reader, (found,) = open_pack(raw, b"k" * 32)
    assert reader.open_slot(found, raw[found.offset:found.offset + found.sealed_bytes], id_key) == plain
