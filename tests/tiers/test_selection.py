"""Which entries are kept: bit for bit those of a plain sort by magnitude, then index."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hinet_tiers import selection, sparsify


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The definition: larger magnitude first, then the lower index, zeros never."""
    order = np.argsort(-np.abs(values).astype(np.float64), kind="stable")[:count]
    return np.sort(order[values[order] != 0])


def largest_of_chunks(values: np.ndarray, keep: int, chunk: int) -> np.ndarray:
    """The definition, one chunk at a time; the last keeps its share, rounded up."""
    chosen = [np.zeros(0, np.int64)]
    for start in range(0, len(values), chunk):
        part = values[start : start + chunk]
        chosen.append(start + largest(part, min(len(part), -(-keep * len(part) // chunk))))
    return np.concatenate(chosen)


def bits(values: np.ndarray) -> np.ndarray:
    """Float32 numbers of any bits but those of infinities and NaNs: denormals and both zeros among them."""
    drawn = values.astype(np.uint32)
    drawn[(drawn & 0x7F80_0000) == 0x7F80_0000] &= 0x807F_FFFF
    return drawn.view(np.float32)


SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda source, size: source.standard_normal(size, np.float32),
    "of any bits": lambda source, size: bits(source.integers(0, 1 << 32, size)),
    "denormal": lambda source, size: bits(source.integers(0, 50, size) | source.integers(0, 2, size) << 31),
    "rounded to bf16": lambda source, size: bits(
        source.standard_normal(size, np.float32).view(np.uint32) & 0xFFFF_0000
    ),
    "all equal": lambda source, size: np.where(source.random(size) < 0.5, -0.5, 0.5).astype(np.float32),
    "nearly all zero": lambda source, size: np.where(source.random(size) < 0.01, 1, 0).astype(np.float32),
    "zero": lambda source, size: np.where(source.random(size) < 0.5, -0.0, 0.0).astype(np.float32),
    "ascending": lambda source, size: np.arange(size, dtype=np.float32),
    "heavy-tailed": lambda source, size: source.standard_cauchy(size).astype(np.float32),
    "few levels": lambda source, size: source.integers(-3, 4, size).astype(np.float32),
}


@given(
    size=st.integers(1, 400), chunk=st.integers(1, 70), keep_share=st.floats(0.01, 1),
    shape=st.sampled_from(list(SHAPES)), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_small_chunks_keep_what_the_definition_keeps(
    size: int, chunk: int, keep_share: float, shape: str, seed: int
) -> None:
    keep = max(1, round(chunk * keep_share))
    values = SHAPES[shape](np.random.default_rng(seed), size)
    assert selection.select_chunked(values, keep, chunk).tolist() == largest_of_chunks(values, keep, chunk).tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("keep", "chunk"), [(64, 4096), (1, 4096), (7, 1000), (205, 4096), (819, 4096), (4096, 4096)])
def test_whole_and_broken_chunks_keep_what_the_definition_keeps(shape: str, keep: int, chunk: int) -> None:
    size = 4096 * 70 + 1234  # more than one piece
    values = SHAPES[shape](np.random.default_rng(keep), size)
    found = selection.select_chunked(values, keep, chunk, np.int32)
    assert found.dtype == np.int32
    assert np.array_equal(found, largest_of_chunks(values, keep, chunk))


@pytest.mark.parametrize("shape", ["normal", "few levels", "nearly all zero"])
def test_chunks_larger_than_a_piece_keep_what_the_definition_keeps(shape: str) -> None:
    chunk = selection.PIECE + 5
    values = SHAPES[shape](np.random.default_rng(1), 2 * chunk + 77)
    assert np.array_equal(
        selection.select_chunked(values, 300, chunk), largest_of_chunks(values, 300, chunk)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [1e-6, 1 / 64, 0.05, 0.2, 0.9, 0.999999, 1.0])
def test_a_threshold_over_several_tensors_keeps_what_the_definition_keeps(shape: str, density: float) -> None:
    source = np.random.default_rng(7)
    tensors = {f"{at}": SHAPES[shape](source, size) / np.float32(1 + at % 3)
               for at, size in enumerate([1, 300_000, 31, 5000, 270_001])}  # fmt: skip
    whole = np.concatenate(list(tensors.values()))
    wanted = largest(whole, max(1, round(density * len(whole))))
    start, found = 0, []
    for name, positions, values in selection.select_threshold(list(tensors), tensors.__getitem__, density):
        assert np.array_equal(values, tensors[name][positions])
        found.append(positions + start)
        start += len(tensors[name])
    assert np.array_equal(np.concatenate(found), wanted)


@given(
    density=st.floats(0.001, 1), shape=st.sampled_from(list(SHAPES)), seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_a_threshold_over_tiny_tensors_keeps_what_the_definition_keeps(
    density: float, shape: str, seed: int, sizes: list[int]
) -> None:
    source = np.random.default_rng(seed)
    tensors = [SHAPES[shape](source, size) for size in sizes]
    whole = np.concatenate(tensors)
    names = [str(at) for at in range(len(sizes))]
    threshold = selection.find_threshold(names, lambda name: tensors[int(name)], density)
    starts = np.cumsum([0, *sizes])
    found = [threshold.positions(values) + start for values, start in zip(tensors, starts, strict=False)]
    assert np.array_equal(np.concatenate(found), largest(whole, max(1, round(density * len(whole)))))


@pytest.mark.parametrize("factor", [1e6, 1e-6, 0.0])
@pytest.mark.parametrize("density", [0.01, 0.5, 0.97])
def test_a_sample_that_misleads_changes_nothing(factor: float, density: float) -> None:
    """Every entry that is sampled is made much larger, or much smaller, than all others."""
    values = np.random.default_rng(3).standard_normal(400_000, np.float32)
    values[:: selection.SAMPLE_STEP] *= np.float32(factor)
    (found,) = [where for _, where, _ in selection.select_threshold(["a"], lambda _: values, density)]
    assert np.array_equal(found, largest(values, round(density * len(values))))


def test_a_sample_is_thinned_when_the_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SAMPLES_MAX", 500)
    tensors = [np.random.default_rng(at).standard_normal(50_000, np.float32) for at in range(5)]
    found = selection.select_threshold(list("01234"), lambda name: tensors[int(name)], 0.1)
    chosen = np.concatenate([where + 50_000 * int(name) for name, where, _ in found])
    assert np.array_equal(chosen, largest(np.concatenate(tensors), 25_000))


@pytest.mark.parametrize("count", [0, 1, 1000, 299_999, 300_000, 400_000])
def test_the_top_of_one_tensor_is_the_definition(count: int) -> None:
    values = np.random.default_rng(2).integers(-9, 10, 300_000).astype(np.float32)
    assert np.array_equal(selection.select_top(values, count), largest(values, count))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 4095, 5000])
def test_values_that_are_not_finite_are_refused(bad: float, at: int) -> None:
    values = np.ones(5001, np.float32)
    values[at] = bad
    with pytest.raises(ValueError, match="not finite"):
        selection.select_chunked(values)
    for density in (0.5, 1.0):
        with pytest.raises(ValueError, match="not finite"):
            list(selection.select_threshold(["a"], lambda _: values, density))


def test_a_density_outside_its_range_and_a_keep_beyond_its_chunk_are_refused() -> None:
    for density in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="density"):
            selection.find_threshold(["a"], lambda _: np.ones(3, np.float32), density)
    for keep, chunk in ((0, 4), (5, 4)):
        with pytest.raises(ValueError, match=f"keep {keep} of {chunk}"):
            selection.select_chunked(np.ones(8, np.float32), keep, chunk)


def test_nothing_is_kept_of_nothing() -> None:
    assert selection.select_chunked(np.zeros(0, np.float32)).tolist() == []
    assert list(selection.select_threshold([], lambda _: np.zeros(0, np.float32), 0.5)) == []


@given(share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_values_gathered_in_place_are_those_at_the_positions(share: float, seed: int) -> None:
    source = np.random.default_rng(seed)
    values = source.standard_normal(sparsify.PIECE + 20_000, np.float32)
    positions = np.flatnonzero(source.random(len(values)) <= share)
    wanted = values[positions]
    assert np.array_equal(sparsify.gathered(values, positions), wanted)


CHOOSE = """
import resource, sys
import numpy as np
from hinet_tiers import selection
values = np.random.default_rng(0).standard_normal(1 << 24, np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for keep, chunk in ((64, 4096), (1 << 18, 1 << 24)):
    selection.select_chunked(values, keep, chunk, np.int32)
found = selection.find_threshold(["a"], lambda _: values, 0.05).positions(values, np.int32)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / values.nbytes)
"""


def test_choosing_takes_half_as_much_memory_as_the_tensor_at_most() -> None:
    """64 MiB of values, in a process of its own: a mask of a quarter of that, positions, and pieces."""
    ran = subprocess.run([sys.executable, "-c", CHOOSE], capture_output=True, text=True, check=True, timeout=120)
    assert float(ran.stdout) < 0.5
