"""What may stand behind a key of a scenario file: types, bounds, and the reading of one table with all its faults.

Leaves which keys there are to `parse` and `steps`, and what they mean together to `sense`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hinet_simnet.errors import BadScenario
from hinet_simnet.scenario import units
from hinet_simnet.scenario.model import Delay
from hinet_simnet.scenario.positions import Path, Positions

FAULTS_MAX = 20
NAME_CHARACTERS_MAX = 63
TEXT_CHARACTERS_MAX = 4_000
DURATION_S_MAX = 400 * 86_400.0
DELAYS = ("constant", "uniform", "normal", "lognormal", "exponential")
REQUIRED: Any = object()
Read = Callable[[Any], Any]


@dataclass(frozen=True)
class Field:
    """One key: how its value is read (raises `ValueError` in words), its default, and for people its type and meaning.
    `devices` says that its value names devices: "one", "any" (or "*"), "many" (a list, or "*") or "groups"."""

    read: Read
    kind: str
    meaning: str
    default: Any = None
    devices: str = ""


class Faults:
    """All that is wrong with one file, with the line of each."""

    def __init__(self, file: str, positions: Positions) -> None:
        self._file = file
        self._positions = positions
        self._found: dict[tuple[int, int, str], None] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: Path, message: str) -> None:
        self._found.setdefault((*self._positions.of(path), message))

    def line(self, path: Path) -> int:
        return self._positions.of(path)[0]

    def raise_if_any(self) -> None:
        """Errors: `BadScenario` with every fault, in the order of lines, at most `FAULTS_MAX` of them."""
        if not self._found:
            return
        rows = [(f"{self._file}:{line}", message + (f" (column {column})" if column > 1 else ""))
                for line, column, message in sorted(self._found)]
        more = [f"and {len(rows) - FAULTS_MAX} more"] if len(rows) > FAULTS_MAX else []
        rest = [f"{where}: {message}" for where, message in rows[1:FAULTS_MAX]]
        raise BadScenario("\n".join([rows[0][1], *rest, *more]), where=rows[0][0],
                          next_step="every key is in SPEC.md, part 10")


def near(word: str, known: Iterable[str]) -> str:
    """"; did you mean …?", where something is near enough."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def read_table(table: Any, path: Path, fields: Mapping[str, Field], faults: Faults, what: str) -> dict[str, Any] | None:
    """The table's values by key, defaults filled in. Every fault is noted; None when there was one."""
    if not isinstance(table, dict):
        faults.add(path, f"{what} must be a table, not {units.shown(table)}")
        return None
    good, values = True, {}
    for key in table:
        if key not in fields:
            faults.add((*path, key), f"unknown key {key!r} in {what}{near(key, fields)}")
            good = False
    for key, field in fields.items():
        if key in table:
            try:
                values[key] = field.read(table[key])
            except ValueError as error:
                faults.add((*path, key), f"{key}: {error}")
                good = False
        elif field.default is REQUIRED:
            faults.add(path, f"{what} needs the key {key!r} ({field.kind})")
            good = False
        else:
            values[key] = field.default
    return values if good else None


def text(value: Any, *, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {units.shown(value)}")
    if not value or len(value) > characters_max:
        raise ValueError(f"must have 1 to {characters_max} characters, not {len(value)}")
    return value


def device_name(value: Any) -> str:
    """A device's name as the chain takes it: printable, no space around, at most 63 bytes."""
    name = text(value, characters_max=NAME_CHARACTERS_MAX)
    if name == "*":
        raise ValueError("'*' stands for all devices and is no name")
    if not name.isprintable() or name != name.strip() or len(name.encode()) > NAME_CHARACTERS_MAX:
        raise ValueError(f"{name!r} is no name for a device: printable, no space around it, at most 63 bytes")
    return name


def names(value: Any) -> tuple[str, ...]:
    """One name or a list of names; "*" alone is all."""
    if isinstance(value, str):
        return (text(value, characters_max=NAME_CHARACTERS_MAX),)
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a device's name, a list of names, or \"*\", not {units.shown(value)}")
    found = tuple(device_name(name) for name in value)
    if len(set(found)) != len(found):
        raise ValueError("names a device twice")
    return found


def groups(value: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of lists of devices, not {units.shown(value)}")
    found = tuple(names(group) for group in value)
    flat = [name for group in found for name in group]
    if len(set(flat)) != len(flat):
        raise ValueError("a device is in two groups")
    return found


def one_of(*choices: str) -> Read:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}{near(str(value), choices)}")
        return str(value)
    return read


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {units.shown(value)}")
    return value


def whole(low: int, high: int) -> Read:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {units.shown(value)}")
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}, not {value}")
        return value
    return read


def number(low: float, high: float) -> Read:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, not {units.shown(value)}")
        if not math.isfinite(value) or not low <= value <= high:
            raise ValueError(f"must be from {low:g} to {high:g}, not {value!r}")
        return float(value)
    return read


share = number(0.0, 1.0)


def duration(low_s: float = 0.0, high_s: float = DURATION_S_MAX) -> Read:
    def read(value: Any) -> float:
        found_s = units.seconds(value)
        if found_s < low_s:
            raise ValueError(f"must not be {'negative' if low_s == 0 else f'less than {low_s:g} s'}: {value!r}")
        if found_s > high_s:
            raise ValueError(f"{value!r} is too long; at most {units.duration_text(high_s) or high_s}")
        return found_s
    return read


def size(low: int = 0, high: int = 1 << 40) -> Read:
    def read(value: Any) -> int:
        found = units.size_bytes(value)
        if not low <= found <= high:
            raise ValueError(f"must be from {low} to {high} bytes, not {found}")
        return found
    return read


def rate(value: Any) -> float:
    found = units.rate_bytes_s(value)
    if found < 1:
        raise ValueError(f"must be at least 1 byte a second, not {value!r}; to let nothing pass, cut the link")
    return found


def delay(value: Any) -> Delay:
    """"5 ms" is constant; a table says kind, a and b."""
    if not isinstance(value, dict):
        return Delay("constant", duration(0.0, 3600.0)(value), 0.0)
    for key in value:
        if key not in ("kind", "a", "b"):
            raise ValueError(f"unknown key {key!r} in a delay{near(key, ('kind', 'a', 'b'))}")
    kind = one_of(*DELAYS)(value.get("kind", "uniform"))
    if "a" not in value:
        raise ValueError("a delay needs the key 'a' (duration)")
    a_s = duration(0.0, 3600.0)(value["a"])
    b = value.get("b", 0)
    b_s = number(0.0, 5.0)(b) if kind == "lognormal" else duration(0.0, 3600.0)(b)
    if kind == "uniform" and b_s < a_s:
        raise ValueError("a uniform delay lies between a and b: b must not be less than a")
    return Delay(kind, a_s, b_s)


def plain_table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be a table, not {units.shown(value)}")
    return dict(value)
