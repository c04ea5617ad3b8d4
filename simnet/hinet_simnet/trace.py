"""What happened in a simulated world, in order, as one digest: same scenario, seed and program, same digest.

An event is a line: virtual time, kind, node, then `key=value`. Lines go into a running hash and, where a sink is given,
into a file (`runs.record`). Leaves the meaning of events to those who note them. Keeps the last lines for a person.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import trio
from blake3 import blake3

LINES_MAX = 20_000
_PLAIN = re.compile(r"[\w./:+,@<>~-]+")

Observer = Callable[[str, str, Mapping[str, Any]], None]
"""Called with kind, node and fields of each event, at once."""
Sink = Callable[[str], None]
"""Called with each line, without its newline."""


class Trace:
    """A running hash over all events, and the last lines."""

    def __init__(self, sink: Sink | None = None, *, clock: Callable[[], float] = trio.current_time) -> None:
        self._hash = blake3()
        self._clock = clock
        self._sink = sink
        self.observers: list[Observer] = []
        self.events = 0
        self.messages = 0
        self.message_bytes = 0
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self._names: dict[tuple[str, str, str], tuple[str, str]] = {}

    def event(self, kind: str, node: str = "", **fields: Any) -> None:
        """Something happened now. Field values: str, int, float, bool."""
        parts = [f"{self._clock():.9f}", kind, _shown(node) if node else "-"]
        parts += [f"{key}={_shown(value)}" for key, value in fields.items()]
        self._enter(" ".join(parts))
        for observer in self.observers:
            observer(kind, node, fields)

    def _enter(self, line: str) -> None:
        self._hash.update(line.encode("utf-8", "surrogateescape") + b"\n")
        self.events += 1
        self.lines.append(line)
        if self._sink is not None:
            self._sink(line)

    def note(self, what: str) -> None:
        """An event in words."""
        self.event("note", what=what)

    def sent(self, source: str, target: str, channel: str, data: bytes) -> None:
        """Bytes were handed to the network: their digest goes into the trace."""
        self.messages += 1
        self.message_bytes += len(data)
        size, digest = len(data), blake3(data).hexdigest(8)
        names = self._names.get((source, target, channel))  # the hottest event: its line is made from parts
        if names is None:
            names = self._names[source, target, channel] = (
                _shown(source), f"to={_shown(target)} on={_shown(channel)}")
        line = f"{self._clock():.9f} send {names[0]} {names[1]} size={size} digest={digest}"
        self._enter(line)
        for observer in self.observers:
            observer("send", source, {"to": target, "on": channel, "size": size, "digest": digest})

    def digest(self) -> str:
        """Of everything so far, 128 bits in hex."""
        return self._hash.copy().hexdigest(16)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def parse_line(line: str) -> tuple[float, str, str, dict[str, str]]:
    """An event's time, kind, node and fields. Errors: `ValueError`."""
    decoder = json.JSONDecoder()
    values: list[str] = []
    keys: list[str] = []
    at, place = 0, 0
    while at < len(line):
        key = ""
        if place > 2:
            end = line.index("=", at)
            key, at = line[at:end], end + 1
        if line[at:at + 1] == '"':
            value, at = decoder.raw_decode(line, at)
        else:
            stop = line.find(" ", at)
            stop = len(line) if stop < 0 else stop
            value, at = line[at:stop], stop
        keys.append(key)
        values.append(value)
        place, at = place + 1, at + 1
    if place < 3:
        raise ValueError(f"no event: {line[:80]!r}")
    return float(values[0]), values[1], "" if values[2] == "-" else values[2], dict(zip(keys[3:], values[3:],
                                                                                       strict=True))
