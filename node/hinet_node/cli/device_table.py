"""The household's devices as a table that fits a terminal, and how one device's state is said in words."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

from hinet_node.cli import output

STATE_STYLES = {"connected": ("green",), "this": ("bold",), "revoked": ("red",), "void": ("red",), "away": ("dim",)}
HEADING = ("DEVICE", "ROLE", "TIER", "FINGERPRINT", "STATE", "VAULT BEHIND BY")
NAME_WIDTH_MIN = 8
RELAY_WIDTH = 10


def device_table(devices: list[dict[str, Any]], *, revoked: bool = False) -> list[str]:
    """The devices, the revoked ones only on request. At a terminal long names are cut so that each row fits a line."""
    shown = [device for device in devices if revoked or device["state"] not in ("revoked", "void")]
    rows = [[device["role"], device["tier"], device["fingerprint"],
             output.style(state_text(device), *STATE_STYLES[device["state"]]), behind_text(device)] for device in shown]
    width = None
    if output.at_terminal(sys.stdout):
        rest = output.table(rows, HEADING[1:])
        width = max(NAME_WIDTH_MIN, shutil.get_terminal_size().columns - 2 - max(map(output.width, rest), default=0))
    return output.table([[output.shortened(output.clean_line(device["name"]), width), *row]
                         for device, row in zip(shown, rows, strict=True)], HEADING)


def state_text(device: dict[str, Any]) -> str:
    """`this device`, `connected`, `relayed by NAME`, `away, 3 h ago`, `not met yet`, `revoked`."""
    if device["state"] == "this":
        return "this device"
    if device["state"] == "connected":
        by = device.get("relay")  # the sibling in between, where its name is known
        relayed = f"relayed by {output.shortened(output.clean_line(by), RELAY_WIDTH)}" if by else "relayed"
        return relayed if device["via"] == "relayed" else "connected"
    if device["state"] == "away":
        seen = device["last_seen_unix_s"]
        return "not met yet" if seen is None else f"away, {output.ago_text(time.time() - seen)}"
    return str(device["state"])


def behind_text(device: dict[str, Any]) -> str:
    """By how much its copy of the vault is behind, as far as it is known here: `nothing`, `3 packs, 40 MiB`."""
    behind = device["behind"]
    if behind is None:
        return ""
    if not behind["heads"]:
        return output.style("nothing", "green")
    if not behind["packs"]:
        return output.style("no packs", "yellow")  # it holds all bytes and has not said yet that it took them up
    return output.style(f"{behind['packs']} {'pack' if behind['packs'] == 1 else 'packs'}, "
                        f"{output.size_text(behind['bytes'])}", "yellow")
