"""DARE-TIES: drop entries at random and rescale, then elect signs and merge as TIES does, without its trimming."""

from __future__ import annotations

from functools import partial

from hinet_tiers.merging import dare, election
from hinet_tiers.merging.method import Method, Run, Step, scale


def start(run: Run) -> Step:
    """DARE's drop in the place of TIES' trim; then `election`."""
    return election.elect(run, lambda: partial(dare.parts, run))


METHOD = Method(
    name="dare-ties",
    title="DARE-TIES: drop at random, rescale, elect the sign",
    source="Yu et al. 2024, arXiv 2311.03099, with the election of Yadav et al. 2023, arXiv 2306.01708",
    start=start,
    settings=(dare.DENSITY, election.mean_setting(True), scale(1.0)),
)
