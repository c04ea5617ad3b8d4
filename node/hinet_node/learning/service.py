"""What a device of each tier does with what the household knows: train, distil, promote, answer.

`Learning` is built by the agent from its ports, its vault and its place in the household, runs in the agent's nursery
and gives the local API its verbs. The work is done by the parts that it wires: `jobs` (durable), `training`,
`revisions` (signed), `adapters` (which one is served), `serving` (the long-lived worker), `retrieval`, `answers`,
`bases`. SPEC section 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import trio

from hinet_node.api import Emit, Handler, text_of, whole_number_of
from hinet_node.errors import NodeError, UsageError
from hinet_node.learning.adapters import Adapters
from hinet_node.learning.answers import TOKENS_MAX, Answers
from hinet_node.learning.bases import Bases
from hinet_node.learning.evaluation import Evaluation
from hinet_node.learning.jobs import Jobs
from hinet_node.learning.retrieval import Retrieval
from hinet_node.learning.revisions import Membership, Revisions, VaultStore
from hinet_node.learning.serving import Serving
from hinet_node.learning.training import Training
from hinet_node.ports import Ports

IDLE_S = 600.0
"""Silence after which a device that also trains lets its answering model go; a pocket keeps it."""
QUESTIONS_MAX = 2000
TRAIN, EVALUATE = "train", "evaluate"


class Learning:
    """Training, adapters and answers of one device. One instance per agent."""

    def __init__(self, ports: Ports, vault: VaultStore, membership: Membership) -> None:
        disk, compute = ports.disk, ports.compute
        self.bases = Bases(disk, compute)
        self.revisions = Revisions(vault, membership)
        self.serving = Serving(compute, idle_s=math.inf if membership.tier == "pocket" else IDLE_S)
        self.adapters = Adapters(disk, compute, self.revisions, self.bases, self.serving)
        self.retrieval = Retrieval(vault)
        self.answers = Answers(self.adapters, self.serving, self.retrieval)
        self.training = Training(ports, vault, membership, self.revisions, self.bases)
        self.jobs = Jobs(disk, ports.clock, ports.randomness)
        self.jobs.kind(TRAIN, self.training.work)
        self.jobs.kind(EVALUATE, Evaluation(ports, self.revisions, self.bases).work)

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Run jobs and serve answers until cancelled; started once the interrupted jobs are queued again.

        The promoted revision is taken up again at once, so that the first question does not wait for it.
        """
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.jobs.run)
                await nursery.start(self.serving.run)
                task_status.started()
                await self._take_up()
        finally:
            self.retrieval.close()

    async def _take_up(self) -> None:
        """Make the served revision hot. What is wrong with it, the first question says."""
        try:
            if self.adapters.served() is not None:
                await self.serving.make_hot(await self.adapters.hot(lambda progress: None))
        except NodeError:
            return

    def handlers(self) -> dict[str, Handler]:
        """The verbs of the local API."""
        return {"train": self._train, "jobs.list": self._jobs_list, "jobs.cancel": self._jobs_cancel,
                "adapters.list": self._adapters_list, "adapters.promote": self._adapters_promote,
                "adapters.rollback": self._adapters_rollback, "ask": self._ask, "ask.many": self._ask_many,
                "evaluate": self._evaluate, "base.show": self._base_show, "base.import": self._base_import,
                "base.use": self._base_use}

    async def _train(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{recipe, revision?, held_out?, detach?} -> {job: {...}}. The job goes on when the caller hangs up.

        `revision` is the teacher (laptop; default the newest); `held_out` are questions that no training text may
        repeat (cloud).
        """
        recipe = text_of(args, "recipe", "demo")
        self.training.check(recipe)
        held_out = questions_of({"questions": args.get("held_out") or []})
        job = self.jobs.submit(TRAIN, {"recipe": recipe, "revision": args.get("revision"), "held_out": held_out})
        if not args.get("detach"):
            job = await self.jobs.finish(job.id, emit)
        return {"job": job.as_json()}

    async def _jobs_list(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{} -> {jobs: [...]}, oldest first, without the answers of evaluations."""
        jobs = [job.as_json() for job in self.jobs.list()]
        return {"jobs": [{**job, "args": {}, "result": None} if job["kind"] == EVALUATE else job for job in jobs]}

    async def _jobs_cancel(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{job} -> {job: {...}}."""
        return {"job": self.jobs.cancel(text_of(args, "job")).as_json()}

    async def _adapters_list(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{} -> {revisions, served, history, refused: {id: why}}, oldest first."""
        revisions = await self.revisions.list()
        history = [row.revision for row in self.adapters.history()]
        return {"revisions": [revision.as_json() for revision in revisions], "history": history,
                "served": history[-1] if history else None, "refused": dict(self.revisions.refused)}

    async def _adapters_promote(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{revision} -> what `Adapters.promote` returns."""
        return await self.adapters.promote(text_of(args, "revision"), emit)

    async def _adapters_rollback(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{} -> what `Adapters.rollback` returns."""
        return await self.adapters.rollback(emit)

    async def _ask(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{question, retrieval?, tokens_max?} -> what `Answers.ask` returns."""
        return await self.answers.ask(text_of(args, "question"), retrieval=bool(args.get("retrieval", True)),
                                      tokens_max=whole_number_of(args, "tokens_max", TOKENS_MAX), report=emit)

    async def _ask_many(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{questions, retrieval?, base_only?, tokens_max?} -> {answers: [text]}, in order, one after another."""
        questions = questions_of(args)
        answers = []
        for step, question in enumerate(questions):
            told = await self.answers.ask(question, retrieval=bool(args.get("retrieval", False)),
                                          base_only=bool(args.get("base_only", False)),
                                          tokens_max=whole_number_of(args, "tokens_max", TOKENS_MAX), report=emit)
            answers.append(told["answer"])
            emit({"step": step + 1, "total": len(questions), "note": "asking"})
        return {"answers": answers}

    async def _evaluate(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{questions, revision?} -> {answers}: in the training engine, with a revision's weights or the base's."""
        job = self.jobs.submit(EVALUATE, {"questions": questions_of(args), "revision": args.get("revision")})
        done = await self.jobs.finish(job.id, emit)
        return {"answers": list((done.result or {})["answers"])}

    async def _base_show(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{} -> {bases, current: digest or None}."""
        return base_state(self.bases)

    async def _base_import(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{source: path, or None for the embedded default} -> {base, bases, current}."""
        source = None if args.get("source") is None else text_of(args, "source")
        base = await self.bases.install(source, emit)
        return {"base": base.as_json(), **base_state(self.bases)}

    async def _base_use(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """{base: digest or its beginning} -> {bases, current}."""
        self.bases.select(self.bases.find(text_of(args, "base")))
        return base_state(self.bases)


def base_state(bases: Bases) -> dict[str, Any]:
    """What `base show` tells, with or without an agent."""
    current = bases.current()
    return {"bases": [base.as_json() for base in bases.installed()], "current": current.digest if current else None}


def questions_of(args: Mapping[str, Any]) -> list[str]:
    """The argument `questions`. Errors: `UsageError` for anything but a bounded list of texts."""
    questions = args.get("questions")
    if not isinstance(questions, list) or not all(isinstance(question, str) for question in questions):
        raise UsageError("the argument 'questions' must be a list of texts")
    if len(questions) > QUESTIONS_MAX:
        raise UsageError(f"{len(questions)} questions; at most {QUESTIONS_MAX} are taken at once")
    return questions
