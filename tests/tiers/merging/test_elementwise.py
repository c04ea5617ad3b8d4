"""Methods that work entry by entry, each against its formula written out densely in float64."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from hinet_tiers import sparsify
from hinet_tiers.errors import MergeSetting
from hinet_tiers.merging import blocks, draws, engine, ranks, registry
from hinet_tiers.merging.deltas import TauDelta

from . import made

Dense = dict[str, np.ndarray]
SHAPES = {"emb": (40, 64), "norm": (48,), "proj": (30, 50), "tiny": (3,)}
ELEMENTWISE = ("task-arithmetic", "ties", "dare", "dare-ties", "della", "breadcrumbs", "tall-masks")


def inputs(folder: Path, count: int = 3, density: float = 0.6) -> list[TauDelta]:
    return [made.tau(folder / f"{at}.tau", {name: made.random(shape, 100 * at + place, density)
                                            for place, (name, shape) in enumerate(SHAPES.items())})
            for at in range(count)]


def merged(method: str, deltas: Sequence[TauDelta], **more: object) -> Dense:
    merge = engine.prepare(method, deltas, **more)  # type: ignore[arg-type]
    return {tensor.name: sparsify.densify(tensor).astype(np.float64) for tensor in merge.tensors()}


def dense(deltas: Sequence[TauDelta]) -> list[Dense]:
    return [{name: delta.dense(name).astype(np.float64).reshape(shape) for name, shape in delta.shapes.items()}
            for delta in deltas]


def flat(tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([tensors[name].reshape(-1) for name in sorted(tensors)])


def elected(vectors: np.ndarray, *, mean: bool) -> np.ndarray:
    """Sign election and disjoint merge of flat vectors, as the paper has it."""
    sign = np.sign(vectors.sum(axis=0))
    sign[sign == 0] = np.sign(sign.sum()) or 1.0
    agree = vectors * sign > 0
    total = np.where(agree, vectors, 0).sum(axis=0)
    return total / np.maximum(agree.sum(axis=0), 1) if mean else total


def trimmed(vector: np.ndarray, density: float) -> np.ndarray:
    order = np.argsort(-np.abs(vector), kind="stable")[: max(1, round(density * len(vector)))]
    kept = np.zeros_like(vector)
    kept[order] = vector[order]
    return kept


def test_task_arithmetic_is_the_weighted_sum(tmp_path: Path) -> None:
    deltas = inputs(tmp_path)
    found = merged("task-arithmetic", deltas, weights=[1, -0.5, 0.3], settings={"scale": 0.7})
    for name in SHAPES:
        want = 0.7 * sum(weight * one[name] for weight, one in zip([1, -0.5, 0.3], dense(deltas), strict=True))
        assert np.abs(found[name] - want).max() < 1e-7


@pytest.mark.parametrize("density", [0.05, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("mean", [True, False])
def test_ties_is_trim_elect_and_disjoint_merge(tmp_path: Path, density: float, mean: bool) -> None:
    """Values lie on a coarse grid, so that many are equal at the threshold and many sums cancel."""
    deltas, weights = inputs(tmp_path), [1.0, 1.0, -1.0]
    found = merged("ties", deltas, weights=weights, settings={"density": density, "mean": mean, "scale": 0.9})
    vectors = np.stack([weight * trimmed(flat(one), density)
                        for weight, one in zip(weights, dense(deltas), strict=True)])
    assert np.abs(flat(found) - 0.9 * elected(vectors, mean=mean)).max() < 1e-7
    assert ((vectors != 0).any(axis=0) & (vectors.sum(axis=0) == 0)).any(), "no sum cancels, so this shows less"


@pytest.mark.parametrize("lead", [1.0, -1.0])
def test_an_entry_that_cancels_takes_the_sign_that_most_entries_have(tmp_path: Path, lead: float) -> None:
    one = made.tau(tmp_path / "one.tau", {"a": [1.0, 2.0 * lead, 0.0], "b": [lead]})
    two = made.tau(tmp_path / "two.tau", {"a": [-1.0, 4.0 * lead, 0.0]})
    found = merged("ties", [one, two], settings={"density": 1})
    assert found["a"].tolist() == [lead, 3.0 * lead, 0.0]
    assert found["b"].tolist() == [lead]


def test_when_no_sign_leads_a_cancelled_entry_becomes_plus(tmp_path: Path) -> None:
    one = made.tau(tmp_path / "one.tau", {"a": [-1.0, 2.0, -2.0]})
    two = made.tau(tmp_path / "two.tau", {"a": [1.0, 2.0, -2.0]})
    assert merged("ties", [one, two], settings={"density": 1})["a"].tolist() == [1.0, 2.0, -2.0]


def test_with_disjoint_supports_ties_keeps_each_value_and_task_arithmetic_adds(tmp_path: Path) -> None:
    one = made.tau(tmp_path / "one.tau", {"a": [1.0, 0.0, -3.0, 0.0]})
    two = made.tau(tmp_path / "two.tau", {"a": [0.0, 2.0, 0.0, -4.0]})
    for method in ("ties", "dare-ties", "task-arithmetic", "dare", "tall-masks"):
        settings = {"density": 1.0} if "density" in registry.find(method).settle({}) else {}
        assert merged(method, [one, two], settings={**settings, "scale": 1})["a"].tolist() == [1, 2, -3, -4], method


def test_thresholds_are_exact_over_all_tensors_whatever_the_values(tmp_path: Path) -> None:
    """Sizes from 1e-30 to 1e3, so that the threshold's bin is a narrow one, against a full sort."""
    source = np.random.default_rng(5)
    values = [np.exp2(source.integers(-100, 10, 500)).astype(np.float32) * source.choice([-1, 1], 500)
              for _ in range(2)]
    deltas = [made.tau(tmp_path / f"{at}.tau", {"x": one[:300].reshape(3, 100), "y": one[300:]})
              for at, one in enumerate(values)]
    for density in (0.002, 0.1, 0.5, 0.9, 1.0):
        found = merged("ties", deltas, settings={"density": density}, bound=1e30)
        want = elected(np.stack([trimmed(one.astype(np.float64), density) for one in values]), mean=True)
        assert np.array_equal(flat(found).astype(np.float32), want.astype(np.float32)), density


