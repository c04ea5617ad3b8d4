"""The work of a training job: what the household's notes say, into a signed revision in the vault.

On a cloud device: notes -> pairs -> full fine-tuning -> sparse task vector. On a laptop: the newest task vector of the
household as the teacher -> a DoRA adapter, as a child revision. Models run in workers; what they learn from and by is
the models part's business. SPEC section 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from hinet_node.errors import IntegrityError, NodeError, TryAgain, UsageError
from hinet_node.learning.bases import Bases, require_same
from hinet_node.learning.jobs import Running
from hinet_node.learning.retrieval import read_notes
from hinet_node.learning.revisions import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    PAIRS_FILE,
    TAU_FILE,
    Draft,
    Membership,
    Revision,
    Revisions,
    VaultStore,
)
from hinet_node.ports import Ports
from hinet_protocol.passports import ADAPTER, TASK_VECTOR

METRICS_LIST_MAX = 16
PEFT_WEIGHTS = "adapter_model.safetensors"


class Training:
    """Training as this device's tier does it."""

    def __init__(self, ports: Ports, vault: VaultStore, membership: Membership, revisions: Revisions, bases: Bases,
                 ) -> None:
        self._ports = ports
        self._vault = vault
        self._membership = membership
        self._revisions = revisions
        self._bases = bases

    def check(self, recipe_name: str) -> None:
        """Refuse at once what can't work. Errors: `UsageError`, or the recipe's own refusal."""
        load_recipe(recipe_name)
        if self._membership.tier == "pocket":
            raise UsageError("a pocket device answers and does not train",
                             next_step="train on the cloud or laptop device, then here: hinet-node adapters promote",
                             code="E_TIER_UNFIT")

    async def work(self, running: Running) -> Mapping[str, Any]:
        """The job: {recipe, revision?, held_out?} -> {revision, kind, bytes, metrics}."""
        recipe = load_recipe(str(running.job.args["recipe"]))
        if self._membership.tier == "cloud":
            revision = await self._teach(running, recipe)
        else:
            revision = await self._distill(running, recipe)
        running.evidence.update(base=revision.base, data_digest=revision.data_digest, revision=revision.id,
                                recipe_digest=revision.recipe_digest)
        return {"revision": revision.id, "kind": revision.kind, "bytes": revision.size_bytes,
                "metrics": dict(running.evidence.get("metrics") or {})}

    async def _teach(self, running: Running, recipe: Any) -> Revision:
        """Notes -> pairs -> task vector."""
        disk, folder = self._ports.disk, running.folder
        base = await self._bases.ensure(running.report)
        await self._write_notes(running)
        async with self._ports.compute.worker() as worker:
            prepared = await worker.call("data.prepare", {
                "notes_dir": disk.path(f"{folder}/notes"), "out": disk.path(f"{folder}/{PAIRS_FILE}"),
                "base_dir": self._bases.folder(base), "recipe": recipe.as_dict(),
                "evaluation": list(running.job.args.get("held_out") or ())}, on_progress=running.report)
        pairs = disk.read(f"{folder}/{PAIRS_FILE}")
        running.evidence["counts"] = prepared.get("counts")
        if not pairs.strip():
            raise UsageError("the notes hold nothing to learn from",
                             next_step="add notes with plain sentences such as: My dog is called Rex.",
                             code="E_NOTHING_TO_LEARN")
        # A worker of its own: what preparing held in memory is given back before training needs it.
        async with self._ports.compute.worker() as worker:
            trained = await worker.call("train.full", {
                "base_dir": self._bases.folder(base), "pairs": disk.path(f"{folder}/{PAIRS_FILE}"),
                "recipe": recipe.as_dict(), "out_dir": disk.path(f"{folder}/out")}, on_progress=running.report)
        running.evidence["metrics"] = trained.get("metrics")
        return await self._revisions.publish(Draft(
            kind=TASK_VECTOR, base=base.digest, recipe=recipe.as_dict(), recipe_digest=recipe.digest,
            data_digest=blake3(pairs).hexdigest(), metrics=condensed(trained.get("metrics") or {}),
            files={TAU_FILE: disk.read(f"{folder}/out/{TAU_FILE}"), PAIRS_FILE: pairs},
        ), self._ports.clock.now_unix_s())

    async def _distill(self, running: Running, recipe: Any) -> Revision:
        """The newest task vector -> adapter."""
        disk, folder = self._ports.disk, running.folder
        teacher = await self.teacher(running.job.args.get("revision"))
        base = await self._bases.ensure(running.report)
        require_same(base, teacher.base, f"revision {teacher.id}")
        for file in (TAU_FILE, PAIRS_FILE):
            await self._revisions.fetch(teacher, file, disk, f"{folder}/{file}")
        async with self._ports.compute.worker() as worker:
            made = await worker.call("train.distill", {
                "base_dir": self._bases.folder(base), "tau": disk.path(f"{folder}/{TAU_FILE}"),
                "pairs": disk.path(f"{folder}/{PAIRS_FILE}"), "recipe": recipe.as_dict(),
                "out_dir": disk.path(f"{folder}/out")}, on_progress=running.report)
        running.evidence["metrics"] = made.get("metrics")
        inner = str(made["adapter_dir"]).rstrip("/").removeprefix(disk.path(f"{folder}/out")).strip("/")
        adapter = "/".join(part for part in (folder, "out", inner) if part)
        return await self._revisions.publish(Draft(
            kind=ADAPTER, base=base.digest, recipe=recipe.as_dict(), recipe_digest=recipe.digest,
            data_digest=teacher.data_digest, metrics=condensed(made.get("metrics") or {}), parents=(teacher.id,),
            files={ADAPTER_FILE: disk.read(f"{adapter}/{PEFT_WEIGHTS}"),
                   ADAPTER_CONFIG_FILE: disk.read(f"{adapter}/{ADAPTER_CONFIG_FILE}")},
        ), self._ports.clock.now_unix_s())

    async def teacher(self, wanted: Any = None) -> Revision:
        """The task vector to learn from. Errors: `TryAgain` E_NO_TEACHER while none has come through the vault."""
        if wanted:
            revision = await self._revisions.find(str(wanted))
            if revision.kind != TASK_VECTOR:
                raise UsageError(f"revision {revision.id} is no task vector", next_step="hinet-node adapters list")
            return revision
        newest = await self._revisions.newest(TASK_VECTOR)
        if newest is not None:
            return newest
        if self._revisions.refused:
            revision_id, why = next(iter(self._revisions.refused.items()))
            raise NodeError(f"revision {revision_id} is not used: {why}", next_step="hinet-node adapters list",
                            code="E_PASSPORT_REFUSED")
        raise TryAgain("no task vector of a cloud device is in the vault yet",
                       next_step="on the cloud device: hinet-node train   then here again", code="E_NO_TEACHER")

    async def _write_notes(self, running: Running) -> None:
        """The vault's notes as files for the worker; their order is kept, their names made plain. Those that can't be
        read are named in the job's evidence."""
        folder, notes = running.folder, await read_notes(self._vault)
        if notes.left_out:
            running.evidence["left_out"] = notes.left_out_rows()
        if not notes.texts:
            name, why = next(iter(notes.left_out.items()), ("", ""))
            if name:
                raise IntegrityError(f"none of the vault's notes can be read; {name!r}: {why}",
                                     next_step="hinet-node vault verify   then: hinet-node vault repair")
            raise UsageError("the vault holds no notes (*.md, *.txt)", next_step="hinet-node vault add FOLDER",
                             code="E_NO_NOTES")
        for number, (name, text) in enumerate(sorted(notes.texts.items())):
            plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)[-100:]
            self._ports.disk.write_atomic(f"{folder}/notes/{number:05d}-{plain}", text.encode("utf-8", "replace"))


def condensed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics for a passport: without long lists such as loss curves, which stay in the job's evidence."""
    kept: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            kept[name] = condensed(value)
        elif not isinstance(value, list | tuple) or len(value) <= METRICS_LIST_MAX:
            kept[name] = value
    return kept


def load_recipe(name: str) -> Any:
    """A shipped recipe by its name or a TOML file by its path (`hinet_tiers.recipes`)."""
    from hinet_tiers import recipes

    return recipes.load(name)
