"""Merging as a whole: what is refused and why, one input alone, the bound, what a merged file says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hinet_protocol import taskvectors
from hinet_tiers import sparsify
from hinet_tiers.errors import BaseMismatch, MergeRefused, MergeSetting, MergeTooFar
from hinet_tiers.merging import engine, registry
from hinet_tiers.merging.deltas import TauDelta, open_delta
from hinet_tiers.weights import open_weights

from ..tiny_models import shape, write_folder
from . import made


def merged(method: str, inputs: list[TauDelta], **more: object) -> dict[str, np.ndarray]:
    merge = engine.prepare(method, inputs, **more)  # type: ignore[arg-type]
    return {tensor.name: sparsify.densify(tensor) for tensor in merge.tensors()}


@pytest.fixture
def pair(tmp_path: Path) -> list[TauDelta]:
    return [made.tau(tmp_path / f"{at}.tau", {"a": made.random((8, 16), at), "b": made.random((5,), at + 9, 1.0)})
            for at in (1, 2)]


@pytest.mark.parametrize("method", registry.METHODS)
def test_one_input_at_weight_1_comes_back_bit_for_bit(method: str, tmp_path: Path) -> None:
    if registry.find(method).needs & {"adapters", "base", "data"}:
        return
    delta = made.tau(tmp_path / "one.tau", {"a": made.random((8, 16), 3)})
    (tensor,) = engine.prepare(method, [delta]).tensors()
    read = delta.read("a")
    assert np.array_equal(tensor.positions, read.positions)
    assert tensor.values.tobytes() == read.values.tobytes()


def test_one_input_is_multiplied_by_its_weight_even_a_negative_one(tmp_path: Path) -> None:
    delta = made.tau(tmp_path / "one.tau", {"a": made.random((8, 16), 3)})
    assert np.array_equal(merged("task-arithmetic", [delta], weights=[-0.5])["a"],
                          delta.dense("a").reshape(8, 16) * np.float32(-0.5))


def test_an_input_of_weight_0_is_left_out_and_named(pair: list[TauDelta]) -> None:
    merge = engine.prepare("task-arithmetic", pair, weights=[0, 1])
    values = {tensor.name: sparsify.densify(tensor).reshape(-1) for tensor in merge.tensors()}
    assert np.array_equal(values["a"], pair[1].dense("a"))
    assert merge.report()["left_out"] == ["1.tau"]
    with pytest.raises(MergeSetting, match="nothing is left"):
        engine.prepare("task-arithmetic", pair, weights=[0, 0])


def test_a_tensor_that_one_input_lacks_counts_as_zeros_and_is_reported(tmp_path: Path) -> None:
    one = made.tau(tmp_path / "one.tau", {"a": [1.0, 2.0], "c": [4.0]})
    two = made.tau(tmp_path / "two.tau", {"a": [0.5, 0.0], "b": [[8.0]]})
    merge = engine.prepare("task-arithmetic", [one, two], settings={"scale": 1})
    values = {tensor.name: sparsify.densify(tensor).tolist() for tensor in merge.tensors()}
    assert values == {"a": [1.5, 2.0], "b": [[8.0]], "c": [4.0]}
    assert list(values) == ["a", "b", "c"]
    assert merge.missing == {"one.tau": ["b"], "two.tau": ["c"]}
    assert [row["missing"] for row in merge.report()["inputs"]] == [1, 1]


def test_another_base_and_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    one = made.tau(tmp_path / "one.tau", {"a": [1.0, 2.0]})
    with pytest.raises(BaseMismatch, match=r"two\.tau belongs to base cccccccccccc, one\.tau to bbbb"):
        engine.prepare("task-arithmetic", [one, made.tau(tmp_path / "two.tau", {"a": [1.0, 2.0]}, base="c" * 64)])
    with pytest.raises(BaseMismatch, match=r"three\.tau: tensor a is \[3\], where one\.tau has \[2\]"):
        engine.prepare("task-arithmetic", [one, made.tau(tmp_path / "three.tau", {"a": [1.0, 2.0, 3.0]})])


def test_unknown_methods_settings_weights_and_seeds_are_refused(pair: list[TauDelta]) -> None:
    with pytest.raises(MergeSetting, match=r"no merge method 'soup'; there are: task-arithmetic"):
        engine.prepare("soup", pair)
    with pytest.raises(MergeSetting, match=r"has no setting density; it has: scale"):
        engine.prepare("task-arithmetic", pair, settings={"density": 0.5})
    with pytest.raises(MergeSetting, match="scale is 1e"):
        engine.prepare("task-arithmetic", pair, settings={"scale": 1e9})
    with pytest.raises(MergeSetting, match="scale is nan"):
        engine.prepare("task-arithmetic", pair, settings={"scale": float("nan")})
    with pytest.raises(MergeSetting, match="1 weights for 2 inputs"):
        engine.prepare("task-arithmetic", pair, weights=[1])
    with pytest.raises(MergeSetting, match=r"weight of 2\.tau is inf"):
        engine.prepare("task-arithmetic", pair, weights=[1, float("inf")])
    with pytest.raises(MergeSetting, match="0 inputs"):
        engine.prepare("task-arithmetic", [])
    with pytest.raises(MergeSetting, match="--seed is -1"):
        engine.prepare("task-arithmetic", pair, seed=-1)


def test_displacement_is_measured_on_what_was_decoded(pair: list[TauDelta]) -> None:
    merge = engine.prepare("task-arithmetic", pair, weights=[1, -2], settings={"scale": 0.5})
    together = np.concatenate([tensor.reshape(-1) for tensor in
                               (sparsify.densify(one) for one in merge.tensors())]).astype(np.float64)
    assert merge.displacement == pytest.approx(float(np.sqrt((together**2).sum())), rel=1e-12)
    for delta, found in zip(pair, merge.displacements, strict=True):
        dense = np.concatenate([delta.dense("a"), delta.dense("b")]).astype(np.float64)
        assert found == pytest.approx(float(np.sqrt((dense**2).sum())), rel=1e-12)


def test_above_the_bound_an_input_or_the_merge_is_refused_with_the_number(tmp_path: Path) -> None:
    one = made.tau(tmp_path / "one.tau", {"a": [3.0, 4.0]})
    two = made.tau(tmp_path / "two.tau", {"a": [3.0, 4.0]})
    with pytest.raises(MergeTooFar, match=r"one\.tau lies at least 5 from the base, above the bound of 4\.9"):
        list(engine.prepare("task-arithmetic", [one, two], bound=4.9).tensors())
    with pytest.raises(MergeTooFar, match=r"The merge lies at least 10 from the base, above the bound of 9"):
        list(engine.prepare("task-arithmetic", [one, two], settings={"scale": 1}, bound=9).tensors())
    assert MergeTooFar.exit_code == 7
    assert list(engine.prepare("task-arithmetic", [one, two], settings={"scale": 1}, bound=10).tensors())
    with pytest.raises(MergeTooFar, match="The merge"):
        list(engine.prepare("task-arithmetic", [one], weights=[2.0], bound=9).tensors())


def test_the_bound_grows_with_the_root_of_the_size_between_25_and_50() -> None:
    assert [engine.default_bound(count) for count in (1000, 250_000_000, 640_000_000, 10**9, 10**12)] == [
        25, 25, 40, 50, 50]


def test_a_sum_too_large_for_float32_is_refused_by_name(tmp_path: Path) -> None:
    deltas = [made.tau(tmp_path / f"{at}.tau", {"big": [16.0]}) for at in (1, 2)]
    with pytest.raises(MergeRefused, match="Tensor big of the merge holds a value that is not finite"):
        list(engine.prepare("task-arithmetic", deltas, weights=[1e38, 1e38], bound=1e300).tensors())


def test_no_other_files_are_taken_for_inputs(tmp_path: Path) -> None:
    with pytest.raises(MergeRefused, match=r"no file .*gone\.tau"):
        open_delta(tmp_path / "gone.tau")
    with pytest.raises(MergeRefused, match=r"without adapter_config\.json"):
        open_delta(tmp_path)
    (tmp_path / "text.tau").write_text("hello")
    with pytest.raises(taskvectors.TauMalformed):
        open_delta(tmp_path / "text.tau")


def test_a_merged_file_says_how_it_was_made_and_is_the_same_bytes_again(tmp_path: Path, pair: list[TauDelta]) -> None:
    raw = []
    for name in ("m1.tau", "m2.tau"):
        report = engine.merge_files("task-arithmetic", [tmp_path / "1.tau", tmp_path / "2.tau"], seed=7,
                                    out=tmp_path / name, codec=made.EXACT, weights=[1, -0.25], settings={"scale": 1})
        raw.append((tmp_path / name).read_bytes())
    assert raw[0] == raw[1]
    opened = TauDelta(tmp_path / "m1.tau")
    passport = opened.header.passport
    assert passport["method"] == "task-arithmetic"
    assert passport["settings"] == {"scale": "1.0"}
    assert passport["weights"] == ["1.0", "-0.25"]
    assert passport["seed"] == 7
    assert passport["parents"] == [delta.digest for delta in pair]
    assert report["displacement"] == pytest.approx(opened.header.displacement, rel=0.01)
    assert report["written"]["tau"]["kept"] == opened.header.kept
    assert [row["weight"] for row in report["inputs"]] == [1.0, -0.25]


def test_a_merge_that_fails_leaves_nothing_behind(tmp_path: Path, pair: list[TauDelta]) -> None:
    paths = [tmp_path / "1.tau", tmp_path / "2.tau"]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(MergeTooFar):
        engine.merge_files("task-arithmetic", paths, out=tmp_path / "m.tau", codec=made.EXACT, bound=0.1)
    with pytest.raises(taskvectors.TauRefused, match="zero everywhere"):
        engine.merge_files("task-arithmetic", [paths[0], paths[0]], out=tmp_path / "m.tau", codec=made.EXACT,
                           weights=[1, -1])
    with pytest.raises(MergeSetting, match="no codec 'mp3'"):
        engine.merge_files("task-arithmetic", paths, out=tmp_path / "m.tau", codec="mp3")
    with pytest.raises(MergeSetting, match="where the merge goes"):
        engine.merge_files("task-arithmetic", paths)
    assert sorted(tmp_path.iterdir()) == before


def test_who_signs_an_input_does_not_change_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "one.tau"
    unsigned = made.tau(path, {"a": [1.0]}).digest
    raw = bytearray(path.read_bytes())
    raw[16:112] = b"\7" * 96
    path.write_bytes(raw)
    assert TauDelta(path).digest == unsigned


@pytest.mark.parametrize("given", ["folder", "file"])
def test_a_merged_model_takes_along_what_belongs_to_the_base_and_nothing_that_lies_beside_it(
        given: str, tmp_path: Path) -> None:
    place = tmp_path / "base"
    write_folder(place, shape(tied=True))
    settings = json.loads((place / "config.json").read_text())
    del settings["tie_word_embeddings"]
    (place / "config.json").write_text(json.dumps(settings))
    for private in ("diary.md", "id_ed25519", ".env", "notes.db", "other.gguf"):
        (place / private).write_text("mine")
    path = place if given == "folder" else place / "model.safetensors"
    with open_weights(path) as base:
        one = made.tau(tmp_path / "1.tau", {"model.norm.weight": made.random((64,), 1)}, base=base.digest().hex())
    report = engine.merge_files("task-arithmetic", [tmp_path / "1.tau"], model=tmp_path / "m", base=path)
    assert one.shapes
    found = {entry.name for entry in (tmp_path / "m").iterdir()}
    assert found <= {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
                     "generation_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"}
    if given == "folder":
        assert json.loads((tmp_path / "m" / "config.json").read_text())["tie_word_embeddings"] is True
    assert report["written"]["model"]["notes"] == ([] if given == "folder" else [
        "no settings and tokenizer: the base is a file of tensors only"])
