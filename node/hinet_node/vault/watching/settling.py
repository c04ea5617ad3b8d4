"""When a changed file is taken: once it was still for a moment, and a file that is written for ever now and then. Pure.

Stillness is what two looks saw; a file whose own time says that it was written long ago is taken at once, so that a
first look at 100,000 old files does not wait.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Waiting:
    stamp: bytes
    first_s: float
    since_s: float


class Settling:
    """Changed files that wait. Times in seconds, `now_s` of a monotonic clock, `age_s` by the file's own time."""

    def __init__(self, still_s: float, busy_s: float) -> None:
        self._still_s, self._busy_s = still_s, busy_s
        self._waiting: dict[bytes, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def look(self, name: bytes, stamp: bytes, age_s: float, now_s: float) -> bool:
        """A look found this file changed; whether it is to be taken now."""
        one = self._waiting.get(name)
        if one is None:
            if age_s >= self._still_s:
                return True
            one = self._waiting[name] = _Waiting(stamp, now_s, now_s)
        elif one.stamp != stamp:
            one.stamp, one.since_s = stamp, now_s
        return now_s - one.since_s >= self._still_s or now_s - one.first_s >= self._busy_s

    def forget(self, name: bytes) -> None:
        self._waiting.pop(name, None)

    def names(self) -> list[bytes]:
        return list(self._waiting)
