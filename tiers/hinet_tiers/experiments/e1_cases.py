"""What is done with the specialists of `e1`: committees, routes, merges, the fold, and the three kinds of pairs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hinet_tiers.backend import Progress
from hinet_tiers.composing import conflict, route
from hinet_tiers.composing.embedding import HiddenState
from hinet_tiers.experiments import compose, conflict_cases, grade, registries, report
from hinet_tiers.experiments.registries import Question, Registry
from hinet_tiers.merging import engine

if TYPE_CHECKING:
    from hinet_tiers.experiments.e1 import Run

NEAREST = "nearest"
"""Always the nearest specialist, never the base: what routing would be without telling that none is near."""
SIGNALS = ("cosine", "sign_conflict", "agree", "both_sure", "contradict")
CAVEATS = (
    "One seed is one draw. The four questions about a fact share its wording, so a domain's score rests on as many "
    "answers as it has facts, seen against other options: with 50 facts it moves by about 6 points by chance.",
    "Cloze form: A to D stand for the options' own first tokens; the model does not answer with letters.",
)


def gather(run: Run) -> dict[str, Any]:
    """Run every stage and put the results together."""
    from hinet_tiers.experiments import e1

    began = time.perf_counter()
    run.open()
    training = {name: run.learn(one) for name, one in {**run.registries, **run.extra}.items()}
    scores: dict[str, dict[str, float]] = {}
    for name in ("base", *run.domains):
        scores[name] = run.grade(name)
    specialists = [run.shares[domain] for domain in run.domains]
    scores["ceiling"] = _ceiling(scores, run.domains)
    scores["committee, mean"] = grade.by_domain(compose.mean(specialists), run.asked)
    scores["committee, majority"] = grade.by_domain(compose.majority(specialists), run.asked)
    routing, split, opt_out = _routes(run, scores)
    names, left_out = run.merge_names()
    plain = {e1.AVERAGE: 1 / len(run.domains), e1.SUM: 1.0}
    merges = []
    for name in (*plain, *names):
        if name in plain:
            made = _merge(run, "task-arithmetic", name, left_out, plain[name], {"scale": 1.0})
        else:
            made = _merge(run, name, name, left_out)
        if made:
            scores[name] = made
            merges.append(name)
    fold = run.stages.run("fold", lambda progress: _fold(run, progress), lambda row: f"{row['same']:.1%} same answers")
    cases = _cases(run)
    result = {
        "seed": run.seed,
        "size": e1.plain(run.size) | {"facts": run.size.facts, "questions": len(run.asked) // len(run.domains)},
        "model": run.base.name, "base": run.base.digest, "domains": run.domains,
        "threads": run.threads, "machine": e1.machine(), "training": training, "merges": merges, "left_out": left_out,
        "scores": {name: {key: row[key] for key in (*run.domains, "macro")} for name, row in scores.items()},
        "routing": routing, "routing_split": split, "opt_out": opt_out, "fold": fold, "cases": cases,
        "caveats": list(CAVEATS),
        "signals": {name: conflict_cases.verdict(cases, name) for name in SIGNALS},
        "cpu_s": run.stages.cpu_s, "wall_s": run.stages.wall_s, "this_time_s": time.perf_counter() - began,
    }  # fmt: skip
    return result | {"criteria": report.judge(result)}


def _ceiling(scores: Mapping[str, Mapping[str, float]], domains: list[str]) -> dict[str, float]:
    """Every domain answered by its own specialist."""
    own = {domain: scores[domain][domain] for domain in domains}
    return own | {"macro": sum(own.values()) / len(own)}


def _merge(
    run: Run,
    method: str,
    name: str,
    left_out: dict[str, str],
    weight: float = 1.0,
    settings: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The scores of a merge; empty, and told in `left_out`, where it was refused."""
    made = run.merge(method, name, weight, settings or {})
    if "refused" in made:
        left_out[name] = f"refused: {made['refused']}"
        return {}
    bound = engine.default_bound(run.base.parameters)
    if made["displacement"] > bound:
        left_out[name] = (
            f"graded, but {made['displacement']:.1f} from the base, above the bound of {bound:.0f}: "
            "`compose merge` refuses it unless --bound is raised"
        )
    return made


