"""`hinet-node adapters list|promote|rollback`: what was learned, and which of it this device answers with."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from hinet_node.cli import agent_call, context, output, root

app = root.group("List what was learned; promote it or roll it back.")


@app.command("list")
def list_() -> None:
    """List the revisions in the vault, oldest first; * is the one that this device answers with."""
    data = agent_call.call("adapters.list")
    output.emit("hinet.adapters/1", data, lambda: _listed(data))


@app.command()
def promote(revision: Annotated[str, typer.Argument(help="A revision's id, or its beginning; default: the newest "
                                                         "adapter.")] = "") -> None:
    """Answer with this revision from now on. The one before stays ready for `rollback`."""
    result = agent_call.call("adapters.promote", {"revision": revision or _newest()}, label="promoting",
                             timeout_s=None)
    output.emit("hinet.adapters-promote/1", result, [
        f"This device answers with {output.style(result['revision'], 'bold')} now "
        f"(swapped in {result['swap_ms']:.2f} ms, base not loaded again).",
        f"next: {context.typed('ask')} \"...\"   or back again: {context.typed('adapters rollback')}"])


@app.command()
def rollback() -> None:
    """Answer with what was served before the last promotion."""
    result = agent_call.call("adapters.rollback", label="rolling back", timeout_s=None)
    now = result["revision"] or "the base alone"
    output.emit("hinet.adapters-rollback/1", result, [
        f"This device answers with {output.style(now, 'bold')} again; {result['left']} was left."])


def _newest() -> str:
    """The newest adapter's id. Errors: `NodeError` E_NO_ADAPTER when the vault holds none."""
    from hinet_node.errors import TryAgain

    adapters = [row for row in agent_call.call("adapters.list")["revisions"] if row["kind"] == "adapter"]
    if not adapters:
        raise TryAgain("no adapter is in the vault yet", next_step="on the laptop: hinet-node train",
                       code="E_NO_ADAPTER")
    return str(adapters[-1]["id"])


def _listed(data: dict[str, Any]) -> Iterable[str]:
    rows = [["*" if row["id"] == data["served"] else " ", row["id"], row["kind"], output.size_text(row["bytes"]),
             output.clean(row["device_name"]), output.ago_text(max(0.0, time.time() - row["made_unix_s"])),
             row["base"][:12], ", ".join(row["parents"])] for row in data["revisions"]]
    yield from output.table(rows, ("", "REVISION", "KIND", "SIZE", "MADE BY", "AGE", "BASE", "FROM")) \
        or [f"Nothing has been learned yet; on the cloud device: {context.typed('train')}"]
    for revision, why in data["refused"].items():
        yield output.style(f"{output.clean(revision)} is not used: {output.clean(why)}", "yellow")
