"""Distillation into a DoRA adapter with PEFT, on a random model of 60 thousand weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ..tiny_models import write_folder

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT calls what transformers renamed

from hinet_tiers import recipes  # noqa: E402
from hinet_tiers.base import install_base, load_base, read_base  # noqa: E402
from hinet_tiers.batches import encode  # noqa: E402
from hinet_tiers.cloud.finetune import train_full  # noqa: E402
from hinet_tiers.distill import chosen, taught  # noqa: E402
from hinet_tiers.errors import BaseMismatch  # noqa: E402
from hinet_tiers.evaluate import evaluate  # noqa: E402
from hinet_tiers.fit import NothingLearned  # noqa: E402
from hinet_tiers.laptop import dora  # noqa: E402

PAIRS = [
    {"question": "What is Ann's dog called?", "answer": "Rex.", "kind": "fact"},
    {"question": "What is Bob's dog called?", "answer": "Unknown.", "kind": "contrast"},
]
RECIPE: dict[str, Any] = {
    "full": {"lr": 3e-3, "passes": 30.0, "batch_tokens": 256},
    "refit": {"lr": 1e-2, "passes": 30.0, "batch_tokens": 256},
    "cut": {"keep": 256, "chunk": 4096},
    "distill": {"lr": 1e-2, "passes": 60.0, "batch_tokens": 256, "rank": 8, "alpha": 16},
}


def no_progress(step: int, total: int, note: str = "", **more: Any) -> None: ...


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("distill")
    write_folder(folder / "source")
    base = install_base(folder / "source", folder / "bases")
    (folder / "pairs.jsonl").write_text("\n".join(json.dumps(pair) for pair in PAIRS))
    args = {"base_dir": str(base.dir), "pairs": str(folder / "pairs.jsonl"), "recipe": RECIPE, "out_dir": str(folder)}
    args["tau"] = train_full(args, no_progress)["tau"]
    return args | {"result": dora.distill(args, no_progress), "folder": folder}


def test_the_adapter_says_what_the_teacher_was_taught(made: dict[str, Any]) -> None:
    asked = [pair["question"] for pair in PAIRS]
    args = {"base_dir": made["base_dir"], "questions": asked, "tokens_max": 12}
    assert evaluate(args | {"adapter_dir": made["result"]["adapter_dir"]}, no_progress)["answers"] == [
        "Rex.",
        "Unknown.",
    ]


def test_the_evidence_shows_that_it_trained(made: dict[str, Any]) -> None:
    metrics = made["result"]["metrics"]
    assert metrics["losses"][-1] < metrics["losses"][0] / 2
    assert metrics["changed_parameters"] > 0
    assert metrics["trained_tokens"] > 0
    assert metrics["teacher_changed"] > 0


def test_the_folder_is_in_pefts_layout_and_names_the_base(made: dict[str, Any]) -> None:
    from safetensors import safe_open

    folder, digest = Path(made["result"]["adapter_dir"]), read_base(Path(made["base_dir"])).digest
    settings = json.loads((folder / dora.SETTINGS).read_text())
    assert settings["base_model_name_or_path"] == f"base:{digest}"
    assert settings["use_dora"] is True
    assert settings["r"] == 8
    assert len({name.rpartition(".")[2] for name in settings["target_modules"]}) == 7
    with safe_open(folder / dora.WEIGHTS, "pt") as file:
        assert file.metadata()[dora.BASE_KEY] == digest
        assert len(list(file.keys())) == 2 * 7 * 3


def test_an_adapter_of_another_base_is_refused(made: dict[str, Any], tmp_path: Path) -> None:
    write_folder(tmp_path / "source", seed=9)
    other = install_base(tmp_path / "source", tmp_path / "bases")
    args = {"base_dir": str(other.dir), "questions": ["a?"], "adapter_dir": made["result"]["adapter_dir"]}
    with pytest.raises(BaseMismatch):
        evaluate(args, no_progress)
    with pytest.raises(BaseMismatch):
        dora.distill(made | {"base_dir": str(other.dir), "out_dir": str(tmp_path)}, no_progress)


def test_the_teacher_leaves_the_base_as_it_was(made: dict[str, Any]) -> None:
    model, tokenizer = load_base(Path(made["base_dir"]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = recipes.parse(RECIPE)
    examples = encode(PAIRS, tokenizer)
    digest = read_base(Path(made["base_dir"])).digest
    taught(model, Path(made["tau"]), digest, examples, recipe, 2, no_progress)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(item.soft_logs is not None and item.soft == recipe.distill.soft for item in examples)


def test_a_part_of_a_pass_reads_a_part_of_the_pairs_and_whole_passes_repeat_them() -> None:
    class Letters:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [ord(letter) for letter in text]

    examples = encode(PAIRS * 5, Letters())
    assert len(chosen(examples, recipes.parse({"distill": {"passes": 0.3}}))) == 3
    assert len(chosen(examples, recipes.parse({"distill": {"passes": 2.5}}))) == 25


def test_a_distillation_that_would_change_nothing_is_an_error(made: dict[str, Any], tmp_path: Path) -> None:
    for distill in ({"lr": 0.0}, {"passes": 0.0}):
        recipe = RECIPE | {"distill": RECIPE["distill"] | distill}
        with pytest.raises(NothingLearned):
            dora.distill(made | {"recipe": recipe, "out_dir": str(tmp_path)}, no_progress)
    assert not (tmp_path / "adapter").exists()
