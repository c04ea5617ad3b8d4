"""The experiment of the seeds, small and real: do specialists composed know more than the best of them alone?

Three specialists learn one registry each from the embedded base; then everything is graded on the same held-out
questions: merges, committees, routing, a specialist taken out, one folded into a model of its own.
Criteria are `report.REGISTERED`, fixed beforehand. Verb `experiment.e1`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hinet_tiers import sparsify
from hinet_tiers.backend import Progress
from hinet_tiers.base import Base, install_base, load_base
from hinet_tiers.errors import MergeRefused
from hinet_tiers.experiments import grade, lessons, registries, report, train
from hinet_tiers.experiments.registries import DOMAINS, Question, Registry
from hinet_tiers.experiments.stages import Stages, write_json
from hinet_tiers.fit import Schedule, use_threads

CODEC = "fp16"
PLAN_VERSION = 1


@dataclass(frozen=True)
class Size:
    """How much is learned and asked.

    `times` lessons for each fact; `sets` times four questions for each; `cases` are the pairs that are looked at;
    `methods` the merges (None: all there are). Learning rate and padded tokens in a batch are every specialist's.
    """

    name: str
    entities: int
    sets: int
    times: int
    lr: float
    batch_tokens: int
    cases: tuple[str, ...]
    methods: tuple[str, ...] | None = None

    @property
    def facts(self) -> int:
        """Facts of a registry."""
        return self.entities * len(DOMAINS["helix"])


SIZES = {
    "full": Size("full", 10, 1, 18, 3e-4, 320, ("independent", "conflicting", "complementary")),
    "quick": Size("quick", 3, 1, 14, 3e-4, 240, ("independent", "conflicting"), ("task-arithmetic", "ties")),
    "tiny": Size("tiny", 1, 1, 12, 3e-4, 160, (), ("task-arithmetic",)),
}
"""`tiny` shows that the parts work together, and nothing else."""
CASE_METHODS = ("task-arithmetic", "ties")
AVERAGE, SUM = "average", "sum"
"""Plain averaging (all specialists, always) and plain adding; methods have scales of their own."""
BOUND = 1000.0
"""Displacement: merges above the engine's own bound are graded as well, and the report says which these are."""
NOT_MERGED = {"tall-masks": "serves each input through a mask of its own; its merged delta is the sum"}


