"""`hinet-node compose`: what a person sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hinet_node.cli import root
from hinet_tiers.merging import registry

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
