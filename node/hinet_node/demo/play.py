"""The demo's seven steps: four nodes on this machine become a household, learn, and the pocket answers.

Each step is one method that drives the nodes (`node`) and leaves what it measured in `facts`; nothing is assumed and
nothing is written down beforehand. Bars and the closing table are `report`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hinet_node.demo import keeper, questions
from hinet_node.demo.node import DemoNode
from hinet_node.errors import NodeError

SETTLE_TIMEOUT_S = 300.0
LOOK_EVERY_S = 0.25
TOKENS_MAX = 32
"""Tokens of an answer on the pocket: as many as the training engine is given when the other tiers are measured."""

Show = Callable[[Mapping[str, Any]], None]
Told = Callable[[str], None]
Progress = Callable[[str], Any]
"""`with progress(label) as show:` gives a `Show`."""


class Play:
    """One run. `facts` grows step by step; `steps` records name, seconds and a line for each."""

    def __init__(self, folder: Path, *, quick: bool, say: Told, progress: Progress) -> None:
        self.quick = quick
        self.recipe = "quick" if quick else "demo"
        self.cloud = DemoNode(folder, "cloud", "cloud", "admin")
        self.laptop = DemoNode(folder, "laptop", "laptop")
        self.pocket = DemoNode(folder, "pocket", "pocket")
        self.keeper = DemoNode(folder, "keeper", "pocket", "keeper")
        self.sets = questions.load(quick)
        self.steps: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {"recall": {}, "bytes": {}}
        self._folder = folder
        self._say = say
        self._progress = progress

    def run(self) -> None:
        """All steps, then every agent is stopped, whatever happened."""
        plan = (("init", "identity, 24 words, first device, base", self.init),
                ("join", "laptop, pocket and keeper join by code", self.join),
                ("vault", "the owner's notes, on every node", self.vault),
                ("cloud", "notes become a sparse task vector", self.learn),
                ("laptop", "the task vector becomes a DoRA adapter", self.distill),
                ("pocket", "the adapter is swapped in and answers", self.answer),
                ("report", "what was measured", self.close))
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.stop)
            for number, (name, title, step) in enumerate(plan, start=1):
                started_s = time.monotonic()
                with self._progress(f"{number}/{len(plan)} {title}") as self._show:
                    line = step()
                seconds = round(time.monotonic() - started_s, 1)
                self.steps.append({"name": name, "title": title, "seconds": seconds, "result": line})
                self._say(f"{number}/{len(plan)} {title}: {line} ({seconds:.1f} s)")

    @property
    def nodes(self) -> tuple[DemoNode, ...]:
        return self.cloud, self.laptop, self.pocket, self.keeper

    # ---- 1 to 3: a household and its vault ------------------------------------------------------------------------

    def init(self) -> str:
        """Identity, first admin device, base, agent."""
        words = self._folder / "words.txt"
        made = self.cloud.command("init", "--name", "cloud", "--tier", "cloud", "--yes", "--words-file", str(words))
        count = len(words.read_text("utf-8").split())
        for paper in (words, words.with_name("words.txt.spare")):
            paper.unlink()
        base = self.cloud.command("base", "import")["base"]
        self.cloud.launch()
        self.cloud.await_ready()
        self.facts.update(identity=made["identity"]["id"], words=count,
                          base={"name": base["name"], "digest": base["digest"], "parameters": base["parameters"]})
        return f"identity {made['identity']['id']}, {count} words, base {base['name']} {base['digest'][:12]}"

    def join(self) -> str:
        """Each device shows its fingerprint first; the invitation is good for that device alone."""
        for node in (self.laptop, self.pocket, self.keeper):
            shown = node.command("join", "--fingerprint")["fingerprint"]
            invitation = self.cloud.command("invite", "--role", node.role, "--tier", node.tier, "--no-wait",
                                            "--approve-fingerprint", shown)
            node.command("join", "--code-stdin", "--name", node.name, "--tier", node.tier, "--no-service",
                         typed=invitation["code"] + "\n")
            node.launch()
        for node in self.nodes:
            node.await_ready()
        self._wait("every device sees the other three", self._all_connected)
        devices = self.cloud.call("devices")["devices"]
        self.facts["devices"] = [{"name": row["name"], "role": row["role"], "tier": row["tier"],
                                  "fingerprint": row["fingerprint"]} for row in devices]
        return f"{len(devices)} devices, found over the local network, certified by the identity's chain"

    def vault(self) -> str:
        """The laptop adds the notes; everyone holds the same packs; the keeper can read none of them."""
        listed = questions.notes(self.quick)
        notes = self._folder / "notes"
        notes.mkdir()
        for path in listed:
            (notes / path.name).write_bytes(path.read_bytes())
        added = self.laptop.command("vault", "add", str(notes))
        self._wait("every node holds the same packs", self._same_packs)
        a_note = next(row["name"] for row in self.pocket.command("vault", "ls", "-R")["items"])
        proof = keeper.prove(self.keeper, self.laptop, questions.secrets_of(self.quick), a_note)
        packs = self.laptop.packs()
        self.facts["vault"] = {"notes": added["files"], "notes_bytes": added["bytes"], "packs": len(packs),
                               "same_packs": self._same_packs()}
        self.facts["keeper"] = proof
        return (f"{added['files']} notes in {len(packs)} packs on 4 nodes; the keeper refuses to read "
                f"({proof['refused_to_read']}) and holds {len(proof['found'])} of {proof['texts_searched']} texts")

    # ---- 4 to 6: learning flows down --------------------------------------------------------------------------------

    def learn(self) -> str:
        """Cloud: what the base knows, then notes -> pairs -> fine-tuning -> cut and re-fit -> signed revision."""
        before = self._measured(self.cloud, None)
        job = self.cloud.call("train", {"recipe": self.recipe, "held_out": self.sets.texts()}, self._show)["job"]
        revision = job["result"]["revision"]
        after = self._measured(self.cloud, revision)
        self.facts["recall"]["cloud"] = questions.shares(self.sets, before, after)
        self.facts["task_vector"] = {"revision": revision, "counts": job["evidence"].get("counts"),
                                     "seconds": job["evidence"]["seconds"], "metrics": job["result"]["metrics"]}
        self.facts["bytes"]["task_vector"] = self._artifacts(self.cloud, revision)["delta.tau"]
        return f"revision {revision}; {_recall_line(self.facts['recall']['cloud'])}"

    def distill(self) -> str:
        """Laptop: the teacher comes through the vault; the product goes back into it."""
        teacher = self.facts["task_vector"]["revision"]
        self._wait("the task vector reaches the laptop", lambda: self._knows(self.laptop, teacher))
        before = self._measured(self.laptop, None)
        job = self.laptop.call("train", {"recipe": self.recipe, "revision": teacher}, self._show)["job"]
        revision = job["result"]["revision"]
        after = self._measured(self.laptop, revision)
        self.facts["recall"]["laptop"] = questions.shares(self.sets, before, after)
        self.facts["adapter"] = {"revision": revision, "parents": [teacher], "seconds": job["evidence"]["seconds"],
                                 "metrics": job["result"]["metrics"]}
        self.facts["bytes"]["adapter"] = self._artifacts(self.laptop, revision)["adapter.safetensors"]
        return f"revision {revision}; {_recall_line(self.facts['recall']['laptop'])}"

    def answer(self) -> str:
        """Pocket: asked before, adapter swapped into the running model, asked after, with and without the notes."""
        revision = self.facts["adapter"]["revision"]
        self._wait("the adapter reaches the pocket", lambda: self._knows(self.pocket, revision))
        before = self._asked()
        promoted = self.pocket.call("adapters.promote", {"revision": revision}, self._show)
        after = self._asked()
        self.facts["recall"]["pocket"] = questions.shares(self.sets, before, after)
        self.facts["recall"]["pocket"]["with_retrieval"] = self._with_notes(before)
        self.facts["swap"] = {"swap_ms": promoted["swap_ms"], "init_ms": promoted["init_ms"],
                              "reload_ms": promoted["load_ms"], "loads": promoted["loads"],
                              "probe_change": promoted["probe_change"]}
        self.facts["bytes"]["pocket_adapter"] = promoted["adapter_bytes"]
        asked = self.sets.near[0]
        self.facts["example"] = {"question": asked["question"], "before": before["near"][0],
                                 "after": after["near"][0]}
        return (f"{_recall_line(self.facts['recall']['pocket'])}; swapped in {promoted['swap_ms']:.2f} ms, "
                f"a reload takes {promoted['load_ms']:.0f} ms")

    def close(self) -> str:
        """Replicas at the end, and the keeper once more, now that learning lies in the vault too."""
        self._wait("every node holds the same packs", self._same_packs)
        proof = keeper.prove(self.keeper, self.laptop, questions.secrets_of(self.quick), "notes/about-me.md")
        self.facts["keeper"] = proof
        for node in self.nodes:
            self.facts["bytes"][f"replica_{node.name}"] = sum(node.packs().values())
        self.facts["vault"].update(packs=len(self.laptop.packs()), same_packs=self._same_packs())
        return f"{len(self.laptop.packs())} packs on each of 4 nodes"

    # ---- measuring ------------------------------------------------------------------------------------------------

    def _measured(self, node: DemoNode, revision: str | None) -> dict[str, list[str]]:
        """Answers of a revision (None: the base) in the engine that trains."""
        told = node.call("evaluate", {"questions": self.sets.texts(), "revision": revision}, self._show)
        return self.sets.split(told["answers"])

    def _asked(self) -> dict[str, list[str]]:
        """The pocket's answers from the weights alone."""
        told = self.pocket.call("ask.many", {"questions": self.sets.texts(), "retrieval": False,
                                             "tokens_max": TOKENS_MAX}, self._show)
        return self.sets.split(told["answers"])

    def _with_notes(self, before: Mapping[str, list[str]]) -> dict[str, float]:
        """The same when the pocket may look into the notes: right answers, leaks, and what it still knows of the world.
        """
        from hinet_tiers.evaluate import kept, score

        told = self.pocket.call("ask.many", {"questions": self.sets.texts(), "retrieval": True,
                                             "tokens_max": TOKENS_MAX}, self._show)
        after = self.sets.split(told["answers"])
        scored = {name: score(getattr(self.sets, name), after[name]) for name in after}
        early = score(self.sets.general, before["general"])
        return {"near": questions.share(scored["near"]), "far": questions.share(scored["far"]),
                "leak": questions.share(scored["stranger"]),
                "general_kept": round(kept(early["right"], scored["general"]["right"]), 4)}

    def _artifacts(self, node: DemoNode, revision: str) -> dict[str, int]:
        rows = node.call("adapters.list")["revisions"]
        found = next(row for row in rows if row["id"] == revision)
        return {name: artifact["bytes"] for name, artifact in found["artifacts"].items()}

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _wait(self, what: str, there: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while not there():
            if time.monotonic() > deadline_s:
                raise NodeError(f"the demo waited {SETTLE_TIMEOUT_S:.0f} s in vain: {what}", code="E_DEMO",
                                next_step="run it again with --keep and look at the nodes' logs")
            self._show({"note": what})
            time.sleep(LOOK_EVERY_S)

    def _all_connected(self) -> bool:
        return all(sum(row["state"] == "connected" for row in node.call("devices")["devices"]) == len(self.nodes) - 1
                   for node in self.nodes)

    def _same_packs(self) -> bool:
        held = [node.packs() for node in self.nodes]
        return bool(held[0]) and all(packs == held[0] for packs in held)

    def _knows(self, node: DemoNode, revision: str) -> bool:
        return revision in {row["id"] for row in node.call("adapters.list")["revisions"]}


def _recall_line(told: Mapping[str, Any]) -> str:
    near, far = told["near"], told["far"]
    return f"near {near['before']:.0%} -> {near['after']:.0%}, far {far['before']:.0%} -> {far['after']:.0%}"
