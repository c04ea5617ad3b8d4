"""Printing: data on stdout, talk on stderr, JSON when asked, colour only for a person at a terminal.

Commands end with `emit`. How far long work is shows `progress`, which draws with `hinet_node.cli.progress`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hinet_node.cli import context

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def emit(schema: str, data: Mapping[str, Any], lines: Iterable[str] | Callable[[], Iterable[str]]) -> None:
    """Print the command's result: one JSON object `{"schema": schema, **data}`, or the lines for a person.

    bytes become hex. `lines` may be a function, so that nothing is laid out for JSON.
    """
    if context.current.json:
        sys.stdout.write(json.dumps({"schema": schema, **data}, default=_plain, ensure_ascii=False) + "\n")
    else:
        for line in lines() if callable(lines) else lines:
            sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Talk to the person: stderr, one line. Goes on in JSON mode too, since stdout stays clean."""
    bar = sys.modules.get("hinet_node.cli.progress")
    if bar is not None:
        bar.clear()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def at_terminal(stream: Any = None) -> bool:
    """Whether a person looks at this stream (stderr by default)."""
    chosen = sys.stderr if stream is None else stream
    return bool(chosen.isatty()) and os.environ.get("TERM") != "dumb"


def style(text: str, *names: str, stream: Any = None) -> str:
    """Colour for a terminal without NO_COLOR; plain text anywhere else. `stream` is stdout by default."""
    chosen = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or not at_terminal(chosen):
        return text
    return f"\x1b[{';'.join(_STYLES[name] for name in names)}m{text}\x1b[0m"


def clean(text: str) -> str:
    """Text that came from another machine, safe for a terminal: control and direction characters become `?`, and
    so do those that can't be seen, with which a name could look like another one."""
    return _CONTROL.sub("?", text)


def time_text(unix_s: int) -> str:
    """A local time. Another device's clock wrote it, so it may be beyond any calendar."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return "?"


def clean_line(text: str) -> str:
    """`clean`, and on one line: a file's name may hold line ends, which would look like another file."""
    return clean(text).replace("\n", "?").replace("\t", "?")


def table(rows: Sequence[Sequence[str]], heading: Sequence[str] = (), indent: str = "") -> list[str]:
    """Aligned columns; the heading is dimmed. Cells may hold colour."""
    if not rows:
        return []
    grid = [list(heading), *rows] if heading else list(rows)
    widths = [max(width(row[column]) for row in grid) for column in range(len(grid[0]))]
    lines = []
    for number, row in enumerate(grid):
        cells = [cell + " " * (widths[column] - width(cell)) for column, cell in enumerate(row)]
        line = "  ".join(cells).rstrip()
        lines.append(indent + (style(line, "dim") if heading and number == 0 else line))
    return lines


def shortened(text: str, columns: int | None) -> str:
    """Plain text cut to so many columns, with a sign that it was; whole for None."""
    if columns is None or width(text) <= columns:
        return text
    kept = ""
    for letter in text:
        if width(kept + letter) >= columns:
            break
        kept += letter
    return kept + "…"


def size_text(size_bytes: int) -> str:
    """`1.5 MiB`; whole bytes below one KiB."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    raise AssertionError("the loop ends with TiB")


def address_text(address: str) -> str:
    """`/ip4/192.0.2.2/tcp/4001` as `192.0.2.2:4001`, which `--address` and `--static` take too."""
    found = re.fullmatch(r"(?:/ip6zone/([^/]+))?/ip([46])/([^/]+)/tcp/(\d+)", address)
    if found is None:
        return clean(address)
    zone, kind, host, port = found.groups()
    return f"{host}:{port}" if kind == "4" else f"[{host}{f'%{zone}' if zone else ''}]:{port}"


def ago_text(seconds: float) -> str:
    """`now`, `40 s ago`, `3 min ago`, `2 h ago`, `5 days ago`."""
    if seconds < 5:
        return "now"
    for limit, unit_s, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds / 86_400:.0f} days ago"


def duration_text(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3:05 min`, `2:10 h`, `5 days`: how long something takes."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for limit_s, unit_s, unit in ((3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < 59.5:
            return f"{seconds:.0f} s"
        if seconds < limit_s:
            return f"{int(seconds // unit_s)}:{int(seconds % unit_s * 60 // unit_s):02d} {unit}"
    return f"{seconds / 86_400:.0f} days"


@contextmanager
def progress(label: str, *, in_bytes: bool = False) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show `{step, total, note}` reports on stderr: a bar with rate and remaining time for a terminal. A pipe, and a
    caller that reads JSON, gets nothing, or with `--progress` a plain line now and then. The function that it gives may
    be called from any thread."""
    drawn = at_terminal() and not context.current.json
    if not drawn and not context.current.progress:
        yield lambda report: None
        return
    from hinet_node.cli.progress import Bar

    with Bar(label, drawn=drawn, in_bytes=in_bytes) as show:
        yield show


def ask(question: str) -> str:
    """Ask the person at the terminal; the question goes to stderr. Errors: UsageError when nobody is there."""
    if not sys.stdin.isatty():
        from hinet_node.errors import UsageError

        raise UsageError("this needs an answer, and no terminal is attached", next_step="add --yes, or see --help")
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise KeyboardInterrupt
    return line.strip()


def width(text: str) -> int:
    """Columns that a text takes on a terminal, colour left out."""
    bare = _ANSI.sub("", text)
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter)
               for letter in bare)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")
