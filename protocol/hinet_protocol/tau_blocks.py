"""The block of one tensor in a `.tau` file: positions as gaps, then values by codec (SPEC section 7.3).

Positions are kept entries' indices into the row-major flattened tensor, ascending. Each is coded as its gap: how many
entries lie between it and the one before. A gap is as many bytes 255 as fit into it, then one byte with the rest; the
bytes of a tensor are one zstandard frame. A tensor that keeps everything has no positions at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from hinet_protocol.tau_errors import TauMalformed, TauRefused

Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

VALUES_MAX = 1 << 34
GROUP = 64
"""Kept values that share one scale in the codecs `int8` and `sign`."""
ESCAPE = 255
LEVEL = 1
LENGTHS_BYTES = 16
WINDOW_BYTES_MAX = 8 << 20
"""The most that a frame may have a reader keep of what it unpacked; level 1 needs 512 KiB."""
PACKED_BYTES = 256
"""Unpacked at once: at most some 64 runs of 128 KiB, so 8 MiB."""
VALUES_AT_ONCE = 64 << 10
"""A multiple of GROUP."""
PIECE_BYTES = 256 << 10
"""Gap bytes that are made into positions at once."""


@dataclass(frozen=True)
class Codec:
    """How values are stored: the exact length in bytes for a count, and both directions."""

    value_bytes: Callable[[int], int]
    encode: Callable[[str, Values], bytes]
    decode: Callable[[str, bytes, int], Values]

    def block_bytes_max(self, size: int, kept: int) -> int:
        """The longest a well-formed block can be: zstandard adds at most 1/256 and some bytes."""
        gaps = 0 if kept == size else kept + (size - kept) // ESCAPE
        return LENGTHS_BYTES + gaps + gaps // 128 + 1024 + self.value_bytes(kept)


def encode_block(name: str, positions: Positions, values: Values, size: int, codec: str) -> bytes:
    """The block's bytes. Raises TauRefused when positions are not ascending within `size` or values are not finite."""
    if codec not in CODECS:
        raise TauRefused(f"Tensor {name}: the codec {codec!r} is not one of {', '.join(CODECS)}.")
    kept = len(values)
    if positions.shape != (kept,) or values.ndim != 1 or kept > size:
        raise TauRefused(f"Tensor {name}: {positions.shape} positions and {values.shape} values of {size} entries.")
    if not np.isfinite(values).all():
        raise TauRefused(f"Tensor {name}: a value is not finite.")
    if kept and (positions[0] < 0 or positions[-1] >= size or (np.diff(positions) <= 0).any()):
        raise TauRefused(f"Tensor {name}: its positions are not ascending within its {size} entries.")
    gaps = b"" if kept == size else _encode_gaps(positions)
    packed = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(gaps) if gaps else b""
    lengths = len(gaps).to_bytes(8, "little") + len(packed).to_bytes(8, "little")
    return lengths + packed + CODECS[codec].encode(name, np.ascontiguousarray(values, np.float32))


def decode_block(name: str, raw: bytes, size: int, kept: int, codec: str) -> tuple[Positions, Values]:
    """Positions and values of a block. Raises TauMalformed for anything that `encode_block` does not write.

    Takes memory in proportion to `kept`, for each of which the block holds at least a bit, and never to `size`.
    """
    form = CODECS[codec]
    if len(raw) < LENGTHS_BYTES:
        raise TauMalformed(f"Tensor {name}: its block ends inside its lengths.")
    gap_bytes, packed_bytes = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:16], "little")
    if LENGTHS_BYTES + packed_bytes + form.value_bytes(kept) != len(raw):
        raise TauMalformed(f"Tensor {name}: the lengths in its block do not add up to it.")
    if kept == size or kept == 0:
        if gap_bytes or packed_bytes:
            raise TauMalformed(f"Tensor {name}: positions where it needs none.")
        positions = np.arange(kept, dtype=np.int64)
    else:
        if not kept <= gap_bytes <= kept + (size - kept) // ESCAPE:
            raise TauMalformed(f"Tensor {name}: {gap_bytes} gap bytes cannot place {kept} of {size} entries.")
        gaps = _unpacked(name, raw[LENGTHS_BYTES : LENGTHS_BYTES + packed_bytes], gap_bytes)
        positions = _decode_gaps(name, gaps, size, kept)
    return positions, form.decode(name, raw[LENGTHS_BYTES + packed_bytes :], kept)