def test_dare_drops_by_chance_and_divides_by_the_chance(tmp_path: Path) -> None:
    deltas = [made.tau(tmp_path / f"{at}.tau", {"a": made.random((400, 500), at, 1.0)}) for at in (0, 1)]
    one = deltas[0].dense("a").astype(np.float64).reshape(400, 500)
    found = merged("dare", deltas, weights=[1, 1e-30], settings={"density": 0.25, "scale": 1}, bound=1e9)["a"]
    kept = np.abs(found) > 1e-20
    assert np.allclose(found[kept], one[kept] / 0.25, rtol=1e-6)
    share = kept.sum() / np.count_nonzero(one)
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / one.size)
    assert np.array_equal(found, merged("dare", deltas, weights=[1, 1e-30], settings={"density": 0.25, "scale": 1},
                                        bound=1e9)["a"])
    other = merged("dare", deltas, weights=[1, 1e-30], settings={"density": 0.25, "scale": 1}, seed=1, bound=1e9)["a"]
    overlap = (kept & (np.abs(other) > 1e-20)).sum() / kept.sum()
    assert abs(overlap - 0.25) < 0.02, "another seed draws another mask"


def test_two_inputs_and_two_tensors_have_masks_of_their_own(tmp_path: Path) -> None:
    same = made.random((200, 200), 3, 1.0)
    other = made.random((200, 200), 4, 1.0)
    deltas = [made.tau(tmp_path / f"{at}.tau", {"a": same, "b": last}) for at, last in enumerate((same, other))]
    masks = [draws.below(draws.Draws(0, delta.digest, name).take(40_000), 0.5) for delta in deltas for name in "ab"]
    for first in range(4):
        for second in range(first):
            assert abs((masks[first] == masks[second]).mean() - 0.5) < 0.02


def test_a_stream_is_the_same_in_pieces_and_fixed_for_all_time() -> None:
    whole = draws.Draws(7, b"d" * 32, "a.weight").take(200_000)
    stream = draws.Draws(7, b"d" * 32, "a.weight")
    pieces = np.concatenate([stream.take(count) for count in (1, 0, 99_999, 65_536, 34_464)])
    assert np.array_equal(whole, pieces)
    assert hashlib.sha256(whole.astype("<u4").tobytes()).hexdigest()[:16] == STREAM


STREAM = "90c7721d4a5dcdad"


