"""Random scenarios for the soak: valid, deterministic by their seed, with everything that may go wrong.

Draws from `SeededRandomness` alone. Leaves TOML to `write`, which is also reachable here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import Delay, DeviceSpec, LinkSpec, Scenario, Step
from hinet_simnet.scenario.write import to_toml

__all__ = ["SIZES", "generate", "random_scenario", "to_toml"]

T = TypeVar("T")
LIES = ("any", "double", "false_packs", "flood", "forged_entry", "fork", "garbage", "huge_frame", "lying_head",
        "old_chain", "replay", "silent", "slow")
"""Of `adversary.LIES`, which knows the agent, while drawing needs none of it; a test compares the two."""
SIZES = {"small": (2, 4, 10), "middle": (3, 7, 25), "large": (6, 16, 60)}
"""By name: fewest devices, most devices, most steps."""


def random_scenario(seed: int, *, size: str = "middle") -> Scenario:
    """The scenario of this seed; its `text` is its TOML. `size` is a key of `SIZES`."""
    draw = _Draw(SeededRandomness(seed, f"scenario {size}"))
    least, most, steps_max = SIZES[size]
    duration_s = float(draw.between(5, 40) * 60)
    devices = _devices(draw, draw.between(least, most), duration_s)
    story = _Story(draw, devices, duration_s)
    links = _slow_lines(draw, devices)
    if draw.chance(0.3):
        _sleep(story)
    for _ in range(draw.between(steps_max // 3, steps_max)):
        draw.pick(_MOVES)(story)
    steps = tuple(sorted(story.steps, key=lambda step: step.at_s))
    made = Scenario(f"random-{size}-{seed}", "Drawn by its seed.", duration_s, tuple(devices), seed=seed,
                    settle_s=900.0, link=_link(draw), links=links, steps=steps)
    return replace(made, text=to_toml(made))


def generate(seed: int) -> Scenario:
    """A random scenario; its size is drawn too."""
    return random_scenario(seed, size=_Draw(SeededRandomness(seed, "size")).pick(("small", "small", "middle")))


class _Draw:
    """Draws with names."""

    def __init__(self, randomness: SeededRandomness) -> None:
        self._randomness = randomness

    def between(self, low: int, high: int) -> int:
        return low + self._randomness.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self._randomness.below(len(items))]

    def chance(self, share: float) -> bool:
        return self._randomness.unit() < share


def _link(draw: _Draw) -> LinkSpec:
    delay = draw.pick((Delay(), Delay("constant", 0.03), Delay("exponential", 0.005, 0.02), Delay("normal", 0.04, 0.01),
                       Delay("lognormal", 0.02, 0.5)))
    return LinkSpec("*", "*", delay, draw.pick((0.0, 0.0, 0.01, 0.05)), draw.pick((0.0, 0.01)),
                    draw.pick((0.0, 0.0, 0.05)), draw.pick((None, None, 1e6, 128_000.0)))


def _devices(draw: _Draw, count: int, duration_s: float) -> list[DeviceSpec]:
    found = [DeviceSpec("cloud", "home", "cloud", "admin")]
    by = draw.pick(("code", "code", "direct"))
    for number in range(1, count):
        tier = draw.pick(("laptop", "laptop", "pocket", "cloud"))
        role = draw.pick(("member", "member", "member", "admin", "keeper"))
        joins_s = float(draw.between(0, int(duration_s) // 4)) if draw.chance(0.7) else 0.0
        found.append(DeviceSpec(
            f"{tier}-{number}", "home", tier, role, joins_s, by,
            disk_bytes=draw.pick((*[None] * 9, 3_000_000)), clock_offset_s=float(draw.pick((0, 0, 0, 7, -90, 4000))),
            clock_drift=draw.pick((0.0, 0.0, 5e-5))))
    for number in range(1, draw.pick((0, 0, 0, 1, 1, 2)) + 1):  # others on the same internet
        tiers = ["cloud", *(draw.pick(("laptop", "pocket")) for _ in range(draw.pick((1, 1, 2, 7))))]
        found += [DeviceSpec(f"next-{number}-{tier}-{place}", f"next door {number}", tier,
                             "member" if place else "admin", by="direct") for place, tier in enumerate(tiers)]
    return found


def _slow_lines(draw: _Draw, devices: Sequence[DeviceSpec]) -> tuple[LinkSpec, ...]:
    """Perhaps a device at the end of a slow line, both ways."""
    if draw.chance(0.7):
        return ()
    name, rate = draw.pick(devices).name, draw.pick((30_000.0, 250_000.0))
    delay = Delay("normal", draw.pick((0.08, 0.3)), 0.02)
    return LinkSpec(name, "*", delay, 0.01, rate_bytes_s=rate), LinkSpec("*", name, delay, 0.01, rate_bytes_s=rate)


@dataclass
class _Story:
    """The steps so far, and who may be part of the next one."""

    draw: _Draw
    devices: Sequence[DeviceSpec]
    duration_s: float
    steps: list[Step] = field(default_factory=list)
    revoked: dict[str, float] = field(default_factory=dict)
    copies: int = 0

    def at_s(self) -> float:
        """Any time, whole seconds, but for the first one in which the founder sets up."""
        return float(self.draw.between(20, int(self.duration_s) - 1))

    def there(self, at_s: float) -> list[str]:
        return [device.name for device in self.devices if device.joins_at_s + 15 <= at_s or device.joins_at_s == 0
                if self.revoked.get(device.name, self.duration_s) > at_s]

    def add(self, at_s: float, do: str, **args: Any) -> None:
        self.steps.append(Step(min(at_s, self.duration_s), do, args))

    def who(self) -> tuple[float, str]:
        at_s = self.at_s()
        return at_s, self.draw.pick(self.there(at_s))


def _put(story: _Story) -> None:
    at_s, on = story.who()
    file = f"notes/{story.draw.between(1, 6)}.md"
    story.add(at_s, "put", on=on, file=file, size=story.draw.pick((0, 100, 5_000, 80_000, 400_000)), must=False)


def _get(story: _Story) -> None:
    at_s, on = story.who()
    story.add(at_s, "get", on=on, file=f"notes/{story.draw.between(1, 6)}.md", must=False)


def _edit(story: _Story) -> None:
    at_s, on = story.who()
    story.add(at_s, "edit", on=on, file=f"notes/{story.draw.between(1, 6)}.md", text=f"more at {at_s:g}", must=False)


def _power(story: _Story) -> None:
    at_s, on = story.who()
    away_s = float(story.draw.pick((1, 5, 40, 200)))
    if story.draw.chance(0.3):
        story.add(at_s, "tear", on=on, share=story.draw.pick((0.1, 0.5, 1.0)))
    match story.draw.pick(("restart", "kill", "stop", "freeze")):
        case "restart":
            story.add(at_s, "restart", on=on, after=away_s)
        case "freeze":
            story.add(at_s, "freeze", on=on)
            story.add(at_s + away_s, "thaw", on=on)
        case do:
            story.add(at_s, do, on=on)
            if story.draw.chance(0.8):
                story.add(at_s + away_s, "start", on=on)


def _sleep(story: _Story) -> None:
    """A laptop or pocket whose lid is shut most of the time."""
    able = [device for device in story.devices if device.tier != "cloud"]
    if not able:
        return
    sleeper = story.draw.pick(able)
    asleep_s, awake_s = story.draw.pick(((120, 30), (300, 60), (45, 45)))
    at_s = sleeper.joins_at_s + 30
    while at_s + asleep_s < story.duration_s:
        story.add(at_s, "freeze", on=sleeper.name)
        story.add(at_s + asleep_s, "thaw", on=sleeper.name)
        at_s += asleep_s + awake_s


def _network(story: _Story) -> None:
    at_s = story.at_s()
    there = story.there(at_s)
    if len(there) < 2:
        return
    first = story.draw.pick(there)
    second = story.draw.pick([name for name in there if name != first])
    match story.draw.pick(("partition", "cut", "link")):
        case "partition":
            sides = [name for name in there if story.draw.chance(0.5)]
            rest = [name for name in there if name not in sides]
            story.add(at_s, "partition", groups=[side for side in (sides, rest) if side])
        case "cut":
            story.add(at_s, "cut", **{"from": first, "to": second})
        case _:
            link = _link(story.draw)
            args: dict[str, Any] = {"from": first, "to": story.draw.pick((second, "*")), "both": story.draw.chance(0.5),
                                    "delay": link.delay, "loss": link.loss, "duplicate": link.duplicate,
                                    "reorder": link.reorder}
            if link.rate_bytes_s is not None:
                args["rate"] = link.rate_bytes_s
            story.add(at_s, "link", **args)
    if story.draw.chance(0.8):
        story.add(at_s + story.draw.pick((5, 45, 300)), "heal")


def _disk(story: _Story) -> None:
    at_s, on = story.who()
    story.add(at_s, "fill_disk", on=on, free=story.draw.pick((0, 1_000, 100_000)))
    if story.draw.chance(0.8):
        story.add(at_s + story.draw.pick((10, 120)), "free_disk", on=on)


def _clock(story: _Story) -> None:
    at_s, on = story.who()
    story.add(at_s, "clock", on=on, offset=float(story.draw.pick((-86_400, -300, -5, 0, 5, 300, 86_400))))


def _revoke(story: _Story) -> None:
    """At most a third of the household, never the founder, at times that no other step contradicts."""
    at_s = story.at_s()
    home = [device.name for device in story.devices[1:] if device.household == "home"]
    able = [name for name in story.there(at_s) if name in home and name not in story.revoked]
    busy = {name for step in story.steps if step.at_s >= at_s for name in _names(step)}
    able = [name for name in able if name not in busy]
    if able and len(story.revoked) < (len(home) + 1) // 3:
        name = story.draw.pick(able)
        story.revoked[name] = at_s
        story.add(at_s, "revoke", on="cloud", device=name, reason="lost", must=False)


def _clone(story: _Story) -> None:
    if story.copies:
        return
    at_s, on = story.who()
    if any(on == device.name and device.role == "admin" for device in story.devices if device.tier == "cloud"):
        return
    story.copies += 1
    story.add(at_s, "clone", on=on, to=f"{on}-copy")


def _train(story: _Story) -> None:
    at_s, on = story.who()
    story.add(at_s, story.draw.pick(("train", "train", "promote")), on=on, must=False)
    if story.steps[-1].do == "train":
        story.steps[-1] = replace(story.steps[-1], args={"on": on, "recipe": "demo", "must": False})


def _ask(story: _Story) -> None:
    at_s, on = story.who()
    story.add(at_s, "ask", on=on, question="What is in the notes?", retrieval=story.draw.chance(0.7), must=False)


def _lie(story: _Story) -> None:
    at_s, on = story.who()
    args = {"for_s": float(story.draw.pick((5, 20, 60))), "count": story.draw.pick((3, 30, 100))}
    story.add(at_s, "lie", on=on, lie=story.draw.pick(LIES), args=args, must=False)


def _names(step: Step) -> list[str]:
    return [value for key, value in step.args.items() if key in ("on", "device", "from", "to") and
            isinstance(value, str)] + [name for group in step.args.get("groups", ()) for name in group]


_MOVES: tuple[Callable[[_Story], None], ...] = (
    _put, _put, _put, _put, _get, _edit, _edit, _power, _power, _network, _network, _disk, _clock, _revoke, _clone,
    _train, _ask, _lie)
