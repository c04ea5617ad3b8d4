"""What two siblings say on a bulk connection: which pack from where, and how large it is. Pure. SPEC.md, 5.12.

One end asks, the other answers in the same order; both forms have a fixed size, so nothing is allocated on a stranger's
word. Leaves the connection to the node's Network port and what to ask for to `reconcile`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hinet_protocol.errors import PackMalformed
from hinet_protocol.packs import pack_bytes_max

_REQUEST = struct.Struct(">32sQ")
_ANSWER = struct.Struct(">BQ")
request_bytes = _REQUEST.size
answer_bytes = _ANSWER.size
HERE, NOT_HERE = 0, 1
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PackRequest:
    """Give me this pack, from this byte on to its end."""

    pack: bytes
    offset: int


def encode_request(request: PackRequest) -> bytes:
    """The bytes of a request."""
    return _REQUEST.pack(request.pack, request.offset)


def decode_request(raw: bytes) -> PackRequest:
    """The request in `request_bytes` bytes. Raises PackMalformed."""
    if len(raw) != request_bytes:
        raise PackMalformed(f"A request for a pack has {request_bytes} bytes, this one {len(raw)}.")
    pack, offset = _REQUEST.unpack(raw)
    if offset > _OFFSET_MAX:
        raise PackMalformed("A request for a pack begins beyond any file.")
    return PackRequest(pack, offset)


def encode_answer(size_bytes: int | None) -> bytes:
    """The head of an answer: the pack's whole size, or None for a pack that is not here."""
    return _ANSWER.pack(NOT_HERE, 0) if size_bytes is None else _ANSWER.pack(HERE, size_bytes)


def decode_answer(raw: bytes) -> int | None:
    """The pack's whole size; None when it is not there. Raises PackMalformed for anything else."""
    if len(raw) != answer_bytes:
        raise PackMalformed(f"The head of an answer has {answer_bytes} bytes, this one {len(raw)}.")
    status, size = _ANSWER.unpack(raw)
    if status == NOT_HERE and size == 0:
        return None
    if status != HERE or not 0 < size <= pack_bytes_max:
        raise PackMalformed("The answer to a request for a pack has another form.")
    return int(size)
