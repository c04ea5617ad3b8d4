"""One line that shows how long work goes on: bar, bytes, rate, remaining time. At a terminal it is drawn over itself;
elsewhere, and only with `--progress`, a plain line comes every ten seconds. A last line says total and rate.

`Pace` makes a rate that does not jump out of `{step, total, note}` reports, and `line` lays it out; both know neither
clock nor terminal. Leaves what is reported to the verbs, and when a bar is wanted to `output`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from hinet_node.cli.output import clean_line, duration_text, shortened, size_text, width

DRAW_EVERY_S = 0.15
SPOKEN_EVERY_S = 10.0
QUIET_S = 0.4
"""Work that is done sooner shows no bar: a flash of one says nothing."""
HALF_LIFE_S = 8.0
"""After so long a measured rate counts half as much as one measured now."""
BAR_COLUMNS = (28, 18, 10)
COLUMNS_MAX = 110
TOLD_AGAIN = 0.1
"""The remaining time counts down by itself, and is set anew when the estimate is off by more than this share."""


class Pace:
    """Rate and remaining time of one piece of work. Times are those of one monotonic clock, in seconds."""

    def __init__(self, now_s: float) -> None:
        self.started_s = now_s
        self.step = self.total = self.first = 0
        self._known = False
        self._seen_s = self._begun_s = now_s
        self._seen_step = 0
        self._smooth = 0.0
        self._end_s: float | None = None

    def report(self, step: int, total: int, now_s: float) -> None:
        """Work stands at `step` of `total` (0: not known)."""
        if not self._known or step < self.step:
            # What was there before (a resumed transfer) or a second pass that counts anew: no rate comes of it.
            self._known, self.first, self._seen_step = True, step, step
            self._seen_s = self._begun_s = now_s
            self._smooth, self._end_s = 0.0, None
        self.step, self.total = step, total

    def sample(self, now_s: float) -> None:
        """Look at the clock: a rate falls when nothing is reported. Called at a steady beat."""
        passed_s = now_s - self._seen_s
        if passed_s <= 0:
            return
        keep = 0.5 ** (passed_s / HALF_LIFE_S)
        self._smooth = self._smooth * keep + (self.step - self._seen_step) / passed_s * (1 - keep)
        self._seen_s, self._seen_step = now_s, self.step

    def rate(self) -> float:
        """Steps in a second, now: an average in which the last seconds count most."""
        weight = 1 - 0.5 ** ((self._seen_s - self._begun_s) / HALF_LIFE_S)
        return self._smooth / weight if weight > 0 else 0.0

    def left_s(self) -> float | None:
        """Seconds that are left; None while there is no telling."""
        rate = self.rate()
        if not self.total or self.step >= self.total or rate * 86_400 * 99 < self.total - self.step:
            self._end_s = None
            return None
        end_s = self._seen_s + (self.total - self.step) / rate
        if self._end_s is None or abs(end_s - self._end_s) > max(1.5, TOLD_AGAIN * (end_s - self._seen_s)):
            self._end_s = end_s
        return max(0.0, self._end_s - self._seen_s)

    def mean(self, now_s: float) -> float:
        """Steps in a second, over the whole work."""
        return (self.step - self.first) / max(now_s - self._begun_s, 1e-3)


def line(label: str, pace: Pace, note: str, columns: int, *, in_bytes: bool = True, fine: bool = True) -> str:
    """The bar as one line of at most so many columns; what says least goes first where there is no room. `fine` is
    whether the terminal can show box characters."""
    parts = figures(pace, in_bytes=in_bytes)
    for said in ([*parts, note] if note else parts, parts, parts[:2]):
        # Rate and remaining time say more than the bar; the note says less.
        for bar in (*BAR_COLUMNS, *((0,) if said is parts else ())) if pace.total else (0,):
            text = "  ".join([label, *([_bar(pace, bar, fine)] if bar else []), *said])
            if width(text) <= columns:
                return text
    return shortened("  ".join([label, *parts[:1]]), columns)


def figures(pace: Pace, *, in_bytes: bool) -> list[str]:
    """`43%`, `1.2 GiB/2.8 GiB`, `312 MiB/s`, `5 s left`: what there is to say."""
    count = size_text if in_bytes else "{:,}".format
    parts = [f"{min(pace.step / pace.total, 1.0):4.0%}"] if pace.total else []
    parts.append(f"{count(pace.step)}/{count(pace.total)}" if pace.total else count(pace.step))
    rate, left_s = pace.rate(), pace.left_s()
    if in_bytes and rate >= 1:
        parts.append(f"{size_text(int(rate))}/s")
    if left_s is not None:
        parts.append(f"{duration_text(left_s)} left")
    return parts


def _bar(pace: Pace, columns: int, fine: bool) -> str:
    done = int(columns * min(pace.step / pace.total, 1.0))
    return "━" * done + "─" * (columns - done) if fine else "#" * done + "-" * (columns - done)


class Shown:
    """A bar on a stream. `report` may be called from any thread, as often as one likes; a thread of its own draws."""

    def __init__(self, label: str, stream: TextIO, *, drawn: bool, in_bytes: bool) -> None:
        self._label, self._stream, self._drawn, self._in_bytes = label, stream, drawn, in_bytes
        self._note = self._text = ""
        self._visible = self._any = False
        self._fine = _can_show(stream, "━─")
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._pace = Pace(time.monotonic())
        self._thread = threading.Thread(target=self._keep_drawing, daemon=True, name="progress")

    def __enter__(self) -> Callable[[Mapping[str, Any]], None]:
        self._thread.start()
        return self.report

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._done.set()
        self._thread.join()
        with self._lock:
            self._wipe()
            if kind is None and self._any:
                self._stream.write(self._last_line() + "\n")
            self._stream.flush()

    def report(self, progress: Mapping[str, Any]) -> None:
        """Take one `{step, total, note}`."""
        with self._lock:
            step, total = progress.get("step"), progress.get("total")
            self._pace.report(step if isinstance(step, int) else 0, total if isinstance(total, int) else 0,
                              time.monotonic())
            self._note = clean_line(str(progress.get("note") or ""))

    def clear(self) -> None:
        """Make room for a line of talk; the bar comes again below it."""
        with self._lock:
            self._wipe()
            self._stream.flush()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _keep_drawing(self) -> None:
        spoken_s = self._pace.started_s
        while not self._done.wait(DRAW_EVERY_S):
            with self._lock:
                now_s = time.monotonic()
                self._pace.sample(now_s)
                if self._drawn and now_s - self._pace.started_s >= QUIET_S:
                    self._draw()
                elif not self._drawn and now_s - spoken_s >= SPOKEN_EVERY_S:
                    spoken_s = now_s
                    self._any = True
                    parts = figures(self._pace, in_bytes=self._in_bytes)
                    self._stream.write(f"{self._label}: {', '.join([*parts, *filter(None, [self._note])]).strip()}\n")
                    self._stream.flush()

    def _draw(self) -> None:
        # The terminal is asked each time, so a window that changes its size gets the right width at the next beat.
        columns = min(_columns(self._stream), COLUMNS_MAX) - 1
        text = line(self._label, self._pace, self._note, columns, in_bytes=self._in_bytes, fine=self._fine)
        if text != self._text or not self._visible:
            # Overwritten, then the rest wiped: erasing first would flicker.
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._text, self._visible, self._any = text, True, True

    def _wipe(self) -> None:
        if self._visible:
            self._stream.write("\r\x1b[K")
            self._visible = False

    def _last_line(self) -> str:
        now_s = time.monotonic()
        took = duration_text(now_s - self._pace.started_s)
        if not self._in_bytes or not self._pace.step:
            return f"{self._label}: done in {took}"
        rate = f" ({size_text(int(self._pace.mean(now_s)))}/s)" if self._pace.step > self._pace.first else ""
        note = f", {self._note}" if self._note[:1].isdigit() else ""  # counts, not what was done last
        return f"{self._label}: {size_text(self._pace.step)}{note} in {took}{rate}"


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _can_show(stream: TextIO, letters: str) -> bool:
    try:
        letters.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


current: Shown | None = None
"""The bar that stands now; there is one at a time."""


def clear() -> None:
    """Take the bar away for a moment, so that a line can be said."""
    if current is not None:
        current.clear()


class Bar:
    """A `Shown` that other talk knows of. Use as a context manager; gives the function that takes reports."""

    def __init__(self, label: str, *, drawn: bool, in_bytes: bool) -> None:
        self._shown = Shown(label, sys.stderr, drawn=drawn, in_bytes=in_bytes)

    def __enter__(self) -> Callable[[Mapping[str, Any]], None]:
        global current
        current = self._shown
        return self._shown.__enter__()

    def __exit__(self, *reason: Any) -> None:
        global current
        current = None
        self._shown.__exit__(*reason)
