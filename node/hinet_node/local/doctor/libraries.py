"""Whether the libraries that this program names are there, in a version that fits. Reads installed metadata only."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_BOUND = re.compile(r"(===?|>=|<=|!=|~=|<|>)\s*([0-9A-Za-z.*+!-]+)")


def unfit(package: str = "hinet-node") -> tuple[tuple[str, str, str], ...]:
    """Name, what is wanted and what is there, of each library that is missing or does not fit. A program that runs from
    its source tree has no metadata: nothing is said then."""
    try:
        wanted = requires(package) or []
    except PackageNotFoundError:
        return ()
    found = []
    for line in wanted:
        match = _REQUIREMENT.fullmatch(line.strip())
        if match is None or match[3]:
            continue  # what only an extra, another system or another Python needs
        name, bounds = match[1], match[2].strip()
        try:
            there = version(name)
        except PackageNotFoundError:
            there = ""
        if not there or not fits(there, bounds):
            found.append((name, bounds, there))
    return tuple(found)


def fits(there: str, bounds: str) -> bool:
    """Whether a version satisfies bounds such as `>=1.2,<2`. What can't be read is taken to fit."""
    own = _release(there)
    for sign, text in _BOUND.findall(bounds):
        other = _release(text)
        length = max(len(own), len(other))
        a, b = own + (0,) * (length - len(own)), other + (0,) * (length - len(other))
        if text.endswith(".*") or sign == "~=":
            head = len(other) if text.endswith(".*") else len(other) - 1
            same = own[:head] == other[:head]
            held = not same if sign == "!=" else same and (sign != "~=" or a >= b)
        else:
            held = {"==": a == b, "===": a == b, "!=": a != b, ">=": a >= b, "<=": a <= b, "<": a < b, ">": a > b}[sign]
        if not held:
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    match = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()
