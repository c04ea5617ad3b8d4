"""What a specialist is trained on: a registry's facts as question and answer, in the trained wordings. Pure.

Other registries, options and the held-out wording never occur here.
"""

from __future__ import annotations

import random

from hinet_tiers.experiments.registries import Registry

Pair = dict[str, str]


def fact_lessons(registry: Registry, seed: int, times: int) -> list[Pair]:
    """Every fact `times` times, its trained wordings equally often (as far as `times` allows), in an order drawn."""
    draw = random.Random(f"{seed} {registry.domain} lessons")  # noqa: S311 - an order, no secret
    made = []
    for index, fact in enumerate(registry.facts):
        wordings = fact.attribute.trained
        for turn in range(times):
            stem = wordings[(index + turn) % len(wordings)].format(e=fact.entity)
            made.append({"question": stem, "answer": fact.value, "kind": "fact"})
    draw.shuffle(made)
    return made
