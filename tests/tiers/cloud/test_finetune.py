"""Fine-tuning, cut and re-fit on a random model of 60 thousand weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hinet_tiers import recipes, sparsify
from hinet_tiers.base import install_base, load_base
from hinet_tiers.batches import encode
from hinet_tiers.cloud import finetune
from hinet_tiers.evaluate import evaluate
from hinet_tiers.fit import Free, NothingLearned, Schedule, fit

from ..tiny_models import write_folder

PAIRS = [
    {"question": "What is Ann's dog called?", "answer": "Rex.", "kind": "fact"},
    {"question": "What is Bob's dog called?", "answer": "Unknown.", "kind": "contrast"},
    {"question": "What is two?", "answer": "A number that", "kind": "replay", "cut": True},
]
RECIPE = {
    "full": {"lr": 3e-3, "passes": 30.0, "batch_tokens": 256},
    "refit": {"lr": 1e-2, "passes": 30.0, "batch_tokens": 256},
    "cut": {"keep": 256, "chunk": 4096},
}


def no_progress(step: int, total: int, note: str = "", **more: Any) -> None: ...


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_folder(folder / "source")
    return install_base(folder / "source", folder / "bases").dir


@pytest.fixture(scope="module")
def trained(base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("train")
    (folder / "pairs.jsonl").write_text("\n".join(json.dumps(pair) for pair in PAIRS))
    args = {"base_dir": str(base_dir), "pairs": str(folder / "pairs.jsonl"), "recipe": RECIPE, "out_dir": str(folder)}
    return finetune.train_full(args, no_progress)


def test_the_loss_falls_in_both_stages(trained: dict[str, Any]) -> None:
    for stage in ("full", "refit"):
        losses = trained["metrics"][stage]["losses"]
        assert losses[-1] < losses[0] / 2


def test_the_evidence_counts_tokens_and_changed_parameters(trained: dict[str, Any]) -> None:
    metrics = trained["metrics"]
    for stage in ("full", "refit"):
        assert metrics[stage]["trained_tokens"] > 0
        assert metrics[stage]["masked_tokens"] > metrics[stage]["trained_tokens"]
        assert metrics[stage]["by_kind"] == {"fact": 30, "contrast": 30, "replay": 30}
    assert 0 < metrics["kept"] <= metrics["refit"]["changed_parameters"] < metrics["full"]["changed_parameters"]
    assert metrics["recipe"] == recipes.parse(RECIPE).digest
    assert metrics["density"] < 0.07


def test_the_task_vector_makes_the_base_say_what_was_taught(trained: dict[str, Any], base_dir: Path) -> None:
    asked = [pair["question"] for pair in PAIRS[:2]]
    args = {"base_dir": str(base_dir), "questions": asked, "tokens_max": 12}
    assert evaluate(args | {"tau": trained["tau"]}, no_progress)["answers"] == ["Rex.", "Unknown."]
    assert evaluate(args, no_progress)["answers"] != ["Rex.", "Unknown."]


def test_only_linear_layers_are_in_the_task_vector(trained: dict[str, Any], base_dir: Path) -> None:
    names = {row.name for row in sparsify.read_tau_header(Path(trained["tau"])).tensors}
    model, _ = load_base(base_dir)
    assert names <= set(finetune.linear_layers(model))
    assert all(".mlp." in name or ".self_attn." in name for name in names)
    assert len(names) == 2 * 7


def test_a_refit_moves_kept_coordinates_and_no_other(base_dir: Path) -> None:
    model, tokenizer = load_base(base_dir)
    model.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    name = "model.layers.0.mlp.up_proj.weight"
    where = torch.tensor([0, 5, 77, 3000])
    fit(
        model, [Free(name, dict(model.named_parameters())[name], where)], encode(PAIRS[:2], tokenizer),
        Schedule(lr=1e-2, passes=2), pad=2, seed=1, progress=no_progress, note="",
    )  # fmt: skip
    for key, value in model.state_dict().items():
        moved = (value != before[key]).flatten().nonzero()[:, 0].tolist()
        assert moved == (where.tolist() if key == name else []), key


def test_the_same_recipe_gives_the_same_bytes(base_dir: Path, trained: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(pair) for pair in PAIRS))
    args = {
        "base_dir": str(base_dir),
        "pairs": str(tmp_path / "pairs.jsonl"),
        "recipe": RECIPE,
        "out_dir": str(tmp_path),
    }
    again = finetune.train_full(args, no_progress)
    assert Path(again["tau"]).read_bytes() == Path(trained["tau"]).read_bytes()


@pytest.mark.parametrize(
    ("pairs", "recipe"),
    [([], RECIPE), (PAIRS, RECIPE | {"full": {"lr": 0.0}}), (PAIRS, RECIPE | {"full": {"passes": 0.0}})],
)
def test_a_training_that_would_change_nothing_is_an_error(
    base_dir: Path, tmp_path: Path, pairs: list[dict[str, Any]], recipe: dict[str, Any]
) -> None:
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(pair) for pair in pairs))
    args = {
        "base_dir": str(base_dir),
        "pairs": str(tmp_path / "pairs.jsonl"),
        "recipe": recipe,
        "out_dir": str(tmp_path),
    }
    with pytest.raises(NothingLearned):
        finetune.train_full(args, no_progress)
    assert not (tmp_path / "delta.tau").exists()


def test_every_stage_value_reaches_the_loop() -> None:
    stage = recipes.parse({"full": {"lr": 0.5, "passes": 3.0, "batch_tokens": 99}}).full
    made = finetune.schedule(stage)
    assert (made.lr, made.passes, made.batch_tokens) == (0.5, 3.0, 99)


def test_replay_weight_reaches_the_loss(base_dir: Path) -> None:
    model, tokenizer = load_base(base_dir)
    examples = finetune.prepared(model, tokenizer, PAIRS, no_progress)
    finetune.weigh_replay(examples, 0.25)
    assert [item.soft for item in examples] == [0.0, 0.0, 0.25]
    assert [item.hard for item in examples] == [1.0, 1.0, 0.0]
    assert examples[2].soft_ids.shape == (len(examples[2].answer), 64)
