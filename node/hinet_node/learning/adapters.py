"""The served revision: which adapter this device answers with, how one is promoted, and the way back.

The choice is durable (`revisions/served`, written through Disk) and taken up again after a restart. Promoting fetches
the adapter from the vault, has a worker put it into the pocket's form, swaps it into the serving model and only then
writes the choice down: an adapter that is damaged, foreign or changes nothing never becomes the served one. SPEC
section 8.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio
from blake3 import blake3

from hinet_node.errors import IntegrityError, NodeError, UsageError
from hinet_node.learning.bases import Bases, InstalledBase, Report, require_same
from hinet_node.learning.jobs import empty_folder
from hinet_node.learning.revisions import ADAPTER_CONFIG_FILE, ADAPTER_FILE, Revision, Revisions
from hinet_node.learning.serving import Hot, Serving
from hinet_node.ports import Compute, Disk
from hinet_protocol.passports import ADAPTER

SERVED = "revisions/served"
HISTORY_MAX = 50
"""Promotions that can be rolled back."""
GGUF_RANK = 32
"""Rank of the pocket's form: twice the adapter's 16, because DoRA's magnitudes have full rank."""
ADAPTER_NAMES = {ADAPTER_FILE: "adapter_model.safetensors", ADAPTER_CONFIG_FILE: ADAPTER_CONFIG_FILE}
"""Names in the vault -> names that PEFT and the worker expect."""


@dataclass(frozen=True)
class Served:
    """A promoted revision and the digest (hex) of the file that is loaded for it."""

    revision: str
    base: str
    file_digest: str


