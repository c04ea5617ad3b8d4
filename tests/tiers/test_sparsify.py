"""Task vectors on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hinet_protocol.taskvectors import TauMalformed, TauRefused
from hinet_tiers import base, sparsify
from hinet_tiers.errors import BaseMismatch
from hinet_tiers.sparsify import SparseTensor

from . import tiny_models

DIGEST = "ab" * 32


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
