"""What the parts of a scenario mean together: who is there when, and whether a step can be done at all.

Everything that is certain to be impossible is refused before the run; what faults in play make impossible is the
player's. Leaves single values to `fields`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hinet_simnet.errors import BadScenario
from hinet_simnet.scenario.expand import Row
from hinet_simnet.scenario.fields import Faults, near
from hinet_simnet.scenario.model import DeviceSpec, Step
from hinet_simnet.scenario.positions import Path
from hinet_simnet.scenario.steps import STEPS

NEVER: Mapping[str, Collection[str]] = {"processes": ("tear", "lie")}
"""Steps that a level can do on no machine, so that parsing need not import the level; it knows the rest itself."""


@dataclass
class _There:
    """Who is there while the steps are gone through in order of time."""

    devices: Mapping[str, DeviceSpec]
    copies: dict[str, str] = field(default_factory=dict)
    """Clone to original."""
    revoked: dict[str, float] = field(default_factory=dict)

    def why_not(self, name: str, at_s: float, *, early: bool) -> str:
        """Why this device can't be part of a step now; empty when it can. `early`: links may be there before it is."""
        if name in self.copies:
            return ""
        device = self.devices.get(name)
        if device is None:
            return f"there is no device {name!r}{near(name, self.devices)}"
        if device.joins_at_s > at_s and not early:
            return f"{name!r} has not joined yet at {at_s:g} s: it joins at {device.joins_at_s:g} s"
        return ""

    def admins(self, household: str, at_s: float) -> list[str]:
        return [device.name for device in self.devices.values()
                if device.household == household and device.role == "admin" and device.joins_at_s <= at_s
                and device.name not in self.revoked]


def check_devices(devices: Sequence[DeviceSpec], paths: Mapping[str, Path], rows: Sequence[Row], duration_s: float,
                  faults: Faults) -> list[DeviceSpec]:
    """The devices with their join steps applied."""
    by_name = {device.name: device for device in devices}
    for row in rows:
        for name in row.args["on"] if row.kind.name == "join" else ():
            device = by_name.get(name)
            if device is None:
                faults.add((*row.path, "on"), f"there is no device {name!r}{near(name, by_name)}" if name != "*" else
                           "join names its devices one by one")
            elif device.joins_at_s:
                faults.add(row.path, f"{name!r} joins at {device.joins_at_s:g} s already")
            else:
                by_name[name] = replace(device, joins_at_s=row.at_s)
    founded = {}
    for device in by_name.values():
        path = paths[device.name]
        founder = founded.setdefault(device.household, device)
        if device.joins_at_s > duration_s:
            faults.add(path, f"{device.name!r} joins at {device.joins_at_s:g} s, after the end ({duration_s:g} s)")
        if device.joins_at_s < founder.joins_at_s:
            faults.add(path, f"{device.name!r} joins at {device.joins_at_s:g} s, before {founder.name!r} founds the "
                             f"household at {founder.joins_at_s:g} s")
    return list(by_name.values())


def check_steps(steps: Sequence[tuple[Step, Path]], devices: Sequence[DeviceSpec], levels: Sequence[str],
                faults: Faults) -> None:
    """Go through the steps in order of time."""
    there = _There({device.name: device for device in devices})
    for step, path in steps:
        for level in levels:
            if step.do in NEVER.get(level, ()):
                faults.add((*path, "do"), f"level {level!r} can't do the step {step.do!r}: take it out of `levels`")
        for key, name in _named(step):
            why = there.why_not(name, step.at_s, early=step.do in ("partition", "cut", "link"))
            if why:
                faults.add((*path, key), f"{key}: {why}")
        if step.do == "clone":
            _check_clone(step, path, there, faults)
        elif step.do == "revoke":
            _check_revoke(step, path, there, faults)
        elif step.do == "lie":
            _check_lie(step, path, there, faults)
        elif step.do in ("cut", "link") and step.args["from"] == step.args["to"] != "*":
            faults.add(path, "a device has no link to itself")


def _named(step: Step) -> list[tuple[str, str]]:
    """The devices that a step names, and by which key."""
    found = []
    for key, one in STEPS[step.do].args.items():
        value = step.args.get(key)
        if not one.devices or value is None:
            continue
        if isinstance(value, str):
            found += [(key, value)] if value != "*" or one.devices not in ("any", "many") else []
        else:
            found += [(key, name) for item in value for name in (item if isinstance(item, list) else [item])]
    return found


def _check_clone(step: Step, path: Path, there: _There, faults: Faults) -> None:
    copy, original = step.args["to"], step.args.get("on")
    if original is None or original == "*":
        faults.add((*path, "on"), "on: one device is cloned")
        return
    if copy in there.devices or copy in there.copies:
        faults.add((*path, "to"), f"to: there is a device named {copy!r} already")
    there.copies[copy] = original


def _check_lie(step: Step, path: Path, there: _There, faults: Faults) -> None:
    from hinet_simnet.adversary import DEFAULTS, LIES, check  # it knows the agent; most scenarios need none of it

    lie, args = step.args["lie"], step.args.get("args") or {}
    if lie not in LIES:
        faults.add((*path, "lie"), f"lie: there is no lie {lie!r}{near(lie, LIES)} (one of: {', '.join(LIES)})")
        return
    for key, value in args.items():
        at = (*path, "args", key)
        if key not in DEFAULTS:
            faults.add(at, f"args: the lie {lie!r} has no argument {key!r}{near(key, DEFAULTS)} "
                           f"(one of: {', '.join(DEFAULTS)})")
            continue
        try:
            wanted = check(lie, {key: value})
        except BadScenario as error:
            faults.add(at, f"args: {error}")
            continue
        for name in wanted["to"] if key == "to" else ():
            why = there.why_not(name, step.at_s, early=True)
            if why:
                faults.add(at, f"args: to: {why}")


def _check_revoke(step: Step, path: Path, there: _There, faults: Faults) -> None:
    target = there.devices.get(step.args["device"])
    if target is None or target.joins_at_s > step.at_s:
        return
    if target.name in there.revoked:
        faults.add((*path, "device"), f"{target.name!r} is revoked at {there.revoked[target.name]:g} s already")
        return
    admins = there.admins(target.household, step.at_s)
    if admins == [target.name]:
        faults.add((*path, "device"), f"{target.name!r} is the last admin of {target.household!r}: nobody could "
                                      "invite or revoke any more")
        return
    by = step.args.get("on")
    if by == target.name:
        faults.add((*path, "on"), f"on: {by!r} can't revoke itself")
    elif by is None:
        faults.add(path, f"{target.household!r} has no admin at {step.at_s:g} s")
    elif by in there.devices and by not in admins:
        faults.add((*path, "on"), f"on: {by!r} is no admin of {target.household!r} at {step.at_s:g} s")
    there.revoked[target.name] = step.at_s
