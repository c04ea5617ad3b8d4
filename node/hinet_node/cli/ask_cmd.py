"""`hinet-node ask`: a question to the personal model."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from hinet_node.cli import agent_call, output


def ask(question: Annotated[str, typer.Argument(help="What to ask, in quotes.")],
        retrieval: Annotated[bool, typer.Option(help="Look into the notes too, or answer from the weights alone."),
                             ] = True) -> None:
    """Ask the personal model a question."""
    started_s = time.monotonic()
    data = agent_call.call("ask", {"question": question, "retrieval": retrieval}, label="thinking", timeout_s=None)
    data["seconds"] = round(time.monotonic() - started_s, 3)
    for row in data.get("left_out", ()):
        output.say(f"left out {output.clean_line(row['note'])}: {output.clean_line(row['why'])}")
    output.emit("hinet.ask/1", data, lambda: _told(data))


def _told(data: dict[str, Any]) -> Iterable[str]:
    yield output.clean(data["answer"])
    if data["notes"]:
        yield ""
        for row in data["notes"]:
            yield output.style(f"{output.clean(row['note'])}: {output.clean(row['text'])}", "dim")
