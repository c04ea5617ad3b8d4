"""The demo's questions: the sample's held-out sets, and what share of answers is right.

What makes an answer right is the models part's rule (`hinet_tiers.evaluate`), the same for every engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUICK_GENERAL = 12
"""General questions that the short form asks: the first ones of the set."""


@dataclass(frozen=True)
class Sets:
    """The questions of one run. Each is a list of `{id, question, accept, ...}`."""

    near: list[dict[str, Any]]
    far: list[dict[str, Any]]
    stranger: list[dict[str, Any]]
    general: list[dict[str, Any]]

    def texts(self) -> list[str]:
        """Every question text, in one fixed order (see `split`)."""
        return [row["question"] for row in (*self.near, *self.far, *self.stranger, *self.general)]

    def split(self, answers: Sequence[str]) -> dict[str, list[str]]:
        """Answers to `texts()`, by set."""
        parts, start = {}, 0
        for name in ("near", "far", "stranger", "general"):
            count = len(getattr(self, name))
            parts[name] = list(answers[start:start + count])
            start += count
        assert start == len(answers), "one answer for each question"
        return parts


def load(quick: bool) -> Sets:
    """The held-out sets; for the short form only the questions about its eight facts.

    A stranger's question accepts the owner's values of *all* facts: any of them in the answer is a leak.
    """
    from hinet_tiers import sample

    facts = [fact for fact in sample.facts() if fact["quick"] or not quick]
    kept = {fact["id"] for fact in facts}
    everything = [value for fact in facts for value in fact["accept"]]
    sets = {name: [row for row in sample.heldout(name) if row["fact"] in kept] for name in ("near", "far", "stranger")}
    general = sample.heldout("general")
    return Sets(near=sets["near"], far=sets["far"],
                stranger=[{**row, "accept": everything} for row in sets["stranger"]],
                general=general[:QUICK_GENERAL] if quick else general)


def notes(quick: bool) -> list[Path]:
    """The sample's notes; for the short form those of its eight facts and the one that names the owner."""
    from hinet_tiers import sample

    if not quick:
        return sorted(sample.NOTES.glob("*.md"))
    wanted = {fact["note"] for fact in sample.facts() if fact["quick"]} | {"about-me.md"}
    return [sample.NOTES / name for name in sorted(wanted)]


def secrets_of(quick: bool) -> list[str]:
    """What a keeper must not hold in the clear: the notes' names and sentences and the facts' values."""
    from hinet_tiers import sample

    listed = [path.name for path in notes(quick)]
    listed += [line.strip() for path in notes(quick) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return listed + [str(fact["value"]) for fact in sample.facts()]


def shares(sets: Sets, before: Mapping[str, Sequence[str]] | None, after: Mapping[str, Sequence[str]],
           ) -> dict[str, Any]:
    """Recall and harm of one engine: {near: {before, after}, far: {...}, leak, general_kept, general: {...}}."""
    from hinet_tiers.evaluate import kept, score

    told: dict[str, Any] = {}
    late = {name: score(getattr(sets, name), after[name]) for name in ("near", "far", "stranger", "general")}
    early = {name: score(getattr(sets, name), before[name]) for name in late} if before is not None else None
    for name in ("near", "far", "general"):
        told[name] = {"before": share(early[name]) if early else None, "after": share(late[name])}
    told["leak"] = share(late["stranger"])
    told["general_kept"] = round(kept(early["general"]["right"], late["general"]["right"]), 4) if early else None
    return told


def share(scored: Mapping[str, Any]) -> float:
    """The share of right answers, to four digits."""
    return round(float(scored["share"]), 4)
