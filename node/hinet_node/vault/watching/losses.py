"""How much a folder may lose before its watch asks: an empty, unmounted or replaced folder never means "remove all".
Pure.
"""

from __future__ import annotations

LOSS_FILES_MIN = 10
"""So few removals never ask, unless they are all that there was."""
LOSS_SHARE = 0.25
"""More than this share of the files, gone within `LOSS_WINDOW_S`, asks first."""
LOSS_WINDOW_S = 600.0


class Losses:
    """Removals of the last while count together, so that a slow loss is no small one."""

    def __init__(self) -> None:
        self._removed: list[tuple[float, int]] = []

    def too_many(self, gone: int, known: int, now_s: float) -> bool:
        """Whether to ask before these files, of so many that are or were there, are removed."""
        self._removed = [(time_s, count) for time_s, count in self._removed if now_s - time_s < LOSS_WINDOW_S]
        before = sum(count for _, count in self._removed)
        lost, there = before + gone, before + known
        return gone > 0 and (gone == known or (lost >= LOSS_FILES_MIN and lost > LOSS_SHARE * there))

    def removed(self, count: int, now_s: float) -> None:
        self._removed.append((now_s, count))

    def forgive(self) -> None:
        """The owner confirmed: what was lost until now does not count any more."""
        self._removed.clear()
