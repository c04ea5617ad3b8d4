"""The progress line: rates that don't jump, lines that fit, and nothing where nobody looks."""

import io
import itertools
import os
import pty
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet_node.cli import context, output, progress
from hinet_node.cli.output import duration_text, width
from hinet_node.cli.progress import Pace

MIB = 1 << 20


def driven(rates: list[float], *, beat_s: float = 0.1, total: int = 1000 * MIB, start: int = 0) -> list[Pace]:
    """The pace after work that went on at these rates (bytes/s), one beat each; one value a beat, sampled."""
    pace, now_s, step = Pace(0.0), 0.0, float(start)
    pace.report(start, total, 0.0)
    seen = []
    for rate in rates:
        now_s += beat_s
        step += rate * beat_s
        pace.report(int(step), total, now_s)
        pace.sample(now_s)
        seen.append((pace.rate(), pace.left_s()))
    return seen


def test_a_steady_rate_is_told_from_the_first_beat_on() -> None:
    for rate, left_s in driven([10.0 * MIB] * 50):
        assert rate == pytest.approx(10 * MIB, rel=0.01)
        assert left_s is not None
        assert 90 < left_s <= 100


def test_what_was_there_before_makes_no_rate() -> None:
    rate, left_s = driven([10.0 * MIB] * 20, start=500 * MIB)[-1]
    assert rate == pytest.approx(10 * MIB, rel=0.01)
    assert left_s == pytest.approx(48, abs=2)


def test_the_remaining_time_does_not_jump_with_uneven_work() -> None:
    """Bursts and pauses, as small and large files make them: told times go down, by small steps."""
    told = [left_s for _, left_s in driven([0.0, 20.0 * MIB] * 200)][80:]
    jumps = [abs(b - a) for a, b in itertools.pairwise(told) if a and b]
    assert max(jumps) < 10, "never by more than a tenth"
    assert sum(jump > 1.5 for jump in jumps) < 6, "seldom"


def test_work_that_stands_still_loses_its_rate_and_then_its_remaining_time() -> None:
    pace = Pace(0.0)
    for beat in range(100):
        pace.report(beat * MIB, 1000 * MIB, beat / 10)
        pace.sample(beat / 10)
    fast = pace.rate()
    for beat in range(100, 3000):
        pace.sample(beat / 10)
    assert pace.rate() < fast / 1000
    assert pace.left_s() is None or pace.left_s() > 1e6


def test_a_second_pass_that_counts_anew_has_no_negative_rate() -> None:
    pace = Pace(0.0)
    pace.report(900 * MIB, 1000 * MIB, 0.1)
    pace.sample(0.2)
    pace.report(5 * MIB, 200 * MIB, 0.3)
    pace.sample(0.4)
    assert pace.rate() == 0.0
    assert pace.left_s() is None


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(1, 300), st.booleans(),
       st.text(max_size=40), st.floats(0.01, 1e6))
def test_the_line_fits_any_terminal(step: int, total: int, columns: int, fine: bool, note: str,
                                    passed_s: float) -> None:
    pace = Pace(0.0)
    pace.report(0, total, 0.0)
    pace.report(step, total, passed_s)
    pace.sample(passed_s)
    text = progress.line("verifying", pace, output.clean_line(note), columns, fine=fine)
    assert width(text) <= columns
    assert "\n" not in text


def test_a_wide_terminal_gets_bar_share_bytes_rate_time_and_note() -> None:
    pace = Pace(0.0)
    pace.report(0, 400 * MIB, 0.0)
    for beat in range(1, 11):
        pace.report(beat * 10 * MIB, 400 * MIB, beat / 10)
        pace.sample(beat / 10)
    assert progress.line("adding", pace, "3/12 files", 109) == (
        "adding  ━━━━━━━─────────────────────   25%  100 MiB/400 MiB  100 MiB/s  3.0 s left  3/12 files")
    assert progress.line("adding", pace, "3/12 files", 66, fine=False) == (
        "adding  ##--------   25%  100 MiB/400 MiB  100 MiB/s  3.0 s left")
    assert progress.line("adding", pace, "3/12 files", 60) == (
        "adding   25%  100 MiB/400 MiB  100 MiB/s  3.0 s left"), "rate and time say more than the bar"


def test_durations_are_said_as_people_do() -> None:
    assert [duration_text(s) for s in (0.04, 9.94, 12.4, 59.4, 60, 185, 3599, 7800, 200_000)] == [
        "0.0 s", "9.9 s", "12 s", "59 s", "1:00 min", "3:05 min", "59:59 min", "2:10 h", "2 days"]


SCRIPT = """
import sys, time
from hinet_node.cli import context, output
if "--json" in sys.argv: context.current.json = True
if "--progress" in sys.argv: context.current.progress = True
with output.progress("adding", in_bytes=True) as show:
    for step in range(8):
        show({"step": step << 20, "total": 8 << 20, "note": f"{step}/8 \\x1b[2Jfiles"})
        time.sleep(0.12)
    if "--say" in sys.argv: output.say("a word")
    time.sleep(0.2)
    if "--fail" in sys.argv: raise SystemExit(3)
"""


def at_a_terminal(*arguments: str, encoding: str = "utf-8") -> str:
    """What a terminal of 80 columns is sent."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding, "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
                               env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    process.wait()
    os.close(ours)
    return seen.decode(encoding)


def test_a_terminal_sees_one_line_drawn_over_itself_and_a_last_one_with_total_and_rate() -> None:
    seen = at_a_terminal("--say")
    drawn, _, last = seen.rpartition("\r\x1b[K")
    assert "━" in drawn
    assert drawn.count("\n") == 1, "only the word that was said takes a line"
    assert "\x1b[2J" not in seen, "a name can't clear the screen"
    assert last.startswith("adding: 7.0 MiB, 7/8 ?[2Jfiles in 1.")
    assert "MiB/s)" in last
    before, _, after = seen.partition("a word")
    assert before.endswith("\r\x1b[K"), "talk does not stand behind the bar"
    assert after.startswith("\r\n")


def test_a_terminal_without_utf_8_gets_plain_letters() -> None:
    seen = at_a_terminal(encoding="latin-1")
    assert "#" in seen
    assert seen.isascii()


def test_a_failure_leaves_no_bar_and_no_last_line() -> None:
    assert at_a_terminal("--fail").endswith("\r\x1b[K")


def test_json_shows_no_bar() -> None:
    assert at_a_terminal("--json") == ""


def piped(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, env=environment,
                          check=True).stderr


def test_a_pipe_gets_nothing_unless_it_asks() -> None:
    assert piped() == ""


def test_plain_lines_come_now_and_then_where_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SPOKEN_EVERY_S", 0.01)
    monkeypatch.setattr(progress, "DRAW_EVERY_S", 0.01)
    monkeypatch.setattr(context.current, "progress", True)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with output.progress("adding", in_bytes=True) as show:
        reporter = threading.Thread(target=show, args=({"step": MIB, "total": 2 * MIB, "note": "1/2 files"},))
        reporter.start()
        reporter.join()
        while stream.getvalue().count("\n") < 2:
            pass
    lines = stream.getvalue().splitlines()
    assert any(line.startswith("adding: 50%, 1.0 MiB/2.0 MiB") and line.endswith("1/2 files") for line in lines)
    assert lines[-1].startswith("adding: 1.0 MiB, 1/2 files in ")
    assert "\r" not in stream.getvalue()
