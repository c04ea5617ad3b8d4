"""`Scenario` -> TOML that `parse` reads back to the same values: for shrunk and random scenarios, and for people.

Every device and step is written out; what has its default is left out. Leaves reading to `parse`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hinet_simnet.scenario import units
from hinet_simnet.scenario.model import SCHEMA, Delay, DeviceSpec, LinkSpec, Scenario, Step
from hinet_simnet.scenario.steps import STEPS


def to_toml(scenario: Scenario) -> str:
    """The scenario as a file."""
    head = [("schema", text(SCHEMA)), ("name", text(scenario.name))]
    head += [("about", text(scenario.about))] if scenario.about else []
    head += [("duration", duration(scenario.duration_s)), ("settle", duration(scenario.settle_s))]
    head += [("seed", str(scenario.seed))] if scenario.seed else []
    head += [("levels", value(list(scenario.levels))), ("learning", text(scenario.learning))]
    blocks = [_lines(head)]
    if scenario.link != LinkSpec():
        blocks.append("[link]\n" + _lines(_link(scenario.link)))
    for link in scenario.links:
        ends = [("from", text(link.source)), ("to", text(link.target))]
        blocks.append("[[links]]\n" + _lines([*ends, *_link(link)]))
    for name, devices in scenario.households().items():
        rows = "".join(f"  {_device(device, first=device is devices[0])},\n" for device in devices)
        blocks.append(f"[[household]]\nname = {text(name)}\ndevices = [\n{rows}]\n")
    blocks += ["[[step]]\n" + _lines(_step(step)) for step in scenario.steps]
    return "\n".join(blocks)


def _lines(rows: list[tuple[str, str]]) -> str:
    return "".join(f"{key} = {said}\n" for key, said in rows)


def _link(link: LinkSpec) -> list[tuple[str, str]]:
    rows = [("delay", _delay(link.delay))] if link.delay != Delay() else []
    rows += [(key, value(getattr(link, key))) for key in ("loss", "duplicate", "reorder") if getattr(link, key)]
    if link.rate_bytes_s is not None:
        rows.append(("rate", value(link.rate_bytes_s)))
    return rows


def _delay(delay: Delay) -> str:
    if delay.kind == "constant" and not delay.b_s:
        return duration(delay.a_s)
    b = value(delay.b_s) if delay.kind == "lognormal" else duration(delay.b_s)
    return f'{{ kind = "{delay.kind}", a = {duration(delay.a_s)}, b = {b} }}'


def _device(device: DeviceSpec, *, first: bool) -> str:
    rows = [("name", text(device.name)), ("tier", text(device.tier))]
    rows += [("role", text(device.role))] if device.role != "member" and not first else []
    rows += [("joins", duration(device.joins_at_s))] if device.joins_at_s else []
    rows += [("by", text(device.by))] if device.by != "code" else []
    rows += [("disk", text(units.size_text(device.disk_bytes)))] if device.disk_bytes is not None else []
    rows += [("clock_offset", duration(device.clock_offset_s))] if device.clock_offset_s else []
    rows += [("clock_drift", value(device.clock_drift))] if device.clock_drift else []
    return "{ " + ", ".join(f"{key} = {said}" for key, said in rows) + " }"


def _step(step: Step) -> list[tuple[str, str]]:
    rows = [("at", duration(step.at_s)), ("do", text(step.do))]
    for key, one in STEPS[step.do].args.items():
        found = step.args.get(key)
        if found is None or (found == one.default and type(found) is type(one.default)):
            continue
        if one.kind == "duration":
            said = duration(found)
        elif one.kind == "size":
            said = text(units.size_text(found))
        elif isinstance(found, Delay):
            said = _delay(found)
        else:
            said = value(found)
        rows.append((key, said))
    return rows


def duration(value_s: float) -> str:
    """A duration as text where that is exact, else as a number."""
    said = units.duration_text(value_s)
    return text(said) if said else value(float(value_s))


def text(said: str) -> str:
    """A text as a basic string: JSON's escapes are TOML's, but for DEL and lone surrogates."""
    return json.dumps(said, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(found: Any) -> str:
    """Any value of a step as TOML on one line."""
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, str):
        return text(found)
    if isinstance(found, Mapping):
        return "{ " + ", ".join(f"{text(str(key))} = {value(item)}" for key, item in found.items()) + " }"
    if isinstance(found, list | tuple):
        return "[" + ", ".join(value(item) for item in found) + "]"
    return repr(found)
