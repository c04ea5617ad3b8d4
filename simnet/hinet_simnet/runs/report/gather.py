"""Reads a trace once and keeps a story of bounded size: lanes, marks, shades, bytes, curves. Leaves drawing to `page`.

Time is cut into bins that double in width as the run goes on, so a week takes no more room than a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hinet_simnet.errors import BadTrace
from hinet_simnet.findings import Finding, Outcome
from hinet_simnet.runs.tracefile import Header, TraceReader
from hinet_simnet.trace import parse_line

BINS_MAX = 240
NODES_MAX = 20_000
LINKS_MAX = 200_000
MARKS_A_LANE_MAX = 120
MARKS_MAX = 4_000
SPANS_A_LANE_MAX = 200
MESSAGES_MAX = 3_000
SHADES_MAX = 200
ROUNDS_MAX = 500
TEXT_MAX = 300
SHOW_EVERY = 50_000
OTHERS = "(others)"

MARKED = ("found", "joined", "start", "kill", "stop", "crash", "freeze", "thaw", "clone", "disk", "clock", "lie",
          "call")
RARE = ("kill", "crash", "freeze", "clone", "disk", "clock", "lie", "finding")
"""What makes a node worth a lane of its own in a large run."""


@dataclass
class Lane:
    """One node: how it was over time ([from, to, state]), what happened to it ([at, kind, words]), bytes by bin."""

    name: str
    household: str = ""
    tier: str = ""
    spans: list[tuple[float, float, str]] = field(default_factory=list)
    marks: list[tuple[float, str, str]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    bytes_sent: int = 0
    dropped_marks: int = 0
    state: str = ""
    since_s: float = 0.0

    def become(self, state: str, at_s: float) -> None:
        """Its state changes; "" is down."""
        if state == self.state:
            return
        if self.state and at_s > self.since_s and len(self.spans) < SPANS_A_LANE_MAX:
            self.spans.append((self.since_s, at_s, self.state))
        self.state, self.since_s = state, at_s

    @property
    def rare(self) -> bool:
        return any(kind in RARE for _, kind, _ in self.marks)


@dataclass
class Story:
    """All that the page shows."""

    header: Header
    path: str
    outcome: Outcome | None = None
    cut: bool = False
    events: int = 0
    end_s: float = 0.0
    bin_s: float = 1.0
    lanes: dict[str, Lane] = field(default_factory=dict)
    links: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    messages: list[tuple[float, str, str, int, str]] = field(default_factory=list)
    message_count: int = 0
    shades: list[tuple[float, float, str]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    rounds: list[tuple[float, str, str]] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    broken: str = ""

    @property
    def findings(self) -> list[Finding]:
        return [] if self.outcome is None else self.outcome.findings


def gather(path: Path, *, shown: Callable[[int], None] = lambda events: None) -> Story:
    """The story of a trace file. A file whose run was killed, or whose end is damaged, is told as far as it goes.

    Errors: `BadTrace` when it is no trace at all, `OSError`.
    """
    with TraceReader(path) as reader:
        story = Story(reader.header, str(path))
        teller = _Teller(story)
        try:
            for line in reader.lines():
                teller.line(line)
                if reader.events % SHOW_EVERY == 0:
                    shown(reader.events)
        except BadTrace as error:
            story.broken = error.what
        except ValueError as error:
            story.broken = f"{path}: {error}"
        story.events, story.cut, story.outcome = reader.events, reader.cut, reader.outcome()
    teller.close()
    return story


class _Teller:
    """Takes the events in turn."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._marks = 0
        self._open: dict[tuple[str, ...], tuple[float, str]] = {}
        self._running = 0
        self._sessions: dict[tuple[str, str], None] = {}
        self._counts: dict[str, list[tuple[float, float]]] = {"nodes running": [], "sessions open": []}

    def line(self, line: str) -> None:
        parts = line.split(" ")
        if len(parts) == 7 and parts[1] == "send" and '"' not in line:  # nearly all lines: the short way
            self._sent(float(parts[0]), parts[2], parts[3][3:], parts[4][3:], int(parts[5][5:]))
            return
        at_s, kind, node, fields = parse_line(line)
        if kind == "send":
            self._sent(at_s, node, fields.get("to", ""), fields.get("on", ""), int(fields.get("size", 0)))
            return
        story = self._story
        story.end_s = max(story.end_s, at_s)
        story.kinds[kind if kind in story.kinds or len(story.kinds) < 100 else OTHERS] = story.kinds.get(kind, 0) + 1
        self._around(kind, node, fields, at_s)
        if node:
            self._node(kind, node, fields, at_s)
        if kind == "round" and len(story.rounds) < ROUNDS_MAX:
            story.rounds.append((at_s, node, _words(fields)))

    def _lane(self, name: str) -> Lane:
        lanes = self._story.lanes
        if name not in lanes and len(lanes) >= NODES_MAX:
            name = OTHERS
        return lanes.setdefault(name, Lane(name))

    def _sent(self, at_s: float, source: str, target: str, channel: str, size: int) -> None:
        story = self._story
        story.end_s = max(story.end_s, at_s)
        while at_s >= story.bin_s * BINS_MAX:
            self._widen()
        lane, place = self._lane(source), int(at_s / story.bin_s)
        if len(lane.sent) <= place:
            lane.sent.extend([0] * (place + 1 - len(lane.sent)))
        lane.sent[place] += size
        lane.bytes_sent += size
        link = (source, target)
        if link not in story.links and len(story.links) >= LINKS_MAX:
            link = (OTHERS, OTHERS)
        total = story.links.setdefault(link, [0, 0])
        total[0] += size
        total[1] += 1
        story.message_count += 1
        if len(story.messages) < MESSAGES_MAX:
            story.messages.append((at_s, source, target, size, channel))

    def _widen(self) -> None:
        self._story.bin_s *= 2
        for lane in self._story.lanes.values():
            sent = lane.sent
            lane.sent = [sum(sent[place:place + 2]) for place in range(0, len(sent), 2)]

    def _around(self, kind: str, node: str, fields: Mapping[str, str], at_s: float) -> None:
        """Partitions and cuts, as shades over all lanes."""
        if kind == "partition":
            self._heal(at_s, lambda key: key == ("partition",))
            self._open["partition",] = at_s, f"partition {fields.get('groups', '')}"
        elif kind == "cut":
            self._open["cut", node, fields.get("to", "")] = at_s, f"cut {node} → {fields.get('to', '')}"
        elif kind == "heal":
            self._heal(at_s, lambda key: True)

    def _heal(self, at_s: float, which: Callable[[tuple[str, ...]], bool]) -> None:
        for key in [key for key in self._open if which(key)]:
            since_s, words = self._open.pop(key)
            if len(self._story.shades) < SHADES_MAX:
                self._story.shades.append((since_s, at_s, words[:TEXT_MAX]))

    def _node(self, kind: str, node: str, fields: Mapping[str, str], at_s: float) -> None:
        if kind in ("cut", "link", "log", "ack"):
            return
        lane = self._lane(node)
        if kind == "session":
            self._session(node, fields, at_s)
            return
        before = bool(lane.state)
        state = {"found": "up", "joined": "up", "start": "up", "thaw": "up", "freeze": "frozen", "kill": "", "stop": "",
                 "crash": ""}.get(kind)
        if kind in ("found", "joined"):
            lane.household = fields.get("household", lane.household)
            lane.tier = fields.get("tier", lane.tier)
        if state is not None:
            lane.become(state, at_s)
            self._running += bool(lane.state) - before
            self._count("nodes running", at_s, self._running)
        if kind not in MARKED:
            return
        if (self._marks < MARKS_MAX or kind in RARE) and len(lane.marks) < MARKS_A_LANE_MAX:
            lane.marks.append((at_s, kind, _words(fields)))
            self._marks += 1
        else:
            lane.dropped_marks += 1

    def _session(self, node: str, fields: Mapping[str, str], at_s: float) -> None:
        pair = min(node, fields.get("peer", "")), max(node, fields.get("peer", ""))
        if fields.get("what") == "opened":
            self._sessions[pair] = None
        else:
            self._sessions.pop(pair, None)
        self._count("sessions open", at_s, len(self._sessions))

    def _count(self, name: str, at_s: float, value: float) -> None:
        """A step curve with at most two points a bin (the last value stands)."""
        points = self._counts[name]
        if len(points) > 1 and int(points[-2][0] / self._story.bin_s) == int(at_s / self._story.bin_s):
            points[-1] = at_s, value
        else:
            points.append((at_s, value))

    def close(self) -> None:
        story = self._story
        if story.outcome is not None:
            story.end_s = max(story.end_s, min(story.outcome.virtual_s, 1e12))
        self._heal(story.end_s, lambda key: True)
        for lane in story.lanes.values():
            lane.become("", story.end_s)
        self._name_households()
        for finding in story.findings[:MARKS_MAX]:
            if finding.node:
                self._lane(finding.node).marks.append((finding.at_s, "finding",
                                                       f"{finding.checker}: {finding.message}"[:TEXT_MAX]))
        for name, points in self._counts.items():
            if points:
                story.curves[name] = thinned([*points, (story.end_s, points[-1][1])])
        if story.message_count:
            totals = [0] * max(len(lane.sent) for lane in story.lanes.values())
            for lane in story.lanes.values():
                for place, size in enumerate(lane.sent):
                    totals[place] += size
            story.curves["bytes a second"] = [(place * story.bin_s, size / story.bin_s)
                                              for place, size in enumerate(totals)]
        if story.outcome is not None:
            for name, series in list(story.outcome.facts.items())[:40]:
                points = _points(series)
                if points:
                    story.curves[str(name)] = thinned([*points, (max(story.end_s, points[-1][0]), points[-1][1])])

    def _name_households(self) -> None:
        """Households of devices that never said so themselves: from the scenario, when it can be read."""
        from hinet_simnet.errors import SimnetError
        from hinet_simnet.runs.scenarios import from_text

        try:
            devices = from_text(self._story.header.text, file=self._story.header.file).devices
        except SimnetError:
            return
        for device in devices:
            lane = self._story.lanes.get(device.name)
            if lane is not None:
                lane.household, lane.tier = lane.household or device.household, lane.tier or device.tier


def thinned(points: list[tuple[float, float]], limit: int = 2 * BINS_MAX) -> list[tuple[float, float]]:
    """At most so many points: of each slice its lowest and its highest, so that no peak is lost."""
    if len(points) <= limit:
        return points
    size = -(-2 * len(points) // limit)
    found = []
    for start in range(0, len(points), size):
        part = points[start:start + size]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        found += sorted(ends)
    return found


def _points(series: Any) -> list[tuple[float, float]]:
    """A measured series as numbers; what is none is left out."""
    if not isinstance(series, list):
        return []
    return [(float(point[0]), float(point[1])) for point in series
            if isinstance(point, list | tuple) and len(point) == 2
            and all(isinstance(value, int | float) for value in point)]


def _words(fields: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in fields.items() if key != "traceback")[:TEXT_MAX]