def test_at_density_1_dare_drops_nothing(tmp_path: Path) -> None:
    deltas = inputs(tmp_path)
    for name, values in merged("dare", deltas, settings={"density": 1, "scale": 0.4}).items():
        assert np.array_equal(values, merged("task-arithmetic", deltas)[name])


def test_dare_ties_elects_over_what_dare_leaves(tmp_path: Path) -> None:
    deltas = inputs(tmp_path)
    found = merged("dare-ties", deltas, weights=[1, 2, -1], settings={"density": 0.5}, seed=3)
    left = []
    for delta, weight in zip(deltas, [1, 2, -1], strict=True):
        tensors = {}
        for name, shape in SHAPES.items():
            values = np.zeros(np.prod(shape))
            tensor = delta.read(name)
            stays = draws.below(draws.Draws(3, delta.digest, name).take(len(tensor.values)), 0.5)
            values[tensor.positions[stays]] = tensor.values[stays] / 0.5 * weight
            tensors[name] = values
        left.append(flat(tensors))
    assert np.abs(flat(found) - elected(np.stack(left), mean=True)).max() < 1e-7


def test_della_keeps_large_entries_more_often_and_divides_by_each_ones_chance(tmp_path: Path) -> None:
    """One row of distinct values, 4,000 times over: how often each entry stays, and what it then is."""
    row, times = np.array([3.0, -1.0, 0.0, 4.0, 2.0]), 4000
    deltas = [made.tau(tmp_path / f"{at}.tau", {"a": np.tile(row, (times, 1))}) for at in (0, 1)]
    found = merged("della", deltas, weights=[1, 1e-20], bound=1e9,
                   settings={"density": 0.5, "window": 0.4, "scale": 1})["a"]
    chance = np.array([0.5 + 0.4 * (rank - 1) / 4 - 0.2 for rank in (4, 2, 1, 5, 3)])  # 1: the smallest, the zero
    kept = np.abs(found) > 1e-10
    assert np.allclose(found[kept], np.broadcast_to(row / chance, found.shape)[kept], rtol=1e-6)
    share = kept.mean(axis=0)
    assert share[2] == 0
    spread = 5 * np.sqrt(chance * (1 - chance) / times)
    assert (np.abs(share - chance)[[0, 1, 3, 4]] < spread[[0, 1, 3, 4]]).all()


def test_della_refuses_chances_outside_0_to_1(tmp_path: Path) -> None:
    deltas = inputs(tmp_path, 2)
    for settings in ({"density": 0.05, "window": 0.1}, {"density": 0.95, "window": 0.14}, {"density": 1.0}):
        with pytest.raises(MergeSetting, match="must lie above 0 and not above 1"):
            merged("della", deltas, settings=settings)
    assert merged("della", deltas, settings={"density": 1.0, "window": 0})