class Run:
    """One run: the model in memory, what it starts from, and the stages that were done."""

    def __init__(self, size: Size, seed: int, out: Path, progress: Progress, threads: int | None) -> None:
        self.size, self.seed, self.out = size, seed, out
        self.threads = use_threads(threads)
        self.registries = {domain: registries.make(domain, seed, size.entities) for domain in DOMAINS}
        self.asked = [question for one in self.registries.values() for question in self.questions(one)]
        self.domains = list(self.registries)
        self.extra = self._extra()
        plan = {"experiment": "e1", "version": PLAN_VERSION, "seed": seed, "size": plain(size)}
        self.stages = Stages(out, plan, self._weights(), progress)
        self.model: Any = None
        self.tokenizer: Any = None
        self.kept: Mapping[str, Any] = {}
        self.base: Base
        self.shares: dict[str, grade.Shares] = {}

    def questions(self, registry: Registry, beside: Registry | None = None) -> list[Question]:
        """The held-out questions about a registry."""
        return registries.questions(registry, self.seed, self.size.sets, beside)

    def _extra(self) -> dict[str, Registry]:
        helix = self.registries["helix"]
        extra = {"helix-cipher": registries.ciphered(helix)} if "conflicting" in self.size.cases else {}
        if "complementary" in self.size.cases:
            extra |= {half.domain: half for half in registries.halves(helix)}
        return extra

    def _weights(self) -> dict[str, float]:
        """Expected CPU seconds of each stage, roughly."""
        every, merge = 0.01 * len(self.asked) + 6, 25
        weights = {
            f"learn-{name}": 0.13 * self.size.times * len(one.facts) + 15
            for name, one in {**self.registries, **self.extra}.items()
        }
        weights |= {f"grade-{name}": every for name in ("base", *self.registries)}
        weights |= {f"merge-{name}": every + merge for name in (*self.merge_names()[0], AVERAGE, SUM)}
        return (
            weights
            | {"route": 8, "fold": every + 10}
            | {f"case-{case}": 4 * every + 3 * merge for case in self.size.cases}
        )

    def merge_names(self) -> tuple[list[str], dict[str, str]]:
        """The methods of the registry that merge task vectors without data, and why each other one is left out."""
        from hinet_tiers.merging import registry

        names, left_out = [], dict(NOT_MERGED)
        for name in registry.METHODS:
            missing = sorted(registry.find(name).needs & {"data", "adapters"})
            if missing:
                left_out[name] = f"needs {' and '.join(missing)}"
            elif self.size.methods is not None and name not in self.size.methods:
                left_out.setdefault(name, "only in the full size")
            elif name not in NOT_MERGED:
                names.append(name)
        return names, left_out

    # What the stages do

    def open(self) -> None:
        """Install the embedded base, which every specialist starts from, and load it."""
        self.base = install_base(None, self.out / "bases")
        self.model, self.tokenizer = load_base(self.base.dir)
        self.model.requires_grad_(False)
        self.kept = train.snapshot(self.model)

    def _evidence(self, made: Any, header: Any) -> dict[str, Any]:
        row = made.as_dict()
        keys = ("steps", "loss_first", "loss_last", "read_tokens", "cpu_s", "wall_s")
        return {key: row[key] for key in keys} | {"displacement": header.displacement, "density": header.density}

    def learn(self, registry: Registry) -> dict[str, Any]:
        """One specialist from the base; its task vector is kept."""

        def do(progress: Progress) -> dict[str, Any]:
            train.restore(self.model, self.kept)
            pairs = lessons.fact_lessons(registry, self.seed, self.size.times)
            schedule = Schedule(lr=self.size.lr, batch_tokens=self.size.batch_tokens)
            made = train.learn(
                self.model, self.tokenizer, pairs, schedule, seed=self.seed, progress=progress, note="learning facts"
            )
            passport = {"experiment": "e1", "registry": registry.domain, "seed": self.seed}
            tensors = train.delta(self.model, self.kept)
            header = sparsify.write_tau(
                self.tau(registry.domain), self.base.digest, tensors, codec=CODEC, passport=passport
            )
            return self._evidence(made, header)

        found: dict[str, Any] = self.stages.run(
            f"learn-{registry.domain}",
            do,
            lambda row: f"loss {row['loss_first']} to {row['loss_last']}, displacement {row['displacement']:.2f}",
        )
        return found

    def tau(self, name: str) -> Path:
        """Where a specialist's task vector lies."""
        return self.out / "specialists" / f"{name}.tau"

    def become(self, name: str) -> None:
        """The model in memory becomes the base, or a specialist as its file gives it."""
        train.restore(self.model, self.kept)
        if name != "base":
            sparsify.apply_tau(self.tau(name), self.base.digest, self.model)

    def grade(self, name: str) -> dict[str, Any]:
        """Grade the base or a specialist on all domains."""

        def do(progress: Progress) -> dict[str, Any]:
            self.become(name)
            return self._graded(name, self.asked, progress)

        found: dict[str, Any] = self.stages.run(f"grade-{name}", do, _said_scores)
        self.shares[name] = np.load(self._shares_path(name))
        return found

    def merge(self, method: str, name: str, weight: float, settings: Mapping[str, float]) -> dict[str, Any]:
        """Merge the three specialists, each with `weight`, and grade what comes of it. A refusal is a result too."""

        def do(progress: Progress) -> dict[str, Any]:
            try:
                moved = self.become_merge(method, self.domains, weight, settings)
            except MergeRefused as error:
                return {"refused": str(error)}
            return self._graded(name, self.asked, progress) | {"displacement": moved}

        found: dict[str, Any] = self.stages.run(f"merge-{name}", do, _said_scores)
        return found

    def become_merge(
        self, method: str, names: Sequence[str], weight: float = 1.0, settings: Mapping[str, float] | None = None
    ) -> float:
        """The model in memory becomes the base plus a merge; returns how far that lies from it."""
        from contextlib import ExitStack

        from hinet_tiers.merging import engine, registry
        from hinet_tiers.merging.deltas import open_delta
        from hinet_tiers.weights import open_weights

        train.restore(self.model, self.kept)
        layers = train.linear_layers(self.model)
        with ExitStack() as stack:
            base = None
            if "base" in registry.find(method).needs:
                base = stack.enter_context(open_weights(self.base.dir))
            deltas = [open_delta(self.tau(name)) for name in names]
            for delta in deltas:
                stack.callback(delta.close)
            weights = [weight] * len(deltas)
            merge = engine.prepare(
                method, deltas, weights=weights, settings=settings, seed=self.seed, base=base, bound=BOUND
            )
            for merged in merge.stream():
                merged.add_to(layers[merged.name].detach().view(-1).numpy())
        return merge.displacement

    def _graded(self, name: str, asked: Sequence[Question], progress: Progress) -> dict[str, Any]:
        shares = grade.option_shares(self.model, self.tokenizer, asked, progress)
        path = self._shares_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, shares)
        return grade.by_domain(shares, asked)

    def _shares_path(self, name: str) -> Path:
        return self.out / "answers" / f"{name}.npy"


def _said_scores(row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"refused: {row['refused']}"
    domains = " ".join(f"{name} {value:.3f}" for name, value in row.items() if name in DOMAINS)
    return f"macro {row['macro']:.3f} ({domains})"


def plain(size: Size) -> dict[str, Any]:
    """A size as JSON gives it back."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(size).items()}


def e1(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `experiment.e1 {size, seed, out, threads?}` → the report's values and where it lies.

    Raises OtherPlan for a folder that holds something else. A merge that is refused is told as such.
    """
    from hinet_tiers.experiments import e1_cases

    size = SIZES[args["size"]]
    run = Run(size, int(args["seed"]), Path(args["out"]), progress, args.get("threads"))
    result = e1_cases.gather(run)
    run.stages.finish()
    write_json(run.out / "report.json", result)
    (run.out / "report.md").write_text(report.as_markdown(result), encoding="utf-8")
    return result | {"report": str(run.out / "report.md"), "said": run.stages.said}


def machine() -> str:
    """What it ran on, in a few words."""
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
