"""Steps of the file -> the steps that are played: every repetition and every device of `on = "*"` written out.

Leaves single values to `fields`, the kinds to `steps`, and whether a step can be done by who is there to `sense`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hinet_simnet.scenario.fields import Faults, near, read_table
from hinet_simnet.scenario.model import DeviceSpec, Step
from hinet_simnet.scenario.positions import Path
from hinet_simnet.scenario.steps import EXPECTATIONS, STEPS, TIMING, StepKind

STEPS_MAX = 50_000
_MARKED = ("file", "text", "question", "absent")


@dataclass(frozen=True)
class Row:
    """One [[step]] as read."""

    path: Path
    kind: StepKind
    at_s: float
    every_s: float | None
    until_s: float | None
    args: Mapping[str, Any]


def read_steps(tables: Any, faults: Faults) -> list[Row]:
    """The steps whose values are sound by themselves."""
    if not isinstance(tables, list):
        faults.add(("step",), "write each step as [[step]]")
        return []
    found = []
    for number, table in enumerate(tables):
        path: Path = ("step", number)
        do = table.get("do") if isinstance(table, dict) else None
        if do is not None and (not isinstance(do, str) or do not in STEPS):
            faults.add((*path, "do"), f"there is no step {do!r}{near(str(do), STEPS)}")
            continue
        args = STEPS[do].args if do else {}
        if do is None and isinstance(table, dict):
            faults.add(path, "a step needs the key 'do' (what happens)")
            continue
        values = read_table(table, path, {**TIMING, **args}, faults, f"the step {do!r}" if do else "[[step]]")
        if values is not None and _sound(values, STEPS[do], path, faults):
            found.append(Row(path, STEPS[do], values["at"], values["every"], values["until"],
                             {key: values[key] for key in args if values[key] is not None}))
    return found


def _sound(values: Mapping[str, Any], kind: StepKind, path: Path, faults: Faults) -> bool:
    """What the keys of one step say to each other."""
    fault = ""
    if values["until"] is not None and values["every"] is None:
        fault = "until: says how long to repeat, so it needs `every`"
    elif values["until"] is not None and values["until"] < values["at"]:
        fault = "until: is before `at`"
    elif values["every"] is not None and kind.name in ("join", "clone", "revoke"):
        fault = f"every: {kind.name!r} can't be repeated"
    elif kind.name == "put" and values["text"] is not None and values["size"] is not None:
        fault = "put takes `text` or `size`, not both"
    elif kind.name == "expect":
        said = [key for key in EXPECTATIONS if values[key] is not None]
        if len(said) != 1:
            fault = f"expect needs exactly one of {', '.join(EXPECTATIONS)}" + (
                f", not {' and '.join(said)}" if said else "")
        elif values["text"] is not None and said != ["file"]:
            fault = "text: goes with `file`"
    elif kind.name == "revoke" and values["on"] is not None and len(values["on"]) > 1:
        fault = "on: one admin revokes"
    if fault:
        faults.add(path, fault)
    return not fault


def joined_by(devices: Sequence[DeviceSpec], rows: Sequence[Row], at_s: float) -> list[DeviceSpec]:
    """Who is there at that time, in the file's order: joined (or joining) and not revoked before."""
    gone = {row.args["device"] for row in rows if row.kind.name == "revoke" and row.at_s <= at_s}
    return [device for device in devices if device.joins_at_s <= at_s and device.name not in gone]


def expand(rows: Sequence[Row], devices: Sequence[DeviceSpec], duration_s: float,
           faults: Faults) -> list[tuple[Step, Path]]:
    """All steps in order of time; those of one time in the order of the file."""
    found: list[tuple[Step, Path]] = []
    for row in rows:
        if row.at_s > duration_s:
            faults.add((*row.path, "at"), f"at: {row.at_s:g} s is after the end ({duration_s:g} s)")
            continue
        if row.kind.name == "join":
            continue
        until_s = duration_s if row.until_s is None else min(row.until_s, duration_s)
        times = 1 if row.every_s is None else int((until_s - row.at_s) / row.every_s + 1e-9) + 1
        if times + len(found) > STEPS_MAX:
            faults.add(row.path, f"more than {STEPS_MAX} steps in all")
            return []
        for turn in range(times):
            at_s = row.at_s + turn * (row.every_s or 0.0)
            found += [(Step(at_s, row.kind.name, args, faults.line(row.path)), row.path)
                      for args in _each(row, joined_by(devices, rows, at_s), devices, turn + 1)]
            if len(found) > STEPS_MAX:
                faults.add(row.path, f"more than {STEPS_MAX} steps in all")
                return []
    return sorted(found, key=lambda pair: pair[0].at_s)


def _each(row: Row, there: Sequence[DeviceSpec], devices: Sequence[DeviceSpec], turn: int) -> list[dict[str, Any]]:
    """The arguments for each device that takes the step."""
    args = dict(row.args)
    if row.kind.name == "revoke" and "on" not in args:
        household = next((device.household for device in devices if device.name == args["device"]), None)
        admin = next((device.name for device in there if device.household == household and device.role == "admin"), None)
        args["on"] = (admin,) if admin is not None else ()
    if not row.kind.each or "on" not in args:
        ons: Sequence[str] = args.pop("on", ())
        return [{**({"on": ons[0]} if ons else {}), **_plain(args, there, None, turn)}]
    ons = args.pop("on")
    if ons == ("*",):
        ons = tuple(device.name for device in there)
    return [{"on": on, **_plain(args, there, on, turn)} for on in ons]


def _plain(args: Mapping[str, Any], there: Sequence[DeviceSpec], on: str | None, turn: int) -> dict[str, Any]:
    """Lists, with "*" and marks filled in."""
    found: dict[str, Any] = {}
    household = next((device.household for device in there if device.name == on), None)
    for key, value in args.items():
        if key in ("connected", "disconnected") and value == ("*",):
            value = tuple(device.name for device in there if device.household == household and device.name != on)
        if key in _MARKED and isinstance(value, str):
            value = value.replace("{on}", on or "").replace("{i}", str(turn))
        if isinstance(value, tuple):
            value = [list(item) if isinstance(item, tuple) else item for item in value]
        found[key] = value
    return found