def _encode_gaps(positions: Positions) -> bytes:
    gaps = np.diff(positions, prepend=np.int64(-1)) - 1
    escapes, rest = np.divmod(gaps, ESCAPE)
    ends = np.cumsum(escapes + 1)
    coded = np.full(int(ends[-1]) if len(ends) else 0, ESCAPE, np.uint8)
    coded[ends - 1] = rest
    return coded.tobytes()


def _decode_gaps(name: str, pieces: Iterable[bytes], size: int, kept: int) -> Positions:
    """Positions out of the gap bytes, which come in pieces: a few KiB can unpack to as many as a huge tensor may have,
    so that no more of them is held than one piece."""
    positions = np.empty(kept, np.int64)
    placed = entry = 0
    last = ESCAPE
    for piece in pieces:
        data = np.frombuffer(piece, np.uint8)
        ends = np.flatnonzero(data != ESCAPE)
        if placed + len(ends) > kept:
            raise TauMalformed(f"Tensor {name}: its gaps place more than the {kept} entries of the table.")
        sums = np.cumsum(data, dtype=np.int64)
        positions[placed : placed + len(ends)] = sums[ends] + np.arange(entry, entry + len(ends))
        placed += len(ends)
        entry += int(sums[-1]) + len(ends)
        last = int(data[-1])
    if placed != kept or last == ESCAPE:
        raise TauMalformed(f"Tensor {name}: its gaps place {placed} entries where the table says {kept}.")
    if positions[-1] >= size:
        raise TauMalformed(f"Tensor {name}: its gaps lead to entry {positions[-1]} of {size}.")
    return positions


def _unpacked(name: str, packed: bytes, length: int) -> Iterator[bytes]:
    """The gap bytes in pieces, none empty. Raises TauMalformed unless they are one frame of exactly `length` bytes."""
    piece, left = bytearray(), length
    try:
        frame = zstandard.get_frame_parameters(packed)
        if frame.content_size != length or frame.dict_id:
            raise TauMalformed(f"Tensor {name}: its positions unpack to another length than the block says.")
        if frame.window_size > WINDOW_BYTES_MAX:
            raise TauMalformed(f"Tensor {name}: its positions need a window of {frame.window_size} bytes to unpack.")
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        for at in range(0, len(packed), PACKED_BYTES):
            if unpacker.eof:
                raise TauMalformed(f"Tensor {name}: bytes follow the zstandard frame of its positions.")
            piece += unpacker.decompress(packed[at : at + PACKED_BYTES])
            while len(piece) >= PIECE_BYTES:
                yield bytes(piece[:PIECE_BYTES])
                del piece[:PIECE_BYTES]
                left -= PIECE_BYTES
    except zstandard.ZstdError as error:
        raise TauMalformed(f"Tensor {name}: its positions are not exactly one zstandard frame ({error}).") from error
    if piece:
        yield bytes(piece)
    if left != len(piece) or not unpacker.eof or unpacker.unused_data:
        raise TauMalformed(f"Tensor {name}: its positions are not exactly one zstandard frame of {length} bytes.")


def _scaled(values: Values) -> tuple[int, npt.NDArray[np.float64]]:
    """The power of two that brings the largest magnitude into [1, 2), and the values divided by it."""
    top = float(np.abs(values).max(initial=0.0))
    exponent = int(np.frexp(top)[1]) - 1 if top > 0 else 0
    return exponent, np.ldexp(values.astype(np.float64), -exponent)


def _encode_fp16(name: str, values: Values) -> bytes:
    exponent, scaled = _scaled(values)
    return exponent.to_bytes(2, "little", signed=True) + scaled.astype("<f2").tobytes()


def _decode_fp16(name: str, raw: bytes, kept: int) -> Values:
    exponent = int.from_bytes(raw[:2], "little", signed=True)
    if not -149 <= exponent <= 127:
        raise TauMalformed(f"Tensor {name}: an exponent of {exponent}.")
    halves = np.frombuffer(raw, "<f2", offset=2)
    if not np.isfinite(halves).all() or (np.abs(halves) > 2).any():
        raise TauMalformed(f"Tensor {name}: a value is not finite or above its scale.")
    return _finite(name, np.ldexp(halves.astype(np.float64), exponent))


def _finite(name: str, values: npt.NDArray[np.float64]) -> Values:
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise TauMalformed(f"Tensor {name}: a value is too large for float32.")
    return values.astype(np.float32)


def _encode_bf16(name: str, values: Values) -> bytes:
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    if ((rounded & 0x7F80) == 0x7F80).any():
        raise TauRefused(f"Tensor {name}: a value is too large for bf16.")
    return rounded.astype("<u2").tobytes()


