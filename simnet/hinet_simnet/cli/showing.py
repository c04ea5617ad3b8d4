"""How the simulator's commands talk: one moving line while they work, findings and outcomes as text, how to go on.

Leaves data on stdout to `hinet_node.cli.output`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hinet_node.cli import output
from hinet_simnet.findings import Finding, Outcome

SAY_EVERY_S = 10.0
DRAW_EVERY_S = 0.2
FINDINGS_SHOWN = 10
FOUND, PARTLY_DONE, NOT_SAME, INTERRUPTED = 1, 3, 7, 130

Show = Callable[[str], None]


@contextmanager
def moving_line(*, delay_s: float = SAY_EVERY_S) -> Iterator[Show]:
    """Gives `show(text)`: a line that changes on a terminal; elsewhere a line on stderr every ten seconds."""
    if not output.at_terminal():
        said_s = time.monotonic()

        def say(text: str) -> None:
            nonlocal said_s
            if time.monotonic() - said_s >= delay_s:
                said_s = time.monotonic()
                output.say(output.clean_line(text))

        yield say
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots", Text("starting"))
    with Live(spinner, console=Console(stderr=True), transient=True, refresh_per_second=1 / DRAW_EVERY_S):
        yield lambda text: spinner.update(text=Text(output.clean_line(text), overflow="ellipsis", no_wrap=True))


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """A polite kill ends a run like Ctrl-C does: with its trace and its report."""
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def time_text(seconds: float) -> str:
    """`0.3 s`, `45 s`, `12 min 5 s`, `3 h 2 min`, `6 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for size_s, unit, part_s, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size_s:
            rest = whole % size_s // part_s
            return f"{whole // size_s} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def outcome_lines(outcome: Outcome) -> Iterator[str]:
    """A run's outcome for a person."""
    if outcome.findings:
        verdict = output.style(f"{_count(len(outcome.findings), 'finding')}", "red", "bold")
    elif outcome.interrupted:
        verdict = output.style("interrupted, nothing found so far", "yellow")
    else:
        verdict = output.style("ok, nothing found", "green", "bold")
    yield f"{output.clean_line(outcome.scenario)}  seed {outcome.seed}  level {outcome.level}:  {verdict}"
    rate = outcome.events / outcome.wall_s if outcome.wall_s else 0.0
    yield from output.table([
        ["nodes", f"{outcome.nodes:,}"],
        ["time", f"{time_text(outcome.virtual_s)} simulated in {time_text(outcome.wall_s)} "
                 f"({time_text(outcome.cpu_s)} of processor)"],
        ["events", f"{outcome.events:,} ({rate:,.0f} a second)"],
        ["messages", f"{outcome.messages:,}, {output.size_text(outcome.message_bytes)}"],
        ["digest", outcome.digest or "-"]], indent="  ")
    yield from finding_lines(outcome.findings)


def finding_lines(findings: list[Finding]) -> Iterator[str]:
    """Findings with what is known of each; the last lines of a traceback."""
    for number, finding in enumerate(findings[:FINDINGS_SHOWN], 1):
        node = f" on {output.clean_line(finding.node)}" if finding.node else ""
        yield ""
        yield (output.style(f"{number}. {output.clean_line(finding.checker)}", "red", "bold")
               + f" at {finding.at_s:.3f} s{node}")
        yield from (f"   {output.clean_line(line)}" for line in finding.message.splitlines() or [""])
        lines = finding.traceback.strip("\n").splitlines()
        if len(lines) > 14:
            yield f"   … ({len(lines) - 12} lines above are in the trace and its report)"
        yield from (f"   {output.clean_line(line)}" for line in lines[-12 if len(lines) > 14 else 0:])
    if len(findings) > FINDINGS_SHOWN:
        yield ""
        yield f"and {_count(len(findings) - FINDINGS_SHOWN, 'more finding')}: see the report"


def exit_code(outcome: Outcome) -> int:
    """What the command ends with."""
    if outcome.findings:
        return FOUND
    return INTERRUPTED if outcome.interrupted else 0


def progress_text(facts: dict[str, float], begun_s: float) -> str:
    """`1 h 2 min of 3 h  (34 %)  120,000 events, 30,000 a second  0 findings`."""
    at_s, duration_s = float(facts.get("at_s", 0)), float(facts.get("duration_s", 0))
    events, findings = int(facts.get("events", 0)), facts.get("findings", 0)
    found = len(findings) if isinstance(findings, list | tuple) else int(findings)
    rate = events / max(1e-3, time.monotonic() - begun_s)
    share = f" ({min(1.0, at_s / duration_s):.0%})" if duration_s else ""
    return (f"{time_text(at_s)} of {time_text(duration_s)}{share}  {events:,} events, {rate:,.0f} a second  "
            f"{_count(found, 'finding')}")


def free_path(wanted: Path) -> Path:
    """This path, or the next one with a number that does not exist yet."""
    number, path = 2, wanted
    while path.exists():
        path = wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        number += 1
    return path


def file_name(scenario: str, seed: int) -> str:
    """A trace's name from a scenario's, whatever letters that has."""
    plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in scenario)[:80]
    return f"{plain.strip('-') or 'run'}-seed{seed}.simtrace"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

