"""The vault's state in words, for `vault status` and `status`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hinet_node.cli import output


def status_lines(data: dict[str, Any]) -> Iterable[str]:
    """The vault's state for a person."""
    yield (f"{data['files']} files ({output.size_text(data['files_bytes'])}) in {data['packs']} packs "
           f"({output.size_text(data['packs_bytes'])}); {output.size_text(data['free_bytes'])} free on this disk")
    if data["missing_packs"]:
        yield output.style(f"{data['missing_packs']} packs are still to come from the siblings", "yellow")
    if data["conflicts"]:
        yield output.style(f"{data['conflicts']} files were edited on two devices at once: both versions are kept",
                           "yellow")
    rows = [[output.clean(device["name"]), _behind(device)] for device in data["devices"]]
    yield from output.table(rows, indent="  ")
    for trouble in data["trouble"]:
        yield output.style(output.clean(trouble["what"]), "yellow")
        yield f"  next: {output.clean(trouble['next'])}"


def _behind(device: dict[str, Any]) -> str:
    if device["in_step"]:
        return output.style("in step", "green")
    return "not met yet" if device["behind"] is None else output.style(f"behind by {device['behind']}", "yellow")
