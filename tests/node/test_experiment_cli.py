"""`hinet-node experiment e1`: what is said before it runs, what it refuses, and what a person reads at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hinet_node.cli import experiment_cmd, root
from hinet_tiers.experiments import report


def test_what_was_registered_is_said_before_a_folder_in_use_is_refused(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code = root.main(["--home", str(tmp_path / "h"), "experiment", "e1", "--quick", "--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert code == 6
    for criterion in report.REGISTERED:
        assert said.index(criterion.text) < said.index("error:")
    assert "holds something else" in said
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_has_no_place_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert root.main(["experiment", "e1", "--out", str(tmp_path / "a" / "b")]) == 2
    told = capsys.readouterr().err
    assert "Registered" not in told
    assert "mkdir -p" in told


def test_each_stage_is_said_once_however_its_reports_come(capsys: pytest.CaptureFixture[str]) -> None:
    hear = experiment_cmd._spoken()
    hear({"said": [], "said_count": 0})
    hear({"said": ["one"], "said_count": 1})
    hear({"said": ["one"], "said_count": 1})
    hear({"said": ["one", "two", "three"], "said_count": 3})
    hear({"said": ["three", "four"], "said_count": 4})
    assert capsys.readouterr().err.split() == ["one", "two", "three", "four"]


def test_the_last_words_tell_scores_and_every_criterion_as_it_was_measured() -> None:
    row = {"helix": 0.25, "macro": 0.25}
    found: dict[str, Any] = {
        "domains": ["helix"], "scores": {"base": row}, "signals": {"sign_conflict": "not measured"}, "wall_s": 61.0,
        "cpu_s": 100.0, "report": "/x/report.md",
        "criteria": [{"name": "routing", "measured": "93.3%", "passed": True},
                     {"name": "compose", "measured": "+1.0 points", "passed": False}]}
    lines = list(experiment_cmd._lines(found))
    assert lines[1].split() == ["base", "0.250", "0.250"]
    assert "passed  routing: 93.3%" in lines
    assert "failed  compose: +1.0 points" in lines
    assert lines[-1] == "1:01 min, 100 CPU s; /x/report.md"
