"""One verification taken away, and the tests that must miss it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FALSE = "if False:"
GONE = "pass"


@dataclass(frozen=True)
class Mutant:
    """`old` is there exactly once in `file`; with `new` in its place one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def within(file: str, *tests: str) -> Callable[[str, str, str], Mutant]:
    """Mutants of one file. `tests` are patterns below `tests/`, the likeliest first."""
    return lambda name, old, new: Mutant(name, file, old, new, tests)


def applied(mutant: Mutant, text: str) -> str:
    """The file's text with the verification gone. Raises ValueError when it isn't there exactly once."""
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: {mutant.old.strip()!r} is there {text.count(mutant.old)} times, not once")
    new = mutant.new
    if new == GONE:
        new = mutant.old[:len(mutant.old) - len(mutant.old.lstrip())] + GONE
    return text.replace(mutant.old, new)