def _decode_bf16(name: str, raw: bytes, kept: int) -> Values:
    values = (np.frombuffer(raw, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if not np.isfinite(values).all():
        raise TauMalformed(f"Tensor {name}: a value is not finite.")
    return values


def _groups(kept: int) -> int:
    return -(-kept // GROUP)


def _grouped(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Magnitudes in rows of GROUP, the last one filled up with zeros."""
    padded = np.zeros(_groups(len(values)) * GROUP)
    padded[: len(values)] = np.abs(values)
    return padded.reshape(-1, GROUP)


def _encode_scales(exponent: int, scales: npt.NDArray[np.float64]) -> tuple[bytes, npt.NDArray[np.float64]]:
    halves = scales.astype("<f2")
    return exponent.to_bytes(2, "little", signed=True) + halves.tobytes(), halves.astype(np.float64)


def _decode_scales(name: str, raw: bytes, kept: int) -> npt.NDArray[np.float64]:
    """One float64 scale for each group."""
    exponent = int.from_bytes(raw[:2], "little", signed=True)
    halves = np.frombuffer(raw, "<f2", count=_groups(kept), offset=2)
    if not -149 <= exponent <= 127:
        raise TauMalformed(f"Tensor {name}: an exponent of {exponent}.")
    if not (np.isfinite(halves).all() and (halves >= 0).all() and (halves <= 2).all() and not np.signbit(halves).any()):
        raise TauMalformed(f"Tensor {name}: a scale is not a number from 0 to 2.")
    return np.ldexp(halves.astype(np.float64), exponent)


def _times_scales(
    name: str, units: Callable[[int, int], npt.NDArray[Any]], scales: npt.NDArray[np.float64], kept: int
) -> Values:
    """Units times their groups' scales. `units` gives those from one place to another, so that a few are float64 at a
    time."""
    values = np.empty(kept, np.float32)
    for at in range(0, kept, VALUES_AT_ONCE):
        end = min(kept, at + VALUES_AT_ONCE)
        spread = np.repeat(scales[at // GROUP : _groups(end)], GROUP)[: end - at]
        values[at:end] = _finite(name, units(at, end).astype(np.float64) * spread)
    return values


def _encode_int8(name: str, values: Values) -> bytes:
    exponent, scaled = _scaled(values)
    head, halves = _encode_scales(exponent, _grouped(scaled).max(axis=1))
    steps = np.repeat(halves, GROUP)[: len(values)] / 127
    units = np.divide(scaled, steps, out=np.zeros(len(values)), where=steps > 0)
    return head + np.clip(np.rint(units), -127, 127).astype(np.int8).tobytes()


def _decode_int8(name: str, raw: bytes, kept: int) -> Values:
    scales = _decode_scales(name, raw, kept)
    units = np.frombuffer(raw, np.int8, offset=2 + 2 * _groups(kept))
    if (units == -128).any():
        raise TauMalformed(f"Tensor {name}: a unit of -128.")
    return _times_scales(name, lambda at, end: units[at:end], scales / 127, kept)


def _encode_sign(name: str, values: Values) -> bytes:
    exponent, scaled = _scaled(values)
    rows = _grouped(scaled)
    counts = np.full(len(rows), GROUP)
    if len(rows):
        counts[-1] = len(values) - GROUP * (len(rows) - 1)
    head, _ = _encode_scales(exponent, rows.sum(axis=1) / counts)
    return head + np.packbits(np.signbit(values), bitorder="little").tobytes()


def _decode_sign(name: str, raw: bytes, kept: int) -> Values:
    scales = _decode_scales(name, raw, kept)
    packed = np.frombuffer(raw, np.uint8, offset=2 + 2 * _groups(kept))
    if kept % 8 and packed[-1] >> kept % 8:
        raise TauMalformed(f"Tensor {name}: sign bits behind the last value.")

    def signs(at: int, end: int) -> npt.NDArray[np.int8]:
        bits = np.unpackbits(packed[at // 8 : (end + 7) // 8], count=end - at, bitorder="little")
        return 1 - 2 * bits.astype(np.int8)

    return _times_scales(name, signs, scales, kept)


CODECS: dict[str, Codec] = {
    "fp16": Codec(lambda kept: 2 + 2 * kept, _encode_fp16, _decode_fp16),
    "bf16": Codec(lambda kept: 2 * kept, _encode_bf16, _decode_bf16),
    "int8": Codec(lambda kept: 2 + 2 * _groups(kept) + kept, _encode_int8, _decode_int8),
    "sign": Codec(lambda kept: 2 + 2 * _groups(kept) + (kept + 7) // 8, _encode_sign, _decode_sign),
}
"""Value codecs by the name that the header uses."""
