"""The gate: whether a revision may be promoted. Pure.

Promote only if the owner's facts strictly improve and nothing that was retained drops by more than the larger of 0.05
and the measured noise. A verdict is bound to the digests of recipe, data and base; for others it is stale and fails.
SPEC.md section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DROP_MAX = 0.05


@dataclass(frozen=True)
class Leg:
    """One measured ability: shares from 0 to 1 before and after, and the noise between repeats of the same.

    `task` legs must improve; others are retained and must not drop. `lower_is_better` turns a leak into a retained leg.
    """

    name: str
    before: float
    after: float
    task: bool = False
    noise: float = 0.0
    lower_is_better: bool = False

    @property
    def gain(self) -> float:
        """How much better it became; negative when it became worse."""
        return self.before - self.after if self.lower_is_better else self.after - self.before


@dataclass(frozen=True)
class Binding:
    """What a verdict holds for: the digests, as hex, of recipe, data and base."""

    recipe: str
    data: str
    base: str


@dataclass(frozen=True)
class Verdict:
    """The gate's answer and, when it is no, every reason."""

    promoted: bool
    reasons: tuple[str, ...]
    binding: Binding
    legs: tuple[Leg, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the passport."""
        return {
            "promoted": self.promoted,
            "reasons": list(self.reasons),
            "binding": dict(vars(self.binding)),
            "legs": {leg.name: {"before": leg.before, "after": leg.after, "noise": leg.noise} for leg in self.legs},
        }


def decide(legs: list[Leg], binding: Binding) -> Verdict:
    """Judges measured legs. Raises ValueError for shares outside 0 to 1, a name twice, or no task leg."""
    names = [leg.name for leg in legs]
    if len(set(names)) != len(names) or not any(leg.task for leg in legs):
        raise ValueError("a verdict needs legs with different names, at least one of them the task's")
    reasons = []
    for leg in legs:
        if not all(0.0 <= value <= 1.0 for value in (leg.before, leg.after, leg.noise)):
            raise ValueError(f"leg {leg.name} is not measured in shares from 0 to 1")
        allowed = max(DROP_MAX, leg.noise)
        if leg.task and leg.gain <= leg.noise:
            reasons.append(f"{leg.name} did not improve: {leg.before:.2f} before, {leg.after:.2f} after")
        elif not leg.task and leg.gain < -allowed - 1e-9:
            worse = "rose" if leg.lower_is_better else "fell"
            reasons.append(f"{leg.name} {worse} from {leg.before:.2f} to {leg.after:.2f}, more than {allowed:.2f}")
    return Verdict(not reasons, tuple(reasons), binding, tuple(legs))


def holds_for(verdict: Verdict | Mapping[str, Any], binding: Binding) -> bool:
    """Whether a verdict (or its plain values) promoted exactly this recipe, data and base."""
    values = verdict.as_dict() if isinstance(verdict, Verdict) else verdict
    return bool(values.get("promoted")) and values.get("binding") == dict(vars(binding))
