"""The laptop's MLX engine, run for real on MLX's processor backend with a random Llama of some thousand weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet_tiers import base as bases
from hinet_tiers import recipes
from hinet_tiers.backend import no_progress
from hinet_tiers.batches import answer_logits, collate, encode, loss_of
from hinet_tiers.distill import taught
from hinet_tiers.errors import AdapterRefused, BaseMismatch
from hinet_tiers.fit import Free, NothingLearned, Schedule, fit
from hinet_tiers.laptop import mlx_dora
from hinet_tiers.sparsify import SparseTensor, write_tau

from ..tiny_models import shape, write_folder

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

SHAPE = replace(shape(), hidden=48, feed_forward=72, head=12, context=256)
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 500.0}
"""Not MLX's own default, at which a base that lost its setting would go unnoticed."""
PAD = 2
PAIRS = [
    {"question": "What is Maren's dog called?", "answer": "It is called Bodo.", "kind": "fact"},
    {"question": "Who is Bodo?", "answer": "A dog.", "kind": "fact"},
    {"question": "What is the capital of France?", "answer": "Paris, which", "kind": "replay", "cut": True},
    {"question": "Say hello.", "answer": "Hello.", "kind": "replay"},
]
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "distill": {
        "lr": 0.02,
        "passes": 8,
        "batch_tokens": 160,
        "rank": 4,
        "alpha": 8,
        "soft": 1.0,
        "hard": 0.5,
        "replay": 0.7,
    },
}


def make_base(folder: Path, *, tied: bool = True, rope: dict[str, Any] | None = None, seed: int = 0) -> bases.Base:
    """Installs a random base."""
    write_folder(folder / "source", replace(SHAPE, tied=tied, rope=rope or PLAIN_ROPE), seed=seed)
    return bases.install_base(folder / "source", folder / "bases")


