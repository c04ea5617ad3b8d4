"""What was registered before the run, and what came of it: criteria, verdicts, the report as text. Pure.

A criterion is passed or failed as measured. Bounds are the seed's and are never adjusted to a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

POINT = 0.01
ROUNDING = 1e-9


@dataclass(frozen=True)
class Criterion:
    """One line that was registered: `bound` in shares of 1."""

    name: str
    text: str
    bound: float


SPECIALISE = Criterion("specialise", "every specialist at least +5 points over the base on its own domain", 0.05)
COMPOSE = Criterion("compose", "a composition (route or one merged model) at least +8 points over the best single "
                               "specialist, macro-average", 0.08)  # fmt: skip
OPT_OUT_OWN = Criterion("opt-out-own", "a specialist taken out of the routes: its own domain within 3 points of the "
                                       "base", 0.03)  # fmt: skip
OPT_OUT_OTHERS = Criterion("opt-out-others", "and every other domain within 2 points of the full composition", 0.02)
ROUTING = Criterion("routing", "at least 90 % of the questions routed to the right specialist", 0.9)
FOLD = Criterion("fold", "a merged specialist, saved as a model folder and loaded alone, gives the same answers", 1.0)
NOT_MORE = Criterion("not-more", "routing beats all specialists always (averaged weights), macro-average", 0.0)
REGISTERED = (SPECIALISE, COMPOSE, OPT_OUT_OWN, OPT_OUT_OTHERS, ROUTING, NOT_MORE, FOLD)


def registered_lines() -> list[str]:
    """The criteria as they are printed before the run."""
    return [f"{criterion.name}: {criterion.text}" for criterion in REGISTERED]


def judge(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each criterion as passed or failed, with the number that decided. `result` is what `e1.run` gathered."""
    scores, domains = result["scores"], result["domains"]
    gains = {domain: scores[domain][domain] - scores["base"][domain] for domain in domains}
    single = max(scores[domain]["macro"] for domain in domains)
    composed = {name: scores[name]["macro"] for name in ("route", *result["merges"])}
    best = max(composed, key=lambda name: composed[name])
    own = max(abs(row["own_from_base"]) for row in result["opt_out"].values())
    others = max(row["others_moved"] for row in result["opt_out"].values())
    more = scores["route"]["macro"] - scores["average"]["macro"]
    least = min(gains, key=lambda domain: gains[domain])
    return [
        _row(SPECIALISE, gains[least] >= SPECIALISE.bound - ROUNDING, f"least: {least} {_points(gains[least])}"),
        _row(COMPOSE, composed[best] - single >= COMPOSE.bound - ROUNDING,
             f"{best} {composed[best]:.3f} against {single:.3f}: {_points(composed[best] - single)}"),
        _row(OPT_OUT_OWN, own <= OPT_OUT_OWN.bound + ROUNDING, f"at most {own / POINT:.1f} points"),
        _row(OPT_OUT_OTHERS, others <= OPT_OUT_OTHERS.bound + ROUNDING, f"at most {others / POINT:.1f} points"),
        _row(ROUTING, result["routing"] >= ROUTING.bound - ROUNDING, f"{result['routing']:.1%}"),
        _row(NOT_MORE, more > NOT_MORE.bound, _points(more)),
        _row(FOLD, result["fold"]["same"] >= FOLD.bound, f"{result['fold']['same']:.1%} of the answers"),
    ]  # fmt: skip


def _row(criterion: Criterion, passed: bool, measured: str) -> dict[str, Any]:
    return {"name": criterion.name, "text": criterion.text, "passed": bool(passed), "measured": measured}


def _points(share: float) -> str:
    return f"{share / POINT:+.1f} points"


def as_markdown(result: Mapping[str, Any]) -> str:
    """The whole report."""
    size, domains = result["size"], result["domains"]
    lines = [
        f"# e1, {size['name']} size, seed {result['seed']}", "",
        f"{result['model']}, base {result['base'][:12]}; {size['facts']} facts and "
        f"{size['questions']} questions a domain; {result['threads']} threads, {result['cpu_s']:.0f} CPU s, "
        f"{result['wall_s']:.0f} s.", "", *_caveats(result),
        "## Criteria, registered before the run", "", "| criterion | measured | |", "|---|---|---|",
        *(f"| {row['text']} | {row['measured']} | {'passed' if row['passed'] else '**failed**'} |"
          for row in result["criteria"]),
        "", "## Accuracy by domain", "", f"| | {' | '.join(domains)} | macro |", "|---|" + "---|" * (len(domains) + 1),
        *(f"| {name} | {' | '.join(f'{row[domain]:.3f}' for domain in domains)} | {row['macro']:.3f} |"
          for name, row in result["scores"].items()),
        "", *_routing(result), *_left_out(result), *_cases(result),
        "## Training", "", "| | steps | CPU s | loss first | loss last | moves the base by |",
        "|---|---|---|---|---|---|",
        *(f"| {name} | {row['steps']} | {row['cpu_s']:.0f} | {row['loss_first']} | {row['loss_last']} | "
          f"{row['displacement']:.2f} |" for name, row in result["training"].items()),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _caveats(result: Mapping[str, Any]) -> list[str]:
    kept = [f"- {text}" for text in result["caveats"]]
    return [*kept, ""] if kept else []


def _routing(result: Mapping[str, Any]) -> list[str]:
    split = result["routing_split"]
    return [
        f"Routing: {split['right_alone']:.1%} of the questions to the right specialist alone, "
        f"{split['right_and_another']:.1%} to it first and to another, {split['others']:.1%} to others, "
        f"{split['base']:.1%} to the base; {split['nearest']:.1%} have the right one as the nearest. "
        "Taken out, from the base and the others' largest move: "
        + "; ".join(f"{name} {_points(row['own_from_base'])}, {row['others_moved'] / POINT:.1f} points"
                    for name, row in result["opt_out"].items()) + ".", "",
    ]  # fmt: skip


def _left_out(result: Mapping[str, Any]) -> list[str]:
    rows = [f"- {name}: {why}" for name, why in result["left_out"].items()]
    return ["Merges that were left out, or lie beyond the guardrail:", "", *rows, ""] if rows else []


def _cases(result: Mapping[str, Any]) -> list[str]:
    cases: Mapping[str, Mapping[str, Any]] = result["cases"]
    if not cases:
        return []
    signals = list(result["signals"])
    lines = ["## Pairs: independent, conflicting, complementary", "", f"| | {' | '.join(cases)} | |",
             "|---|" + "---|" * (len(cases) + 1)]  # fmt: skip
    names = dict.fromkeys(name for row in cases.values() for name in row if name not in ("pair", "own"))
    for name in names:
        cells = [_cell(row.get(name)) for row in cases.values()]
        told = result["signals"][name] if name in signals else ""
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} | {told} |")
    return [*lines, ""]


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
