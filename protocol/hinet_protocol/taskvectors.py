"""`.tau` files: sparse task vectors (SPEC section 7.2).

A file is a fixed lead-in (magic, version, header length, signer, signature), a canonical header, and one block for each
tensor. The header names the base, lists the tensors with each block's place and digest, and is what the signature
covers, so a block can be read and checked alone, in any order. Encoding and decoding hold one tensor at a time.
Decoding checks every count, length, index and scale before it allocates by it, and refuses what is not well formed.

Leaves to others: the choice of entries (`hinet_tiers.sparsify`), files and keys. Numbers are numpy arrays.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from hinet_protocol import canonical, identity
from hinet_protocol.errors import EncodingError, LimitError, ProtocolError, SignatureInvalid
from hinet_protocol.tau_blocks import CODECS, VALUES_MAX, decode_block, encode_block
from hinet_protocol.tau_errors import TauDamaged, TauError, TauMalformed, TauRefused, TauUnsigned

__all__ = [
    "CODECS", "SIGNING_DOMAIN", "TauDamaged", "TauError", "TauHeader", "TauMalformed", "TauRefused", "TauTensor",
    "TauUnsigned", "TauWriter", "check_signature", "read_header", "read_tensor", "signing_message", "with_signature",
]  # fmt: skip

MAGIC = b"HINETTAU"
VERSION = 1
LEAD_BYTES = 112
SIGNER_AT = 16
"""Where the signer's public key (32 bytes) and the signature (64 bytes) stand; zeros while unsigned."""
HEADER_BYTES_MAX = 16 << 20
TENSORS_MAX = 65_536
NAME_BYTES_MAX = 512
DIMENSIONS_MAX = 8
PASSPORT_BYTES_MAX = 65_536
SIGNING_DOMAIN = b"tau"
"""The domain that a device key signs `signing_message` under."""
SELECTIONS = ("chunk", "threshold", "all", "given")
HEADER_KEYS = {"base", "displacement_nano", "format", "passport", "selection", "tensors"}
FORMAT = "hinet.tau/1"

Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TauTensor:
    """One tensor of a task vector. `offset` counts from the end of the header; `digest` is the block's BLAKE3."""

    name: str
    shape: tuple[int, ...]
    kept: int
    codec: str
    offset: int
    length: int
    digest: bytes

    @property
    def size(self) -> int:
        """How many entries the dense tensor has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TauHeader:
    """What a file says of itself. `blocks_at` is the byte at which the blocks begin, `raw` the header's own bytes."""

    base: bytes
    tensors: tuple[TauTensor, ...]
    selection: Mapping[str, Any]
    displacement: float
    passport: Mapping[str, Any]
    raw: bytes
    signer: bytes | None
    signature: bytes | None

    @property
    def blocks_at(self) -> int:
        """Where the first block starts."""
        return LEAD_BYTES + len(self.raw)

    @property
    def kept(self) -> int:
        """Entries kept over all tensors."""
        return sum(tensor.kept for tensor in self.tensors)

    @property
    def density(self) -> float:
        """Kept entries as a share of the listed tensors' entries."""
        return self.kept / max(1, sum(tensor.size for tensor in self.tensors))

    def tensor(self, name: str) -> TauTensor:
        """The row of one tensor. Raises KeyError."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)


class TauWriter:
    """Collects tensors in name order, spooling their blocks to `spool`, and then writes the whole file.

    `base` is the base digest (32 bytes). `selection` says how entries were chosen (`kind` is one of SELECTIONS, further
    integer fields are free). `passport` is any canonical map of at most 64 KiB.
    """

    def __init__(
        self, spool: BinaryIO, base: bytes, selection: Mapping[str, Any], passport: Mapping[str, Any] | None = None
    ) -> None:
        self._spool, self._base = spool, base
        self._selection, self._passport = dict(selection), dict(passport or {})
        self._rows: list[TauTensor] = []
        self._length = 0
        self._square = 0.0

    def add(self, name: str, shape: Sequence[int], positions: Positions, values: Values, codec: str = "fp16") -> Values:
        """Encode one tensor. `positions` (int64, ascending) index the row-major flattened tensor; `values` are float32.

        Returns the values as a reader will decode them. Raises TauRefused for names out of order, entries out of range
        or values that are not finite.
        """
        if self._rows and name.encode() <= self._rows[-1].name.encode():
            raise TauRefused(f"Tensor {name} comes after {self._rows[-1].name}; a .tau lists tensors in name order.")
        size = math.prod(shape)
        raw = encode_block(name, positions, values, size, codec)
        digest = blake3(raw).digest()
        row = TauTensor(name, tuple(int(n) for n in shape), len(values), codec, self._length, len(raw), digest)
        _check_row(row, self._length)
        decoded = decode_block(name, raw, size, len(values), codec)[1]
        self._square += float(np.dot(decoded.astype(np.float64), decoded.astype(np.float64)))
        self._spool.write(raw)
        self._rows.append(row)
        self._length += len(raw)
        return decoded

    def finish(self, out: BinaryIO) -> TauHeader:
        """Write lead-in, header and the spooled blocks to `out` (unsigned). Returns the header."""
        header = {
            "format": FORMAT, "base": self._base, "selection": self._selection, "passport": self._passport,
            "displacement_nano": round(math.sqrt(self._square) * 1e9),
            "tensors": [
                [row.name, list(row.shape), row.kept, row.codec, row.offset, row.length, row.digest]
                for row in self._rows
            ],
        }  # fmt: skip
        raw = canonical.encode(header)
        parsed = _parse(raw, None, None)
        out.write(_lead(len(raw), b"", b"") + raw)
        self._spool.seek(0)
        shutil.copyfileobj(self._spool, out, 1 << 20)
        return parsed


def read_header(file: BinaryIO, file_bytes: int) -> TauHeader:
    """The header of a file of `file_bytes` bytes, read from its start. The signature isn't judged (`check_signature`).

    Raises TauMalformed, naming what is wrong; nothing larger than the header is allocated.
    """
    lead = file.read(LEAD_BYTES)
    if len(lead) < LEAD_BYTES or not lead.startswith(MAGIC):
        raise TauMalformed("This is no .tau file: it does not begin with HINETTAU and a whole lead-in.")
    version, length = int.from_bytes(lead[8:12], "little"), int.from_bytes(lead[12:16], "little")
    if version != VERSION:
        raise TauMalformed(f"This .tau is of format {version}; this program reads format {VERSION}: upgrade it.")
    if not 1 <= length <= HEADER_BYTES_MAX or length > file_bytes - LEAD_BYTES:
        raise TauMalformed(f"The .tau claims a header of {length} bytes in a file of {file_bytes}.")
    raw = file.read(length)
    if len(raw) != length:
        raise TauMalformed("The .tau ends inside its header.")
    signer, signature = lead[SIGNER_AT : SIGNER_AT + 32], lead[SIGNER_AT + 32 : LEAD_BYTES]
    signed = any(signer) or any(signature)
    header = _parse(raw, signer if signed else None, signature if signed else None)
    end = header.blocks_at + sum(tensor.length for tensor in header.tensors)
    if end != file_bytes:
        raise TauMalformed(f"The .tau has {file_bytes} bytes where its table needs {end}: cut short or added to.")
    return header


def read_tensor(file: BinaryIO, header: TauHeader, name: str) -> tuple[Positions, Values]:
    """One tensor's positions (int64, ascending) and values (float32), checked against its digest.

    Raises TauDamaged when the block is not the one that the header names, TauMalformed when it is not well formed.
    """
    row = header.tensor(name)
    file.seek(header.blocks_at + row.offset)
    raw = file.read(row.length)
    if blake3(raw).digest() != row.digest:
        raise TauDamaged(f"Tensor {name} of the .tau is damaged: its bytes do not match the digest in the header.")
    return decode_block(name, raw, row.size, row.kept, row.codec)


def signing_message(header: TauHeader) -> bytes:
    """What a device key signs under SIGNING_DOMAIN: the digest of the header, which holds every block's digest."""
    return blake3(header.raw).digest()


