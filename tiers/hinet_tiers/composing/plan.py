"""The verb `compose.plan`: measure how task vectors get on with each other, and say what to do with them.

One model is in memory, and copies of the tensors that some task vector changes; each specialist in turn is put into
it, asked all probe questions, and taken out again. Leaves to others: the signals (`conflict`), the choice (`choice`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from hinet_tiers.backend import Progress
from hinet_tiers.composing import choice, conflict
from hinet_tiers.composing.choice import Pair
from hinet_tiers.errors import BaseMismatch, ComposeRefused
from hinet_tiers.evaluate import questions_of
from hinet_tiers.merging.engine import default_bound

INPUTS_MAX = 64
PROBES_MAX = 500
"""Questions of one specialist."""
PROBE_BYTES_MAX = 16 << 20


def plan_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`{inputs, probes: {file name: path}, base_dir?, threads?}` → inputs, pairs, separable, choice, reason, groups.

    Raises ComposeRefused for inputs or probes that do not fit, BaseMismatch for task vectors of several bases, and what
    reading a `.tau` raises. Without probes no model is loaded.
    """
    from hinet_tiers import sparsify

    paths = [Path(one) for one in args["inputs"]]
    names = [path.name for path in paths]
    if not 2 <= len(paths) <= INPUTS_MAX or len(set(names)) < len(names):
        raise ComposeRefused(f"A plan takes 2 to {INPUTS_MAX} task vectors whose files have different names.")
    headers = [sparsify.read_tau_header(path) for path in paths]
    for path, header in zip(paths, headers, strict=True):
        if header.base != headers[0].base:
            raise BaseMismatch(
                f"{path.name} belongs to base {header.base.hex()[:12]}, {names[0]} to {headers[0].base.hex()[:12]}: "
                "a plan is for task vectors of one base."
            )
    probes = _probes(args.get("probes") or {}, names)
    asked, separable = ({}, None) if not probes else _asked(args, paths, headers[0].base.hex(), probes, progress)
    rows = []
    for step, (one, two) in enumerate(combinations(range(len(paths)), 2)):
        progress(step, len(paths) * (len(paths) - 1) // 2, "comparing weights")
        row = {"first": names[one], "second": names[two], **conflict.weight_signals(paths[one], paths[two])}
        if asked:
            row |= _pair_signals(names[one], names[two], asked, probes)
        rows.append(row)
    pairs = [Pair(row["first"], row["second"], row.get("contradict"), row["cosine"]) for row in rows]
    chosen = choice.choose(names, pairs, separable)
    bound = default_bound(sum(row.size for row in headers[0].tensors))
    return {
        "base": headers[0].base.hex(), "pairs": rows, "separable": separable, "choice": chosen.kind,
        "reason": chosen.reason, "groups": [list(group) for group in chosen.groups], "bound": bound,
        "method": choice.shipped().method, "probes": {name: len(texts) for name, texts in probes.items()},
        "inputs": [{"name": path.name, "path": str(path), "displacement": header.displacement,
                    "density": header.density, "beyond_bound": header.displacement > bound}
                   for path, header in zip(paths, headers, strict=True)],
    }  # fmt: skip


def _probes(given: Mapping[str, str], names: Sequence[str]) -> dict[str, list[str]]:
    """Each specialist's questions, none twice; all of them or none must have some."""
    if not given:
        return {}
    if unknown := sorted(set(given) - set(names)):
        raise ComposeRefused(f"There are probes for {unknown[0]}, which is none of {', '.join(names)}.")
    if missing := [name for name in names if name not in given]:
        raise ComposeRefused(f"{missing[0]} has no probes; give every one some: --probe {missing[0]}=FILE.")
    return {name: read_questions(Path(given[name])) for name in names}


def read_questions(path: Path) -> list[str]:
    """The questions of a file: JSON as `evaluate` takes it, or one on each line. Raises ComposeRefused, BadRequest."""
    try:
        if path.stat().st_size > PROBE_BYTES_MAX:
            raise ComposeRefused(f"{path.name} has more than {PROBE_BYTES_MAX >> 20} MiB and is no file of probes.")
        text = path.read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        found = questions_of(json.loads(text)) if path.suffix == ".json" else lines
    except OSError as error:
        raise ComposeRefused(f"The probes {path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        told = f"{path.name} is no file of questions ({error})"
        raise ComposeRefused(f"{told}: give JSON, or one on each line.") from error
    texts = list(dict.fromkeys(found))
    if not 1 <= len(texts) <= PROBES_MAX:
        raise ComposeRefused(f"{path.name} holds {len(texts)} questions; a plan takes 1 to {PROBES_MAX} for each.")
    return texts


def _asked(
    args: Mapping[str, Any], paths: Sequence[Path], digest: str, probes: Mapping[str, list[str]], progress: Progress
) -> tuple[dict[str, conflict.Answers], float]:
    """Each specialist's answers to all probes, and how well the probes tell whom they belong to."""
    from hinet_tiers import sparsify
    from hinet_tiers.base import load_base, read_base
    from hinet_tiers.composing.embedding import HiddenState
    from hinet_tiers.fit import use_threads

    use_threads(args.get("threads"))
    base = read_base(Path(args["base_dir"]))
    if base.digest != digest:
        raise BaseMismatch(
            f"{paths[0].name} belongs to base {digest[:12]}, and the base given is {base.digest[:12]}: give the base "
            "that it was made from."
        )
    model, tokenizer = load_base(base.dir)
    model.requires_grad_(False)
    questions = [text for texts in probes.values() for text in texts]
    owners = [name for name, texts in probes.items() for _ in texts]
    separable = conflict.separable(HiddenState(model, tokenizer, bytes.fromhex(digest)).embed(questions), owners)
    kept = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    found = {}
    for path in paths:
        model.load_state_dict(kept)
        sparsify.apply_tau(path, digest, model)
        found[path.name] = conflict.answers(model, tokenizer, questions, progress, f"asking {path.name}")
    return found, separable


def _pair_signals(
    first: str, second: str, asked: Mapping[str, conflict.Answers], probes: Mapping[str, list[str]]
) -> dict[str, float]:
    """The signals of two specialists on the probes of these two."""
    import numpy as np

    owners = np.array([name for name, texts in probes.items() for _ in texts])
    chosen = np.flatnonzero((owners == first) | (owners == second))
    one, two = (conflict.Answers(asked[name].tokens[chosen], asked[name].shares[chosen]) for name in (first, second))
    return conflict.answer_signals(one, two)
