"""The worker's verbs of merging: which methods there are, and a merge of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hinet_tiers.backend import Progress
from hinet_tiers.merging import registry
from hinet_tiers.merging.method import Method


def methods_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `compose.methods {name?}`: every method, or the one of that name. Raises MergeSetting."""
    name = args.get("name")
    return {"methods": [described(registry.find(one)) for one in ([name] if name else registry.METHODS)]}


def described(method: Method) -> dict[str, Any]:
    """A method's row in plain values."""
    return {
        "name": method.name, "title": method.title, "source": method.source, "needs": sorted(method.needs),
        "settings": [{"name": one.name, "default": one.default, "low": one.low, "high": one.high, "whole": one.whole,
                      "help": one.help} for one in method.settings],
    }  # fmt: skip