@pytest.mark.parametrize(("density", "outliers"), [(0.15, 0.006), (0.3, 0.1), (0.2, 0.0), (1.0, 0.05), (0.01, 0.5)])
def test_breadcrumbs_takes_each_row_between_outliers_and_small_entries(
    tmp_path: Path, density: float, outliers: float
) -> None:
    deltas, weights = inputs(tmp_path), [1.0, -0.5, 2.0]
    found = merged("breadcrumbs", deltas, weights=weights, settings={"density": density, "outliers": outliers})
    for name, shape in SHAPES.items():
        want = np.zeros(shape)
        length = shape[-1]
        out = round(outliers * length)
        keep = max(1, min(round(density * length), length - out))
        for weight, one in zip(weights, dense(deltas), strict=True):
            rows, kept = one[name].reshape(-1, length), np.zeros((int(np.prod(shape)) // length, length))
            for at, row in enumerate(rows):
                chosen = np.argsort(-np.abs(row), kind="stable")[out : out + keep]
                kept[at, chosen] = row[chosen]
            want += 0.2 * weight * kept.reshape(shape)
        assert np.abs(found[name] - want).max() < 1e-7, name
        assert outliers or np.count_nonzero(want), "without outliers nothing is wiped out"


def test_ranks_are_the_same_by_sorted_keys_and_by_sorted_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    row = made.random((6, 50), 1, 0.7).reshape(-1)
    at = np.flatnonzero(row)
    fast = ranks.Ranked(at, row[at], 50, 300)
    every = np.arange(len(at))
    monkeypatch.setattr(ranks, "KEYS_MAX", 1)
    slow = ranks.Ranked(at, row[at], 50, 300)
    assert np.array_equal(fast.from_top, slow.from_top)
    assert fast.index(every).tolist() == slow.index(every).tolist()


def masks_of(deltas: Sequence[TauDelta], **settings: float) -> tuple[Dense, dict[tuple[int, str], np.ndarray]]:
    merge = engine.prepare("tall-masks", deltas, settings=settings)
    found: dict[tuple[int, str], np.ndarray] = {}
    merge.run.keep_mask = lambda index, name, at: found.__setitem__((index, name), at)
    return {tensor.name: sparsify.densify(tensor).astype(np.float64) for tensor in merge.tensors()}, found


def test_tall_masks_take_the_entries_that_come_near_enough_to_the_input(tmp_path: Path) -> None:
    deltas = inputs(tmp_path)
    total, masks = masks_of(deltas, threshold=0.4)
    for index, one in enumerate(dense(deltas)):
        for name in SHAPES:
            want = np.abs(one[name]) > 0.4 * np.abs(total[name] - one[name])
            assert np.array_equal(masks[index, name], np.flatnonzero(want))
    votes = {name: sum((np.abs(one[name]) > 0.4 * np.abs(total[name] - one[name])).astype(int)
                       for one in dense(deltas)) for name in SHAPES}
    for least in (1, 2, 3):
        agreed, none = masks_of(deltas, threshold=0.4, consensus=least)
        assert not none
        for name in SHAPES:
            assert np.array_equal(agreed[name], np.where(votes[name] >= least, total[name], 0))
    with pytest.raises(MergeSetting, match="consensus of 4 among 3"):
        masks_of(deltas, consensus=4)


def test_long_tensors_are_merged_the_same_as_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltas = inputs(tmp_path)
    whole = {method: flat(merged(method, deltas, weights=[1, -0.5, 2], bound=99)) for method in ELEMENTWISE}
    monkeypatch.setattr(blocks, "BLOCK", 96)
    monkeypatch.setattr(ranks, "BLOCK", 96)
    monkeypatch.setattr(blocks.spans, "__defaults__", (96,))
    monkeypatch.setattr(blocks.sum_parts, "__defaults__", (1.0, 96))
    monkeypatch.setattr(blocks.Slices.__init__, "__defaults__", (96,))
    for method in ELEMENTWISE:
        assert np.array_equal(flat(merged(method, deltas, weights=[1, -0.5, 2], bound=99)), whole[method]), method


THREADS = """
import hashlib, sys
from pathlib import Path
from hinet_tiers.merging import engine
from hinet_tiers.merging.deltas import open_delta
for method in sys.argv[2:]:
    deltas = [open_delta(Path(sys.argv[1]) / f"{at}.tau") for at in range(3)]
    merge = engine.prepare(method, deltas, weights=[1, -0.5, 2], bound=1e9)
    digest = hashlib.sha256()
    for tensor in merge.tensors():
        digest.update(tensor.name.encode() + tensor.positions.tobytes() + tensor.values.tobytes())
    print(method, digest.hexdigest(), merge.displacement.hex())
"""


def test_results_are_the_same_bits_with_one_and_with_two_threads(tmp_path: Path) -> None:
    for at in range(3):
        made.tau(tmp_path / f"{at}.tau", {"a": made.random((300, 400), at), "b": made.random((70_000,), at + 5)})
    found: list[str] = []
    for threads in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        found.append(subprocess.run([sys.executable, "-c", THREADS, str(tmp_path), *ELEMENTWISE], env=environment,
                                    check=True, capture_output=True, text=True).stdout)
    assert found[0] == found[1]
    assert found[0].count("\n") == len(ELEMENTWISE)


@pytest.mark.parametrize("method", ELEMENTWISE)
def test_every_method_takes_any_number_of_inputs_with_any_tensors(method: str, tmp_path: Path) -> None:
    deltas = [made.tau(tmp_path / "0.tau", {"a": [1.0, -1.0]}), made.tau(tmp_path / "1.tau", {"b": [[1.0, 0.5]]}),
              made.tau(tmp_path / "2.tau", {"a": [-2.0, 0.0], "c": [0.25]})]
    found = merged(method, deltas, weights=[1, -1, 0.5])
    assert all(np.isfinite(values).all() for values in found.values())
