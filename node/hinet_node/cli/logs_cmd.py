"""`hinet-node logs [-f] [-n N]`: what the agent wrote into its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hinet_node.cli import context, output

LINES = 50


def logs(follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, to Ctrl-C.")] = False,
         lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=100_000, help="How many of the last "
                                                                                      "lines.")] = LINES) -> None:
    """What the agent wrote into its log, newest last."""
    show(follow=follow, count=lines)


def show(*, follow: bool, count: int) -> None:
    """Print the log's end, and what follows."""
    from hinet_node import home
    from hinet_node.local import logfile

    path = Path(context.home_path()) / home.LOG
    end = logfile.size(path)
    found = [output.clean(line) for line in logfile.last_lines(path, count, until=end)] if count else []
    if not found and not follow:
        output.say(f"{path} holds nothing yet; start the agent: {context.typed('up')}")
    output.emit("hinet.logs/1", {"path": str(path), "lines": found}, found)
    if not follow:
        return
    try:
        for line in logfile.following(path, end):
            output.emit("hinet.log-line/1", {"line": line}, [output.clean(line)])
    except KeyboardInterrupt:
        return  # the way to end following, and no failure
