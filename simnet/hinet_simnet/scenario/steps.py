"""Every step that a scenario can take: its arguments, their types and meaning, and what of a stage it needs.

The one table that `parse` reads by, `player` plays by and SPEC prints. Leaves doing to `player`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hinet_simnet.scenario.fields import (
    REQUIRED,
    Field,
    delay,
    device_name,
    duration,
    flag,
    groups,
    names,
    plain_table,
    rate,
    share,
    size,
    text,
    whole,
)

PUT_BYTES_MAX = 16 << 20
DAY_S = 86_400.0


@dataclass(frozen=True)
class StepKind:
    """`needs`: what the stage's `supports()` must have. `acts`: how the player runs it: "world" at once, "power" in
    turn with the other power steps of the device, "work" in turn with its other work. `each`: `on` may be several
    devices, and makes a step of each."""

    name: str
    meaning: str
    needs: tuple[str, ...]
    acts: str
    args: Mapping[str, Field]
    each: bool = True


def _on(required: bool = True) -> Field:
    return Field(names, "devices", "who does it: a name, a list, or \"*\" for all that are there",
                 REQUIRED if required else None, devices="many")


MUST = Field(flag, "bool", "a refusal is a finding; else it is an event", False)
_FILE = Field(text, "text", "the file's name in the vault", REQUIRED)
_FROM = Field(text, "device", "source, or \"*\"", REQUIRED, devices="any")
_TO = Field(text, "device", "target, or \"*\"", REQUIRED, devices="any")

LINK: dict[str, Field] = {
    "delay": Field(delay, "delay", "one way: \"5 ms\", or {kind, a, b}"),
    "loss": Field(share, "share", "of packets lost", 0.0),
    "duplicate": Field(share, "share", "of packets doubled", 0.0),
    "reorder": Field(share, "share", "of packets that overtake or are overtaken", 0.0),
    "rate": Field(rate, "rate", "bytes a second; none: no limit"),
}

EXPECTATIONS: dict[str, Field] = {
    "file": Field(text, "text", "the vault shows this file, whole"),
    "absent": Field(text, "text", "the vault shows no such file"),
    "connected": Field(names, "devices", "open sessions with all of these", devices="many"),
    "disconnected": Field(names, "devices", "no open session with any of these", devices="many"),
    "running": Field(flag, "bool", "the agent runs, or does not"),
    "chain_height": Field(whole(1, 16_384), "number", "the chain is at least so high"),
    "devices": Field(whole(1, 1_024), "number", "the household has exactly so many devices that are not revoked"),
    "warning": Field(text, "text", "`status` warns with this code"),
    "revisions": Field(whole(1, 10_000), "number", "at least so many revisions are known"),
}


def _kind(name: str, meaning: str, needs: str, acts: str, *, each: bool = True, on: bool = True,
          **args: Field) -> StepKind:
    found = {"on": _on()} if on else {}
    if acts == "work" and name != "expect":
        args["must"] = MUST
    return StepKind(name, meaning, tuple(needs.split()), acts, {**found, **args}, each)


_ALL = (
    _kind("join", "a device joins now, instead of by its key `joins`", "join", "join"),
    _kind("put", "a file goes into the vault", "call", "work", file=_FILE,
          text=Field(text, "text", "what is in it; or `size`"),
          size=Field(size(0, PUT_BYTES_MAX), "size", "so many bytes that don't compress, 1 kB where neither is given")),
    _kind("edit", "a line is added at the end of a file that the vault shows there", "call", "work", file=_FILE,
          text=Field(text, "text", "the line", REQUIRED)),
    _kind("get", "a file is read", "call", "work", file=_FILE),
    _kind("kill", "the power goes; what was not made durable may be gone", "kill", "power"),
    _kind("stop", "the agent is ended in order", "stop", "power"),
    _kind("start", "the agent is started", "start", "power"),
    _kind("restart", "the power goes and comes back", "kill start", "power",
          after=Field(duration(0, DAY_S), "duration", "how long it stays off", 1.0)),
    _kind("freeze", "the process is stopped, its connections stay", "freeze", "power"),
    _kind("thaw", "it goes on", "thaw", "power"),
    _kind("clone", "a second device runs with a copy of the first one's disk", "clone", "power", each=False,
          to=Field(device_name, "name", "the copy's name in the run", REQUIRED)),
    _kind("revoke", "a device is put out of the household", "call", "work", each=False, on=False,
          on_=Field(names, "device", "the admin that does it; else the first admin that is left", devices="many"),
          device=Field(device_name, "device", "who is put out", REQUIRED, devices="one"),
          reason=Field(text, "text", "why", "lost")),
    _kind("partition", "devices of different groups don't reach each other; who is in none is with all such others",
          "partition", "world", each=False, on=False,
          groups=Field(groups, "groups", "[[\"a\", \"b\"], [\"c\"]]", REQUIRED, devices="groups")),
    _kind("cut", "nothing passes from one to the other, one way", "cut", "world", each=False, on=False,
          **{"from": _FROM, "to": _TO}),
    _kind("heal", "partitions and cuts end", "heal", "world", each=False, on=False),
    _kind("link", "a link behaves like this from now on", "set_link", "world", each=False, on=False,
          **{"from": _FROM, "to": _TO}, both=Field(flag, "bool", "and the way back", False), **LINK),
    _kind("fill_disk", "the device's disk is filled", "fill_disk", "world",
          free=Field(size(), "size", "so much room stays", 0)),
    _kind("free_disk", "the room comes back", "free_disk", "world"),
    _kind("tear", "at its next power cut, unsynced writes are kept by chance, cut anywhere", "tear", "world",
          share=Field(share, "share", "the chance for each write", 0.5)),
    _kind("clock", "the wall clock jumps", "set_clock", "world",
          offset=Field(duration(-3650 * DAY_S, 3650 * DAY_S), "duration", "off the true time; may be negative",
                       REQUIRED)),
    _kind("train", "the tier's training: a cloud makes a task vector, a laptop an adapter", "call", "work",
          recipe=Field(text, "text", "a shipped recipe", "demo")),
    _kind("promote", "a revision is served", "call", "work",
          revision=Field(text, "text", "its id; else the newest adapter")),
    _kind("ask", "a question to the served model", "call", "work",
          question=Field(text, "text", "the question", REQUIRED),
          retrieval=Field(flag, "bool", "whether notes may help", True)),
    _kind("lie", "the device does what no honest one would, with its real keys", "lie", "work",
          lie=Field(text, "text", "the name of the lie", REQUIRED), args=Field(plain_table, "table", "its arguments")),
    _kind("expect", "this must hold, or it is a finding", "call", "expect", **EXPECTATIONS,
          text=Field(text, "text", "with `file`: what is in it"),
          within=Field(duration(0, DAY_S), "duration", "it may take so long to come true", 0.0)),
)

# `on` is a parameter's name in `_kind`; the revoking admin's field is `on` in the file like everybody's.
STEPS: dict[str, StepKind] = {
    kind.name: StepKind(kind.name, kind.meaning, kind.needs, kind.acts,
                        {key.rstrip("_"): field for key, field in kind.args.items()}, kind.each) for kind in _ALL}

TIMING: dict[str, Field] = {
    "at": Field(duration(), "duration", "when, from the start", REQUIRED),
    "do": Field(text, "step", "what", REQUIRED),
    "every": Field(duration(1.0), "duration", "again and again, so far apart"),
    "until": Field(duration(), "duration", "not later than this; else to the end"),
}


def missing_at(supports: Collection[str], do: str) -> tuple[str, ...]:
    """What a stage with these abilities lacks for the step; a stage may also name the step itself."""
    return () if do in supports else tuple(need for need in STEPS[do].needs if need not in supports)
