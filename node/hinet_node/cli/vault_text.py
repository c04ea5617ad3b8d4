"""The vault's state in words, for `vault status` and `status`."""

from __future__ import annotations

import time
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
        yield ("missing   " if brief else "") + output.style(_missing(data), "yellow")
    yield from _copies(data, "copies    " if brief else "")
    yield from _verified(data, "verified  " if brief else "")
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


def _missing(data: dict[str, Any]) -> str:
    """What is needed here and not here; what is damaged is put right by asking for it."""
    coming = f", {data['coming_packs']} on their way" if data.get("coming_packs") else ""
    text = f"{_packs(data['missing_packs'])} still to come from the siblings{coming}"
    if data["damaged_packs"]:
        which = "it was" if data["missing_packs"] == 1 else f"{data['damaged_packs']} of them were"
        text += f"; {which} here and got damaged: {context.typed('vault repair')}"
    return text


def _copies(data: dict[str, Any], label: str) -> Iterable[str]:
    """How safe it is if this device is lost."""
    if not data["copies_least"]:
        return
    if not data["other_devices"]:
        yield label + output.style("only on this device, and lost with it: there is no other one in the household; "
                                   f"add one: {context.typed('invite')}", "yellow")
    elif data["single_packs"]:
        what = (f"{_packs(data['single_packs'])}, {output.size_text(data['single_bytes'])},"
                if data["single_packs"] < data["packs"] else "everything")
        yield label + output.style(f"{what} only on this device yet; siblings get it when they are in reach", "yellow")
    else:
        least = data["copies_least"]
        yield label + output.style(f"everything here is on {'' if least == data['other_devices'] + 1 else 'at least '}"
                                   f"{least} devices", "green")


def _verified(data: dict[str, Any], label: str) -> Iterable[str]:
    """When the packs were last read and found whole."""
    if not data["packs"]:
        return
    done, days = data["verified_packs"], data["verify_days"]
    each = f" ({'each' if data['packs'] > 1 else 'it is'} within {days} days)" if days else ""
    if not done:
        yield f"{label}nothing was verified yet{each}; to do it now: {context.typed('vault verify')}"
        return
    oldest, newest = (output.ago_text(max(0.0, time.time() - data[key])) for key in (
        "verified_oldest", "verified_newest"))
    if done < data["packs"]:
        yield f"{label}{done} of {_packs(data['packs'])} verified so far, the last one {newest}{each}"
    elif oldest == newest:
        yield f"{label}all packs verified {newest}"
    else:
        yield f"{label}all packs verified, the last one {newest}, none longer than {oldest}"


def _packs(count: int) -> str:
    return f"{count} {'pack' if count == 1 else 'packs'}"


def _behind(device: dict[str, Any]) -> str:
    """One device's copy in a few words: `in step`, `lacks 3 packs, 40 MiB, since 2 h ago`."""
    role = "keeper, " if device["keeper"] else ""
    said = f", as it said {output.ago_text(max(0.0, time.time() - device['said']))}" if device["said"] else ""
    if device["in_step"]:
        return role + output.style("in step", "green") + (said if device["keeper"] else "")
    if device["behind"] is None:
        return f"{role}its copy is not known: it was not met yet"
    since = f", the oldest {output.ago_text(max(0.0, time.time() - device['behind_since']))}" if device[
        "behind_since"] else ""
    if not device["behind_packs"]:
        return role + output.style("has all packs, and has not said yet that it took them up", "yellow")
    most = "" if device["exact"] else "at most "
    return role + output.style(f"behind by {most}{_packs(device['behind_packs'])}, "
                               f"{output.size_text(device['behind_bytes'])}{since}", "yellow")