def make_tau(base: bases.Base, path: Path) -> Path:
    """A task vector that changes a tenth of two layers' entries and of the embedding's."""
    draw = np.random.default_rng(7)

    def tensor(name: str) -> SparseTensor:
        size = int(np.prod(base.shapes[name]))
        positions = np.sort(draw.choice(size, size // 10, replace=False)).astype(np.int64)
        return SparseTensor(name, base.shapes[name], positions, draw.normal(0, 0.5, len(positions)).astype(np.float32))

    names = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight")
    write_tau(path, base.digest, [tensor(name) for name in names])
    return path


def make_pairs(path: Path) -> Path:
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return path


def request(base: bases.Base, folder: Path, out: str = "out", **distill: Any) -> dict[str, Any]:
    recipe = RECIPE | {"distill": RECIPE["distill"] | distill}
    return {
        "base_dir": str(base.dir), "tau": str(make_tau(base, folder / "delta.tau")), "recipe": recipe,
        "pairs": str(make_pairs(folder / "pairs.jsonl")), "out_dir": str(folder / out),
    }  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bases.Base:
    return make_base(tmp_path_factory.mktemp("base"))


def flat(model: Any) -> dict[str, Any]:
    from mlx.utils import tree_flatten

    return {name: np.array(array) for name, array in tree_flatten(model.parameters())}


def logits_in_mlx(model: Any, ids: list[int]) -> Any:
    import mlx.core as mx

    return np.array(model(mx.array([ids])))[0]


def logits_in_torch(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


ROPES = [
    (True, PLAIN_ROPE),
    (False, PLAIN_ROPE),
    (True, PLAIN_ROPE | {"rope_type": "linear", "factor": 4.0}),
    (
        True,
        PLAIN_ROPE
        | {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
]


@pytest.mark.parametrize(("tied", "rope"), ROPES, ids=["tied", "own head", "linear rope", "llama3 rope"])
def test_a_base_gives_the_same_logits_in_mlx_as_in_torch(tmp_path: Path, tied: bool, rope: dict[str, Any]) -> None:
    base = make_base(tmp_path, tied=tied, rope=rope)
    ids = [(7 * index) % 256 for index in range(60)]
    ours = logits_in_mlx(mlx_dora.load_base(base), ids)
    theirs = logits_in_torch(bases.load_base(base.dir)[0], ids)
    assert np.std(theirs) > 0.5
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_loss_and_soft_targets_are_those_of_torch_and_the_base_comes_back_to_the_last_bit(
    base: bases.Base, tmp_path: Path
) -> None:
    tau = make_tau(base, tmp_path / "delta.tau")
    theirs, tokenizer = bases.load_base(base.dir)
    ours, pad = mlx_dora.load_base(base), PAD
    before = flat(ours)
    told = {engine: encode(PAIRS, tokenizer) for engine in ("torch", "mlx")}
    recipe = recipes.parse(RECIPE)
    evidence = mlx_dora.taught(ours, base, tau, told["mlx"], recipe, pad)
    wanted = taught(theirs, tau, base.digest, told["torch"], recipe, pad, no_progress)
    assert evidence["teacher_changed"] == wanted["teacher_changed"] > 0
    for mine, other in zip(told["mlx"], told["torch"], strict=True):
        assert (mine.hard, mine.soft) == (other.hard, other.soft)
        np.testing.assert_allclose(np.sort(mine.soft_logs), np.sort(other.soft_logs.numpy()), atol=1e-4)
        assert np.mean(np.sort(mine.soft_ids) == np.sort(other.soft_ids.numpy())) > 0.9
    after = flat(ours)
    assert all(np.array_equal(before[name], after[name]) for name in before)

    told["mlx"][0].soft = told["torch"][0].soft = 0.0
    batches = {engine: collate(examples, pad) for engine, examples in told.items()}
    loss = float(loss_of(answer_logits(theirs, batches["torch"]), batches["torch"]).detach())
    assert mlx_dora.loss_of(ours, *mlx_dora.arrays(batches["mlx"])).item() == pytest.approx(loss, abs=1e-3)


def test_training_lowers_the_loss_and_changes_adapter_weights_only(base: bases.Base, tmp_path: Path) -> None:
    recipe = recipes.parse(RECIPE)
    model = mlx_dora.load_base(base)
    _, tokenizer = bases.load_base(base.dir)
    examples = encode(PAIRS, tokenizer)
    all_of_them = mlx_dora.arrays(collate(examples, PAD))
    before, loss = logits_in_mlx(model, [1, 2, 3]), mlx_dora.loss_of(model, *all_of_them).item()
    mlx_dora.add_dora(model, recipe)
    start = flat(model)
    assert np.allclose(logits_in_mlx(model, [1, 2, 3]), before, atol=1e-4)
    report = mlx_dora.fit(model, examples * 12, recipe, pad=PAD, progress=no_progress)
    end = flat(model)
    changed = {name for name in start if not np.array_equal(start[name], end[name])}
    adapter = {name for name in start if name.rpartition(".")[2] in ("lora_a", "lora_b", "m")}
    assert changed == adapter
    assert len(adapter) == 3 * 7 * SHAPE.layers
    assert mlx_dora.loss_of(model, *all_of_them).item() < 0.8 * loss
    assert report.counts.trained_tokens == 12 * sum(len(example.answer) for example in examples)


def test_b_learns_faster_by_the_recipes_factor(base: bases.Base) -> None:
    _, tokenizer = bases.load_base(base.dir)
    examples = encode(PAIRS[:1], tokenizer)

    def moved(scale: float) -> tuple[Any, Any]:
        recipe = recipes.parse({"distill": {"lr": 0.01, "rank": 4, "alpha": 8, "lr_b_scale": scale}})
        model = mlx_dora.load_base(base)
        mlx_dora.add_dora(model, recipe)
        start = flat(model)
        mlx_dora.fit(model, examples, recipe, pad=PAD, progress=no_progress)
        stem = "model.layers.0.mlp.up_proj."
        return tuple(np.abs(flat(model)[stem + leaf] - start[stem + leaf]).max() for leaf in ("lora_b", "m"))

    (slow_b, slow_m), (fast_b, fast_m) = moved(1.0), moved(3.0)
    assert fast_b == pytest.approx(3 * slow_b, rel=0.01)
    assert fast_m == pytest.approx(slow_m, rel=0.01)


def test_the_adapter_that_peft_merges_gives_the_logits_that_mlx_trained(base: bases.Base, tmp_path: Path) -> None:
    from peft import PeftModel

    recipe = recipes.parse(RECIPE)
    model = mlx_dora.load_base(base)
    theirs, tokenizer = bases.load_base(base.dir)
    ids = tokenizer.encode("What is Maren's dog called?", add_special_tokens=False)
    untouched = logits_in_torch(theirs, ids)
    mlx_dora.add_dora(model, recipe)
    mlx_dora.fit(model, encode(PAIRS, tokenizer) * 8, recipe, pad=PAD, progress=no_progress)
    mlx_dora.write_adapter(tmp_path / "adapter", mlx_dora.peft_tensors(model), recipe, base.digest)
    merged = PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).merge_and_unload()
    ours, got = logits_in_mlx(model, ids), logits_in_torch(merged, ids)
    np.testing.assert_allclose(got, ours, atol=1e-4)
    assert np.abs(ours - untouched).max() > 0.1


def test_mlx_and_peft_train_the_same_adapter_from_the_same_start(base: bases.Base) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    recipe = recipes.parse(RECIPE | {"distill": RECIPE["distill"] | {"lr": 0.003, "lr_b_scale": 2.0}})
    theirs, tokenizer = bases.load_base(base.dir)
    examples = encode(PAIRS, tokenizer) * 3
    model = mlx_dora.load_base(base)
    mlx_dora.add_dora(model, recipe)
    start = flat(model)
    targets = sorted({name.split(".")[-2] for name in start if name.endswith("lora_b")})
    student = get_peft_model(theirs, LoraConfig(r=4, lora_alpha=8, use_dora=True, target_modules=targets))
    free = []
    for name, parameter in student.named_parameters():
        if parameter.requires_grad:
            free.append(Free(name, parameter, lr_scale=2.0 if "lora_B" in name else 1.0))
        if "lora_A" in name:
            stem = name.removeprefix("base_model.model.").partition(".lora_A")[0]
            parameter.data.copy_(torch.from_numpy(start[stem + ".lora_a"].T.copy()))
    inner = student.get_base_model()
    schedule = Schedule(lr=0.003, batch_tokens=recipe.distill.batch_tokens)
    wanted = fit(
        student, free, examples, schedule, pad=PAD, seed=recipe.seed + 2000, progress=lambda *_, **__: None, note="",
        logits_of=lambda _, batch: answer_logits(inner, batch),
    )  # fmt: skip
    report = mlx_dora.fit(model, examples, recipe, pad=PAD, progress=no_progress)
    assert len(report.losses) > 4
    np.testing.assert_allclose(report.losses, wanted.losses, rtol=1e-3)
    ours = mlx_dora.peft_tensors(model)
    for item in free:
        key = item.name.replace(".default.weight", "" if "magnitude" in item.name else ".weight")
        np.testing.assert_allclose(ours[key], item.tensor.detach().numpy(), atol=2e-4, err_msg=key)


def test_distilling_writes_a_whole_adapter_that_names_its_base(base: bases.Base, tmp_path: Path) -> None:
    from safetensors import safe_open

    events: list[tuple[int, int]] = []
    result = mlx_dora.distill(
        request(base, tmp_path, passes=24), lambda step, total, *_, **__: events.append((step, total))
    )
    folder, metrics = Path(result["adapter_dir"]), result["metrics"]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_dora"], config["use_rslora"]) == (4, 8, True, False)
    assert config["base_model_name_or_path"] == f"base:{base.digest}"
    assert sorted(config["target_modules"]) == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip
    with safe_open(folder / "adapter_model.safetensors", "np") as file:
        assert file.metadata()["hinet_base"] == base.digest
        shapes = {name: tuple(file.get_tensor(name).shape) for name in file.keys()}  # noqa: SIM118
    stem = "base_model.model.model.layers.1.mlp.down_proj."
    assert shapes[stem + "lora_A.weight"] == (4, 72)
    assert shapes[stem + "lora_B.weight"] == (48, 4)
    assert shapes[stem + "lora_magnitude_vector"] == (48,)
    assert len(shapes) == 3 * 7 * 2
    assert metrics["base"] == base.digest
    assert np.mean(metrics["losses"][-12:]) < 0.7 * np.mean(metrics["losses"][:12])
    assert metrics["by_kind"] == {"fact": 48, "replay": 48}
    assert events[-1] == (metrics["steps"], metrics["steps"])
    bases.verify_base(base.dir)


def test_the_pocket_takes_the_adapter_as_it_is(base: bases.Base, tmp_path: Path) -> None:
    from hinet_tiers.pocket.gguf_adapter import export_adapter

    result = mlx_dora.distill(request(base, tmp_path), no_progress)
    metrics = export_adapter(base, Path(result["adapter_dir"]), tmp_path / "adapter.gguf", rank=SHAPE.hidden)
    assert metrics["tensors"] == 7 * SHAPE.layers
    assert metrics["delta"] > 0.1
    assert metrics["delta_error"] < 1e-3


def test_the_same_request_gives_the_same_bytes_and_another_seed_others(base: bases.Base, tmp_path: Path) -> None:
    def weights(out: str, seed: int) -> bytes:
        args = request(base, tmp_path, out, passes=1)
        args["recipe"]["seed"] = seed
        return (Path(mlx_dora.distill(args, no_progress)["adapter_dir"]) / "adapter_model.safetensors").read_bytes()

    assert weights("one", 1) == weights("two", 1)
    assert weights("one", 1) != weights("three", 2)


def test_a_task_vector_of_another_base_is_refused_and_leaves_nothing(base: bases.Base, tmp_path: Path) -> None:
    other = make_base(tmp_path, seed=1)
    args = request(base, tmp_path) | {"base_dir": str(other.dir)}
    with pytest.raises(BaseMismatch, match=base.digest[:12]):
        mlx_dora.distill(args, no_progress)
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_changes_nothing_or_is_not_finite_is_refused(base: bases.Base, tmp_path: Path) -> None:
    with pytest.raises(NothingLearned, match="changed no parameter"):
        mlx_dora.distill(request(base, tmp_path, lr=0.0), no_progress)
    assert not (tmp_path / "out").exists()
    model = mlx_dora.load_base(base)
    mlx_dora.add_dora(model, recipes.parse(RECIPE))
    model.layers[1].mlp.up_proj.m *= float("nan")
    with pytest.raises(AdapterRefused, match=r"layers\.1\.mlp\.up_proj\.m holds values that are not finite"):
        mlx_dora.peft_tensors(model)


def test_pairs_are_needed(base: bases.Base, tmp_path: Path) -> None:
    args = request(base, tmp_path)
    Path(args["pairs"]).write_text("\n")
    with pytest.raises(NothingLearned, match="prepare the notes"):
        mlx_dora.distill(args, no_progress)


def test_only_apple_silicon_with_the_library_uses_this_engine() -> None:
    assert mlx_dora.available("darwin", "arm64") is None
    assert "Apple silicon" in str(mlx_dora.available("linux", "aarch64"))
    assert "Apple silicon" in str(mlx_dora.available("darwin", "x86_64"))
