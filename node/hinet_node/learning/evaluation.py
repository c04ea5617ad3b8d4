"""Answers of a revision in the engine that trained it, without serving it: how its recall is measured.

Runs as a job, so that it never fills the machine beside a training. Scoring is the asker's business. SPEC section 8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hinet_node.learning.adapters import ADAPTER_NAMES
from hinet_node.learning.bases import Bases, require_same
from hinet_node.learning.jobs import Running
from hinet_node.learning.revisions import TAU_FILE, Revisions
from hinet_node.ports import Ports
from hinet_protocol.passports import TASK_VECTOR


class Evaluation:
    """Asks a base, a task vector or an adapter a list of questions."""

    def __init__(self, ports: Ports, revisions: Revisions, bases: Bases) -> None:
        self._ports = ports
        self._revisions = revisions
        self._bases = bases

    async def work(self, running: Running) -> Mapping[str, Any]:
        """The job: {questions, revision or None for the base} -> {answers}."""
        disk, folder = self._ports.disk, running.folder
        base = await self._bases.ensure(running.report)
        args: dict[str, Any] = {"base_dir": self._bases.folder(base), "tau": None, "adapter_dir": None,
                                "questions": disk.path(f"{folder}/questions.json")}
        wanted = running.job.args.get("revision")
        if wanted:
            revision = await self._revisions.find(str(wanted))
            require_same(base, revision.base, f"revision {revision.id}")
            if revision.kind == TASK_VECTOR:
                await self._revisions.fetch(revision, TAU_FILE, disk, f"{folder}/{TAU_FILE}")
                args["tau"] = disk.path(f"{folder}/{TAU_FILE}")
            else:
                for file, name in ADAPTER_NAMES.items():
                    await self._revisions.fetch(revision, file, disk, f"{folder}/adapter/{name}")
                args["adapter_dir"] = disk.path(f"{folder}/adapter")
        questions = [{"question": question} for question in running.job.args["questions"]]
        disk.write_atomic(f"{folder}/questions.json", json.dumps(questions).encode())
        async with self._ports.compute.worker() as worker:
            result = await worker.call("evaluate", args, on_progress=running.report)
        return {"answers": [str(answer) for answer in result["answers"]]}
