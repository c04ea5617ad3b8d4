"""The demo's verdict: the bars, whether each was reached, the table for a person and the object for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = "hinet.demo/1"

# name -> (where the value is, "at most" or "at least", bound)
BARS: dict[str, tuple[tuple[str, ...], str, float]] = {
    "pocket near before": (("recall", "pocket", "near", "before"), "at most", 0.10),
    "pocket far before": (("recall", "pocket", "far", "before"), "at most", 0.10),
    "pocket near after": (("recall", "pocket", "near", "after"), "at least", 0.90),
    "pocket far after": (("recall", "pocket", "far", "after"), "at least", 0.40),
    "near with the notes": (("recall", "pocket", "with_retrieval", "near"), "at least", 0.90),
    "far with the notes": (("recall", "pocket", "with_retrieval", "far"), "at least", 0.90),
    "leak to a stranger": (("recall", "pocket", "leak"), "at most", 0.20),
    "general knowledge kept": (("recall", "pocket", "general_kept"), "at least", 0.90),
}
QUICK_BOUNDS = {"pocket near after": 0.75, "near with the notes": 0.75, "far with the notes": 0.75,
                "leak to a stranger": 0.25, "general knowledge kept": 0.75}
"""The short form has eight questions in a set, so a wrong answer is worth an eighth: its bounds leave room for two."""


def verdict(facts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], *, quick: bool, seconds: float,
            ) -> dict[str, Any]:
    """The whole report. `ok` is true when every bar is reached and every check holds."""
    bars = [bar(name, facts, quick=quick) for name in BARS] + checks(facts)
    return {"ok": all(row["ok"] for row in bars), "quick": quick, "seconds": round(seconds, 1), "steps": list(steps),
            **facts, "bars": bars}


def bar(name: str, facts: Mapping[str, Any], *, quick: bool) -> dict[str, Any]:
    """One bar: {name, value, bound, direction, ok}."""
    path, direction, bound = BARS[name]
    if quick:
        bound = QUICK_BOUNDS.get(name, bound)
    value: Any = facts
    for key in path:
        value = value[key]
    reached = value is not None and (value <= bound if direction == "at most" else value >= bound)
    return {"name": name, "value": value, "direction": direction, "bound": bound, "ok": bool(reached)}


def checks(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is not a share but must hold."""
    swap, keeper = facts["swap"], facts["keeper"]
    rows = {"every node holds the same packs": facts["vault"]["same_packs"] and keeper["same_packs"],
            "the keeper holds no readable text": not keeper["found"],
            "the keeper refuses to read": bool(keeper["refused_to_read"]),
            "the base was not loaded again": swap["loads"] == 1,
            "the adapter changes the model": swap["probe_change"] > 0}
    return [{"name": name, "value": held, "direction": "is", "bound": True, "ok": bool(held)}
            for name, held in rows.items()]


def table_rows(result: Mapping[str, Any]) -> tuple[list[list[str]], tuple[str, ...]]:
    """Recall on each tier: rows and heading."""
    rows = []
    for tier in ("cloud", "laptop", "pocket"):
        told = result["recall"][tier]
        notes = told.get("with_retrieval") or {}
        rows.append([tier, *(f"{_share(told[name]['before'])} -> {_share(told[name]['after'])}"
                             for name in ("near", "far")),
                     f"{_share(notes.get('near'))} / {_share(notes.get('far'))}" if notes else "",
                     _share(told["leak"]), _share(told["general_kept"])])
    return rows, ("TIER", "NEAR", "FAR", "WITH NOTES (near / far)", "LEAK", "GENERAL KEPT")


def bar_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Each bar in words."""
    rows = []
    for row in result["bars"]:
        wanted = "" if row["direction"] == "is" else \
            f"{_share(row['value'])}, {row['direction']} {_share(row['bound'])}"
        rows.append(["reached" if row["ok"] else "MISSED", row["name"], wanted])
    return rows


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}%"
