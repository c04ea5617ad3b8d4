"""Durable: no acknowledged byte is lost.

SPEC section 6. Every write that an agent acknowledged (trace event `ack` {file, digest, size}) stays in the vault until
a version that has seen it takes its place; a deletion is such a version, a concurrent edit is not: both stay.

- On the device that acknowledged it, at any time, so also after a power cut: looked at after each of its starts and now
  and then.
- In the end on every member and admin that runs and belongs, and there it can be read whole.

Left out: what a device wrote that is revoked now or lied, and what a machine wrote whose key a running copy of its disk
uses too, for the others take none of that. Where the agent runs in this process versions are told apart by their dots.
Where it is a process only what `vault.ls` shows is seen: the acknowledged digest, or one that somebody acknowledged
later for the same file.

The dot of a write is read at the first look after it. A file that its own device wrote again before that look counts as
kept when any version is there that has seen a write of this device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hinet_node.agent import Agent
from hinet_node.errors import NodeError
from hinet_node.local.vault_verbs import name_bytes
from hinet_protocol.trees import Dot, Versions
from hinet_simnet.checkers.views import View, Views, households
from hinet_simnet.findings import Finding
from hinet_simnet.stage import Stage

LOOKED_AT_MAX = 64
"""Writes that are looked at again in one look."""
NAMED_MAX = 8
PAGES_MAX = 20


@dataclass
class Write:
    """One acknowledged write."""

    number: int
    node: str
    file: str
    digest: str
    public: bytes = b""
    """The key of the device that acknowledged it, once seen."""
    dot: Dot | None = None
    """The version's name, once seen. Of content that was there already it is another device's."""
    is_lost: bool = False

    @property
    def what(self) -> str:
        return f"{self.file!r} ({self.digest[:8]}), which {self.node} acknowledged"


class Durable:
    """See the module."""

    name = "durable"

    def __init__(self) -> None:
        self._views = Views()
        self._writes: dict[str, list[Write]] = {}
        self._count = 0
        self._due: dict[str, None] = {}
        """Devices whose writes are all looked at next: they wrote or started."""
        self._turn = 0
        self._read: dict[tuple[str, int], None] = {}
        """Device and write of which it was read whole there after the faults had ended."""

    def observe(self, kind: str, node: str, fields: Mapping[str, Any]) -> Sequence[Finding]:
        if kind == "send":
            return ()
        self._views.observe(kind, node)
        if kind == "ack":
            self._count += 1
            self._writes.setdefault(node, []).append(
                Write(self._count, node, str(fields["file"]), str(fields["digest"])))
        if kind in ("ack", "start") and node in self._writes:
            self._due[node] = None
        return ()

    async def look(self, stage: Stage) -> Sequence[Finding]:
        found: list[Finding] = []
        for name in [name for name in self._due if stage.running(name) and name not in self._views.frozen]:
            del self._due[name]
            found += await self._look_at(stage, name, self._writes[name])
        for name, write in self._next():
            found += await self._look_at(stage, name, [write])
        return found

    async def settled(self, stage: Stage) -> Sequence[str]:
        views = await self._views.honest(stage)
        running = {view.name: view.public for view in views}
        missing: list[str] = []
        for group in households(views):
            members = {view.name for view in group}
            writes = [write for name in self._writes if name in members for write in self._writes[name]
                      if not write.is_lost and running.get(name) == (write.public or running.get(name))]
            for view in group:
                if view.role in ("member", "admin") and writes:
                    missing += await self._missing(stage, view, writes)
        more = [f"and {len(missing) - NAMED_MAX} more"] if len(missing) > NAMED_MAX else []
        return missing[:NAMED_MAX] + more

    # ---- on the device that acknowledged -------------------------------------------------------------------------

    def _next(self) -> list[tuple[str, Write]]:
        """The next few of all writes, in turn."""
        names = list(self._writes)
        picked = []
        for _ in range(min(LOOKED_AT_MAX, self._count)):
            self._turn += 1
            writes = self._writes[names[self._turn % len(names)]]
            write = writes[self._turn // len(names) % len(writes)]
            picked.append((write.node, write))
        return picked

    async def _look_at(self, stage: Stage, name: str, writes: Sequence[Write]) -> list[Finding]:
        if name in self._views.liars or name in self._views.frozen or not stage.running(name):
            return []
        agent = stage.agent(name)
        if agent is None:
            return []  # a process: the end shows it, an ls for each look would be too dear
        found = []
        for write in writes:
            if write.is_lost:
                continue
            _name_it(write, agent)
            if not is_kept(write, agent.vault.core.view.tree.get(name_bytes(write.file), ())):
                write.is_lost = True
                found.append(Finding(self.name, f"{name} lost {write.what}", stage.now_s(), name))
        return found

    # ---- in the end ----------------------------------------------------------------------------------------------

    async def _missing(self, stage: Stage, view: View, writes: Sequence[Write]) -> list[str]:
        left = [write for write in writes if (view.name, write.number) not in self._read]
        if not left:
            return []
        if view.agent is None:
            shown = await _shown(stage, view.name)
            return [f"{view.name} does not show {write.what}" for write in left if not self._is_shown(write, shown)]
        missing = []
        for write in left:
            tree = view.agent.vault.core.view.tree
            if not is_kept(write, tree.get(name_bytes(write.file), ())):
                missing.append(f"{view.name} lacks {write.what}")
            elif not await _is_readable(view.agent, write.file):
                missing.append(f"{view.name} can't read {write.what}")
            else:
                self._read[view.name, write.number] = None
        return missing

    def _is_shown(self, write: Write, shown: Mapping[str, list[str]]) -> bool:
        there = shown.get(write.file, [])
        later = [other.digest for writes in self._writes.values() for other in writes
                 if other.file == write.file and other.number >= write.number]
        return any(digest in there for digest in later)


def is_kept(write: Write, versions: Versions) -> bool:
    """Whether these versions of its file hold the write, or one that has seen it."""
    if write.dot is not None:
        return any(version.dot == write.dot or version.has_seen(write.dot) for version in versions)
    return any(version.digest.hex() == write.digest or any(device == write.public for device, _ in version.seen)
               for version in versions)


def _name_it(write: Write, agent: Agent) -> None:
    """Find the write's dot, once: this device's version of that digest, or the one it found there already."""
    if write.dot is not None:
        return
    write.public = write.public or agent.membership.device_public
    same = [version for version in agent.vault.core.view.tree.get(name_bytes(write.file), ())
            if version.digest.hex() == write.digest]
    own = [version for version in same if version.device == write.public]
    if own or same:
        write.dot = (own or same)[0].dot


async def _is_readable(agent: Agent, file: str) -> bool:
    """Whether every version of the file can be read whole."""
    core = agent.vault.core
    try:
        for version in core.view.tree.get(name_bytes(file), ()):
            if not version.deleted:
                for _ in core.content(version):
                    pass
    except (NodeError, OSError):
        return False
    return True


async def _shown(stage: Stage, name: str) -> Mapping[str, list[str]]:
    """File -> digests that the device shows for it, concurrent edits among them."""
    shown: dict[str, list[str]] = {}
    after = ""
    for _ in range(PAGES_MAX):
        try:
            page = await stage.call(name, "vault.ls", after=after, all=True)
        except NodeError:
            break
        for row in page["items"]:
            shown.setdefault(row["conflict_of"] or row["name"], []).append(row["digest"])
            after = row["name"]
        if not page["more"] or not page["items"]:
            break
    return shown
