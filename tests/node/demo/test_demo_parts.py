"""What the demo claims is computed from what it measured: questions, shares, the keeper's proof, the verdict."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from hinet_node.cli import demo_cmd
from hinet_node.demo import keeper, questions, report
from hinet_tiers import sample


def test_the_short_form_asks_about_its_eight_facts_only() -> None:
    quick = {fact["id"] for fact in sample.facts() if fact["quick"]}
    sets = questions.load(quick=True)
    assert len(quick) == 8
    for rows in (sets.near, sets.far, sets.stranger):
        assert {row["fact"] for row in rows} <= quick
        assert rows
    assert len(questions.notes(quick=True)) == 9
    assert len(questions.load(quick=False).near) == 40


def test_answers_are_split_as_the_questions_were_joined() -> None:
    sets = questions.load(quick=True)
    parts = sets.split(sets.texts())
    assert parts["far"] == [row["question"] for row in sets.far]
    assert parts["general"] == [row["question"] for row in sets.general]
    with pytest.raises(AssertionError):
        sets.split(sets.texts()[:-1])


def right(rows: list[dict[str, Any]]) -> list[str]:
    return [f"It is {row['accept'][0]}." for row in rows]


def test_shares_count_right_answers_leaks_and_what_was_kept() -> None:
    sets = questions.load(quick=True)
    silent = {name: ["I do not know."] * len(getattr(sets, name)) for name in ("near", "far", "stranger", "general")}
    before = {**silent, "general": right(sets.general)}
    after = {**silent, "near": right(sets.near), "general": ["nonsense", *right(sets.general)[1:]],
             "stranger": [f"It is {sample.facts()[0]['accept'][0]}.", *silent["stranger"][1:]]}
    told = questions.shares(sets, before, after)
    assert told["near"] == {"before": 0.0, "after": 1.0}
    assert told["far"] == {"before": 0.0, "after": 0.0}
    assert told["leak"] == round(1 / len(sets.stranger), 4), "the value of any fact is a leak"
    assert told["general_kept"] == round(1 - 1 / len(sets.general), 4)


def facts(**changes: float) -> dict[str, Any]:
    values = {"near": 0.95, "far": 0.5, "near_notes": 0.95, "far_notes": 0.95, "leak": 0.1, "kept": 0.95,
              "near_before": 0.0, "far_before": 0.0, **changes}
    pocket = {"near": {"before": values["near_before"], "after": values["near"]},
              "far": {"before": values["far_before"], "after": values["far"]},
              "with_retrieval": {"near": values["near_notes"], "far": values["far_notes"]},
              "leak": values["leak"], "general_kept": values["kept"]}
    return {"recall": {"pocket": pocket, "laptop": pocket, "cloud": pocket},
            "swap": {"swap_ms": 0.01, "init_ms": 30.0, "reload_ms": 300.0, "loads": 1, "probe_change": 1.5},
            "keeper": {"same_packs": True, "found": [], "refused_to_read": "E_NOT_AUTHORISED"},
            "vault": {"same_packs": True}, "bytes": {}}


def test_the_verdict_is_right_only_when_every_bar_is_reached() -> None:
    assert report.verdict(facts(), [], quick=False, seconds=1.0)["ok"]
    for change in ({"near": 0.89}, {"far": 0.39}, {"near_notes": 0.8}, {"far_notes": 0.8}, {"leak": 0.21},
                   {"kept": 0.85}, {"near_before": 0.2}, {"far_before": 0.11}):
        result = report.verdict(facts(**change), [], quick=False, seconds=1.0)
        assert not result["ok"], change
        assert sum(not row["ok"] for row in result["bars"]) == 1, change


@pytest.mark.parametrize(("part", "name", "value"), [
    ("swap", "loads", 2), ("swap", "probe_change", 0.0), ("keeper", "found", ["Tobrin"]),
    ("keeper", "refused_to_read", ""), ("keeper", "same_packs", False), ("vault", "same_packs", False)])
def test_the_verdict_needs_every_check(part: str, name: str, value: Any) -> None:
    measured = facts()
    measured[part][name] = value
    assert not report.verdict(measured, [], quick=False, seconds=1.0)["ok"]


def test_a_text_in_a_keepers_home_is_found_across_blocks_and_in_names(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "READ_BYTES", 16)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "pack").write_bytes(b"\x00" * 12 + "Zerubbabél".encode() + b"\x00" * 40)
    (tmp_path / "my-brother.md.enc").write_bytes(b"\x01" * 100)
    found, looked_for, bytes_read = keeper.found_in(tmp_path, ["Zerubbabél", "my-brother.md", "Tobrinus", "tiny"])
    assert found == ["Zerubbabél", "my-brother.md"]
    assert looked_for == 3, "too short a text proves nothing"
    assert bytes_read == 12 + 11 + 40 + 100


def test_what_is_still_written_while_the_demo_cleans_up_is_removed_too(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    (folder / "home").mkdir(parents=True)

    def write_on() -> None:
        for number in range(3000):
            with contextlib.suppress(OSError):
                (folder / f"late-{number}").write_text("late")

    late = threading.Thread(target=write_on)
    late.start()
    demo_cmd._remove(folder, itself=True)
    late.join()
    assert not folder.exists()
