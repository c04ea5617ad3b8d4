"""What is said on a bulk connection: fixed forms, one reading, everything else refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import bulk
from hinet_protocol.errors import PackMalformed
from hinet_protocol.packs import pack_bytes_max

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "5-bulk.json").read_text())


def test_requests_and_answers_are_those_of_the_vectors() -> None:
    for one in VECTORS["requests"]:
        request = bulk.PackRequest(bytes.fromhex(one["pack"]), one["offset"])
        assert bulk.encode_request(request).hex() == one["hex"]
        assert bulk.decode_request(bytes.fromhex(one["hex"])) == request
    for one in VECTORS["answers"]:
        assert bulk.encode_answer(one["size"]).hex() == one["hex"]
        assert bulk.decode_answer(bytes.fromhex(one["hex"])) == one["size"]


def test_what_the_vectors_refuse_is_refused() -> None:
    for raw in VECTORS["refused"]["requests"]:
        with pytest.raises(PackMalformed):
            bulk.decode_request(bytes.fromhex(raw))
    for raw in VECTORS["refused"]["answers"]:
        with pytest.raises(PackMalformed):
            bulk.decode_answer(bytes.fromhex(raw))


@given(st.binary(max_size=60))
def test_any_bytes_are_one_form_or_refused_and_never_promise_more_than_a_pack(raw: bytes) -> None:
    try:
        assert bulk.encode_request(bulk.decode_request(raw)) == raw
    except PackMalformed:
        assert len(raw) != bulk.request_bytes or raw[32] >= 0x80
    try:
        size = bulk.decode_answer(raw)
    except PackMalformed:
        return
    assert bulk.encode_answer(size) == raw
    assert size is None or 0 < size <= pack_bytes_max
