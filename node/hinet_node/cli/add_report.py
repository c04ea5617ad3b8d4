"""What `vault add` says of files that it did not take, or that changed while it read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hinet_node.cli import output


def say_what_was_left_out(result: Mapping[str, Any]) -> bool:
    """On stderr, each by name while they are few; whether the work was only partly done."""
    _say((f"left out {output.clean_line(path)}: links, devices and the keys of a node are never added"
          for path in result["skipped"]), len(result["skipped"]), result["skipped_count"])
    _say((f"left out {output.clean_line(one['path'])}: {one['why']}" for one in result["left_out"]),
         len(result["left_out"]), result["left_out_count"])
    _say((f"{output.clean_line(path)} changed while it was read: it is kept as it was read"
          for path in result["changed"]), len(result["changed"]), result["changed_count"])
    if not (result["left_out_count"] or result["changed_count"]):
        return False
    output.say("next: see to these files, then add them again; what is in the vault already is not read again")
    return True


def _say(lines: Iterable[str], shown: int, count: int) -> None:
    for line in lines:
        output.say(line)
    if count > shown:
        output.say(f"… and {count - shown} more")
