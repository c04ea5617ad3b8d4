"""From what a look found to what is to be done: files to take, to rename, to remove, and whether to ask first. Pure.

What waits is kept here: changed files until they are still, missing ones for as long, so that an editor that removes
and writes anew makes no removal. A missing file that turns up under another name, by its inode, size and time, moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hinet_node.vault.watching.looking import Survey
from hinet_node.vault.watching.losses import Losses
from hinet_node.vault.watching.settling import Settling
from hinet_node.vault.watching.tracking import Tracked, same_content, stamp


@dataclass
class Plan:
    """Names are below the root."""

    puts: dict[bytes, bytes] = field(default_factory=dict)
    """Files to take, with the stamps that they had."""
    moves: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    """Old name -> new name and its stamp."""
    removals: list[bytes] = field(default_factory=list)
    asked: int = 0
    """So many removals wait for the owner's word."""
    replaced: bool = False
    """Another folder stands in the place: nothing may be done."""


class Planner:
    """Holds what waits between looks."""

    def __init__(self, still_s: float, busy_s: float) -> None:
        self.tracked = Tracked()
        self.losses = Losses()
        self._still_s = still_s
        self._settling = Settling(still_s, busy_s)
        self._missing: dict[bytes, float] = {}
        self._asking = False

    @property
    def waiting(self) -> int:
        return len(self._settling) + len(self._missing)

    def folders_waiting(self) -> set[bytes]:
        """Where what waits is to be looked at again."""
        return {name.rpartition(b"/")[0] for name in (*self._settling.names(), *self._missing)}

    def same_folder(self, survey: Survey) -> bool:
        """Whether a whole look at a folder that has another number shows the files that were taken: a disk that was
        mounted anew, or a folder that was copied to its place."""
        alike = sum(same_content(known, stamp(entry)) for name, entry in survey.files.items()
                    if (known := self.tracked.get(name)) is not None)
        return alike * 2 >= self.tracked.count

    def plan(self, survey: Survey, now_s: float, now_unix_s: float, *, confirmed: bool = False,
             known_before: Callable[[bytes, bytes], bool] = lambda name, stamp: False) -> Plan:
        """`known_before(name, stamp)` tells of files that were taken in an earlier run of the agent."""
        found = Plan()
        changed: dict[bytes, bytes] = {}
        for name, entry in survey.files.items():
            mark = stamp(entry)
            self._missing.pop(name, None)
            if self.tracked.get(name) == mark:
                self._settling.forget(name)
            elif known_before(name, mark):
                self.tracked.put(name, mark)
            else:
                changed[name] = mark
        self._note_missing(survey, now_s)
        came_from = self._moved(changed)
        lost = len(self._missing) - len(came_from)
        if confirmed:
            self.losses.forgive()
        if confirmed or not lost:
            self._asking = False
        elif self._asking or self.losses.too_many(lost, self.tracked.count + len(changed) - len(came_from), now_s):
            # Once asked, it stays asked until the owner answers or the files are back.
            self._asking = True
            found.asked = lost
        for name, mark in changed.items():
            old = came_from.get(name)
            entry = survey.files[name]
            if old is not None:
                if confirmed or now_s - self._missing[old] >= self._still_s:
                    found.moves[old] = (name, mark)
            elif self._settling.look(name, mark, now_unix_s - max(entry.mtime_ns, entry.ctime_ns) / 1e9, now_s):
                found.puts[name] = mark
        if not found.asked:
            left = set(self._missing).difference(came_from.values())
            found.removals = sorted(name for name in left
                                    if confirmed or now_s - self._missing[name] >= self._still_s)
        return found

    # ---- what was done -------------------------------------------------------------------------------------------

    def taken(self, name: bytes, mark: bytes) -> None:
        self._settling.forget(name)
        self.tracked.put(name, mark)

    def moved(self, old: bytes, new: bytes, mark: bytes) -> None:
        self.forgotten(old)
        self.taken(new, mark)

    def removed(self, names: list[bytes], now_s: float) -> None:
        self.losses.removed(len(names), now_s)
        for name in names:
            self.forgotten(name)

    def forgotten(self, name: bytes) -> None:
        """The vault keeps it, and the watch lets go of it."""
        self._missing.pop(name, None)
        self._settling.forget(name)
        self.tracked.drop(name)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _note_missing(self, survey: Survey, now_s: float) -> None:
        for name in survey.gone(self.tracked):
            self._missing.setdefault(name, now_s)
        for name in self._settling.names():
            folder = name.rpartition(b"/")[0]
            if name not in survey.files and (survey.whole or folder in survey.folders):
                self._settling.forget(name)  # it went before it was taken

    def _moved(self, changed: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """New name -> the missing one that it was."""
        if not self._missing:
            return {}
        by_file = {mark[:24]: name for name in self._missing if (mark := self.tracked.get(name)) is not None}
        found = {}
        for name, mark in changed.items():
            old = by_file.pop(mark[:24], None) if self.tracked.get(name) is None else None
            if old is not None:
                found[name] = old
        return found
