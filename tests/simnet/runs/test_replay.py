"""Replays: the same to the last event, or the first one that differs; another program's trace is refused."""

from __future__ import annotations

import _thread
import time
from pathlib import Path
from typing import Any

import pytest

from hinet_simnet import levels
from hinet_simnet.errors import BadTrace
from hinet_simnet.findings import Outcome
from hinet_simnet.runs import program, tracefile
from hinet_simnet.runs.record import record
from hinet_simnet.runs.replay import NO_MORE, read_through, replay
from hinet_simnet.scenario.model import Scenario


def kept(scenario: Scenario, path: Path, **more: Any) -> Path:
    record(scenario, level="world", seed=5, path=path, **more)
    return path


def test_a_replay_is_the_same_to_the_last_event(fine: Scenario, tmp_path: Path) -> None:
    result = replay(kept(fine, tmp_path / "a"))
    assert result.same
    assert result.compared == result.outcome.events == result.recording.events > 50
    assert result.recording.whole


def test_a_failing_run_fails_again_in_the_same_way(failing: Scenario, tmp_path: Path) -> None:
    result = replay(kept(failing, tmp_path / "a"))
    assert result.same
    assert result.recording.outcome is not None
    assert result.outcome.findings == result.recording.outcome.findings != []


def extra(after: int, **change: Any) -> Any:
    """Play, with one event more after so many."""
    def play(scenario: Scenario, *, trace: Any, **more: Any) -> Outcome:
        def observe(*event: Any) -> None:
            if trace.events == after:
                trace._enter(f"{after}.0 surprise -")

        trace.observers.append(observe)
        return levels.play(scenario, trace=trace, **more)
    return play


def test_the_first_event_that_differs_is_shown_with_its_neighbours(fine: Scenario, tmp_path: Path) -> None:
    path = kept(fine, tmp_path / "a")
    with tracefile.TraceReader(path) as reader:
        lines = list(reader.lines())
    result = replay(path, run=extra(20))
    found = result.difference
    assert found is not None
    assert not result.same
    assert (found.event, found.played) == (21, "20.0 surprise -")
    assert found.recorded == lines[20]
    assert found.before == lines[15:20]
    assert found.recorded_after == lines[21:24]
    assert found.played_after == lines[20:23]


def test_a_run_that_ends_too_early_or_too_late_differs(fine: Scenario, tmp_path: Path) -> None:
    path = kept(fine, tmp_path / "a")
    count = read_through(path).events

    def short(scenario: Scenario, **more: Any) -> Outcome:
        return Outcome("fine", "world", 5)

    early = replay(path, run=short).difference
    assert early is not None
    assert (early.event, early.played) == (1, NO_MORE)
    late = replay(path, run=extra(count)).difference
    assert late is not None
    assert (late.event, late.recorded) == (count + 1, NO_MORE)


def test_an_interrupted_run_is_compared_as_far_as_it_went(fine: Scenario, tmp_path: Path) -> None:
    def stopped(scenario: Scenario, *, trace: Any, **more: Any) -> Outcome:
        def observe(*event: Any) -> None:
            if trace.events == 31:
                _thread.interrupt_main()
                time.sleep(1.0)  # until the command has noticed

        trace.observers.append(observe)
        return levels.play(scenario, trace=trace, **more)

    path = kept(fine, tmp_path / "a", run=stopped)
    recording = read_through(path)
    assert not recording.whole
    assert recording.events >= 31
    result = replay(path)
    assert result.same
    assert result.compared == recording.events


def test_a_file_at_its_limit_is_compared_by_events_and_then_by_digest(
        fine: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "FRAME_BYTES", 1000)
    path = kept(fine, tmp_path / "a", bytes_max=1500)
    recording = read_through(path)
    assert recording.cut
    assert replay(path).same
    assert not replay(path, run=extra(recording.events + 5)).same


def test_a_trace_of_another_program_is_refused_before_anything_starts(
        fine: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(fine, tmp_path / "a")
    other = {**program.program(), "source": "0123456789abcdef"}
    monkeypatch.setattr("hinet_simnet.runs.program.program", lambda: other)
    played = []
    with pytest.raises(BadTrace, match=r"another hinet-node .*0123456789abcdef") as caught:
        replay(path, run=lambda *args, **more: played.append(1))
    assert "--anyway" in str(caught.value.next_step)
    assert not played
    assert replay(path, anyway=True).same


def test_a_damaged_trace_is_refused_before_anything_starts(fine: Scenario, tmp_path: Path) -> None:
    path = kept(fine, tmp_path / "a")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xff
    path.write_bytes(content)
    played = []
    with pytest.raises(BadTrace):
        replay(path, run=lambda *args, **more: played.append(1))
    assert not played


def test_the_digest_of_the_source_sees_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "part"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    module = type(program)("part")
    module.__path__ = [str(package)]
    monkeypatch.setattr(program, "PARTS", (module,))
    digests = []
    for name, text in (("a.py", "x = 1\n"), ("a.py", "x = 2\n"), ("b.py", "")):
        (package / name).write_text(text)
        digests.append(program.source_digest.__wrapped__())
    assert len(set(digests)) == 3
