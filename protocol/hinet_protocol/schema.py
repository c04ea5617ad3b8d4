"""Strict checks for decoded values: a field is of exactly the stated form, or the whole object is refused.

A `Check` takes a canonical value and returns it narrowed (lists become tuples), or raises MessageError with the
path of the wrong field. `messages`, `chain` and `join` declare their fields with it. SPEC.md, 1.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from hinet_protocol.errors import MessageError

Check = Callable[[Any, str], Any]


def _refuse(path: str, wanted: str, value: Any) -> MessageError:
    return MessageError(f"Field {path} should be {wanted}, it is {describe(value)}.")


def describe(value: Any) -> str:
    """The form of a value without its content, which may be secret or hostile."""
    if isinstance(value, (bytes, str, list, tuple, dict)):
        return f"{type(value).__name__} of length {len(value)}"
    if isinstance(value, (bool, int)) or value is None:
        return repr(value)
    return type(value).__name__


def integer(lowest: int, highest: int) -> Check:
    """An integer from `lowest` to `highest`, both included."""

    def check(value: Any, path: str) -> int:
        if type(value) is not int or not lowest <= value <= highest:
            raise _refuse(path, f"an integer from {lowest} to {highest}", value)
        return value

    return check


uint63 = integer(0, 2**63 - 1)


def boolean(value: Any, path: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise _refuse(path, "true or false", value)
    return value


def binary(shortest: int, longest: int) -> Check:
    """Bytes of `shortest` to `longest` length."""

    def check(value: Any, path: str) -> bytes:
        if not isinstance(value, bytes) or not shortest <= len(value) <= longest:
            raise _refuse(path, f"{shortest} to {longest} bytes", value)
        return value

    return check


bytes32 = binary(32, 32)
bytes64 = binary(64, 64)


def text(longest_bytes: int, shortest_bytes: int = 0) -> Check:
    """Text whose UTF-8 form has `shortest_bytes` to `longest_bytes` bytes and no control characters."""

    def check(value: Any, path: str) -> str:
        if not isinstance(value, str) or not shortest_bytes <= len(value.encode("utf-8")) <= longest_bytes:
            raise _refuse(path, f"text of {shortest_bytes} to {longest_bytes} bytes", value)
        if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in value):
            raise _refuse(path, "text without control characters", value)
        return value

    return check


def one_of(*choices: str) -> Check:
    """One of a fixed set of words."""

    def check(value: Any, path: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _refuse(path, "one of " + ", ".join(choices), value)
        return value

    return check


def optional(inner: Check) -> Check:
    """None, or what `inner` allows."""

    def check(value: Any, path: str) -> Any:
        return None if value is None else inner(value, path)

    return check


def list_of(inner: Check, items_max: int, items_min: int = 0) -> Check:
    """A list of `items_min` to `items_max` items; comes back as a tuple."""

    def check(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or not items_min <= len(value) <= items_max:
            raise _refuse(path, f"a list of {items_min} to {items_max} items", value)
        return tuple(inner(item, f"{path}[{index}]") for index, item in enumerate(value))

    return check


def row(*inners: Check) -> Check:
    """A list with a fixed number of items, each of its own form; comes back as a tuple."""

    def check(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(inners):
            raise _refuse(path, f"a list of {len(inners)} items", value)
        return tuple(
            inner(item, f"{path}[{index}]") for index, (inner, item) in enumerate(zip(inners, value, strict=True))
        )

    return check


def sorted_unique(inner: Check) -> Check:
    """What `inner` allows, whose items are in rising order without repeats."""

    def check(value: Any, path: str) -> tuple[Any, ...]:
        items: tuple[Any, ...] = inner(value, path)
        if any(left >= right for left, right in itertools.pairwise(items)):
            raise MessageError(f"Field {path} is not sorted, or an item is there twice.")
        return items

    return check


def fields(value: Any, checks: Mapping[str, Check], path: str) -> dict[str, Any]:
    """A map with exactly the fields of `checks`; unknown fields whose name begins with `x-` are left out."""
    if not isinstance(value, dict):
        raise _refuse(path, "a map", value)
    for name in value:
        if name not in checks and not name.startswith("x-"):
            raise MessageError(f"{path} has the unknown field {name[:40]!r}; a newer version may be needed to read it.")
    found = {}
    for name, check in checks.items():
        if name not in value:
            raise MessageError(f"{path} lacks the field {name!r}.")
        found[name] = check(value[name], f"{path}.{name}")
    return found
