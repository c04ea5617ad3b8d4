"""The digest that names a base."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from hinet_protocol.base_digest import TensorDigest, differing, digest_base, digest_tensor

VECTORS = json.loads((Path(__file__).parents[2] / "protocol/vectors/7-base.json").read_text())


def tensor(name: str = "a", shape: tuple[int, ...] = (2, 2), first: float = 1.0) -> TensorDigest:
    return digest_tensor(name, shape, [struct.pack("<4f", first, -2.0, 0.5, 3.0)])


@pytest.mark.parametrize("vector", VECTORS["bases"], ids=lambda vector: vector["name"])
def test_the_vectors_hold(vector: dict) -> None:
    made = [
        digest_tensor(row["name"], tuple(row["shape"]), [struct.pack(f"<{len(row['values'])}f", *row["values"])])
        for row in vector["tensors"]
    ]
    assert [row.digest.hex() for row in made] == [row["digest"] for row in vector["tensors"]]
    assert digest_base(made).hex() == vector["digest"]


def test_order_and_pieces_do_not_matter() -> None:
    raw = struct.pack("<4f", 1.0, -2.0, 0.5, 3.0)
    pieces = digest_tensor("a", (2, 2), [raw[:3], b"", raw[3:]])
    assert pieces == tensor()
    assert digest_base([tensor("a"), tensor("b")]) == digest_base([tensor("b"), tensor("a")])


def test_name_shape_value_and_number_of_tensors_all_matter() -> None:
    digests = {
        digest_base(tensors)
        for tensors in (
            [tensor()], [tensor("b")], [tensor(shape=(4,))], [tensor(shape=(4, 1))], [tensor(first=-1.0)],
            [tensor(), tensor("b")], [tensor(first=0.0)], [tensor(first=-0.0)],
        )
    }  # fmt: skip
    assert len(digests) == 8


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tensor a: 12 bytes where its shape \[2, 2\] needs 16"):
        digest_tensor("a", (2, 2), [bytes(12)])


@pytest.mark.parametrize(
    "tensors",
    [[], [tensor(), tensor()], [TensorDigest("a", (1,), "BF16", bytes(32))], [TensorDigest("a", (1,), "F32", b"short")],
     [TensorDigest("", (1,), "F32", bytes(32))], [TensorDigest("a", (0,), "F32", bytes(32))]],
)  # fmt: skip
def test_what_is_no_base_is_refused(tensors: list[TensorDigest]) -> None:
    with pytest.raises(ValueError, match="tensor"):
        digest_base(tensors)


def test_bases_that_differ_are_compared_tensor_by_tensor() -> None:
    ours = {"a": tensor("a"), "b": tensor("b"), "c": tensor("c")}
    theirs = {"a": tensor("a"), "b": tensor("b", first=9.0), "d": tensor("d")}
    assert differing(ours, theirs) == ["b", "c", "d"]
