"""PEFT adapters as deltas: the same weights as PEFT's own merge, and everything else refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet_tiers import sparsify
from hinet_tiers.errors import AdapterRefused, BaseMismatch, MergeRefused, MergeSetting
from hinet_tiers.merging import engine
from hinet_tiers.merging.adapters import PeftDelta
from hinet_tiers.merging.deltas import open_delta
from hinet_tiers.weights import Weights, open_weights

from ..tiny_models import shape, write_folder
from . import made

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
"""PEFT's own, of what it will rename, and that it can't ask a hub for the base's vocabulary."""

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"r": 4, "lora_alpha": 6},
    "rslora": {"r": 9, "lora_alpha": 6, "use_rslora": True},
    "dora": {"r": 4, "lora_alpha": 8, "use_dora": True},
    "patterns": {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 7},
                 "alpha_pattern": {"up_proj": 3}},
    "rslora patterns": {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2}, "use_rslora": True},
    "embedding": {"r": 3, "lora_alpha": 8, "target_modules": ["embed_tokens", "q_proj"]},
    "whole head": {"r": 3, "lora_alpha": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "dora of an embedding": {"r": 3, "lora_alpha": 8, "target_modules": ["embed_tokens", "q_proj"], "use_dora": True},
    "a rank above the matrix": {"r": 80, "lora_alpha": 5, "target_modules": ["k_proj"]},
}  # fmt: skip
BIASED: dict[str, dict[str, Any]] = {
    "all biases": {"bias": "all"}, "biases of adapted layers": {"bias": "lora_only"},
    "biases and DoRA": {"bias": "all", "use_dora": True}, "a bias of B": {"lora_bias": True, "use_rslora": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base")
    write_folder(path, shape(tied=False))
    return path


@pytest.fixture
def base(folder: Path) -> Any:
    with open_weights(folder) as opened:
        yield opened


def trained(folder: Path, out: Path, seed: int = 1, **settings: Any) -> dict[str, np.ndarray]:
    """Save a PEFT adapter with random weights; gives the model as PEFT merges it, in float64."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=True)
    settings.setdefault("target_modules", "all-linear")
    student = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    student.save_pretrained(str(out))
    merged = student.double().merge_and_unload()
    return {name: tensor.numpy() for name, tensor in merged.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_delta_is_what_peft_itself_merges(kind: str, folder: Path, base: Weights, tmp_path: Path) -> None:
    want = trained(folder, tmp_path / "a", **KINDS[kind])
    delta = PeftDelta(tmp_path / "a", base)
    for name in base.shapes:
        change = want[name] - base.read(name).astype(np.float64)
        if name in delta.shapes:
            assert np.abs(change).max() > 0, name
            np.testing.assert_allclose(delta.dense(name).reshape(change.shape), change, rtol=2e-6, atol=1e-8)
            tensor = delta.read(name)
            assert np.array_equal(sparsify.densify(tensor).reshape(-1), delta.dense(name))
        else:
            np.testing.assert_array_equal(change, 0)


@pytest.mark.parametrize("kind", BIASED)
def test_biases_count(kind: str, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                        attention_bias=True, tie_word_embeddings=False)  # fmt: skip
    model = LlamaForCausalLM(small)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path / "m")
    want = trained(tmp_path / "m", tmp_path / "a", r=3, lora_alpha=8, target_modules=["q_proj"], **BIASED[kind])
    with open_weights(tmp_path / "m") as base:
        delta = PeftDelta(tmp_path / "a", base)
        assert "model.layers.0.self_attn.q_proj.bias" in delta.shapes
        for name in base.shapes:
            found = (
                delta.dense(name).reshape(base.shapes[name]) if name in delta.shapes else np.zeros(base.shapes[name])
            )
            np.testing.assert_allclose(found, want[name] - base.read(name).astype(np.float64), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ],
)
def test_a_change_of_one_of_two_tied_tensors_is_no_delta(settings: dict[str, Any], tmp_path: Path) -> None:
    """PEFT's own merge changes the other one with it, so that the merged model answers otherwise than the adapter."""
    write_folder(tmp_path / "m", shape(tied=True))
    trained(tmp_path / "m", tmp_path / "a", r=3, **settings)
    with open_weights(tmp_path / "m") as base, pytest.raises(AdapterRefused, match="they are tied"):
        PeftDelta(tmp_path / "a", base)


def test_one_adapter_at_weight_1_comes_back_to_the_last_bit(folder: Path, base: Weights, tmp_path: Path) -> None:
    trained(folder, tmp_path / "a", **KINDS["lora"])
    delta = open_delta(tmp_path / "a", base)
    for method in ("task-arithmetic", "fedex", "knots", "tsv-m"):
        for tensor in engine.prepare(method, [delta], base=base).tensors():
            assert sparsify.densify(tensor).tobytes() == delta.dense(tensor.name).tobytes(), method


def test_fedex_is_the_exact_average_and_knots_needs_no_low_rank(folder: Path, base: Weights, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        trained(folder, tmp_path / f"{seed}", seed, **KINDS["rslora" if seed == 2 else "lora"])
    deltas = [open_delta(tmp_path / f"{seed}", base) for seed in (1, 2, 3)]
    weights = [1.0, 2.0, -0.5]
    for tensor in engine.prepare("fedex", deltas, weights=weights, base=base).tensors():
        want = sum(weight * delta.dense(tensor.name).astype(np.float64)
                   for weight, delta in zip(weights, deltas, strict=True)) / 2.5  # fmt: skip
        np.testing.assert_allclose(sparsify.densify(tensor).reshape(-1), want, rtol=1e-5, atol=1e-8)
    with pytest.raises(MergeSetting, match="sum to 0"):
        list(engine.prepare("fedex", deltas, weights=[1, 1, -2], base=base).stream())


def test_knots_is_its_formula(tmp_path: Path) -> None:
    deltas = [
        made.tau(tmp_path / f"{seed}.tau", {"w": made.random((12, 9), seed), "n": made.random((5,), seed, 1.0)})
        for seed in (1, 2, 3)
    ]
    weights = [1.0, 0.5, -2.0]
    found = {
        tensor.name: sparsify.densify(tensor)
        for tensor in engine.prepare(
            "knots", deltas, weights=weights, settings={"density": 0.4, "scale": 0.5}
        ).tensors()
    }
    side = np.concatenate(
        [
            weight * delta.dense("w").reshape(12, 9).astype(np.float64)
            for delta, weight in zip(deltas, weights, strict=True)
        ],
        1,
    )
    u, s, vt = np.linalg.svd(side, full_matrices=False)
    parts = []
    for at in range(3):
        part = (np.diag(s) @ vt[:, 9 * at : 9 * at + 9]).reshape(-1)
        kept = np.argsort(-np.abs(part))[: round(0.4 * len(part))]
        parts.append(np.where(np.isin(np.arange(len(part)), kept), part, 0))
    stacked = np.stack(parts)
    agree = stacked * np.sign(stacked.sum(0)) > 0
    mean = np.where(agree, stacked, 0).sum(0) / np.maximum(agree.sum(0), 1)
    np.testing.assert_allclose(found["w"], 0.5 * u @ mean.reshape(12, 9), rtol=1e-5, atol=1e-7)
    want = 0.5 * sum(weight * delta.dense("n") for delta, weight in zip(deltas, weights, strict=True)) / 3
    np.testing.assert_allclose(found["n"], want, rtol=1e-6, atol=1e-9)


def test_dora_has_no_factors_and_a_task_vector_is_no_adapter(folder: Path, base: Weights, tmp_path: Path) -> None:
    trained(folder, tmp_path / "d", **KINDS["dora"])
    trained(folder, tmp_path / "l", **KINDS["lora"])
    deltas = [open_delta(tmp_path / name, base) for name in "dl"]
    with pytest.raises(MergeRefused, match="d is a DoRA adapter"):
        list(engine.prepare("fedex", deltas, base=base).stream())
    tau = made.tau(tmp_path / "t.tau", {"model.norm.weight": made.random((64,), 1)}, base=base.digest().hex())
    with pytest.raises(MergeRefused, match=r"t\.tau is none"):
        engine.prepare("fedex", [deltas[1], tau], base=base)


def edited(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda settings: settings.update(changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edited(peft_type="IA3"), "kind 'IA3'"),
        (edited(r=0), "r is 0"),
        (edited(r=True), "r is True"),
        (edited(r=5), "has rank 4, and the settings say 5"),
        (edited(lora_alpha=float("nan")), "lora_alpha is nan"),
        (edited(lora_alpha="8"), "lora_alpha is '8'"),
        (edited(use_dora=True), "belie"),
        (edited(init_lora_weights="pissa_niter_4"), "moves the base's own weights"),
        (edited(lora_bias=True), "has no bias for its B"),
        (edited(use_qalora=True), "use_qalora is set"),
        (edited(something_new={"a": 1}), "something_new is set"),
        (edited(bias="some"), "bias is 'some'"),
        (edited(modules_to_save="norm"), "no list of names"),
        (edited(modules_to_save=["norm"]), "names norm, which adapter_model.safetensors lacks"),
        (edited(rank_pattern={"(a+)+$": 4}), "only plain module names"),
        (edited(alpha_pattern=[1]), "no table"),
        (edited(base_model_name_or_path="base:" + "c" * 64), "belongs to base cccccccccccc"),
    ],
)
def test_settings_that_would_change_the_delta_are_refused_by_name(
    folder: Path, base: Weights, tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    trained(folder, tmp_path / "a", **KINDS["lora"])
    path = tmp_path / "a" / "adapter_config.json"
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))
    with pytest.raises((AdapterRefused, BaseMismatch), match=words.replace("(", r"\(")):
        PeftDelta(tmp_path / "a", base)


def rewritten(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    save_file(dict(tensors), path / "adapter_model.safetensors")


def test_tensors_that_do_not_fit_are_refused_by_name(folder: Path, base: Weights, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    trained(folder, tmp_path / "a", r=4, lora_alpha=8, target_modules=["q_proj"])
    whole = load_file(tmp_path / "a" / "adapter_model.safetensors")
    a, b = (next(key for key in whole if part in key) for part in ("lora_A", "lora_B"))

    def refused(tensors: Mapping[str, np.ndarray], words: str) -> None:
        rewritten(tmp_path / "a", tensors)
        with pytest.raises((AdapterRefused, BaseMismatch), match=words):
            PeftDelta(tmp_path / "a", base).dense(a.removeprefix("base_model.model.").replace(".lora_A", ""))

    refused({key: value for key, value in whole.items() if key != b}, "has lora_A, and needs A and B")
    refused({**whole, "base_model.model.model.layers.9.q.lora_A.weight": whole[a]}, "which the base does not have")
    refused({**whole, "../x": whole[a]}, "which the base does not have")
    refused({**whole, a: whole[a][:, :-1].copy()}, "does not fit")
    refused({**whole, a: np.full_like(whole[a], np.nan)}, "not finite")
    refused({**whole, b: whole[b].astype(np.int32)}, "is not a plain float")
    refused(
        {**whole, "base_model.model.model.embed_tokens.base_layer.weight": base.read("lm_head.weight")},
        "holds other values than the base's",
    )
    refused({**whole, "base_model.model.model.embed_tokens.base_layer.weight": whole[a]}, "another vocabulary")
    head = {"base_model.model.lm_head.weight": base.read("lm_head.weight")}
    rewritten(tmp_path / "a", {**whole, **head})
    assert "lm_head.weight" not in PeftDelta(tmp_path / "a", base).shapes
    refused({**whole, **{key: value + 1 for key, value in head.items()}}, "holds other values than the base's")
    refused({**whole, "base_model.model.model.norm.weight": base.read("model.norm.weight")}, "say nothing")
    refused({**whole, f"{b.removesuffix('weight')}bias": whole[b][:, 0].copy()}, "which the base does not have")
    refused({}, "holds no tensors")
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(AdapterRefused, match="header"):
        PeftDelta(tmp_path / "a", base)
    (tmp_path / "a" / "adapter_model.safetensors").rename(tmp_path / "a" / "adapter_model.bin")
    with pytest.raises(AdapterRefused, match="is a pickle"):
        PeftDelta(tmp_path / "a", base)
