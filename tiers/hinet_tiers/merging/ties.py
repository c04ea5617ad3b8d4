"""TIES: trim each delta to its largest entries, elect a sign for every entry, average the values that have it."""

from __future__ import annotations

from collections.abc import Sequence

from hinet_tiers.merging import election, trim
from hinet_tiers.merging.blocks import Part
from hinet_tiers.merging.election import Parts
from hinet_tiers.merging.method import Method, Run, Setting, Step, scale
from hinet_tiers.sparsify import SparseTensor


def start(run: Run) -> Step:
    """Trim over the flat vector; then `election`."""
    found = trim.thresholds(run, run.settings["density"])

    def begin() -> Parts:
        trims = [trim.Trim(threshold) for threshold in found]

        def parts(name: str, inputs: Sequence[SparseTensor | None]) -> list[Part | None]:
            return [None if tensor is None else one.of(tensor)
                    for one, tensor in zip(trims, inputs, strict=True)]

        return parts

    return election.elect(run, begin)


METHOD = Method(
    name="ties",
    title="TIES: trim, elect the sign, merge what agrees",
    source="Yadav et al. 2023, arXiv 2306.01708",
    start=start,
    settings=(
        Setting("density", 0.2, 1e-6, 1.0, "the share of its entries that each input keeps, largest first"),
        election.mean_setting(True),
        scale(1.0),
    ),
)
