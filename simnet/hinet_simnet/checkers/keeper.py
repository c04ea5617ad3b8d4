"""Keeper: a keeper holds the household's bytes and can read none of them.

SPEC section 6. Two things are looked at: a keeper's agent has no key of any epoch, and nothing on its disk contains a
piece of a file that the run put into the vault, nor a long name of one. The pieces are taken from the writer's vault
after each acknowledged write, 24 bytes from the middle, and only ones with enough different bytes that padding can't
match them. This is the cheap form: new files of the keeper's disk are searched once each, a few pieces at a time. What
it was sent it keeps on its disk, so the bytes on the way are not looked at (the trace has only their digests). Needs
the agent in this process; of processes it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hinet_node.errors import NodeError
from hinet_node.local.vault_verbs import name_bytes
from hinet_node.ports import Disk
from hinet_simnet.checkers.views import View, Views
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

NEEDLES_MAX = 64
NEEDLE_BYTES = 24
DIFFERENT_BYTES_MIN = 10
FILES_A_LOOK_MAX = 64
FILE_BYTES_MAX = 8 << 20
DEPTH_MAX = 6


class Keeper:
    """See the module."""

    name = "keeper"

    def __init__(self) -> None:
        self._views = Views()
        self._puts: list[tuple[str, str]] = []
        self._needles: dict[bytes, str] = {}
        self._scanned: dict[tuple[str, str], tuple[int, int]] = {}
        """Keeper and file -> its size, and how many pieces were looked for in it."""
        self._told: dict[tuple[str, str], None] = {}

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind != "send":
            self._views.observe(kind, node)
        if kind == "ack" and len(self._needles) + len(self._puts) < NEEDLES_MAX:
            self._puts.append((node, str(fields["file"])))
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        found: list[Finding] = []
        for view in await self._views.honest(stage):
            if view.agent is None or view.role != "keeper":
                continue
            if view.agent.membership.epoch_keys():
                found += self._once(stage, view, "holds a key of the vault")
            self._take_needles(stage)
            for file in self._fresh(view, view.agent.ports.disk):
                what = self._found_in(view.agent.ports.disk, file)
                if what:
                    found += self._once(stage, view, f"has {what} in clear in {file}")
        return found

    async def settled(self, stage: Stage) -> Sequence[str]:
        return ()

    def _take_needles(self, stage: Stage) -> None:
        puts, self._puts = self._puts, []
        for node, file in puts:
            agent = stage.agent(node)
            row = None if agent is None else agent.vault.core.view.lookup(name_bytes(file))
            if agent is None or row is None:
                continue
            try:
                content = b"".join(agent.vault.core.content(row[0]))
            except (NodeError, OSError):
                continue
            middle = max(0, len(content) // 2 - NEEDLE_BYTES // 2)
            for needle, what in ((content[middle:middle + NEEDLE_BYTES], f"content of {file!r}"),
                                 (name_bytes(file), f"the name {file!r}")):
                if len(set(needle)) >= DIFFERENT_BYTES_MIN and len(self._needles) < NEEDLES_MAX:
                    self._needles[needle] = what

    def _fresh(self, view: View, disk: Disk) -> list[str]:
        """Files that are new or have grown, or in which not all pieces were looked for."""
        found = []
        for file in _files(disk, "", DEPTH_MAX):
            state = (disk.size(file), len(self._needles))
            if self._scanned.get((view.name, file)) != state and state[0] <= FILE_BYTES_MAX:
                self._scanned[view.name, file] = state
                found.append(file)
                if len(found) >= FILES_A_LOOK_MAX:
                    break
        return found

    def _found_in(self, disk: Disk, file: str) -> str:
        try:
            data = disk.read(file)
        except (OSError, NodeError):
            return ""
        return next((what for needle, what in self._needles.items() if needle in data), "")

    def _once(self, stage: Stage, view: View, what: str) -> list[Finding]:
        if (view.name, what) in self._told:
            return []
        self._told[view.name, what] = None
        return [Finding(self.name, f"the keeper {view.name} {what}", stage.now_s(), view.name)]


def _files(disk: Disk, folder: str, depth: int) -> list[str]:
    found = []
    for entry in disk.list(folder):
        path = f"{folder}/{entry}" if folder else entry
        inner = disk.list(path) if depth and _is_folder(disk, path) else None
        if inner is None:
            found.append(path)
        else:
            found += _files(disk, path, depth - 1)
    return found


def _is_folder(disk: Disk, path: str) -> bool:
    try:
        disk.list(path)
    except NotADirectoryError:
        return False
    return True
