"""DELLA: drop entries at random, large ones more rarely than small ones of their row, and elect signs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet_tiers.errors import MergeSetting
from hinet_tiers.merging import blocks, draws, election, ranks
from hinet_tiers.merging.blocks import Doubles, Part, Positions
from hinet_tiers.merging.draws import Draws
from hinet_tiers.merging.election import Parts
from hinet_tiers.merging.method import Method, Run, Setting, Step, scale
from hinet_tiers.sparsify import SparseTensor


def kept(tensor: SparseTensor, stream: Draws, length: int, density: float, half: float) -> Part:
    """What stays of a tensor, each entry divided by its own chance: density - half for the smallest of a row (ranked
    among all its entries, zeros too) up to density + half for the largest."""

    def part(first: int, end: int) -> tuple[Positions, Doubles]:
        at, values = blocks.part(tensor, first, end)
        chance = np.full(len(values), density)
        if length > 1:
            chance += half - 2 * half * (ranks.from_top(at, values, length) - 1) / (length - 1)
        stays = stream.take(len(values)) < np.rint(chance * draws.RANGE)
        return at[stays], values[stays] / chance[stays]

    return part


def start(run: Run) -> Step:
    """Refuses a window that would make a chance 0 or less, or more than 1. Then `election`."""
    density, half = run.settings["density"], run.settings["window"] / 2
    if density - half <= 0 or density + half > 1:
        raise MergeSetting(
            f"della: with density {density:g} and window {2 * half:g} the chances run from {density - half:g} to "
            f"{density + half:g}, and must lie above 0 and not above 1: choose a smaller window."
        )

    def begin() -> Parts:
        def parts(name: str, inputs: Sequence[SparseTensor | None]) -> list[Part | None]:
            length = ranks.row_length(run.shapes[name])
            return [None if tensor is None else kept(tensor, stream, length, density, half)
                    for tensor, stream in zip(inputs, draws.streams(run, name), strict=True)]

        return parts

    return election.elect(run, begin, lambda shape: ranks.row_block(ranks.row_length(shape)))


METHOD = Method(
    name="della",
    title="DELLA: drop by magnitude, rescale, elect the sign",
    source="Deep et al. 2024, arXiv 2406.11617",
    start=start,
    settings=(
        Setting("density", 0.7, 1e-6, 1.0, "1 - p: the mean chance that an entry stays"),
        Setting("window", 0.14, 0.0, 1.0, "how far the chances of a row's smallest and largest entry lie apart"),
        election.mean_setting(False),
        scale(1.1),
    ),
)