def with_signature(header: TauHeader, signer: bytes, signature: bytes) -> bytes:
    """The new lead-in (112 bytes) to write over a file's start once its header has been signed.

    Raises TauUnsigned when the signature is not the signer's.
    """
    lead = _lead(len(header.raw), signer, signature)
    check_signature(_parse(header.raw, signer, signature))
    return lead


def check_signature(header: TauHeader) -> bytes:
    """The signer's Ed25519 public key. Raises TauUnsigned when there is no signature or it does not match."""
    if header.signer is None or header.signature is None:
        raise TauUnsigned("The .tau is not signed by a device.")
    try:
        identity.verify(header.signer, SIGNING_DOMAIN, signing_message(header), header.signature)
    except SignatureInvalid as error:
        raise TauUnsigned("The .tau's signature does not match its header: it was changed after signing.") from error
    return header.signer


def _lead(header_bytes: int, signer: bytes, signature: bytes) -> bytes:
    if header_bytes > HEADER_BYTES_MAX:
        raise TauRefused(f"A .tau header of {header_bytes} bytes; at most {HEADER_BYTES_MAX} are allowed.")
    fixed = MAGIC + VERSION.to_bytes(4, "little") + header_bytes.to_bytes(4, "little")
    return fixed + signer.ljust(32, b"\0") + signature.ljust(64, b"\0")


