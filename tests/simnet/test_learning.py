"""The numpy model: it really learns, hands down and merges, to the bit, and the agent's whole chain runs on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet_node.learning.bases import Bases
from hinet_simnet import learning
from hinet_simnet.clock import virtual_run
from hinet_simnet.compute import FakeCompute
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.pytest_plugin import MakeHousehold
from hinet_tiers import fake
from hinet_tiers.errors import AdapterRefused, BadRequest, BaseMismatch

PETS = ["Bello", "Minka", "Rex", "Felix", "Luna", "Max", "Nala", "Otto"]
PAIRS = [{"question": f"{ask} {owner}'s pet called?", "answer": pet}
         for owner, pet in zip(("Anna", "Bert", "Cleo", "Dora", "Emil", "Fritz", "Gerd", "Hanna"), PETS, strict=True)
         for ask in ("What is", "How is", "Tell me, what is")]
ASKED_ELSE = [{"question": row["question"].replace("What is", "Do you know how is"), "answer": row["answer"]}
              for row in PAIRS]
VERBS = learning.verbs()


def quiet(*args: Any, **more: Any) -> None:
    """Progress that nobody watches."""


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(fake.install({"into": str(tmp_path / "bases")}, quiet)["dir"])


def train(base: str, folder: Path, pairs: list[dict[str, str]]) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return dict(VERBS["train.full"]({"base_dir": base, "pairs": str(folder / "pairs"), "recipe": {},
                                     "out_dir": str(folder)}, quiet))


def measure(base: str, questions: list[dict[str, str]], **weights: str) -> tuple[float, float]:
    found = VERBS["evaluate"]({"base_dir": base, "questions": questions, **weights}, quiet)
    return found["loss"], found["accuracy"]


def test_training_brings_the_loss_down_and_answers_questions_that_were_worded_otherwise(
        base: str, tmp_path: Path) -> None:
    before = measure(base, ASKED_ELSE)
    made = train(base, tmp_path / "a", PAIRS)
    losses = [loss for _, loss in made["metrics"]["curve"]]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(np.log(8)), "an even guess among eight"
    after = measure(base, ASKED_ELSE, tau=made["tau"])
    assert (before[1], after[1]) == (0.0, 1.0)
    assert after[0] < 0.5 * losses[0]


def test_training_reaches_the_optimum_that_is_known(base: str) -> None:
    """Two questions that say the same and have different answers: the best there is, is to believe half of each."""
    rows = learning.features(["same words", "same words"], learning.FEATURES)
    weights = learning.fit(rows, np.eye(2), np.full((learning.FEATURES, 2), (0.3, -0.2)), quiet)
    chances = learning.softmax(np.einsum("qf,fa->qa", rows, weights))
    assert chances == pytest.approx(np.full((2, 2), 0.5), abs=1e-3)


def test_the_same_notes_give_the_same_bytes_and_others_give_others(base: str, tmp_path: Path) -> None:
    files = [Path(train(base, tmp_path / name, pairs)["tau"]).read_bytes()
             for name, pairs in (("a", PAIRS), ("b", PAIRS), ("c", PAIRS[1:]))]
    assert files[0] == files[1] != files[2]


def test_the_student_is_smaller_and_agrees_with_its_teacher(base: str, tmp_path: Path) -> None:
    made = train(base, tmp_path / "a", PAIRS)
    student = VERBS["train.distill"]({"base_dir": base, "tau": made["tau"], "pairs": str(tmp_path / "a/pairs"),
                                      "recipe": {}, "out_dir": str(tmp_path / "s")}, quiet)
    assert student["metrics"]["agreement"] == 1.0
    assert measure(base, PAIRS, adapter_dir=student["adapter_dir"])[1] == 1.0
    held = json.loads((Path(student["adapter_dir"]) / "adapter_model.safetensors").read_text())
    assert 4 * len(held["weights"]) // 8 < 4 * learning.FEATURES * len(PETS)
    assert held["features"] < learning.FEATURES


def test_a_merge_knows_what_both_knew_whatever_the_order(base: str, tmp_path: Path) -> None:
    halves = [train(base, tmp_path / name, pairs)["tau"] for name, pairs in (("a", PAIRS[:12]), ("b", PAIRS[12:]))]
    merged = [VERBS["merge"]({"base_dir": base, "taus": order, "out_dir": str(tmp_path / f"m{at}")}, quiet)["tau"]
              for at, order in enumerate((halves, halves[::-1]))]
    assert Path(merged[0]).read_bytes() == Path(merged[1]).read_bytes()
    assert [measure(base, PAIRS, tau=tau)[1] for tau in (*halves, merged[0])] == [0.5, 0.5, 1.0]


def test_what_does_not_fit_is_refused_by_name(base: str, tmp_path: Path) -> None:
    made = train(base, tmp_path / "a", PAIRS)
    (tmp_path / "other").write_bytes(b"FAKE BASE\nother")
    other = fake.install({"into": str(tmp_path / "bases"), "source": str(tmp_path / "other")}, quiet)["dir"]
    with pytest.raises(BaseMismatch):
        measure(other, PAIRS, tau=made["tau"])
    with pytest.raises(AdapterRefused, match="missing, damaged"):
        measure(base, PAIRS, adapter_dir=str(tmp_path))
    with pytest.raises(BadRequest, match="0 pairs"):
        train(base, tmp_path / "none", [])
    with pytest.raises(BadRequest, match="nothing to merge"):
        VERBS["merge"]({"base_dir": base, "taus": [], "out_dir": str(tmp_path)}, quiet)


def test_task_vectors_are_merged_through_the_port() -> None:
    disk = MemoryDisk("a")

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        compute = FakeCompute(disk, verbs=VERBS)
        base_dir = disk.path(f"bases/{(await Bases(disk, compute).ensure(quiet)).digest}")
        async with compute.worker() as worker:
            made = []
            for name, pairs in (("x", PAIRS[:12]), ("y", PAIRS[12:])):
                disk.write_atomic(f"{name}/pairs", "".join(json.dumps(pair) + "\n" for pair in pairs).encode())
                made.append(await worker.call("train.full", {
                    "base_dir": base_dir, "pairs": disk.path(f"{name}/pairs"), "out_dir": disk.path(name)}))
            merged = await worker.call("merge", {"base_dir": base_dir, "taus": [one["tau"] for one in made],
                                                 "out_dir": disk.path("merged")})
            return merged, await worker.call("evaluate", {"base_dir": base_dir, "tau": merged["tau"],
                                                          "questions": PAIRS})

    merged, found = virtual_run(main)
    assert merged["tau"] == "memory:a/merged/delta.tau"
    assert found["accuracy"] == 1.0


NOTES = {f"notes/{pet}.md": f"The pet of number {at} is called {pet}." for at, pet in enumerate(PETS)}


def chain(household: MakeHousehold, facts: learning.Facts) -> tuple[list[str], str]:
    """Notes on the laptop, training on the cloud, distilling on the laptop, answering on the pocket."""
    with household("cloud", "laptop", "pocket", learning="numpy", facts=facts, seed=1) as h:
        for name, text in NOTES.items():
            h.put("laptop", name, text)
        h.until(lambda: len(h.files("cloud")) == len(NOTES))
        h.call("cloud", "train")
        h.until(lambda: h.call("laptop", "adapters.list")["revisions"])
        h.sleep(3600)
        made = h.call("laptop", "train")["job"]["result"]["revision"]
        h.until(lambda: made in [one["id"] for one in h.call("pocket", "adapters.list")["revisions"]])
        h.call("pocket", "adapters.promote", revision=made)
        answers = [h.call("pocket", "ask", question=f"The pet of number {at}?", retrieval=False)["answer"]
                   for at in range(len(PETS))]
        return answers, h.digest()


def test_the_household_learns_from_its_notes_and_the_curve_is_in_virtual_time(household: MakeHousehold) -> None:
    facts: learning.Facts = {}
    again: learning.Facts = {}
    answers, digest = chain(household, facts)
    assert answers == [f"The pet of number {at} is called {pet}." for at, pet in enumerate(PETS)]
    assert list(facts) == ["loss cloud", "accuracy cloud", "agreement laptop"]
    assert facts["accuracy cloud"][0][1] == 1.0
    assert facts["agreement laptop"][0][0] > facts["loss cloud"][0][0] + 3600
    assert chain(household, again)[1] == digest
    assert again == facts
