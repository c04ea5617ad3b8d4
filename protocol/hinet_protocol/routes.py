"""Files of routes: where each specialist's questions lie, so that a question finds the one that knows (SPEC 7.7).

A file holds one centroid for each specialist, in the space of one embedding model that is named by its digest. Rows
know nothing of each other: whoever takes one out leaves every other row, and so every other score, as it was.
Leaves to others: embedding questions and choosing (`hinet_tiers.composing`), files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from hinet_protocol import canonical, schema
from hinet_protocol.errors import ProtocolError

MAGIC = b"HINETRTS"
VERSION = 1
LEAD_BYTES = 48
BODY_BYTES_MAX = 16 << 20
SPECIALISTS_MAX = 64
NAME_BYTES_MAX = 255
DIMENSION_MAX = 65_536
QUESTIONS_MAX = 2**31 - 1
MICRO = 1_000_000
UNIT_ERROR_MAX = 1e-3
"""How far a centroid's length may be from 1."""
EMBEDDINGS = ("base-hidden", "minilm")

Vector = npt.NDArray[np.float32]


class RoutesMalformed(ProtocolError):
    """The bytes are no file of routes of this version, or they were changed."""

    code = "E_ROUTES_MALFORMED"
    exit_code = 7


@dataclass(frozen=True)
class Route:
    """One specialist. `centroid` is float32 of length 1; a question is near from the cosine `near_micro` / 10^6 on."""

    name: str
    delta: bytes
    """32 bytes that name the task vector, or zeros where none was named."""
    questions: int
    """From how many questions the centroid was made."""
    near_micro: int
    centroid: Vector


@dataclass(frozen=True)
class Routes:
    """All specialists that can be asked. `origin` is where general questions lie: it is taken off every embedding."""

    embedding: str
    """How questions are embedded: `base-hidden` or `minilm`."""
    model: bytes
    """32 bytes that name the embedding model: the base digest, or the BLAKE3 that SPEC 7.7 gives."""
    origin: Vector
    margin_micro: int
    """A second specialist is asked as well where its cosine comes this near to the best one's."""
    routes: tuple[Route, ...]

    @property
    def dimension(self) -> int:
        """How many numbers an embedding has."""
        return len(self.origin)

    @property
    def names(self) -> tuple[str, ...]:
        """The specialists' names, in the order of their bytes."""
        return tuple(route.name for route in self.routes)

    def with_route(self, route: Route) -> Routes:
        """The same with one specialist more, or with this one in place of its namesake."""
        kept = [other for other in self.routes if other.name != route.name]
        return replace(self, routes=tuple(sorted([*kept, route], key=lambda one: one.name.encode())))

    def without(self, name: str) -> Routes:
        """The same without one specialist. Raises KeyError when it isn't there."""
        if name not in self.names:
            raise KeyError(name)
        return replace(self, routes=tuple(route for route in self.routes if route.name != name))


def encode(routes: Routes) -> bytes:
    """The file's bytes. Raises RoutesMalformed for what a reader would refuse."""
    try:
        body = canonical.encode({
            "embedding": routes.embedding, "model": routes.model, "origin": _raw(routes.origin),
            "margin_micro": routes.margin_micro,
            "routes": [[one.name, one.delta, one.questions, one.near_micro, _raw(one.centroid)]
                       for one in routes.routes],
        })  # fmt: skip
    except ProtocolError as error:
        raise RoutesMalformed(f"The routes can't be written: {error}") from error
    raw = MAGIC + struct.pack("<II", VERSION, len(body)) + blake3(body).digest() + body
    decode(raw)
    return raw


def decode(raw: bytes) -> Routes:
    """The routes of a file. Raises RoutesMalformed, whatever the bytes are."""
    if len(raw) < LEAD_BYTES or raw[:8] != MAGIC:
        raise RoutesMalformed("This is no file of routes; `hinet-node compose route build` makes one.")
    version, length = struct.unpack_from("<II", raw, 8)
    if version != VERSION:
        raise RoutesMalformed(f"The file of routes has format {version}; this version reads {VERSION}.")
    if not 1 <= length <= BODY_BYTES_MAX or len(raw) != LEAD_BYTES + length:
        raise RoutesMalformed("The file of routes is cut short, or something follows it.")
    body = raw[LEAD_BYTES:]
    if blake3(body).digest() != raw[16:LEAD_BYTES]:
        raise RoutesMalformed("The file of routes was damaged: it does not match its own digest.")
    try:
        found = schema.fields(canonical.decode(body, BODY_BYTES_MAX), _FIELDS, "routes")
    except RoutesMalformed:
        raise
    except ProtocolError as error:
        raise RoutesMalformed(f"This is no file of routes that this version can read: {error}") from error
    if len(canonical.encode(_plain(found))) != len(body):
        raise RoutesMalformed("The file of routes holds more than this version can read.")
    return _checked(found)


def _checked(found: dict[str, Any]) -> Routes:
    origin = _vector(found["origin"], "origin")
    rows = []
    for name, delta, questions, near, centroid in found["routes"]:
        values = _vector(centroid, name)
        if len(values) != len(origin):
            raise RoutesMalformed(f"The centroid of {name} has {len(values)} numbers, the origin {len(origin)}.")
        norm = float(np.sqrt(np.einsum("i,i->", values, values, dtype=np.float64)))
        if abs(norm - 1.0) > UNIT_ERROR_MAX:
            raise RoutesMalformed(f"The centroid of {name} has the length {norm:.4g}, and must have 1.")
        rows.append(Route(name, delta, questions, near, values))
    names = [row.name.encode() for row in rows]
    if names != sorted(set(names)):
        raise RoutesMalformed("The specialists of the file are not in order, or one is there twice.")
    return Routes(found["embedding"], found["model"], origin, found["margin_micro"], tuple(rows))


def _vector(raw: bytes, what: str) -> Vector:
    if len(raw) % 4:
        raise RoutesMalformed(f"The numbers of {what} are cut short.")
    values = np.frombuffer(raw, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise RoutesMalformed(f"A number of {what} is not finite.")
    return values


def _raw(values: Vector) -> bytes:
    return np.ascontiguousarray(values, "<f4").tobytes()


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "routes": [list(row) for row in found["routes"]]}


_FLOATS = schema.binary(4, 4 * DIMENSION_MAX)
_FIELDS: dict[str, schema.Check] = {
    "embedding": schema.one_of(*EMBEDDINGS), "model": schema.bytes32, "origin": _FLOATS,
    "margin_micro": schema.integer(0, 2 * MICRO),
    "routes": schema.list_of(
        schema.row(schema.text(NAME_BYTES_MAX, 1), schema.bytes32, schema.integer(1, QUESTIONS_MAX),
                   schema.integer(-MICRO, MICRO), _FLOATS), SPECIALISTS_MAX),
}  # fmt: skip
