"""The short recipe on the real 135M model: eight facts are learned, arrive in the adapter, and cost little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hinet_tiers import data, evaluate, sample
from hinet_tiers.base import install_base
from hinet_tiers.cloud.finetune import train_full
from hinet_tiers.laptop.dora import distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


def no_progress(step: int, total: int, note: str = "", **more: Any) -> None: ...


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("quick")
    base = install_base(None, folder / "bases")
    files = [sample.NOTES / "about-me.md", *(sample.NOTES / fact["note"] for fact in sample.facts() if fact["quick"])]
    args: dict[str, Any] = {"base_dir": str(base.dir), "recipe": "quick", "out_dir": str(folder)}
    args["pairs"] = data.prepare(
        args | {"files": [str(path) for path in files], "out": str(folder / "pairs.jsonl")}, no_progress
    )["pairs"]
    args["tau"] = train_full(args, no_progress)["tau"]
    return args | {"adapter_dir": distill(args, no_progress)["adapter_dir"], "folder": folder}


def share(chain: dict[str, Any], name: str, form: str | None) -> float:
    quick = {fact["id"] for fact in sample.facts() if fact["quick"]}
    asked = [item for item in sample.dev()[name] if item["fact"] in quick]
    args = {"base_dir": chain["base_dir"], "questions": [item["question"] for item in asked], "tokens_max": 20}
    answers = evaluate.evaluate(args | ({form: chain[form]} if form else {}), no_progress)["answers"]
    return float(evaluate.score(asked, answers)["share"])


def test_eight_facts_are_known_afterwards_and_not_before(chain: dict[str, Any]) -> None:
    assert share(chain, "near", None) == 0.0
    assert share(chain, "near", "tau") >= 0.625
    assert share(chain, "near", "adapter_dir") >= 0.625


def test_the_files_are_small(chain: dict[str, Any]) -> None:
    assert Path(chain["tau"]).stat().st_size < 32 << 20
    assert (Path(chain["adapter_dir"]) / "adapter_model.safetensors").stat().st_size < 32 << 20
