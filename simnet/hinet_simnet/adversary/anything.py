"""Random messages that the real encoders accept: any class, any fields within their stated forms.

Values are guessed until a field's own check takes them, so a new message or field needs nothing here.
"""

from __future__ import annotations

from typing import Any

from hinet_protocol.errors import MessageError, ProtocolError
from hinet_protocol.messages import ErrorReply, Hello, Message, Request, Response, checks_of, tag_table, to_wire
from hinet_protocol.schema import Check
from hinet_simnet.randomness import SeededRandomness

GUESSES_MAX = 400
LENGTHS = (0, 1, 16, 32, 33, 64, 200)
WORDS = ("cloud", "laptop", "pocket", "code", "ticket", "OK", "E_ANY", "/ip4/10.0.0.9/tcp/4001", "x" * 64, "")
NUMBERS = (0, 1, 2, 255, 4_096, 1 << 31, (1 << 63) - 1)


def _pairs(randomness: SeededRandomness) -> tuple[tuple[bytes, int], ...]:
    return tuple((randomness.draw(32), randomness.below(1 << 20)) for _ in range(randomness.below(4)))


def _ranges(randomness: SeededRandomness) -> tuple[tuple[bytes, bytes, bytes], ...]:
    return tuple((randomness.draw(randomness.below(34)), randomness.draw(randomness.below(34)), randomness.draw(16))
                 for _ in range(1 + randomness.below(3)))


def _answers(randomness: SeededRandomness) -> tuple[tuple[int, Any, bool, Any], ...]:
    return tuple((randomness.below(3), _pairs(randomness), bool(randomness.below(2)),
                  tuple((lower, theirs) for lower, _, theirs in _ranges(randomness)))
                 for _ in range(1 + randomness.below(3)))


ROWS = (_pairs, _ranges, _answers)


def any_message(randomness: SeededRandomness) -> Message:
    """A message that can be sent."""
    kinds = [kind for _, kind in sorted(tag_table().items())]
    while True:
        kind = kinds[randomness.below(len(kinds))]
        try:
            message = _make(kind, randomness, deep=True)
            to_wire(message)
        except ProtocolError:
            continue
        return message


def _make(kind: type[Message], randomness: SeededRandomness, *, deep: bool) -> Message:
    return kind(**{name: _value(check, randomness, deep) for name, check in checks_of(kind).items()})


def _value(check: Check, randomness: SeededRandomness, deep: bool) -> Any:
    for _ in range(GUESSES_MAX):
        value = _guess(randomness, deep)
        try:
            check(value, "guess")
        except (MessageError, AttributeError, TypeError, ValueError):
            continue
        return value
    raise MessageError("No guess fits this field.")


def _guess(randomness: SeededRandomness, deep: bool) -> Any:
    choice = randomness.below(8)
    if choice == 0:
        return bool(randomness.below(2))
    if choice == 1:
        return NUMBERS[randomness.below(len(NUMBERS))]
    if choice == 2:
        return WORDS[randomness.below(len(WORDS))]
    if choice in (3, 4):
        return randomness.draw(LENGTHS[randomness.below(len(LENGTHS))])
    if choice == 5 and deep:
        inner = [kind for _, kind in sorted(tag_table().items()) if kind not in (Request, Response, ErrorReply, Hello)]
        return _make(inner[randomness.below(len(inner))], randomness, deep=False)
    if choice == 6:
        return ROWS[randomness.below(len(ROWS))](randomness)
    kind = randomness.below(3)
    return tuple(randomness.draw(32) if kind == 0 else 1 + randomness.below(9) if kind == 1
                 else WORDS[randomness.below(5)] for _ in range(randomness.below(4)))
