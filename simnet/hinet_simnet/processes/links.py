"""What the links between devices do to what passes over them: delay, loss, duplicates, disorder, rate, cuts.

One `Path` for each ordered pair. `switch` asks it about frames, `relay` about pieces of a stream. Times are seconds of
one steady clock. Rules are changed by the simulator's main thread and read by the switch's; each change replaces whole
values, so that no lock is needed. Draws come from the seed, but real processes don't repeat. Leaves carrying to those
two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hinet_simnet.scenario.model import Delay, LinkSpec

QUEUE_S_MAX = 0.25
"""How long a frame waits for its turn on a slow link before frames behind it are dropped, as in a router."""
QUEUE_BYTES_MIN = 64 * 1024
REORDER_S = 0.01
"""A frame out of turn is at least so late, so that later ones overtake it."""
RETRANSMIT_S = 0.2
"""What a lost packet costs a stream: TCP's least time-out."""
PACKET_BYTES = 1448


def draw_delay_s(delay: Delay, randomness: random.Random) -> float:
    """One packet's time on the way."""
    if delay.kind == "constant":
        return delay.a_s
    if delay.kind == "uniform":
        return randomness.uniform(delay.a_s, delay.b_s)
    if delay.kind == "normal":
        return max(0.0, randomness.gauss(delay.a_s, delay.b_s))
    if delay.kind == "lognormal":
        return delay.a_s * randomness.lognormvariate(0.0, delay.b_s)
    assert delay.kind == "exponential", f"the scenario's reader lets no delay {delay.kind!r} through"
    return delay.a_s + (randomness.expovariate(1.0 / delay.b_s) if delay.b_s > 0 else 0.0)


@dataclass
class Path:
    """The way from one device to another. `is_open` is False while a partition or a cut lies between them."""

    spec: LinkSpec
    is_open: bool
    randomness: random.Random
    _line_free_s: float = 0.0
    _last_due_s: float = 0.0

    def frame_times_s(self, size_bytes: int, now_s: float) -> tuple[float, ...]:
        """When copies of a frame that comes now arrive: none when it is lost, two when it is doubled."""
        spec, draw = self.spec, self.randomness.random
        if not self.is_open or (spec.loss and draw() < spec.loss):
            return ()
        sent_s = now_s
        if spec.rate_bytes_s is not None:
            waiting_s = self._line_free_s - now_s
            if waiting_s > max(QUEUE_S_MAX, QUEUE_BYTES_MIN / spec.rate_bytes_s):
                return ()
            sent_s = self._line_free_s = max(now_s, self._line_free_s) + size_bytes / spec.rate_bytes_s
        due_s = sent_s + draw_delay_s(spec.delay, self.randomness)
        if spec.reorder and draw() < spec.reorder:
            due_s = max(due_s, self._last_due_s) + REORDER_S + draw_delay_s(spec.delay, self.randomness)
        else:
            due_s = self._last_due_s = max(due_s, self._last_due_s)
        if spec.duplicate and draw() < spec.duplicate:
            return due_s, due_s
        return (due_s,)

    def piece_time_s(self, size_bytes: int, now_s: float) -> float:
        """When a piece of a stream that is sent now has arrived whole. Order is kept; loss costs time only."""
        spec = self.spec
        due_s = now_s
        if spec.rate_bytes_s is not None:
            due_s = self._line_free_s = max(now_s, self._line_free_s) + size_bytes / spec.rate_bytes_s
        due_s += draw_delay_s(spec.delay, self.randomness)
        if spec.loss:
            packets = -(-size_bytes // PACKET_BYTES)
            due_s += RETRANSMIT_S * sum(self.randomness.random() < spec.loss for _ in range(packets))
        return due_s


@dataclass
class Links:
    """The links of one run. `changed` is called after each change."""

    seed: int
    default: LinkSpec = field(default_factory=LinkSpec)
    changed: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._rules: list[LinkSpec] = []
        self._groups: tuple[tuple[str, ...], ...] = ()
        self._cuts: list[tuple[str, str]] = []
        self._paths: dict[tuple[str, str], Path] = {}

    def path(self, source: str, target: str) -> Path:
        """The path of a pair; always the same value for the same pair."""
        path = self._paths.get((source, target))
        if path is None:
            path = Path(self._spec(source, target), self._open(source, target),
                        random.Random(f"{self.seed} {source} {target}"))  # noqa: S311 - not for keys
            self._paths = {**self._paths, (source, target): path}
        return path

    def set(self, link: LinkSpec) -> None:
        """From now on; of several rules that name a pair the last one holds."""
        self._rules = [rule for rule in self._rules if (rule.source, rule.target) != (link.source, link.target)]
        self._rules.append(link)
        self._renew()

    def partition(self, groups: Sequence[Sequence[str]]) -> None:
        self._groups = tuple(tuple(group) for group in groups)
        self._renew()

    def cut(self, source: str, target: str) -> None:
        self._cuts = [cut for cut in self._cuts if cut != (source, target)] + [(source, target)]
        self._renew()

    def heal(self) -> None:
        self._groups, self._cuts = (), []
        self._renew()

    def _renew(self) -> None:
        for (source, target), path in self._paths.items():
            path.spec, path.is_open = self._spec(source, target), self._open(source, target)
        self.changed()

    def _spec(self, source: str, target: str) -> LinkSpec:
        for rule in reversed(self._rules):
            if rule.source in ("*", source) and rule.target in ("*", target):
                return rule
        return self.default

    def _open(self, source: str, target: str) -> bool:
        for place, other in self._cuts:
            if place in ("*", source) and other in ("*", target):
                return False
        return self._group(source) == self._group(target)

    def _group(self, name: str) -> int:
        return next((number for number, group in enumerate(self._groups) if name in group), -1)
