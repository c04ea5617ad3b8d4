"""What may be left out of a scenario: for each of its parts, smaller scenarios to try. Pure values; nothing is played.

Leaves to `shrink` which of them still fails, and to `scenario.parse` which of them is still a scenario at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from hinet_simnet.scenario.model import DeviceSpec, LinkSpec, Scenario, Step

T = TypeVar("T")
Fails = Callable[[Scenario], bool]


def without_some(scenario: Scenario, items: Sequence[T], keep: Callable[[Scenario, Sequence[T]], Scenario],
                 fails: Fails) -> Scenario:
    """Delta debugging: leave out ever smaller slices of `items` while what is left still fails."""
    kept = list(items)
    size = len(kept)
    while size >= 1:
        start, left_out = 0, False
        while start < len(kept):
            fewer = kept[:start] + kept[start + size:]
            candidate = keep(scenario, fewer)
            if fails(candidate):
                kept, scenario, left_out = fewer, candidate, True
            else:
                start += size
        size = min(size, len(kept)) if left_out and size == 1 and len(kept) else size // 2
    return scenario


def with_steps(scenario: Scenario, steps: Sequence[Step]) -> Scenario:
    return replace(scenario, steps=tuple(steps))


def with_links(scenario: Scenario, links: Sequence[LinkSpec]) -> Scenario:
    return replace(scenario, links=tuple(links))


def with_households(scenario: Scenario, names: Sequence[str]) -> Scenario:
    return with_devices(scenario, [device for device in scenario.devices if device.household in names])


def with_devices(scenario: Scenario, devices: Sequence[DeviceSpec]) -> Scenario:
    """Only these devices; links and steps that speak of others go, or speak only of those who stay."""
    gone = {device.name for device in scenario.devices} - {device.name for device in devices}
    steps = []
    for step in scenario.steps:
        args = _without(dict(step.args), gone)
        if args is not None:
            steps.append(replace(step, args=args))
    links = tuple(link for link in scenario.links if link.source not in gone and link.target not in gone)
    return replace(scenario, devices=tuple(devices), links=links, steps=tuple(steps))


def shorter(scenario: Scenario, fails: Fails, *, until_s: float) -> Scenario:
    """A shorter run: up to what was found, then halved while it still fails, and the same for the settling."""
    if 0 < until_s < scenario.duration_s:
        scenario = _first(fails, [lasting(scenario, _round_up(until_s))]) or scenario
    while scenario.duration_s > 1:
        half = _first(fails, [lasting(scenario, scenario.duration_s // 2)])
        if half is None:
            break
        scenario = half
    while scenario.settle_s > 1:
        half = _first(fails, [replace(scenario, settle_s=float(scenario.settle_s // 2))])
        if half is None:
            return scenario
        scenario = half
    return scenario


def lasting(scenario: Scenario, duration_s: float) -> Scenario:
    """The same, over after so long; what would have happened later is left out."""
    devices = [device for device in scenario.devices if device.joins_at_s <= duration_s]
    found = with_devices(scenario, devices)
    return replace(found, duration_s=float(duration_s),
                   steps=tuple(step for step in found.steps if step.at_s <= duration_s))


def plainer(scenario: Scenario, fails: Fails) -> Scenario:
    """Everything that has a plain value takes it, one thing at a time: links, devices' clocks and disks, times."""
    for candidate in _plain_links(scenario):
        scenario = candidate(scenario) if fails(candidate(scenario)) else scenario
    for place in range(len(scenario.devices)):
        for name in ("joins_at_s", "disk_bytes", "clock_offset_s", "clock_drift"):
            scenario = _plain_device(scenario, place, name, fails)
    for place in range(len(scenario.steps)):
        step = scenario.steps[place]
        for at_s in (float(round(step.at_s)), float(round(step.at_s, 1))):
            changed = _with_step(scenario, place, replace(step, at_s=at_s))
            if at_s != step.at_s and fails(changed):
                scenario = changed
                break
    return scenario


def _plain_links(scenario: Scenario) -> Iterator[Callable[[Scenario], Scenario]]:
    plain = LinkSpec()
    if scenario.link != plain:
        yield lambda whole: replace(whole, link=plain)
        for field in fields(LinkSpec):
            if getattr(scenario.link, field.name) != getattr(plain, field.name):
                yield partial(_plain_default, name=field.name)
    for place, link in enumerate(scenario.links):
        for field in fields(LinkSpec):
            if field.name not in ("source", "target") and getattr(link, field.name) != getattr(plain, field.name):
                yield partial(_plain_link, place=place, name=field.name)


def _plain_default(scenario: Scenario, *, name: str) -> Scenario:
    values: dict[str, Any] = {name: getattr(LinkSpec(), name)}
    return replace(scenario, link=replace(scenario.link, **values))


def _plain_link(scenario: Scenario, *, place: int, name: str) -> Scenario:
    values: dict[str, Any] = {name: getattr(LinkSpec(), name)}
    return replace(scenario, links=tuple(replace(one, **values) if number == place else one
                                         for number, one in enumerate(scenario.links)))


def _plain_device(scenario: Scenario, place: int, name: str, fails: Fails) -> Scenario:
    device = scenario.devices[place]
    plain: Any = next(field.default for field in fields(DeviceSpec) if field.name == name)
    if getattr(device, name) == plain:
        return scenario
    values: dict[str, Any] = {name: plain}
    changed = replace(scenario, devices=tuple(
        replace(one, **values) if number == place else one for number, one in enumerate(scenario.devices)))
    return changed if fails(changed) else scenario


def _with_step(scenario: Scenario, place: int, step: Step) -> Scenario:
    steps = [step if number == place else one for number, one in enumerate(scenario.steps)]
    return replace(scenario, steps=tuple(sorted(steps, key=lambda one: one.at_s)))


def _without(value: Any, gone: Set[str]) -> Any:
    """A step's arguments without these devices; None when nothing sensible is left."""
    if isinstance(value, dict):
        found = {key: _without(item, gone) for key, item in value.items()}
        return None if any(found[key] is None and value[key] is not None for key in value) else found
    if isinstance(value, list | tuple):
        items = [_without(item, gone) for item in value]
        left = [item for item, former in zip(items, value, strict=True) if item is not None or former is None]
        return left if left or not value else None
    return None if isinstance(value, str) and value in gone else value


def _first(fails: Fails, candidates: Sequence[Scenario]) -> Scenario | None:
    return next((candidate for candidate in candidates if fails(candidate)), None)


def _round_up(seconds: float) -> float:
    return float(int(seconds) + 1)
