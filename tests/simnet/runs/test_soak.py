"""Soaks: seed after seed until something is found; what was played is added up over all of them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from hinet_simnet.errors import SimnetError
from hinet_simnet.runs.ledger import Ledger
from hinet_simnet.runs.soak import soak
from hinet_simnet.scenario.model import Scenario


def test_a_soak_ends_at_the_first_finding_and_names_its_seed(fine: Scenario, failing: Scenario) -> None:
    found = soak(seconds=60, first_seed=10, workers=1, make=lambda seed: failing.text if seed == 12 else fine.text)
    assert [done.job.seed for done in found.found] == [12]
    assert found.runs == 3
    assert found.next_seed == 13
    assert found.events > found.found[0].outcome.events > 50
    assert not found.as_dict()["ok"]


def test_a_soak_that_keeps_going_collects_findings_until_the_time_is_over(fine: Scenario, failing: Scenario) -> None:
    found = soak(seconds=3, first_seed=1, workers=1, keep_going=True,
                 make=lambda seed: failing.text if seed % 2 else fine.text)
    assert len(found.found) > 1
    assert {done.job.seed % 2 for done in found.found} == {1}
    assert found.next_seed == found.runs + 1


def test_a_scenario_that_is_refused_is_told_and_not_counted(fine: Scenario) -> None:
    found = soak(seconds=2, first_seed=1, workers=1, make=lambda seed: "x = 1" if seed == 1 else fine.text)
    assert len(found.refused) == 1
    assert "seed 1" in found.refused[0]
    assert not found.as_dict()["ok"]


def test_the_ledger_adds_up_by_version_also_from_several_soaks_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"

    def add() -> None:
        for _ in range(20):
            Ledger(path, "1.0").add(events=10, runs=1, findings=0, virtual_s=2.0, next_seed=5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Ledger(path, "1.0").read()
    assert (total.events, total.runs, total.next_seed) == (800, 80, 5)
    assert Ledger(path, "2.0").read().events == 0
    Ledger(path, "2.0").add(events=1, runs=1, findings=1, virtual_s=1.0, next_seed=2)
    assert Ledger(path, "1.0").read().events == 800
    assert json.loads(path.read_text())["schema"] == "hinet.simnet.ledger/1"


def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    for text in ("Dear all", "[]", '{"schema": "x"}',
                 '{"schema": "hinet.simnet.ledger/1", "versions": {"1": {"x": 1}}}'):
        path.write_text(text)
        with pytest.raises(SimnetError, match="no ledger"):
            Ledger(path, "1").add(events=1, runs=1, findings=0, virtual_s=1.0, next_seed=1)
        assert path.read_text() == text
