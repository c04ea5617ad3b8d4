"""`hinet-node compose`: what a person sees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hinet_node.cli import root
from hinet_tiers.merging import registry
from hinet_tiers.vectors.make import make
from hinet_tiers.weights import open_weights

from .test_tau_cli import model

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run_line(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = root.main(line.split())
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_line


def found(result: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = result
    assert code == 0, err + out
    return dict(json.loads(out))


def test_every_method_is_listed_with_its_defaults_in_80_columns(run: Run) -> None:
    rows = found(run("--json compose methods"))["methods"]
    assert [row["name"] for row in rows] == list(registry.METHODS)
    code, out, _ = run("compose methods")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    for row in rows:
        assert row["name"] in text
        assert all(f"{one['name']} {one['default']:g}" in text for one in row["settings"])


def test_one_method_is_described_and_an_unknown_one_refused(run: Run) -> None:
    code, out, _ = run("compose methods della")
    assert code == 0
    assert "arXiv 2406.11617" in out
    assert "0.14 (0 to 1)" in out
    code, _, err = run("compose methods soup")
    assert code == 2
    assert "there are: task-arithmetic" in err


@pytest.fixture
def pair(run: Run, tmp_path: Path) -> Run:
    """Two task vectors of one base, `one.tau` and `two.tau`, that base, and one of another base."""
    for seed in (0, 1, 2, 3):
        model(tmp_path / f"m{seed}", seed)
    for name, base, tuned in (("one", 0, 1), ("two", 0, 2), ("other", 3, 2)):
        with open_weights(tmp_path / f"m{tuned}") as after, open_weights(tmp_path / f"m{base}") as before:
            make(after, before, tmp_path / f"{name}.tau", density=1, codec="bf16")
    return run


def test_a_merge_is_written_as_a_task_vector_and_as_a_model(pair: Run, tmp_path: Path) -> None:
    data = found(pair("--json compose merge one.tau two.tau --weights 1,-0.5 --set scale=1 --base m0 --out m.tau "
                      "--model whole"))
    assert data["schema"] == "hinet.compose-merge/1"
    assert [row["weight"] for row in data["inputs"]] == [1, -0.5]
    assert data["written"]["tau"]["path"] == str(tmp_path / "m.tau")
    assert data["household"] == "no key"
    assert found(pair("--json tau apply m.tau --base m0 --out again"))["digest"] == found(
        pair("--json base digest whole"))["digest"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_one_input_alone_comes_back_with_the_same_values(pair: Run) -> None:
    for method in registry.METHODS:
        if registry.find(method).needs & {"adapters", "base", "data"}:
            continue
        assert pair(f"compose merge one.tau --method {method} --out m.tau --force --seed 3")[0] == 0
        data = found(pair("--json tau diff one.tau m.tau"))
        assert (data["cosine"], data["sign_conflict"]) == (1, 0), method
        assert found(pair("--json tau apply m.tau --base m0 --out a --dtype float32"))["digest"] == found(
            pair("--json tau apply one.tau --base m0 --out b --dtype float32"))["digest"], method
        shutil.rmtree("a")
        shutil.rmtree("b")


@pytest.mark.parametrize(("line", "code", "words"), [
    ("one.tau two.tau", 2, "where the merge goes"),
    ("one.tau other.tau --out m.tau", 7, "only task vectors of one base"),
    ("one.tau none.tau --out m.tau", 2, "no file none.tau"),
    ("one.tau two.tau --out m.tau --method soup", 2, "no merge method 'soup'"),
    ("one.tau two.tau --out m.tau --weights 1", 2, "are not 2 numbers"),
    ("one.tau two.tau --out m.tau --weights 1,nan", 2, "are not 2 numbers"),
    ("one.tau two.tau --out m.tau --weights 0,0", 2, "nothing is left"),
    ("one.tau two.tau --out m.tau --set density", 2, "not understood"),
    ("one.tau two.tau --out m.tau --set scale=1 --set scale=2", 2, "twice"),
    ("one.tau two.tau --out m.tau --set density=0.1", 2, "has no setting density"),
    ("one.tau two.tau --out m.tau --codec zip", 2, "no codec 'zip'"),
    ("one.tau two.tau --out m.tau --seed -1", 2, "--seed is -1"),
    ("one.tau two.tau --out m.tau --bound 0.001", 7, "above the bound of 0.001"),
    ("one.tau one.tau --out m.tau --weights 1,-1", 7, "zero everywhere"),
    ("one.tau two.tau --model whole", 2, "--base PATH"),
    ("one.tau two.tau --out one.tau", 6, "is there already"),
    ("m0 two.tau --out m.tau --base m0", 7, "without adapter_config.json"),
])
def test_what_does_not_fit_is_refused_by_name_and_leaves_nothing(
        pair: Run, tmp_path: Path, line: str, code: int, words: str) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    result = pair(f"compose merge {line}")
    assert words in " ".join(result[2].split()), result
    assert result[0] == code, result
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_plan_without_probes_compares_weights_and_says_what_to_measure(pair: Run) -> None:
    data = found(pair("--json compose plan one.tau two.tau"))
    assert (data["schema"], data["choice"], data["separable"]) == ("hinet.compose-plan/1", "route", None)
    (row,) = data["pairs"]
    assert 0.5 < row["cosine"] < 1
    assert "contradict" not in row
    code, out, _ = pair("compose plan one.tau two.tau")
    assert code == 0
    assert "--probe one.tau=questions.txt" in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(("line", "code", "words"), [
    ("one.tau", 2, "2 to 64 task vectors"),
    ("one.tau one.tau", 2, "different names"),
    ("one.tau other.tau", 7, "task vectors of one base"),
    ("one.tau none.tau", 2, "no file none.tau"),
    ("one.tau two.tau --probe one.tau", 2, "not understood"),
    ("one.tau two.tau --probe one.tau=q.txt --probe one.tau=q.txt", 2, "twice"),
    ("one.tau two.tau --probe one.tau=q.txt --base m0", 2, "two.tau has no probes"),
    ("one.tau two.tau --probe x.tau=q.txt --base m0", 2, "none of one.tau, two.tau"),
    ("one.tau two.tau --probe one.tau=q.txt --probe two.tau=empty.txt --base m0", 2, "holds 0 questions"),
    ("one.tau two.tau --probe one.tau=q.txt --probe two.tau=bad.json --base m0", 2, "no file of questions"),
    ("one.tau two.tau --probe one.tau=q.txt --probe two.tau=q.txt --base m0", 2, "base"),
])
def test_a_plan_that_can_not_be_made_says_why(pair: Run, tmp_path: Path, line: str, code: int, words: str) -> None:
    (tmp_path / "q.txt").write_text("Who?\n\nWhere?\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bad.json").write_text("{")
    result = pair(f"compose plan {line}")
    assert words in " ".join(result[2].split()), result
    assert result[0] == code, result