def _parse(raw: bytes, signer: bytes | None, signature: bytes | None) -> TauHeader:
    try:
        value = canonical.decode(raw, HEADER_BYTES_MAX)
    except ProtocolError as error:
        raise TauMalformed(f"The .tau's header is not canonical: {error}") from error
    if not isinstance(value, dict) or set(value) != HEADER_KEYS or value["format"] != FORMAT:
        raise TauMalformed("The .tau's header does not hold exactly the fields of this format.")
    base, displacement = value["base"], value["displacement_nano"]
    if not isinstance(base, bytes) or len(base) != 32:
        raise TauMalformed("The .tau's base digest is not 32 bytes.")
    if type(displacement) is not int or not 0 <= displacement < 1 << 63:
        raise TauMalformed("The .tau's displacement is out of range.")
    selection, passport = value["selection"], value["passport"]
    if not isinstance(selection, dict) or selection.get("kind") not in SELECTIONS:
        raise TauMalformed("The .tau's selection is of no known kind.")
    if not isinstance(passport, dict) or _passport_bytes(passport) > PASSPORT_BYTES_MAX:
        raise TauMalformed("The .tau's passport is no map or too long.")
    tensors = _table(value["tensors"])
    return TauHeader(base, tensors, selection, displacement / 1e9, passport, raw, signer, signature)


def _passport_bytes(passport: dict[str, Any]) -> int:
    try:
        return len(canonical.encode(passport))
    except (EncodingError, LimitError):  # pragma: no cover - a decoded map always encodes
        return PASSPORT_BYTES_MAX + 1


def _table(rows: Any) -> tuple[TauTensor, ...]:
    if not isinstance(rows, list) or len(rows) > TENSORS_MAX:
        raise TauMalformed("The .tau's tensor table is not a list of allowed length.")
    tensors: list[TauTensor] = []
    offset, last = 0, b""
    for row in rows:
        if not isinstance(row, list) or len(row) != 7 or not isinstance(row[0], str) or not isinstance(row[1], list):
            raise TauMalformed("A row of the .tau's tensor table is not well formed.")
        tensor = TauTensor(row[0], tuple(row[1]), row[2], row[3], row[4], row[5], row[6])
        _check_row(tensor, offset)
        if tensor.name.encode() <= last:
            raise TauMalformed(f"Tensor {tensor.name} is listed twice or out of order.")
        last = tensor.name.encode()
        offset += tensor.length
        tensors.append(tensor)
    return tuple(tensors)


def _check_row(row: TauTensor, offset: int) -> None:
    if not 1 <= len(row.name.encode()) <= NAME_BYTES_MAX:
        raise TauMalformed("A tensor name of the .tau is empty or too long.")
    if not 1 <= len(row.shape) <= DIMENSIONS_MAX or not all(type(n) is int and 1 <= n < 1 << 40 for n in row.shape):
        raise TauMalformed(f"Tensor {row.name} has the impossible shape {list(row.shape)}.")
    if row.size > VALUES_MAX:
        raise TauMalformed(f"Tensor {row.name} would have {row.size} entries; at most {VALUES_MAX} are allowed.")
    if type(row.kept) is not int or not 0 <= row.kept <= row.size:
        raise TauMalformed(f"Tensor {row.name} keeps {row.kept} of {row.size} entries.")
    if not isinstance(row.codec, str) or row.codec not in CODECS:
        raise TauMalformed(f"Tensor {row.name} has the unknown codec {row.codec!r}.")
    if type(row.length) is not int or type(row.offset) is not int or row.offset != offset or row.length < 0:
        raise TauMalformed(f"Tensor {row.name}'s block does not follow the one before it.")
    if row.length > CODECS[row.codec].block_bytes_max(row.size, row.kept):
        raise TauMalformed(f"Tensor {row.name}'s block of {row.length} bytes is longer than its entries can need.")
    if not isinstance(row.digest, bytes) or len(row.digest) != 32:
        raise TauMalformed(f"Tensor {row.name}'s digest is not 32 bytes.")
