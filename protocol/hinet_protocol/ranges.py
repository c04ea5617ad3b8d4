"""Which packs a sibling holds that this device does not, in a few questions: fingerprints of ranges of names. Pure.

The asker sends ranges with the fingerprint of what it holds there; the answer is that it is the same, the names where
there are few, or the fingerprints of smaller ranges. What differs is asked again, so bytes follow the difference and
not the size of the vault. One side learns, the other keeps no state; a fingerprint is a hash of all names of its range,
so nobody makes two sets look alike. Leaves carrying to `messages`, what to pull to `reconcile`. SPEC.md, 6.6.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from hinet_protocol import limits
from hinet_protocol.errors import MessageError

SAME, NAMES, PARTS = 0, 1, 2
fingerprint_bytes = 16
_NAMES_FEW = 32
"""So many names are told rather than split."""
_PART_NAMES = 16
_PARTS_MAX = 64
_DEPTH_MAX = 12

Row = tuple[bytes, int]
"""Name and size of a pack."""
Asked = tuple[bytes, bytes, bytes]
"""Names from the first bound on and below the second (empty: to the end), and the asker's fingerprint of them; an empty
fingerprint asks for the names."""
Part = tuple[bytes, bytes]
"""The bound where a part ends (empty: the end of its range) and its fingerprint."""
Answer = tuple[int, tuple[Row, ...], bool, tuple[Part, ...]]
"""Kind, names (NAMES), whether more follow the last of them, parts (PARTS)."""


def fingerprint(names: Sequence[bytes]) -> bytes:
    """Of sorted names."""
    state = blake3(b"hinet/1/range\0" + len(names).to_bytes(8, "big"))
    state.update(b"".join(names))
    return state.digest(length=fingerprint_bytes)


def _span(names: Sequence[bytes], lower: bytes, upper: bytes) -> tuple[int, int]:
    begin = bisect_left(names, lower)
    return begin, max(begin, bisect_left(names, upper) if upper else len(names))


def _bound(before: bytes, name: bytes) -> bytes:
    """The shortest bytes that are above one name and not above the next."""
    for length in range(1, len(name)):
        if name[:length] > before:
            return name[:length]
    return name


# --- answering -------------------------------------------------------------------------------------------------------


def answer(held: Sequence[Row], asked: Sequence[Asked]) -> tuple[Answer, ...]:
    """What to say of each range. `held` is sorted by name. All names and parts together stay within one frame: where
    no room is left, the answer is that more names follow."""
    names = [name for name, _ in held]
    names_left, parts_left = limits.packs_list_max, limits.range_parts_max
    answers: list[Answer] = []
    for lower, upper, theirs in asked:
        begin, end = _span(names, lower, upper)
        if theirs and fingerprint(names[begin:end]) == theirs:
            answers.append((SAME, (), False, ()))
        elif theirs and end - begin > _NAMES_FEW and parts_left >= _PARTS_MAX:
            parts = _split(names, begin, end)
            parts_left -= len(parts)
            answers.append((PARTS, (), False, parts))
        else:
            told = min(end - begin, names_left)
            names_left -= told
            answers.append((NAMES, tuple(held[begin:begin + told]), begin + told < end, ()))
    return tuple(answers)


def _split(names: Sequence[bytes], begin: int, end: int) -> tuple[Part, ...]:
    count = min(_PARTS_MAX, -(-(end - begin) // _PART_NAMES))
    cuts = [begin + (end - begin) * number // count for number in range(count + 1)]
    return tuple((_bound(names[cut - 1], names[cut]) if cut < end else b"", fingerprint(names[at:cut]))
                 for at, cut in itertools.pairwise(cuts))


# --- asking ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Search:
    """One comparison with one sibling. Ask with `next_question` until it is empty, give each answer to `take`; then
    `found` is exactly what the sibling holds and this device does not, `lacking` what only this device holds, if the
    sibling is honest."""

    held: Sequence[bytes]
    """Names that this device holds, sorted."""
    found: dict[bytes, int] = field(default_factory=dict)
    lacking: set[bytes] = field(default_factory=set)
    _open: deque[tuple[bytes, bytes, int]] = field(default_factory=lambda: deque([(b"", b"", 0)]))
    """Ranges that are not settled, and how deep they are."""
    _asked: tuple[tuple[bytes, bytes, int], ...] = ()
    _answers: int = 0

    def next_question(self) -> tuple[Asked, ...]:
        """The ranges to ask for now; empty when the search is over."""
        assert not self._asked, "the last question was not answered yet"
        self._asked = tuple(self._open.popleft() for _ in range(min(len(self._open), limits.ranges_max)))
        return tuple(self._question(lower, upper) for lower, upper, _ in self._asked)

    def _question(self, lower: bytes, upper: bytes) -> Asked:
        begin, end = _span(self.held, lower, upper)
        # With nothing here there is nothing to compare: the names at once save rounds.
        return (lower, upper, fingerprint(self.held[begin:end]) if end > begin else b"")

    def take(self, answers: Sequence[Answer]) -> None:
        """Raises MessageError for answers that don't fit the question, lead nowhere, or have no end."""
        asked, self._asked = self._asked, ()
        self._answers += 1
        if len(answers) != len(asked):
            raise MessageError("The answer about ranges of packs has not one row for each range.")
        if self._answers > limits.range_answers_max or len(self._open) > limits.ranges_open_max:
            raise MessageError("The sibling's answers about its packs have no end.")
        progress = not asked
        for (lower, upper, depth), (kind, rows, more, parts) in zip(asked, answers, strict=True):
            if kind == NAMES and not parts:
                progress |= self._take_names(lower, upper, depth, rows, more)
            elif kind == PARTS and not rows and not more:
                self._take_parts(lower, upper, depth, parts)
                progress = True
            elif kind == SAME and not rows and not more and not parts:
                progress = True
            else:
                raise MessageError("An answer about a range of packs has another form.")
        if not progress:
            raise MessageError("The sibling's answer about its packs says nothing.")

    def _take_names(self, lower: bytes, upper: bytes, depth: int, rows: Sequence[Row], more: bool) -> bool:
        last = b""
        for name, size in rows:
            if name <= last or name < lower or (upper and name >= upper):
                raise MessageError("The sibling lists its packs out of order, or outside the range that was asked for.")
            last = name
            at = bisect_left(self.held, name)
            if at == len(self.held) or self.held[at] != name:
                self.found[name] = size
        if len(self.found) > limits.ranges_found_max:
            raise MessageError("The sibling lists more packs than a vault may have.")
        rest = (last + b"\0" if last else lower) if more else upper
        if rows or not more:
            begin, end = _span(self.held, lower, rest)
            self.lacking.update({*self.held[begin:end]}.difference(name for name, _ in rows))
        if more:
            self._open.append((rest, upper, depth))
        return bool(rows) or not more

    def _take_parts(self, lower: bytes, upper: bytes, depth: int, parts: Sequence[Part]) -> None:
        if not 2 <= len(parts) <= _PARTS_MAX or depth >= _DEPTH_MAX or parts[-1][0] != b"":
            raise MessageError("The sibling splits a range of its packs in no useful way.")
        at = lower
        for number, (bound, theirs) in enumerate(parts, 1):
            if number < len(parts) and (bound <= at or (upper and bound >= upper)):
                raise MessageError("The parts of a range of packs are out of order or outside it.")
            end = bound or upper
            begin, stop = _span(self.held, at, end)
            if fingerprint(self.held[begin:stop]) != theirs:
                self._open.append((at, end, depth + 1))
            at = end
