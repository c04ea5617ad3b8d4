"""TOML -> `Scenario`, schema `hinet.scenario/1` (SPEC, part 10). Everything that is wrong is said at once, by line.

This file reads the head, the links and the households. Leaves single values to `fields`, steps to `expand`, what the
parts mean together to `sense`, and the way back to `write`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hinet_simnet.errors import BadScenario
from hinet_simnet.scenario import fields, sense
from hinet_simnet.scenario.expand import expand, read_steps
from hinet_simnet.scenario.fields import REQUIRED, Faults, Field, read_table
from hinet_simnet.scenario.model import LEVELS, SCHEMA, Delay, DeviceSpec, LinkSpec, Scenario
from hinet_simnet.scenario.positions import Path, Positions
from hinet_simnet.scenario.steps import LINK

TEXT_BYTES_MAX = 4 << 20
DEVICES_MAX = 10_000
HOUSEHOLD_DEVICES_MAX = 256
"""As many addresses as a device keeps in its book."""
TIERS = ("cloud", "laptop", "pocket")
ROLES = ("admin", "member", "keeper")
_SYNTAX_PLACE = re.compile(r" ?\(at line (\d+), column (\d+)\)")


def _levels(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of levels: {', '.join(LEVELS)}")
    found = tuple(fields.one_of(*LEVELS)(level) for level in value)
    if len(set(found)) != len(found):
        raise ValueError("names a level twice")
    return found


def _schema(value: Any) -> str:
    if value != SCHEMA:
        raise ValueError(f"this program reads {SCHEMA!r}, not {value!r}")
    return SCHEMA


def _any(value: Any) -> Any:
    return value


HEAD: dict[str, Field] = {
    "schema": Field(_schema, "text", f"\"{SCHEMA}\"", REQUIRED),
    "name": Field(lambda value: fields.text(value, characters_max=100), "text", "what the scenario is called", REQUIRED),
    "about": Field(fields.text, "text", "what it studies", ""),
    "duration": Field(fields.duration(1.0), "duration", "how long it plays", REQUIRED),
    "settle": Field(fields.duration(0.0, 30 * 86_400.0), "duration", "how long what must converge gets afterwards", 300.0),
    "seed": Field(fields.whole(0, (1 << 63) - 1), "number", "the seed where none is given", 0),
    "levels": Field(_levels, "levels", "where it can be played", ("world",)),
    "learning": Field(fields.one_of("names", "numpy"), "text", "\"names\", or \"numpy\": a small model that learns",
                      "names"),
    "link": Field(_any, "table", "every link that no entry of `links` names"),
    "links": Field(_any, "tables", "single links"),
    "household": Field(_any, "tables", "households and their devices", REQUIRED),
    "step": Field(_any, "tables", "what happens"),
}
PAIR: dict[str, Field] = {
    "from": Field(lambda value: fields.text(value, characters_max=63), "device", "source, or \"*\"", "*"),
    "to": Field(lambda value: fields.text(value, characters_max=63), "device", "target, or \"*\"", "*"),
    "both": Field(fields.flag, "bool", "and the way back", False),
}
HOUSEHOLD: dict[str, Field] = {
    "name": Field(fields.device_name, "text", "its name; with `count`, `{h}` in it is the number", "home"),
    "count": Field(fields.whole(1, DEVICES_MAX), "number", "so many such households"),
    "by": Field(fields.one_of("code", "direct"), "text", "how devices join: by a code over the network, or directly",
                "code"),
    "devices": Field(_any, "devices", "names or tables; the first one founds the household", REQUIRED),
}
DEVICE: dict[str, Field] = {
    "name": Field(fields.device_name, "name", "with `count`, `{n}` in it is the number; `{h}` is the household's",
                  REQUIRED),
    "count": Field(fields.whole(1, DEVICES_MAX), "number", "so many such devices"),
    "tier": Field(fields.one_of(*TIERS), "tier", "else the tier that the name begins with, else laptop"),
    "role": Field(fields.one_of(*ROLES), "role", "the first device is the admin", "member"),
    "joins": Field(fields.duration(), "duration", "when it joins (the first one: founds)", 0.0),
    "apart": Field(fields.duration(), "duration", "with `count`: each joins so much later than the one before", 0.0),
    "by": Field(fields.one_of("code", "direct"), "text", "else as the household says"),
    "disk": Field(fields.size(1), "size", "what its disk holds; none: plenty"),
    "clock_offset": Field(fields.duration(-3650 * 86_400.0, 3650 * 86_400.0), "duration", "its wall clock is off", 0.0),
    "clock_drift": Field(fields.number(-0.01, 0.01), "number", "seconds gained for each second", 0.0),
}


def parse(text: str, *, file: str = "scenario.toml") -> Scenario:
    """Read a scenario. Errors: `BadScenario` with all that is wrong, by line."""
    if len(text.encode("utf-8", "surrogateescape")) > TEXT_BYTES_MAX:
        raise BadScenario(f"longer than {TEXT_BYTES_MAX} bytes", where=file)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _SYNTAX_PLACE.search(str(error))
        what = _SYNTAX_PLACE.sub("", str(error))
        line = place[1] if place else str(text.rstrip("\n").count("\n") + 1)
        column = f" (column {place[2]})" if place else ""
        raise BadScenario(f"this is no TOML: {what}{column}", where=f"{file}:{line}") from None
    except RecursionError:
        raise BadScenario("tables or lists are nested too deep", where=f"{file}:1") from None
    faults = Faults(file, Positions(text))
    scenario = _read(raw, faults)
    faults.raise_if_any()
    assert scenario is not None, "a scenario without faults was read whole"
    return replace(scenario, file=file, text=text)


def _read(raw: dict[str, Any], faults: Faults) -> Scenario | None:
    if "commune" in raw:
        faults.add(("commune",), "[commune] needs the communal rounds, which this version has not")
        raw = {key: value for key, value in raw.items() if key != "commune"}
    head = read_table(raw, (), HEAD, faults, "the scenario")
    link = read_link(raw.get("link", {}), ("link",), faults)
    devices, paths = _devices(raw.get("household", []), faults)
    links = _links(raw.get("links", []), [device.name for device in devices], faults)
    duration_s = head["duration"] if head is not None else fields.DURATION_S_MAX
    rows = read_steps(raw.get("step", []), faults)
    if not devices or (faults and head is None and "duration" in raw):
        return None
    devices = sense.check_devices(devices, paths, rows, duration_s, faults)
    steps = expand(rows, devices, duration_s, faults)
    sense.check_steps(steps, devices, head["levels"] if head else LEVELS[:1], faults)
    if head is None or link is None or links is None or faults:
        return None
    return Scenario(head["name"], head["about"], head["duration"], tuple(devices), seed=head["seed"],
                    settle_s=head["settle"], link=link, links=tuple(links),
                    steps=tuple(step for step, _ in steps), levels=head["levels"], learning=head["learning"])


def read_link(table: Any, path: Path, faults: Faults) -> LinkSpec | None:
    values = read_table(table, path, LINK, faults, "[link]")
    return None if values is None else link_of(values)


def link_of(values: Mapping[str, Any], source: str = "*", target: str = "*") -> LinkSpec:
    """A link from the values of its keys."""
    return LinkSpec(source, target, values["delay"] or Delay(), values["loss"], values["duplicate"], values["reorder"],
                    values["rate"])


def _links(tables: Any, known: Sequence[str], faults: Faults) -> list[LinkSpec] | None:
    if not isinstance(tables, list):
        faults.add(("links",), "write each link as [[links]]")
        return None
    found = []
    for number, table in enumerate(tables):
        path: Path = ("links", number)
        values = read_table(table, path, {**PAIR, **LINK}, faults, "[[links]]")
        if values is None:
            continue
        for key in ("from", "to"):
            if values[key] != "*" and values[key] not in known:
                faults.add((*path, key), f"{key}: there is no device {values[key]!r}{fields.near(values[key], known)}")
        if values["from"] == values["to"] != "*":
            faults.add(path, "a device has no link to itself")
        found.append(link_of(values, values["from"], values["to"]))
        if values["both"]:
            found.append(link_of(values, values["to"], values["from"]))
    return found


def _devices(tables: Any, faults: Faults) -> tuple[list[DeviceSpec], dict[str, Path]]:
    """All devices and where each one is written."""
    if not isinstance(tables, list) or not tables:
        faults.add(("household",), "write each household as [[household]], and at least one")
        return [], {}
    found: list[DeviceSpec] = []
    paths: dict[str, Path] = {}
    seen: set[str] = set()
    for number, table in enumerate(tables):
        path: Path = ("household", number)
        values = read_table(table, path, HOUSEHOLD, faults, "[[household]]")
        if values is None:
            continue
        count = values["count"] or 1
        rows = _device_rows(values["devices"], (*path, "devices"), faults)
        many = sum(row["count"] or 1 for _, row in rows)
        if count * many + len(found) > DEVICES_MAX:
            faults.add(path, f"more than {DEVICES_MAX} devices in all")
            continue
        if many > HOUSEHOLD_DEVICES_MAX:
            faults.add(path, f"{many} devices in a household; at most {HOUSEHOLD_DEVICES_MAX}")
            continue
        for place in range(1, count + 1):
            household = _numbered(values["name"], place, values["count"], "{h}", (*path, "name"), faults)
            if household in seen:
                faults.add((*path, "name"), f"there are two households named {household!r}")
            seen.add(household)
            for device, at in _household(household, place, values, rows, faults):
                if device.name in paths:
                    faults.add(at, f"there are two devices named {device.name!r}; names are unique in the run"
                               + (", so write {h} into it" if values["count"] else ""))
                paths[device.name] = at
                found.append(device)
    return found, paths


def _device_rows(rows: Any, path: Path, faults: Faults) -> list[tuple[Path, dict[str, Any]]]:
    if not isinstance(rows, list) or not rows:
        faults.add(path, "a household needs at least one device: devices = [\"cloud\", \"laptop\"]")
        return []
    found = []
    for number, row in enumerate(rows):
        values = read_table({"name": row} if isinstance(row, str) else row, (*path, number), DEVICE, faults, "a device")
        if values is not None:
            found.append(((*path, number), values))
    return found


def _household(household: str, place: int, values: Mapping[str, Any], rows: Sequence[tuple[Path, dict[str, Any]]],
               faults: Faults) -> list[tuple[DeviceSpec, Path]]:
    found: list[tuple[DeviceSpec, Path]] = []
    for path, row in rows:
        for number in range(1, (row["count"] or 1) + 1):
            name = _numbered(row["name"], number, row["count"], "{n}", path, faults)
            name = name.replace("{h}", str(place))
            role = row["role"]
            if not found and role == "keeper":
                faults.add(path, f"the first device founds the household and is its admin: {name!r} can't be a keeper")
            tier = row["tier"] or next((tier for tier in TIERS if name.startswith(tier)), "laptop")
            found.append((DeviceSpec(
                name, household, tier, role if found else "admin", row["joins"] + (number - 1) * row["apart"],
                row["by"] or values["by"], row["disk"], row["clock_offset"], row["clock_drift"]), path))
    return found


def _numbered(name: str, number: int, count: int | None, mark: str, path: Path, faults: Faults) -> str:
    if count is not None and count > 1 and mark not in name:
        faults.add(path, f"{count} of them would be named {name!r}: write {mark} into the name")
        return f"{name} {number}"
    return name.replace(mark, str(number)) if count is not None else name
