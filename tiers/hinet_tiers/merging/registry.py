"""Which module holds which merge method: a static table, imported on demand."""

from __future__ import annotations

import importlib

from hinet_tiers.errors import MergeSetting
from hinet_tiers.merging.method import Method

METHODS: dict[str, str] = {
    "task-arithmetic": "hinet_tiers.merging.task_arithmetic:METHOD",
    "ties": "hinet_tiers.merging.ties:METHOD",
    "dare": "hinet_tiers.merging.dare:METHOD",
    "dare-ties": "hinet_tiers.merging.dare_ties:METHOD",
    "della": "hinet_tiers.merging.della:METHOD",
    "breadcrumbs": "hinet_tiers.merging.breadcrumbs:METHOD",
    "tsv-m": "hinet_tiers.merging.tsv_m:METHOD",
    "iso-c": "hinet_tiers.merging.iso_c:METHOD",
    "knots": "hinet_tiers.merging.knots:METHOD",
    "fedex": "hinet_tiers.merging.fedex:METHOD",
    "localize-stitch": "hinet_tiers.merging.localize_stitch:METHOD",
    "tall-masks": "hinet_tiers.merging.tall_masks:METHOD",
}
"""A method's name → where it is. Its page is `docs/merging/<name>.md`."""


def find(name: str) -> Method:
    """A method by its name. Raises MergeSetting for one that isn't there."""
    target = METHODS.get(name)
    if target is None:
        raise MergeSetting(f"There is no merge method {name!r}; there are: {', '.join(METHODS)}.")
    module, _, attribute = target.partition(":")
    found: Method = getattr(importlib.import_module(module), attribute)
    return found
