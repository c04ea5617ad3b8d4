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


def chances(length: int, density: float, half: float) -> Doubles:
    """The chance that an entry stays, by its rank from the top (index 1 for the largest of a row, `length` for the
    smallest): density + half down to density - half, in even steps."""
    steps = np.arange(-1, length) / max(1, length - 1)
    return density + (half - 2 * half * steps if length > 1 else 0 * steps)


def kept(tensor: SparseTensor, stream: Draws, length: int, chance: Doubles) -> Part:
    """What stays of a tensor, each entry divided by its own chance. An entry's rank is among all entries of its row,
    zeros too; the stream's numbers go to the entries of a row from the smallest up."""
    slices = blocks.Slices(tensor, ranks.row_block(length))
    limits = np.rint(chance * draws.RANGE)

    def part(first: int, end: int) -> tuple[Positions, Doubles]:
        at, values = slices.part(first, end)
        ranked = ranks.Ranked(at, values, length, end - first)
        stays = np.flatnonzero(stream.take(len(values)) < limits[ranked.from_top])
        index = ranked.index(stays)
        return at[index], values[index] / chance[ranked.from_top[stays]]

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
            chance = chances(length, density, half)
            return [None if tensor is None else kept(tensor, stream, length, chance)
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