class Adapters:
    """Which revision one device serves."""

    def __init__(self, disk: Disk, compute: Compute, revisions: Revisions, bases: Bases, serving: Serving) -> None:
        self._disk = disk
        self._compute = compute
        self._revisions = revisions
        self._bases = bases
        self._serving = serving
        self._checked: set[Served] = set()
        self._lock = trio.Lock()
        """Held while files are made or the choice changes: a question must not meet a half-made adapter."""

    def history(self) -> list[Served]:
        """The promotions that were not rolled back, oldest first; the last one is served. [] is the base alone."""
        try:
            record = json.loads(self._disk.read(SERVED))
            return [Served(str(row["revision"]), str(row["base"]), str(row["file_digest"]))
                    for row in record["history"]]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise IntegrityError(f"the record of the served revision is damaged ({error})",
                                 next_step="choose one again: hinet-node adapters promote REVISION",
                                 code="E_SERVED_DAMAGED") from error

    def served(self) -> Served | None:
        """The served promotion; None for the base alone."""
        history = self.history()
        return history[-1] if history else None

    async def hot(self, report: Report) -> Hot:
        """What should answer now. The adapter's file is checked, and made anew from the vault when it is not whole."""
        base = await self._bases.ensure(report)
        served = self.served()
        if served is None:
            return self._hot(base, None)
        require_same(base, served.base, f"the served revision {served.revision}")
        async with self._lock:
            if not self._whole(served):
                await self._make_file(await self._revisions.find(served.revision), base, report)
        return self._hot(base, served.revision)

    async def bare(self, report: Report) -> Hot:
        """The base alone, for comparison."""
        return self._hot(await self._bases.ensure(report), None)

    async def promote(self, beginning: str, report: Report) -> dict[str, Any]:
        """Serve a revision from now on.

        Returns {revision, before, swap_ms, init_ms, load_ms, loads, probe_change, adapter_bytes, conversion}. Errors:
        `UsageError` for an unknown revision or one that is no adapter; `IntegrityError` for another base's or a damaged
        one; the worker's refusals. After any error the same revision as before is served.
        """
        revision = await self._revisions.find(beginning)
        if revision.kind != ADAPTER:
            raise UsageError(f"revision {revision.id} is a {revision.kind}, which no device serves",
                             next_step="on the laptop: hinet-node train   then promote the adapter that it makes")
        base = await self._bases.ensure(report)
        require_same(base, revision.base, f"revision {revision.id}")
        history = self.history() if self._readable() else []
        async with self._lock:
            return await self._promote(revision, base, history, report)

    async def _promote(self, revision: Revision, base: InstalledBase, history: list[Served], report: Report,
                       ) -> dict[str, Any]:
        before = await self._serving.make_hot(self._before(base, history))
        conversion = await self._make_file(revision, base, report)
        file_digest = blake3(self._disk.read(_file(revision.id))).hexdigest()
        try:
            took = await self._serving.make_hot(self._hot(base, revision.id))
            if not history or history[-1].revision != revision.id:
                history.append(Served(revision.id, revision.base, file_digest))
            self._write(history[-HISTORY_MAX:])
        except NodeError:
            await self._serving.make_hot(self._before(base, self.history() if self._readable() else []))
            raise
        return {"revision": revision.id, "before": history[-2].revision if len(history) > 1 else None,
                **took, "load_ms": before["last_load_ms"], "adapter_bytes": self._disk.size(_file(revision.id)),
                "conversion": conversion}

    async def rollback(self, report: Report) -> dict[str, Any]:
        """Serve what was served before the last promotion: {revision: id or None for the base alone, left, swap_ms}.

        Errors: `UsageError` E_NOTHING_TO_ROLL_BACK.
        """
        async with self._lock:
            history = self._roll_back()
        left = history.pop()
        took = await self._serving.make_hot(await self.hot(report))
        return {"revision": history[-1].revision if history else None, "left": left.revision, **took}

    def _roll_back(self) -> list[Served]:
        """Write the history without its last promotion; returns it as it was."""
        history = self.history()
        if not history:
            raise UsageError("the base alone is served; there is nothing to roll back",
                             next_step="hinet-node adapters list", code="E_NOTHING_TO_ROLL_BACK")
        self._write(history[:-1])
        return history

    def _before(self, base: InstalledBase, history: list[Served]) -> Hot:
        """What is served now, as far as it fits the base in use and its file is whole."""
        if history and history[-1].base == base.digest and self._whole(history[-1]):
            return self._hot(base, history[-1].revision)
        return self._hot(base, None)

    async def _make_file(self, revision: Revision, base: InstalledBase, report: Report) -> Mapping[str, Any]:
        """Fetch a revision's adapter from the vault and have a worker put it into the pocket's form."""
        folder = f"revisions/{revision.id}"
        source = f"{folder}/source"
        try:
            for file, name in ADAPTER_NAMES.items():
                await self._revisions.fetch(revision, file, self._disk, f"{source}/{name}")
            async with self._compute.worker() as worker:
                made = await worker.call("adapter.to_gguf", {
                    "base_dir": self._bases.folder(base), "adapter_dir": self._disk.path(source),
                    "out": self._disk.path(_file(revision.id)), "rank": GGUF_RANK}, on_progress=report)
        finally:
            empty_folder(self._disk, source)
        return dict(made.get("metrics") or {})

    def _hot(self, base: InstalledBase, revision: str | None) -> Hot:
        adapter = None if revision is None else self._disk.path(_file(revision))
        return Hot(self._bases.folder(base), base.digest, adapter)

    def _whole(self, served: Served) -> bool:
        """Whether the adapter's file is what was promoted; read once per start of the agent."""
        try:
            if served not in self._checked and \
                    blake3(self._disk.read(_file(served.revision))).hexdigest() == served.file_digest:
                self._checked.add(served)
        except FileNotFoundError:
            return False
        return served in self._checked

    def _readable(self) -> bool:
        try:
            self.history()
        except IntegrityError:
            return False
        return True

    def _write(self, history: list[Served]) -> None:
        record = {"schema": "hinet.served/1",
                  "history": [{"revision": row.revision, "base": row.base, "file_digest": row.file_digest}
                              for row in history]}
        self._disk.write_atomic(SERVED, json.dumps(record).encode())


def _file(revision: str) -> str:
    return f"revisions/{revision}/adapter.gguf"
