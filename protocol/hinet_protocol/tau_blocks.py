"""The block of one tensor in a `.tau` file: positions as gaps, then values by codec (SPEC section 7.3).

Positions are kept entries' indices into the row-major flattened tensor, ascending. Each is coded as its gap: how many
entries lie between it and the one before. A gap is as many bytes 255 as fit into it, then one byte with the rest; the
bytes of a tensor are one zstandard frame. A tensor that keeps everything has no positions at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """Positions and values of a block. Raises TauMalformed for anything that `encode_block` does not write."""
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
        gaps = _decompress(name, raw[LENGTHS_BYTES : LENGTHS_BYTES + packed_bytes], gap_bytes)
        positions = _decode_gaps(name, gaps, size, kept)
    return positions, form.decode(name, raw[LENGTHS_BYTES + packed_bytes :], kept)


def _encode_gaps(positions: Positions) -> bytes:
    gaps = np.diff(positions, prepend=np.int64(-1)) - 1
    escapes, rest = np.divmod(gaps, ESCAPE)
    ends = np.cumsum(escapes + 1)
    coded = np.full(int(ends[-1]) if len(ends) else 0, ESCAPE, np.uint8)
    coded[ends - 1] = rest
    return coded.tobytes()


def _decode_gaps(name: str, coded: bytes, size: int, kept: int) -> Positions:
    data = np.frombuffer(coded, np.uint8)
    ends = np.flatnonzero(data != ESCAPE)
    if len(ends) != kept or data[-1] == ESCAPE:
        raise TauMalformed(f"Tensor {name}: its gaps place {len(ends)} entries where the table says {kept}.")
    if len(data) == kept:
        positions = np.cumsum(data, dtype=np.int64)
    else:
        positions = np.cumsum(data, dtype=np.int64)[ends]
    positions += np.arange(kept, dtype=np.int64)
    if positions[-1] >= size:
        raise TauMalformed(f"Tensor {name}: its gaps lead to entry {positions[-1]} of {size}.")
    return positions


def _decompress(name: str, packed: bytes, length: int) -> bytes:
    try:
        frame = zstandard.get_frame_parameters(packed)
        if frame.content_size != length or frame.dict_id:
            raise TauMalformed(f"Tensor {name}: its positions unpack to another length than the block says.")
        # One shot into a buffer of exactly the announced length: a frame that holds more fails instead of growing.
        gaps = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise TauMalformed(f"Tensor {name}: its positions are not exactly one zstandard frame ({error}).") from error
    if len(gaps) != length:
        raise TauMalformed(f"Tensor {name}: its positions unpack to another length than the block says.")
    return gaps


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
    """One float64 scale for each kept value."""
    exponent = int.from_bytes(raw[:2], "little", signed=True)
    halves = np.frombuffer(raw, "<f2", count=_groups(kept), offset=2)
    if not -149 <= exponent <= 127:
        raise TauMalformed(f"Tensor {name}: an exponent of {exponent}.")
    if not (np.isfinite(halves).all() and (halves >= 0).all() and (halves <= 2).all() and not np.signbit(halves).any()):
        raise TauMalformed(f"Tensor {name}: a scale is not a number from 0 to 2.")
    return np.ldexp(np.repeat(halves.astype(np.float64), GROUP)[:kept], exponent)


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
    return _finite(name, units.astype(np.float64) * (scales / 127))


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
    bits = np.unpackbits(np.frombuffer(raw, np.uint8, offset=2 + 2 * _groups(kept)), bitorder="little")
    if bits[kept:].any():
        raise TauMalformed(f"Tensor {name}: sign bits behind the last value.")
    return _finite(name, np.where(bits[:kept] == 1, -scales, scales))


CODECS: dict[str, Codec] = {
    "fp16": Codec(lambda kept: 2 + 2 * kept, _encode_fp16, _decode_fp16),
    "bf16": Codec(lambda kept: 2 * kept, _encode_bf16, _decode_bf16),
    "int8": Codec(lambda kept: 2 + 2 * _groups(kept) + kept, _encode_int8, _decode_int8),
    "sign": Codec(lambda kept: 2 + 2 * _groups(kept) + (kept + 7) // 8, _encode_sign, _decode_sign),
}
"""Value codecs by the name that the header uses."""