def _routes(
    run: Run, scores: dict[str, dict[str, float]]
) -> tuple[float, dict[str, float], dict[str, dict[str, float]]]:
    """Route every question by the mean hidden state of its stem, then again with each specialist taken out."""

    def do(progress: Progress) -> dict[str, Any]:
        run.become("base")
        embedder = HiddenState(run.model, run.tokenizer, bytes.fromhex(run.base.digest))
        asked = {domain: trained_stems(one) for domain, one in run.registries.items()}
        routes = route.build(asked, embedder)
        stems = list(dict.fromkeys(question.stem for question in run.asked))
        seen = dict(zip(stems, embedder.embed(stems), strict=True))
        variants = {"": routes, **{gone: routes.without(gone) for gone in run.domains}}
        scored = {gone: {stem: route.scores(one, seen[stem]) for stem in stems} for gone, one in variants.items()}
        picked = {gone: {stem: list(route.choose(one, scored[gone][stem]).names) for stem in stems}
                  for gone, one in variants.items()}  # fmt: skip
        return picked | {NEAREST: {stem: [max(row, key=row.__getitem__)] for stem, row in scored[""].items()}}

    owners = [question.domain for question in run.asked]

    def picks(table: Mapping[str, list[str]]) -> list[tuple[str, ...]]:
        return [tuple(table[question.stem]) for question in run.asked]

    found = run.stages.run("route", do, lambda row: f"{compose.routing_accuracy(picks(row['']), owners):.1%} to the "
                           "right specialist")  # fmt: skip
    answers = {domain: run.shares[domain] for domain in run.domains}
    told = {gone: grade.by_domain(compose.routed(picks(table), answers, run.shares["base"]), run.asked)
            for gone, table in found.items()}  # fmt: skip
    scores["route"], scores[NEAREST] = told[""], told[NEAREST]
    for gone in run.domains:
        scores[f"route without {gone}"] = told[gone]
    opt_out = {gone: compose.opt_out(told[""], told[gone], scores["base"], gone) for gone in run.domains}
    first = picks(found[""])
    split = compose.routing_split(first, owners) | {NEAREST: compose.routing_accuracy(picks(found[NEAREST]), owners)}
    return compose.routing_accuracy(first, owners), split, opt_out


def trained_stems(registry: Registry) -> list[str]:
    """The questions that a specialist was trained on, without options."""
    return [wording.format(e=fact.entity) for fact in registry.facts for wording in fact.attribute.trained]


def _fold(run: Run, progress: Progress) -> dict[str, Any]:
    """The first specialist as a model folder of its own, loaded without base or task vector, asked the same."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from hinet_tiers.vectors.apply import apply
    from hinet_tiers.weights import open_weights

    name, folder = run.domains[0], run.out / "folded"
    shutil.rmtree(folder, ignore_errors=True)
    with open_weights(run.base.dir) as base:
        made = apply(run.tau(name), base, folder, "float32")
    model = LlamaForCausalLM.from_pretrained(
        folder, dtype="float32", local_files_only=True, use_safetensors=True, attn_implementation="sdpa"
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    shares = grade.option_shares(model.eval(), tokenizer, run.asked, progress)
    shutil.rmtree(folder)
    return {"specialist": name, "same": float((shares.argmax(1) == run.shares[name].argmax(1)).mean()),
            "digest": made["digest"], **grade.by_domain(shares, run.asked),
            "largest_difference": float(np.abs(shares - run.shares[name]).max())}  # fmt: skip


def _cases(run: Run) -> dict[str, dict[str, Any]]:
    """Each pair's signals, and what its merges still know."""
    helix = run.registries["helix"]
    own = [question for question in run.asked if question.domain == "helix"]
    ledger = [question for question in run.asked if question.domain == "ledger"]
    pairs: dict[str, tuple[str, str, list[list[Question]]]] = {}
    if "independent" in run.size.cases:
        pairs["independent"] = ("helix", "ledger", [own, ledger])
    if "conflicting" in run.size.cases:
        cipher = run.extra["helix-cipher"]
        sides = [run.questions(helix, cipher), run.questions(cipher, helix)]
        pairs["conflicting"] = ("helix", "helix-cipher", sides)
    if "complementary" in run.size.cases:
        first, second = registries.halves(helix)
        pairs["complementary"] = (
            first.domain, second.domain, [run.questions(one) for one in (first, second)],
        )  # fmt: skip

    def do(case: str, progress: Progress) -> dict[str, Any]:
        return _pair(run, *pairs[case], progress)

    return {
        case: run.stages.run(
            f"case-{case}", lambda progress, case=case: do(case, progress),
            lambda row: f"cosine {row['cosine']:.3f}, contradict {row['contradict']:.3f}, "
                        f"merged keeps {row['task-arithmetic kept']:.2f}",
        )
        for case in pairs
    }  # fmt: skip


def _pair(run: Run, first: str, second: str, sides: list[list[Question]], progress: Progress) -> dict[str, Any]:
    from hinet_tiers.experiments.e1 import CASE_METHODS

    both = [question for side in sides for question in side]
    right = [[question.right for question in side] for side in sides]
    cut = len(sides[0])

    def asked(note: str) -> grade.Shares:
        return grade.option_shares(run.model, run.tokenizer, both, progress, note)

    stems = list(dict.fromkeys(question.stem for question in both))
    shares, answers = {}, {}
    for name in (first, second):
        run.become(name)
        shares[name] = asked(name)
        answers[name] = conflict.answers(run.model, run.tokenizer, stems)
    own = [grade.accuracy(shares[first][:cut], right[0]), grade.accuracy(shares[second][cut:], right[1])]
    row: dict[str, Any] = {"pair": f"{first} and {second}", "own": own}
    weights = conflict.weight_signals(run.tau(first), run.tau(second))
    row |= {key: weights[key] for key in conflict.WEIGHTS}
    row |= conflict.answer_signals(answers[first], answers[second])
    row |= {"own first": own[0], "own second": own[1]}
    for method in CASE_METHODS:
        run.become_merge(method, [first, second])
        merged = asked(method)
        scores = [grade.accuracy(merged[:cut], right[0]), grade.accuracy(merged[cut:], right[1])]
        kept = conflict_cases.retained(scores, own)
        row |= {f"{method} first": scores[0], f"{method} second": scores[1], f"{method} kept": kept}
    return row
