"""Files of routes: read back whole, refused when changed, and one row less is the same file otherwise."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hinet_protocol import canonical
from hinet_protocol.routes import LEAD_BYTES, MAGIC, SPECIALISTS_MAX, Route, Routes, RoutesMalformed, decode, encode

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "7-routes.json").read_text())


def route(name: str, values: Any, near: int = 250_000) -> Route:
    return Route(name, blake3(name.encode()).digest(), 12, near, np.array(values, np.float32))


ROUTES = Routes("minilm", b"\x33" * 32, np.array([0.5, -0.25, 0.125], np.float32), 50_000,
                (route("gardening", [0.6, 0.8, 0.0]), route("ships", [0.0, 0.0, -1.0], -1000)))  # fmt: skip


def body(**changes: Any) -> dict[str, Any]:
    found = canonical.decode(encode(ROUTES)[LEAD_BYTES:], 1 << 20)
    assert isinstance(found, dict)
    return {**found, **changes}


def wrapped(value: Any) -> bytes:
    raw = canonical.encode(value)
    return MAGIC + struct.pack("<II", 1, len(raw)) + blake3(raw).digest() + raw


def same(left: Routes, right: Routes) -> bool:
    return encode(left) == encode(right)


def test_routes_come_back_with_the_same_bits() -> None:
    back = decode(encode(ROUTES))
    assert back.names == ("gardening", "ships")
    assert back.origin.tobytes() == ROUTES.origin.tobytes()
    assert back.routes[1].near_micro == -1000
    assert same(back, ROUTES)


def test_the_vectors_are_read_and_written_to_the_same_bytes() -> None:
    for vector in VECTORS["read"]:
        raw = bytes.fromhex(vector["file"])
        found = decode(raw)
        assert encode(found) == raw
        assert [one.name for one in found.routes] == vector["names"]
        assert [one.near_micro for one in found.routes] == vector["near_micro"]
        assert [[float(value) for value in one.centroid] for one in found.routes] == vector["centroids"]
        assert [float(value) for value in found.origin] == vector["origin"]
        for asked in vector["scores"]:
            seen = np.array(asked["embedding"], np.float64) - found.origin
            seen /= np.sqrt(seen @ seen)
            assert [float(np.dot(one.centroid.astype(np.float64), seen)) for one in found.routes] == pytest.approx(
                asked["cosines"], abs=1e-12)


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["why"])
def test_the_refused_vectors_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(RoutesMalformed):
        decode(bytes.fromhex(vector["file"]))


@given(st.integers(0, 100_000), st.integers(1, 255))
def test_any_changed_byte_is_refused(place: int, change: int) -> None:
    raw = bytearray(encode(ROUTES))
    raw[place % len(raw)] ^= change
    with pytest.raises(RoutesMalformed):
        decode(bytes(raw))


@given(st.binary(max_size=120))
def test_any_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(RoutesMalformed):
        decode(raw)
    with pytest.raises(RoutesMalformed):
        decode(MAGIC + struct.pack("<II", 1, len(raw)) + blake3(raw).digest() + raw)


@pytest.mark.parametrize(("changes", "why"), [
    ({"routes": [["b", bytes(32), 1, 0, np.array([1, 0, 0], "<f4").tobytes()],
                 ["a", bytes(32), 1, 0, np.array([1, 0, 0], "<f4").tobytes()]]}, "in order"),
    ({"routes": [["a", bytes(32), 1, 0, np.array([1, 0], "<f4").tobytes()]]}, "2 numbers"),
    ({"routes": [["a", bytes(32), 1, 0, np.array([2, 0, 0], "<f4").tobytes()]]}, "length 2"),
    ({"routes": [["a", bytes(32), 1, 0, np.array([1, np.nan, 0], "<f4").tobytes()]]}, "not finite"),
    ({"routes": [["a", bytes(32), 0, 0, np.array([1, 0, 0], "<f4").tobytes()]]}, "integer from 1"),
    ({"origin": b"\0" * 7}, "cut short"),
    ({"margin_micro": 2_000_001}, "integer from 0"),
    ({"embedding": "another"}, "one of"),
    ({"x-more": 1}, "more than this version"),
])
def test_a_file_that_breaks_a_rule_is_refused_by_name(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(RoutesMalformed, match=why):
        decode(wrapped(body(**changes)))


def test_what_a_reader_would_refuse_is_not_written() -> None:
    with pytest.raises(RoutesMalformed, match="not finite"):
        encode(replace(ROUTES, origin=np.array([np.inf, 0, 0], np.float32)))
    many = replace(ROUTES, routes=tuple(route(f"{number:03}", [1, 0, 0]) for number in range(SPECIALISTS_MAX + 1)))
    with pytest.raises(RoutesMalformed):
        encode(many)


def test_a_row_taken_out_and_put_back_gives_the_same_file_and_leaves_the_others_as_they_were() -> None:
    without = ROUTES.without("gardening")
    assert without.names == ("ships",)
    assert without.routes[0] == ROUTES.routes[1]
    assert same(without.with_route(ROUTES.routes[0]), ROUTES)
    with pytest.raises(KeyError):
        without.without("gardening")
