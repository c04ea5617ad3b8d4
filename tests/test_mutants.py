"""Every verification that `make mutants` takes away is there to be taken, and a few of them are, in each run."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parent
EVERY = 36


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TESTS))
    return importlib.import_module("mutants")


def test_each_mutant_has_its_place_in_the_source_and_tests_that_exist(mutants: ModuleType) -> None:
    assert len(mutants.MUTANTS) > 100
    for one in mutants.MUTANTS:
        text = (TESTS.parent / one.file).read_text()
        compile(mutants.applied(one, text), one.file, "exec")
        assert mutants.applied(one, text) != text
        for pattern in one.tests:
            assert list(TESTS.glob(pattern)), (one.name, pattern)
    assert len({(one.file, one.name) for one in mutants.MUTANTS}) == len(mutants.MUTANTS)


def test_a_mutant_that_lost_its_place_or_is_there_twice_is_an_error(mutants: ModuleType) -> None:
    mutant = mutants.Mutant("planted", "somewhere.py", "if it:", "if False:", ())
    for text in ("", "if it:\n    pass\nif it:\n    pass\n"):
        with pytest.raises(ValueError, match="not once"):
            mutants.applied(mutant, text)


def test_a_check_that_is_taken_away_is_missed_by_a_test(mutants: ModuleType) -> None:
    command = [sys.executable, str(TESTS / "mutants.py"), "--every", str(EVERY), "--trusting", "--json"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)["mutants"]
    assert [one for one in told if one["outcome"] != "noticed"] == []
    assert done.returncode == 0
    assert len(told) == -(-len(mutants.MUTANTS) // EVERY)
