"""The shipped sample: an invented person's notes, and the questions that measure what was learned from them.

Read `README.md` beside this file for the formats and for how an answer is scored. Learning and scoring are left to
`hinet_tiers.data` and `hinet_tiers.evaluate`. SPEC section 7.
"""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
NOTES = ROOT / "notes"
HELDOUT_SETS = ("near", "far", "stranger", "general")


def facts() -> list[dict[str, Any]]:
    """The forty facts, `{id, note, attribute, value, accept, quick}`; for scoring, never for training."""
    return _read("facts.json")


def heldout(name: str) -> list[dict[str, Any]]:
    """One held-out set, by a name in `HELDOUT_SETS`; `KeyError` for any other name."""
    if name not in HELDOUT_SETS:
        raise KeyError(name)
    return _read(f"heldout/{name}.json")


def dev() -> dict[str, list[dict[str, Any]]]:
    """The questions that settings may be chosen on, by set name."""
    return dict(_read("dev/dev.json"))


def _read(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))
