"""`hinet-node simnet report`."""

from __future__ import annotations

from typing import Annotated

import typer

from hinet_node.cli import output

SCHEMA = "hinet.simnet.report/1"


def report(trace: Annotated[str, typer.Argument(metavar="RUN", help="A .simtrace file.")],
           out: Annotated[str, typer.Option("--out", metavar="FILE", help="The page (default: beside the trace, "
                                                                         ".html).")] = "") -> None:
    """Make one HTML page of a run.

    It shows a timeline of nodes and messages, bytes per link, curves and findings.
    """
    from hinet_simnet.cli import places, showing
    from hinet_simnet.runs.report.gather import gather
    from hinet_simnet.runs.report.page import page

    source = places.trace_file(trace)
    target = places.new_file(out or str(source.with_suffix(".html")), "--out", ".html", ".htm")
    with places.room_for("the page", "--out"), showing.moving_line() as show:
        story = gather(source, shown=lambda events: show(f"reading: {events:,} events"))
        text = page(story)
        target.write_text(text, encoding="utf-8")
    output.emit(SCHEMA, {"page": str(target), "bytes": len(text.encode()), "events": story.events,
                         "findings": len(story.findings)},
                lambda: [f"{target}  ({output.size_text(len(text.encode()))}, {story.events:,} events); open it in a "
                         "browser", *([f"the file is damaged, so this is as far as it goes: "
                                      f"{output.clean_line(story.broken)}"] if story.broken else [])])
