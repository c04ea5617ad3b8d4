"""The digest that names a base model (SPEC section 7.1).

A base is its tensors and nothing else: the digest covers every tensor's name, shape, dtype and little-endian bytes, and
is the same however the tensors are spread over files and in whatever order they are read. It has two levels, so that a
large model is digested as its tensors stream by and two bases that differ can be compared tensor by tensor.

This module sees bytes only. Widening to float32 and reading files is `hinet_tiers`' work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blake3 import blake3

DIGEST_BYTES = 32
FLOAT32 = "F32"
"""The one dtype of a base's canonical form."""

TENSORS_MAX = 1 << 20
NAME_BYTES_MAX = 512
DIMENSIONS_MAX = 8
DIMENSION_MAX = 1 << 40

TENSOR_CONTEXT = "hinet 2026 base tensor v1"
BASE_CONTEXT = "hinet 2026 base v1"


@dataclass(frozen=True)
class TensorDigest:
    """One tensor of a base: what it is called, how it is shaped, and the digest of its bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    digest: bytes


def tensor_bytes(shape: Iterable[int]) -> int:
    """The length in bytes of a float32 tensor of this shape."""
    count = 1
    for dimension in shape:
        count *= dimension
    return 4 * count


def digest_tensor(
    name: str, shape: tuple[int, ...], chunks: Iterable[bytes | memoryview], dtype: str = FLOAT32
) -> TensorDigest:
    """Digest one tensor from its bytes (row-major, little-endian), given in pieces of any size.

    Raises ValueError when the name or shape is out of bounds, or when the pieces do not add up to the shape's length.
    """
    _check(name, shape, dtype)
    hasher = blake3(derive_key_context=TENSOR_CONTEXT)
    length = 0
    for chunk in chunks:
        length += len(chunk)
        hasher.update(chunk)
    if length != tensor_bytes(shape):
        raise ValueError(f"tensor {name}: {length} bytes where its shape {list(shape)} needs {tensor_bytes(shape)}")
    return TensorDigest(name, shape, dtype, hasher.digest(length=DIGEST_BYTES))


def digest_base(tensors: Iterable[TensorDigest]) -> bytes:
    """The digest of a base (32 bytes) from its tensors' digests, given in any order.

    Raises ValueError for no tensors, two of one name, or anything out of bounds.
    """
    by_name: dict[bytes, TensorDigest] = {}
    for tensor in tensors:
        _check(tensor.name, tensor.shape, tensor.dtype)
        if len(tensor.digest) != DIGEST_BYTES:
            raise ValueError(f"tensor {tensor.name}: a digest of {len(tensor.digest)} bytes")
        key = tensor.name.encode()
        if key in by_name:
            raise ValueError(f"two tensors are called {tensor.name}")
        by_name[key] = tensor
    if not 1 <= len(by_name) <= TENSORS_MAX:
        raise ValueError(f"a base of {len(by_name)} tensors")
    hasher = blake3(derive_key_context=BASE_CONTEXT)
    hasher.update(len(by_name).to_bytes(8, "little"))
    for key in sorted(by_name):
        hasher.update(_preamble(by_name[key]))
        hasher.update(by_name[key].digest)
    return hasher.digest(length=DIGEST_BYTES)


def differing(ours: Mapping[str, TensorDigest], theirs: Mapping[str, TensorDigest]) -> list[str]:
    """The names, sorted, of tensors that are missing on one side or differ between two bases."""
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def _preamble(tensor: TensorDigest) -> bytes:
    name, dtype = tensor.name.encode(), tensor.dtype.encode()
    parts = [len(name).to_bytes(4, "little"), name, len(dtype).to_bytes(4, "little"), dtype]
    parts.append(len(tensor.shape).to_bytes(4, "little"))
    parts += [dimension.to_bytes(8, "little") for dimension in tensor.shape]
    return b"".join(parts)


def _check(name: str, shape: tuple[int, ...], dtype: str) -> None:
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise ValueError(f"a tensor name of {len(name.encode())} bytes")
    if dtype != FLOAT32:
        raise ValueError(f"tensor {name}: dtype {dtype} where a base's canonical form is {FLOAT32}")
    if len(shape) > DIMENSIONS_MAX or not all(1 <= dimension <= DIMENSION_MAX for dimension in shape):
        raise ValueError(f"tensor {name}: shape {list(shape)} is out of bounds")
