"""Which entries are kept, and task vectors on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hinet_protocol.taskvectors import TauMalformed, TauRefused
from hinet_tiers import base, sparsify
from hinet_tiers.errors import BaseMismatch
from hinet_tiers.sparsify import SparseTensor

from . import tiny_models

DIGEST = "ab" * 32


def slow_chunked(values: np.ndarray, keep: int, chunk: int) -> list[int]:
    """The definition, one chunk at a time."""
    chosen = []
    for start in range(0, len(values), chunk):
        part = np.abs(values[start : start + chunk])
        share = keep if len(part) == chunk else min(len(part), -(-keep * len(part) // chunk))
        order = sorted(range(len(part)), key=lambda index: (-part[index], index))[:share]
        chosen += [start + index for index in order if part[index] > 0]
    return sorted(chosen)


@given(
    size=st.integers(1, 400), chunk=st.integers(1, 70), keep_share=st.floats(0.01, 1), levels=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_chunked_selection_is_the_definition_with_ties_and_zeros(
    size: int, chunk: int, keep_share: float, levels: int, seed: int
) -> None:
    keep = max(1, round(chunk * keep_share))
    values = np.random.default_rng(seed).integers(-levels, levels + 1, size).astype(np.float32)
    assert sparsify.select_chunked(values, keep, chunk).tolist() == slow_chunked(values, keep, chunk)


def test_blocks_of_chunks_join_without_seams() -> None:
    values = np.random.default_rng(0).standard_normal(4096 * (sparsify.BLOCK_CHUNKS + 3) + 1000).astype(np.float32)
    assert sparsify.select_chunked(values).tolist() == slow_chunked(values, 64, 4096)


@given(density=st.floats(0.001, 1), levels=st.sampled_from([1, 3, 1000]), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_a_global_threshold_keeps_the_largest_of_all_tensors(density: float, levels: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    tensors = {name: source.integers(-levels, levels + 1, size).astype(np.float32) for name, size in
               (("a", 100), ("b", 1), ("c", 257))}  # fmt: skip
    kept = {name: (where, values) for name, where, values in
            sparsify.select_threshold(sorted(tensors), lambda name: tensors[name], density)}  # fmt: skip
    whole = np.concatenate([tensors[name] for name in sorted(tensors)])
    wanted = max(1, round(density * len(whole)))
    order = sorted(range(len(whole)), key=lambda index: (-abs(whole[index]), index))[:wanted]
    order = sorted(index for index in order if whole[index] != 0)
    starts = {"a": 0, "b": 100, "c": 101}
    assert sorted(starts[name] + int(at) for name, (where, _) in kept.items() for at in where) == order
    for name, (where, values) in kept.items():
        assert np.array_equal(values, tensors[name][where])


def test_values_that_are_not_finite_are_refused() -> None:
    values = np.array([1.0, np.nan, 2.0], np.float32)
    with pytest.raises(ValueError, match="not finite"):
        sparsify.select_chunked(values, 1, 2)
    with pytest.raises(ValueError, match="not finite"):
        list(sparsify.select_threshold(["a"], lambda _: values, 0.5))


def one(name: str = "model.norm.weight", size: int = 64) -> SparseTensor:
    return SparseTensor(name, (size,), np.array([3], np.int64), np.array([0.5], np.float32))


def test_a_written_file_reads_back_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    header = sparsify.write_tau(tmp_path / "out" / "x.tau", DIGEST, [one()], passport={"recipe": "r"})
    (back,) = sparsify.read_tau(tmp_path / "out" / "x.tau", DIGEST, {"model.norm.weight": (64,)})
    assert sparsify.densify(back)[3] == 0.5
    assert sparsify.read_tau_header(tmp_path / "out" / "x.tau") == header
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.tau"]


def test_an_empty_task_vector_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    nothing = SparseTensor("a", (4,), np.zeros(0, np.int64), np.zeros(0, np.float32))
    with pytest.raises(TauRefused, match="nothing differs"):
        sparsify.write_tau(tmp_path / "x.tau", DIGEST, [nothing])
    assert list(tmp_path.iterdir()) == []


def test_another_base_tensor_or_shape_is_named_before_any_block_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tau"
    sparsify.write_tau(path, DIGEST, [one()])
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # a damaged block, which must not be reached
    path.write_bytes(raw)
    with pytest.raises(BaseMismatch, match="belongs to base abababababab, not to cdcdcdcdcdcd"):
        sparsify.read_tau(path, "cd" * 32)
    with pytest.raises(BaseMismatch, match=r"changes tensor model\.norm\.weight, which"):
        sparsify.read_tau(path, DIGEST, {"other": (64,)})
    with pytest.raises(BaseMismatch, match=r"is \[64\], the base's is \[65\]"):
        sparsify.read_tau(path, DIGEST, {"model.norm.weight": (65,)})


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    sparsify.write_tau(tmp_path / "x.tau", DIGEST, [one()])
    (tmp_path / "x.tau").write_bytes((tmp_path / "x.tau").read_bytes()[:-1])
    with pytest.raises(TauMalformed, match="cut short"):
        sparsify.read_tau(tmp_path / "x.tau")


def test_applying_a_task_vector_adds_exactly_its_values(tmp_path: Path) -> None:
    tiny_models.write_folder(tmp_path / "model")
    made = base.install_base(tmp_path / "model", tmp_path / "bases")
    model, _ = base.load_base(made.dir)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    name = "model.layers.1.mlp.down_proj.weight"
    tensor = SparseTensor(name, (64, 96), np.array([0, 97, 6143], np.int64), np.array([1, -2, 0.5], np.float32))
    sparsify.write_tau(tmp_path / "x.tau", made.digest, [tensor])
    assert sparsify.apply_tau(tmp_path / "x.tau", made.digest, model) == 3
    for key, parameter in model.named_parameters():
        change = (parameter.detach() - before[key]).reshape(-1)
        where = change.nonzero().reshape(-1).tolist()
        assert where == ([0, 97, 6143] if key == name else []), key
    with pytest.raises(BaseMismatch):
        sparsify.apply_tau(tmp_path / "x.tau", "cd" * 32, model)
