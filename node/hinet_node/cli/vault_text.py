"""The vault's state in words, for `vault status` and `status`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hinet_node.cli import context, output
from hinet_node.rates import show_rate


def status_lines(data: dict[str, Any], *, brief: bool = False) -> Iterable[str]:
    """The vault's state for a person; `brief` leaves the devices to the table of `status`."""
    files, packs = data["files"], data["packs"]
    held = f"{packs} {'pack' if packs == 1 else 'packs'} ({output.size_text(data['packs_bytes'])})"
    if data["readable"]:
        held = f"{files} {'file' if files == 1 else 'files'} ({output.size_text(data['files_bytes'])}) in {held}"
    whole = ", every device in step" if brief and all(device["in_step"] for device in data["devices"]) else ""
    yield f"{'vault     ' if brief else ''}{held}{whole}; {output.size_text(data['free_bytes'])} free on this disk"
    if data["missing_packs"]:
        coming = f", {data['coming_packs']} on their way" if data.get("coming_packs") else ""
        yield output.style(f"{data['missing_packs']} packs are still to come from the siblings{coming}", "yellow")
    if data.get("rate"):
        yield f"{'limit     ' if brief else ''}packs travel at most at {show_rate(data['rate'])}, each way"
    count = data["conflicts"]
    if count:
        compete = "edit competes" if count == 1 else "edits compete"
        yield output.style(f"{count} {compete} with another device's, and all are kept: "
                           f"{context.typed('vault conflicts')}", "yellow")
    if not brief:
        yield from output.table([[output.clean(device["name"]), _behind(device)] for device in data["devices"]],
                                indent="  ")
    for trouble in data["trouble"]:
        yield output.style(output.clean(trouble["what"]), "yellow")
        yield f"  next: {output.clean(trouble['next'])}"


def _behind(device: dict[str, Any]) -> str:
    if device["in_step"]:
        return output.style("in step", "green")
    if device["behind"] is None:
        return "its copy is not known"
    packs = f"{device['behind_packs']} {'pack' if device['behind_packs'] == 1 else 'packs'}"
    return output.style(f"behind by {packs}, {output.size_text(device['behind_bytes'])}", "yellow")
