"""Routing without training: a question goes to the specialist whose own questions it resembles, or to the base.

A specialist's centroid is the mean direction of its questions' embeddings, seen from where general questions lie. Each
score is computed from one row of the file alone, in a fixed order of additions, so that taking a specialist out changes
no other score by a bit. The smallest set that suffices is asked: one specialist, two where they are within the margin,
none where no one is near. Formats are `hinet_protocol.routes`; embeddings are `embedding`. SPEC section 7.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hinet_protocol.routes import MICRO, SPECIALISTS_MAX, Route, Routes
from hinet_tiers.composing.embedding import Embedder
from hinet_tiers.errors import ComposeRefused, RoutesRefused

Vectors = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

MARGIN = 0.05
"""Cosine; a second specialist within it is asked as well."""
OWN_QUANTILE, GENERAL_QUANTILE = 0.05, 0.95
"""A question is near from half-way between what nearly all own questions reach and nearly no general one does."""
ASKED_MAX = 2
GENERAL_EVERY = 7
"""Every seventh of the shipped general questions tells where such questions lie: about 125 of many kinds."""
NO_DELTA = bytes(32)


@dataclass(frozen=True)
class Asked:
    """Whom a question goes to: `names`, best first (empty: the base), every score (cosine), and why."""

    names: tuple[str, ...]
    scores: Mapping[str, float]
    reason: str


def build(
    questions: Mapping[str, Sequence[str]],
    embedder: Embedder,
    *,
    deltas: Mapping[str, bytes] | None = None,
    general: Sequence[str] | None = None,
    margin: float = MARGIN,
) -> Routes:
    """Routes from each specialist's questions. `general` are questions that the base answers (default: shipped ones).

    Raises ComposeRefused when a specialist has no questions or there are too many specialists.
    """
    if not questions:
        raise ComposeRefused("Routes need at least one specialist with questions.")
    if len(questions) > SPECIALISTS_MAX:
        raise ComposeRefused(f"{len(questions)} specialists; a file of routes takes {SPECIALISTS_MAX}.")
    outside = embedder.embed(_general(general))
    origin = outside.astype(np.float64).mean(0).astype(np.float32)
    made = Routes(embedder.kind, embedder.digest, origin, round(margin * MICRO), ())
    for name in sorted(questions, key=str.encode):
        made = _with(made, name, questions[name], embedder, outside, (deltas or {}).get(name, NO_DELTA))
    return made


def add(
    routes: Routes,
    name: str,
    questions: Sequence[str],
    embedder: Embedder,
    *,
    delta: bytes = NO_DELTA,
    general: Sequence[str] | None = None,
) -> Routes:
    """One specialist more, or anew; the others stay as they are. Raises RoutesRefused for another embedding model."""
    check_embedder(routes, embedder)
    if name not in routes.names and len(routes.routes) >= SPECIALISTS_MAX:
        raise ComposeRefused(f"A file of routes takes {SPECIALISTS_MAX} specialists, and so many are in it.")
    return _with(routes, name, questions, embedder, embedder.embed(_general(general)), delta)


def check_embedder(routes: Routes, embedder: Embedder) -> None:
    """Refuse an embedding model that the routes were not made with. Raises RoutesRefused."""
    if (routes.embedding, routes.model) != (embedder.kind, embedder.digest):
        raise RoutesRefused(
            f"The routes were made with the embedding {routes.embedding} {routes.model.hex()[:12]}, and this one is "
            f"{embedder.kind} {embedder.digest.hex()[:12]}: use that one, or build the routes anew."
        )


def ask(routes: Routes, question: str, embedder: Embedder) -> Asked:
    """Whom a question goes to. Raises RoutesRefused for another embedding model."""
    check_embedder(routes, embedder)
    return choose(routes, scores(routes, embedder.embed([question])[0]))


def scores(routes: Routes, embedding: Vectors) -> dict[str, float]:
    """The cosine of an embedded question with each centroid, each from its own row alone."""
    seen = _directions(embedding[None], routes.origin)[0]
    return {route.name: float(np.einsum("i,i->", seen, route.centroid.astype(np.float64))) for route in routes.routes}


def choose(routes: Routes, scored: Mapping[str, float]) -> Asked:
    """The smallest set that suffices, by the scores alone. Ties go to the name that comes first."""
    near = {route.name: route.near_micro / MICRO for route in routes.routes}
    ranked = sorted(scored, key=lambda name: (-scored[name], name.encode()))
    reached = [name for name in ranked if scored[name] >= near[name]]
    if not reached:
        told = f"nearest is {ranked[0]} with {scored[ranked[0]]:.3f}, below its {near[ranked[0]]:.3f}" if ranked else (
            "there are no specialists"
        )
        return Asked((), dict(scored), f"The base answers: {told}.")
    best, margin = reached[0], routes.margin_micro / MICRO
    chosen = tuple(name for name in reached[:ASKED_MAX] if scored[best] - scored[name] <= margin)
    if len(chosen) == 1:
        return Asked(chosen, dict(scored), f"{best} is nearest with {scored[best]:.3f}.")
    gap = scored[best] - scored[chosen[1]]
    return Asked(chosen, dict(scored), f"{best} and {chosen[1]} are {gap:.3f} apart, within the margin {margin:.3f}.")


def _with(
    routes: Routes, name: str, questions: Sequence[str], embedder: Embedder, outside: Vectors, delta: bytes
) -> Routes:
    texts = list(dict.fromkeys(questions))
    if not texts:
        raise ComposeRefused(f"{name} has no questions, so nothing says what it knows: add --probes {name}=FILE.")
    seen = _directions(embedder.embed(texts), routes.origin)
    total = seen.sum(0)
    centroid = _unit(total, name)
    # Without the question itself: a centroid of few questions lies near each of them because they are in it.
    own = [float(np.einsum("i,i->", one, _unit(total - one, name) if len(texts) > 1 else centroid)) for one in seen]
    general = [float(np.einsum("i,i->", one, centroid)) for one in _directions(outside, routes.origin)]
    near = (np.quantile(own, OWN_QUANTILE) + np.quantile(general, GENERAL_QUANTILE)) / 2
    micro = int(np.clip(round(float(near) * MICRO), -MICRO, MICRO))
    return routes.with_route(Route(name, delta, len(texts), micro, centroid.astype(np.float32)))


def _directions(embeddings: Vectors, origin: Vectors) -> Doubles:
    """Unit vectors from the origin to each embedding; an embedding at the origin itself stays zero."""
    moved = embeddings.astype(np.float64) - origin.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", moved, moved))
    unit: Doubles = moved / np.where(lengths > 0, lengths, 1.0)[:, None]
    return unit


def _unit(vector: Doubles, name: str) -> Doubles:
    length = float(np.sqrt(np.einsum("i,i->", vector, vector)))
    if not length > 0:
        raise ComposeRefused(f"The questions of {name} point nowhere in common; give it more of them.")
    found: Doubles = vector / length
    return found


def _general(given: Sequence[str] | None) -> list[str]:
    from hinet_tiers.data import replay

    return list(given) if given is not None else replay.prompts()[::GENERAL_EVERY]
