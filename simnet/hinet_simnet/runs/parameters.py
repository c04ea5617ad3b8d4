"""What a sweep varies: seeds, and values at places of a scenario's TOML. Leaves what the values mean to `parse`.

`--seeds 1:50` or `1,2,7`. `--set link.loss=0,0.01,0.05`: keys joined by dots, a number for an item of a list, `*` for
every item; values are TOML (a bare word is text).
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hinet_node.errors import UsageError

RUNS_MAX = 100_000
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Parameter:
    """One place and the values that it takes."""

    path: str
    values: tuple[Any, ...]


def seeds_of(text: str) -> list[int]:
    """`1:50` (both ends), `3`, `1,2,7`, or several of these with commas. Errors: `UsageError`."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,19})(?::(\d{1,19}))?\s*", part)
        if match is None:
            raise UsageError(f"{part!r} names no seeds", next_step="write --seeds 1:50, or --seeds 1,2,7")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first or last - first >= RUNS_MAX or len(found) + last - first >= RUNS_MAX:
            raise UsageError(f"--seeds {part}: from 1 to {RUNS_MAX:,} seeds, the smaller one first",
                             next_step="write --seeds 1:50, or --seeds 1,2,7")
        found += range(first, last + 1)
    return found


def parameter_of(text: str) -> Parameter:
    """`PATH=VALUE,VALUE,…`. Errors: `UsageError`."""
    path, equals, values = text.partition("=")
    path = path.strip()
    if not (equals and values.strip() and path and all(path.split("."))):
        raise UsageError(f"--set {text!r} is no setting", next_step="write --set link.loss=0,0.01,0.05")
    return Parameter(path, tuple(_value(value) for value in _split(values)))


def combinations(parameters: Sequence[Parameter], seeds: Sequence[int]) -> Iterator[tuple[dict[str, Any], int]]:
    """Every set of values with every seed, in order. Errors: `UsageError` when there are too many."""
    count = len(seeds) * math.prod(len(parameter.values) for parameter in parameters)
    if count > RUNS_MAX:
        raise UsageError(f"that makes {count:,} runs; a sweep has at most {RUNS_MAX:,}")
    if len({parameter.path for parameter in parameters}) < len(parameters):
        raise UsageError("one --set for each place", next_step="give all its values at once: --set PATH=A,B,C")
    return ((dict(zip((parameter.path for parameter in parameters), values, strict=True)), seed)
            for values in itertools.product(*(parameter.values for parameter in parameters)) for seed in seeds)


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """A scenario's TOML with these values at these places. Errors: `UsageError` for a place that can't be."""
    if not values:
        return text
    document = tomllib.loads(text)
    for path, value in values.items():
        _put(document, path.split("."), value, path)
    return to_text(document)


def to_text(document: Mapping[str, Any]) -> str:
    """A document as TOML: scalars first, then tables, then lists of tables."""
    return "\n".join(_table(document, ())) + "\n"


# ---- reading ---------------------------------------------------------------------------------------------------------


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _split(text: str) -> list[str]:
    """At the commas that are in no brackets and no quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    if not all(part.strip() for part in parts):
        raise UsageError(f"{text!r} has an empty value", next_step="write --set link.loss=0,0.01,0.05")
    return parts


def _put(where: Any, path: Sequence[str], value: Any, whole: str) -> None:
    key, rest = path[0], path[1:]
    if isinstance(where, list):
        if key != "*" and not (key.isdigit() and int(key) < len(where)):
            raise UsageError(f"--set {whole}: {key} is no item of a list of {len(where)}",
                             next_step="number its items from 0, or write * for all")
        for place in range(len(where)) if key == "*" else [int(key)]:
            if rest:
                _put(where[place], rest, value, whole)
            else:
                where[place] = value
    elif not isinstance(where, dict):
        raise UsageError(f"--set {whole}: there is nothing inside {key!r}'s parent",
                         next_step="see the scenario's file")
    elif rest:
        _put(where.setdefault(key, {}), rest, value, whole)
    else:
        where[key] = value


# ---- writing ---------------------------------------------------------------------------------------------------------


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lists = {key: value for key, value in table.items()
             if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value)}
    for key, value in table.items():
        if key not in inner and key not in lists:
            yield f"{_key(key)} = {_scalar(value)}"
    for key, value in inner.items():
        yield f"\n[{'.'.join(map(_key, (*path, key)))}]"
        yield from _table(value, (*path, key))
    for key, items in lists.items():
        for item in items:
            yield f"\n[[{'.'.join(map(_key, (*path, key)))}]]"
            yield from _table(item, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_scalar(item)}" for key, item in value.items()) + "}"
    return str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
