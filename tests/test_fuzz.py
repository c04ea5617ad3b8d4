"""A short run of `make fuzz` with a fixed seed, the inputs that failed before, and that the fuzzer notices what it
should."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *(one for one in sys.path if one)])}


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(TESTS))
    module = importlib.import_module("fuzz.drive")
    monkeypatch.setattr(module, "FOUND", tmp_path)
    return module


def test_damaged_bytes_give_documented_errors_in_bounded_memory() -> None:
    command = [sys.executable, str(TESTS / "fuzz.py"), "--inputs", "8000", "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert [failure for target in report["targets"] for failure in target["failures"]] == []
    assert done.returncode == 0
    assert report["inputs"] >= 8_000
    assert report["peak_bytes"] < 200_000_000
    # Each target's parser was passed by some inputs and refused others, or it is one that refuses nothing.
    assert [target["target"] for target in report["targets"] if not target["taken"]] == []


def test_an_undocumented_error_is_a_failure_and_its_input_is_played_again(drive: ModuleType, tmp_path: Path) -> None:
    def planted(raw: bytes) -> None:
        if raw.startswith(b"\x00"):
            raise KeyError("planted")

    target = drive.Target("planted bug", [b"\x01\x02\x03\x04"], planted)
    with open_note() as note:
        report = drive.attack(target, 3_000, "1", note)
        (first, *_) = report["failures"]
        assert "planted" in first["what"]
        assert Path(first["file"]).read_bytes()[:1] == b"\x00"
        assert drive.attack(target, 0, "1", note)["failures"], "what was found is not played again"


def test_an_input_that_takes_too_long_is_a_failure(drive: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "HANG_S", 0.05)
    monkeypatch.setattr(drive, "FAILURES_MAX", 1)
    before = signal.signal(signal.SIGPROF, drive._hang)

    def planted(raw: bytes) -> None:
        while raw != b"good":
            pass

    try:
        with open_note() as note:
            report = drive.attack(drive.Target("planted hang", [b"good"], planted), 50, "1", note)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert ["Hang" in failure["what"] for failure in report["failures"]] == [True]


def test_a_parser_that_takes_memory_by_what_an_input_claims_is_stopped() -> None:
    code = "import fuzz.drive as d\nwith d._bounded():\n    len(bytearray(d.MEMORY_BYTES_MAX))"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MemoryError" in done.stderr


def open_note() -> memoryview:
    return memoryview(bytearray(4 << 20))
