"""From two models to a task vector and back, and what is said of it on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet_protocol.taskvectors import TauRefused
from hinet_tiers import safetensors_file, sparsify
from hinet_tiers.backend import no_progress
from hinet_tiers.errors import BadRequest, BaseMismatch, BaseRefused, NoSpace
from hinet_tiers.registry import find
from hinet_tiers.weights import open_weights

from .. import tiny_models

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
EXPERTS = "model.layers.1.mlp.experts.down_proj"
Tensors = dict[str, np.ndarray]


def do(verb: str, **args: Any) -> dict[str, Any]:
    """One verb, as a worker answers it."""
    return find(verb)({key: str(value) if isinstance(value, Path) else value for key, value in args.items()},
                      no_progress)


def model(path: Path, tensors: Tensors, dtype: str = "F32", **config: object) -> Path:
    tiny_models.write_file(path / "model.safetensors", tensors, dtype)
    (path / "config.json").write_text(json.dumps({"torch_dtype": "float16", **config}))
    (path / "tokenizer.json").write_text("{}")
    return path


def base_tensors() -> Tensors:
    """A model of a mixture of experts whose values are exact in bf16."""
    source = np.random.default_rng(1)

    def values(*shape: int) -> np.ndarray:
        return (source.integers(-127, 128, shape) / 128).astype(np.float32)

    return {EMBEDDING: values(40, 8), "model.layers.0.mlp.up_proj.weight": values(16, 8), EXPERTS: values(3, 8, 16),
            "model.layers.0.input_layernorm.weight": values(8), "model.norm.weight": values(8)}


def tuned_tensors(step: float = 1 / 64) -> Tensors:
    source = np.random.default_rng(2)
    return {name: values + np.float32(step) * source.integers(-8, 9, values.shape).astype(np.float32)
            for name, values in base_tensors().items()}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return model(tmp_path / "base", base_tensors()), model(tmp_path / "tuned", tuned_tensors())


def written(folder: Path) -> Tensors:
    with open_weights(folder) as opened:
        return {name: opened.read(name) for name in opened.shapes}


# ---- make and apply --------------------------------------------------------------------------------------------------


def test_a_whole_difference_gives_the_tuned_model_back(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    made = do("tau.make", tuned=tuned, base=base, out=tmp_path / "f.tau", density=1.0)
    assert made["energy_kept"] == 1
    assert made["kept"] == made["changed"] == sum(
        np.count_nonzero(values - base_tensors()[name]) for name, values in tuned_tensors().items())
    applied = do("tau.apply", tau=tmp_path / "f.tau", base=base, out=tmp_path / "back")
    assert applied["digest"] == do("base.digest", path=tuned)["digest"]
    assert applied["dtype"] == "float32"
    for name, values in tuned_tensors().items():
        assert np.array_equal(written(tmp_path / "back")[name], values), name
    assert (tmp_path / "back" / "tokenizer.json").read_text() == "{}"
    assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == "float32"


def test_a_cut_keeps_the_largest_and_says_which_share_of_the_change_that_is(
        pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    deltas = {name: (values - base_tensors()[name]).reshape(-1) for name, values in tuned_tensors().items()}
    dense = np.concatenate([deltas[name] for name in sorted(deltas)]).astype(np.float64)
    made = do("tau.make", tuned=tuned, base=base, out=tmp_path / "f.tau", density=0.25)
    largest = np.sort(np.abs(dense))[::-1][: round(len(dense) / 4)]
    assert made["kept"] == len(largest)
    assert made["energy_kept"] == pytest.approx((largest**2).sum() / (dense**2).sum())
    assert made["displacement_dense"] == pytest.approx(np.sqrt((dense**2).sum()))
    chunked = do("tau.make", tuned=tuned, base=base, out=tmp_path / "g.tau", chunked=[2, 64])
    for tensor in sparsify.read_tau(tmp_path / "g.tau"):
        assert len(tensor.positions) == -(-2 * deltas[tensor.name].size // 64), tensor.name
    assert 0 < chunked["energy_kept"] < made["energy_kept"] < 1


def test_the_same_models_give_the_same_bytes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    for name in ("a", "b"):
        do("tau.make", tuned=tuned, base=base, out=tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {}])
def test_a_tied_head_is_not_written_whoever_stored_it(tmp_path: Path, config: dict[str, bool]) -> None:
    base, tuned = base_tensors(), tuned_tensors()
    one = model(tmp_path / "base", base | {HEAD: base[EMBEDDING]}, **config)
    two = model(tmp_path / "tuned", tuned, tie_word_embeddings=True)
    do("tau.make", tuned=two, base=one, out=tmp_path / "f.tau", density=1.0)
    do("tau.apply", tau=tmp_path / "f.tau", base=one, out=tmp_path / "back")
    assert set(safetensors_file.read_header(tmp_path / "back" / "model.safetensors")) == set(base)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["tie_word_embeddings"] is True
    assert np.array_equal(written(tmp_path / "back")[EMBEDDING], tuned[EMBEDDING])


def test_bf16_counts_the_steps_that_its_rounding_swallows(tmp_path: Path) -> None:
    base = model(tmp_path / "base", {"w": np.ones(8, np.float32)}, "BF16")
    tuned = model(tmp_path / "tuned", {"w": np.array([1, 1.5, 1 + 2**-10, 1, 1, 1, 1, 1], np.float32)})
    do("tau.make", tuned=tuned, base=base, out=tmp_path / "f.tau", density=1.0)
    applied = do("tau.apply", tau=tmp_path / "f.tau", base=base, out=tmp_path / "b")
    assert (applied["dtype"], applied["changed"], applied["rounded_away"]) == ("bf16", 2, 1)
    assert written(tmp_path / "b")["w"].tolist() == [1, 1.5, 1, 1, 1, 1, 1, 1]
    exact = do("tau.apply", tau=tmp_path / "f.tau", base=base, out=tmp_path / "f", dtype="float32")
    assert exact["rounded_away"] == 0
    assert written(tmp_path / "f")["w"][2] == np.float32(1 + 2**-10)


@pytest.mark.parametrize("dtype", ["F64", "F16", "BF16"])
def test_models_of_other_float_forms_are_taken_as_they_are(tmp_path: Path, dtype: str) -> None:
    base, tuned = base_tensors(), {name: values + 1 for name, values in base_tensors().items()}
    one, two = model(tmp_path / "base", base, dtype), model(tmp_path / "tuned", tuned, "F32")
    made = do("tau.make", tuned=two, base=one, out=tmp_path / "f.tau", density=1.0)
    assert made["displacement"] == pytest.approx(sum(values.size for values in base.values()) ** 0.5)


def test_a_llama_gguf_gives_settings_and_tokenizer_to_what_is_made_from_it(tmp_path: Path) -> None:
    weights = tiny_models.write_gguf_model(tmp_path / "m.gguf")
    with open_weights(tmp_path / "m.gguf") as opened:
        tuned = {name: opened.read(name) + np.float32(0.5) for name in weights}
    do("tau.make", tuned=model(tmp_path / "tuned", tuned), base=tmp_path / "m.gguf", out=tmp_path / "f.tau", density=1)
    applied = do("tau.apply", tau=tmp_path / "f.tau", base=tmp_path / "m.gguf", out=tmp_path / "back")
    assert applied["notes"] == []
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "llama"
    assert (tmp_path / "back" / "tokenizer.json").is_file()


def test_nothing_holds_more_than_a_few_tensors_at_once(tmp_path: Path) -> None:
    """Sixteen tensors of a MiB each in either model: whoever held a model would need 16 MiB, besides what it makes."""
    import tracemalloc

    shapes = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(16)]
    source = np.random.default_rng(3)
    tensors = {name: source.standard_normal((512, 512)).astype(np.float32) for name in shapes}
    base = model(tmp_path / "base", tensors)
    tuned = model(tmp_path / "tuned", {name: values * np.float32(1.01) for name, values in tensors.items()})
    del tensors
    work: list[tuple[int, str, dict[str, Any]]] = [
        (6, "base.digest", {"path": base}),
        (8, "tau.make", {"tuned": tuned, "base": base, "out": tmp_path / "f.tau", "density": 0.05}),
        (15, "tau.make", {"tuned": tuned, "base": base, "out": tmp_path / "g.tau", "density": 1.0}),
        (6, "tau.apply", {"tau": tmp_path / "f.tau", "base": base, "out": tmp_path / "made"}),
        (6, "tau.verify", {"tau": tmp_path / "f.tau", "base": base}),
        (12, "tau.diff", {"first": tmp_path / "f.tau", "second": tmp_path / "g.tau"}),
        (6, "tau.diff", {"first": base, "second": tuned}),
    ]
    for tensors_held, verb, args in work:
        find(verb)
        tracemalloc.start()
        try:
            do(verb, **args)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < tensors_held << 20, (verb, peak)


# ---- refused by name -------------------------------------------------------------------------------------------------


def test_models_that_differ_in_more_than_values_are_refused_by_name(tmp_path: Path) -> None:
    base = model(tmp_path / "base", base_tensors())
    longer = {EMBEDDING: np.ones((47, 8), np.float32)}
    less = {name: values for name, values in tuned_tensors().items() if name != "model.norm.weight"}
    for at, (tensors, said) in enumerate((
        (tuned_tensors() | longer, r"40 rows .* 47"),
        (less, r"lacks tensor model\.norm\.weight"),
        (tuned_tensors() | {"model.more": np.ones(2, np.float32)}, r"holds tensor model\.more"),
        (tuned_tensors() | {HEAD: np.ones((40, 8), np.float32)}, r"has a head of its own \(tensor lm_head\.weight\)"),
        (tuned_tensors() | {EXPERTS: np.ones((8, 3, 16), np.float32)}, r"experts\.down_proj is \[3, 8, 16\]"),
    )):
        with pytest.raises(BaseMismatch, match=said):
            do("tau.make", tuned=model(tmp_path / f"t{at}", tensors), base=base, out=tmp_path / "f.tau")
    assert not (tmp_path / "f.tau").exists()


def test_values_that_are_not_finite_are_refused_with_tensor_and_count(tmp_path: Path) -> None:
    base, tensors = model(tmp_path / "base", base_tensors()), tuned_tensors()
    tensors[EXPERTS][1, 2, 3:5] = np.nan
    with pytest.raises(BaseRefused, match=r"tuned: tensor .*experts\.down_proj has 2 of 384 values"):
        do("tau.make", tuned=model(tmp_path / "tuned", tensors), base=base, out=tmp_path / "f.tau", chunked=[1, 64])
    far = model(tmp_path / "far", {"w": np.full(4, 3e38, np.float32)})
    near = model(tmp_path / "near", {"w": np.full(4, -3e38, np.float32)})
    with pytest.raises(BaseRefused, match="tensor w is further"):
        do("tau.make", tuned=far, base=near, out=tmp_path / "f.tau")


def test_a_model_that_equals_its_base_gives_no_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for cut in ({"density": 1.0}, {"chunked": [1, 8]}):
        with pytest.raises(TauRefused, match="nothing differs"):
            do("tau.make", tuned=pair[0], base=pair[0], out=tmp_path / "f.tau", **cut)
    assert not list(tmp_path.glob("*f.tau*"))


@pytest.mark.parametrize("asked", [
    {"density": 0.0}, {"density": 1.5}, {"density": float("nan")}, {"chunked": [0, 64]}, {"chunked": [65, 64]},
    {"chunked": [64]}, {"codec": "fp7"},
])
def test_a_cut_that_means_nothing_is_refused(pair: tuple[Path, Path], tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        do("tau.make", tuned=pair[1], base=pair[0], out=tmp_path / "f.tau", **asked)


def test_another_base_is_refused_before_anything_is_written(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    do("tau.make", tuned=tuned, base=base, out=tmp_path / "f.tau")
    with pytest.raises(BaseMismatch, match="belongs to base"):
        do("tau.apply", tau=tmp_path / "f.tau", base=tuned, out=tmp_path / "back")
    assert not list(tmp_path.glob("*back*"))
    with pytest.raises(BadRequest, match="there already"):
        do("tau.apply", tau=tmp_path / "f.tau", base=base, out=base)


def test_a_sum_that_is_not_finite_or_a_full_disk_leaves_no_folder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = model(tmp_path / "base", {"w": np.array([3.4028e38, 1], np.float32)})
    tuned = model(tmp_path / "tuned", {"w": np.array([3.4028e38, 2], np.float32)})
    do("tau.make", tuned=tuned, base=base, out=tmp_path / "f.tau", density=1.0)
    with pytest.raises(BaseRefused, match="tensor w has 1 of 2 values"):
        do("tau.apply", tau=tmp_path / "f.tau", base=base, out=tmp_path / "back", dtype="bf16")
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr("hinet_tiers.vectors.apply.shutil.disk_usage", lambda path: usage)
    with pytest.raises(NoSpace, match="1 MiB are free"):
        do("tau.apply", tau=tmp_path / "f.tau", base=base, out=tmp_path / "back")
    assert not list(tmp_path.glob("*back*"))


# ---- info, verify, diff ----------------------------------------------------------------------------------------------


def test_info_adds_up(pair: tuple[Path, Path], tmp_path: Path) -> None:
    do("tau.make", tuned=pair[1], base=pair[0], out=tmp_path / "f.tau")
    found = do("tau.info", tau=tmp_path / "f.tau")
    assert [row["layer"] for row in found["layers"]] == ["layer 0", "layer 1", "model.embed_tokens", "model.norm"]
    assert sum(row["kept"] for row in found["layers"]) == found["kept"]
    assert sum(row["displacement"] ** 2 for row in found["layers"]) ** 0.5 == pytest.approx(found["displacement"])
    assert found["bytes"] == (tmp_path / "f.tau").stat().st_size
    assert found["passport"]["tuned_name"] == "tuned"


def test_verify_names_every_damaged_tensor_and_goes_on(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    path = tmp_path / "f.tau"
    do("tau.make", tuned=tuned, base=base, out=path)
    assert do("tau.verify", tau=path, base=base)["ok"]
    header = sparsify.read_tau_header(path)
    raw = bytearray(path.read_bytes())
    for row in (header.tensors[1], header.tensors[3]):
        raw[header.blocks_at + row.offset + row.length - 1] ^= 1
    path.write_bytes(raw)
    found = do("tau.verify", tau=path)
    assert not found["ok"]
    assert [fault["tensor"] for fault in found["faults"]] == [header.tensors[1].name, header.tensors[3].name]
    other = model(tmp_path / "other", {EMBEDDING: np.ones((40, 9), np.float32)})
    said = [fault["fault"] for fault in do("tau.verify", tau=path, base=other)["faults"]]
    assert any("embed_tokens.weight [40, 8] is [40, 9] in the base" in fault for fault in said)
    assert any("norm.weight [8] is not in the base" in fault for fault in said)
    assert any("belongs to base" in fault for fault in said)


def test_verify_does_not_believe_the_headers_displacement(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from hinet_protocol import canonical

    path = tmp_path / "f.tau"
    do("tau.make", tuned=pair[1], base=pair[0], out=path)
    header = sparsify.read_tau_header(path)
    value = canonical.decode(header.raw, 1 << 20)
    value["displacement_nano"] += 10_000_000
    raw = path.read_bytes().replace(header.raw, canonical.encode(value))
    assert len(canonical.encode(value)) == len(header.raw)
    path.write_bytes(raw)
    (fault,) = do("tau.verify", tau=path)["faults"]
    assert fault["tensor"] is None
    assert "displacement" in fault["fault"]


def test_diff_of_two_task_vectors_is_that_of_their_dense_forms(tmp_path: Path) -> None:
    def tau(path: Path, tensors: dict[str, list[float]]) -> Path:
        kept = [sparsify.SparseTensor(name, (len(values),), np.flatnonzero(values),
                                      np.array([one for one in values if one], np.float32))
                for name, values in sorted(tensors.items())]
        sparsify.write_tau(path, "b" * 64, kept, codec="bf16")
        return path

    one = tau(tmp_path / "a.tau", {"h.0.w": [1, -2, 0, 0], "h.1.w": [1, 0]})
    two = tau(tmp_path / "b.tau", {"h.0.w": [2, 2, 1, 0], "h.2.w": [3]})
    found = do("tau.diff", first=one, second=two)
    assert (found["kept_first"], found["kept_second"], found["both"], found["conflicts"]) == (3, 4, 2, 1)
    assert found["overlap"] == 2 / 5
    assert found["sign_conflict"] == 1 / 2
    assert found["cosine"] == pytest.approx(-2 / (6**0.5 * 18**0.5))
    assert found["displacement_difference"] == pytest.approx((1 + 16 + 1 + 1 + 9) ** 0.5)
    assert (found["only_first"], found["only_second"]) == (["h.1.w"], ["h.2.w"])
    layers = {row["layer"]: row for row in found["layers"]}
    assert layers["layer 0"]["cosine"] == pytest.approx(-2 / (5**0.5 * 3))
    assert layers["layer 1"]["cosine"] is None
    assert do("tau.diff", first=one, second=one)["cosine"] == pytest.approx(1)


def test_diff_of_task_vectors_of_two_bases_or_with_a_model_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    do("tau.make", tuned=tuned, base=base, out=tmp_path / "a.tau")
    do("tau.make", tuned=base, base=tuned, out=tmp_path / "b.tau")
    with pytest.raises(BaseMismatch, match="one base only"):
        do("tau.diff", first=tmp_path / "a.tau", second=tmp_path / "b.tau")
    with pytest.raises(BadRequest, match="two task vectors, or two models"):
        do("tau.diff", first=tmp_path / "a.tau", second=base)


def test_diff_of_two_models_names_what_differs_and_counts_the_rest(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, _ = pair
    assert do("tau.diff", first=base, second=base)["equal"]
    tensors = base_tensors() | {"model.more": np.ones(2, np.float32), EMBEDDING: np.ones((47, 8), np.float32)}
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + np.float32(3)
    tensors["model.layers.0.input_layernorm.weight"][2] = np.inf
    del tensors[EXPERTS]
    found = do("tau.diff", first=base, second=model(tmp_path / "other", tensors))
    assert found["missing"] == [EXPERTS]
    assert found["extra"] == ["model.more"]
    assert found["vocabulary"] == [{"name": EMBEDDING, "first": 40, "second": 47}]
    assert found["not_finite"] == [{"tensor": "model.layers.0.input_layernorm.weight", "first": 0, "second": 1}]
    assert (found["common_tensors"], found["changed_tensors"], found["changed"]) == (3, 1, 8)
    assert found["displacement"] == pytest.approx(72**0.5)
    assert not found["equal"]
