"""A scenario as values: what `parse` makes of a TOML file, and what every level plays.

Leaves the file's syntax to `parse`, what each step does to `player` and the levels. Times are seconds of the simulated
world, counted from its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "hinet.scenario/1"
LEVELS = ("world", "stack", "processes")


@dataclass(frozen=True)
class Delay:
    """How long a packet travels one way. `kind` is one of:

    - "constant": `a_s` always;
    - "uniform": between `a_s` and `b_s`;
    - "normal": mean `a_s`, deviation `b_s`, never below 0;
    - "lognormal": median `a_s`, `b_s` the deviation of the logarithm (no unit);
    - "exponential": at least `a_s`, on average `b_s` more.
    """

    kind: str = "uniform"
    a_s: float = 0.0002
    b_s: float = 0.005


@dataclass(frozen=True)
class LinkSpec:
    """Packets from `source` to `target` (device names, or "*" for any): shares of 1, bytes a second (None: no limit).

    `loss`, `duplicate` and `reorder` are per packet. A stream over the link is TCP's: loss costs it a timeout and time,
    never bytes. Announcements on the LAN are datagrams and really are lost, doubled and out of order.
    """

    source: str = "*"
    target: str = "*"
    delay: Delay = field(default_factory=Delay)
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    rate_bytes_s: float | None = None


@dataclass(frozen=True)
class DeviceSpec:
    """One device. `by` is "code" (join with SPAKE2 over the network, at `joins_at_s`) or "direct" (its certificate is
    in the chain when the world starts: for large worlds in which joining is not the question)."""

    name: str
    household: str
    tier: str = "laptop"
    role: str = "member"
    joins_at_s: float = 0.0
    by: str = "code"
    disk_bytes: int | None = None
    clock_offset_s: float = 0.0
    clock_drift: float = 0.0
    """Seconds that the device's clock gains for each second that passes (5e-5 is 50 ppm)."""


@dataclass(frozen=True)
class Step:
    """At `at_s`, `do` something (see `steps`) with `args`. `line` is where the file says so."""

    at_s: float
    do: str
    args: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True)
class Scenario:
    """The first device of each household founds it. `settle_s`: after `duration_s`, faults end (links heal, devices
    start again, disks have room) and the checkers of convergence get so long to be content."""

    name: str
    about: str
    duration_s: float
    devices: tuple[DeviceSpec, ...]
    seed: int = 0
    settle_s: float = 300.0
    link: LinkSpec = field(default_factory=LinkSpec)
    """What holds for a pair of devices that no entry of `links` names."""
    links: tuple[LinkSpec, ...] = ()
    steps: tuple[Step, ...] = ()
    """In order of time."""
    levels: tuple[str, ...] = ("world",)
    learning: str = "names"
    """"names": training, distilling and merging in name and in bytes; "numpy": a small model that really learns."""
    file: str = ""
    text: str = ""
    """The TOML that all this was read from: a trace carries it."""

    def households(self) -> dict[str, tuple[DeviceSpec, ...]]:
        """Devices by household, in the file's order."""
        found: dict[str, list[DeviceSpec]] = {}
        for device in self.devices:
            found.setdefault(device.household, []).append(device)
        return {name: tuple(devices) for name, devices in found.items()}
