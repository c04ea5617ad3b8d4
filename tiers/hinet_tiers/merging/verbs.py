"""The worker's verbs of merging: which methods there are, and a merge of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet_protocol import taskvectors
from hinet_tiers.backend import Progress
from hinet_tiers.merging import engine, registry
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


EXACT = next(codec for codec in ("fp32", "fp16") if codec in taskvectors.CODECS)
"""How a merge is written where nobody says how: what changes its values least."""


def merge_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `compose.merge {inputs, method, settings, weights?, base?, data?, out?, model?, codec?, seed, bound?}`.

    Gives the merge's report (`engine.Merge.report`) and what was written. Raises what `engine.merge_files` raises.
    """

    def path(name: str) -> Path | None:
        return Path(args[name]) if args.get(name) else None

    return engine.merge_files(
        args["method"], [Path(one) for one in args["inputs"]], out=path("out"), model=path("model"), base=path("base"),
        data=path("data"), codec=args.get("codec") or EXACT, weights=args.get("weights"), settings=args["settings"],
        seed=args["seed"], bound=args.get("bound"), progress=progress,
    )  # fmt: skip
