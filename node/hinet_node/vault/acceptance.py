"""Honest restores: what the owner accepts so that alarms end, and what is done without being asked. SPEC.md, 6.11.

A fork (two heads with one number) and a head whose packs are lost stay told until the owner says that this is known.
Nothing waits for that: both states of a fork are merged as soon as they are here, and what is lost keeps no new head
away. Leaves merging to `view`, publishing to `publish`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hinet_node.errors import UsageError
from hinet_node.vault.items import Trouble
from hinet_protocol import limits
from hinet_protocol.heads import Head
from hinet_protocol.reconcile import needs_of

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

_NAMES_SHOWN = 100


@dataclass(frozen=True)
class HeadState:
    """One head that this device keeps and looks at. `state` is `whole`, `fork`, `lost` (packs of it are missing),
    `unreadable` or `settled`."""

    head: Head
    state: str
    missing: int
    """Packs that it needs and that are not held here."""
    newest: bool


@dataclass(frozen=True)
class Accepted:
    """What accepting a head means."""

    head: Head
    what: str
    """`fork`, `lost` or `unreadable`."""
    settles: tuple[Head, ...]
    lost_packs: int
    files: tuple[bytes, ...]
    """Some of the files shown now whose content is lost with the packs."""
    files_total: int


class Acceptance:
    """Reads the vault's state; `accept` publishes. Blocks on the disk, used under the vault's writing lock."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core

    # ---- what is lost --------------------------------------------------------------------------------------------

    def lost(self) -> frozenset[bytes]:
        """Packs that kept heads need and that are not held. A head is kept only when it is whole, so they were held
        once, or the owner knows of them."""
        return self._missing(self._core.heads.current())

    def given_up(self, more: Collection[bytes] = ()) -> frozenset[bytes]:
        """Those of the lost packs that settled heads, or these ones, need: the owner has given them up, and new heads
        of this device do not name them."""
        settled = self._core.heads.settled
        if not settled and not more:
            return frozenset()
        return self._missing([head for head in self._core.heads.current()
                              if head.hash in settled or head.hash in more])

    def _missing(self, heads: Collection[Head]) -> frozenset[bytes]:
        held = self._core.store.index.packs()
        return frozenset(name for name in needs_of(heads, self._core.store.read_list).packs if name not in held)

    def must_speak(self) -> bool:
        """Whether this device should publish a head although its tree has not changed: somebody settled its newest
        head, which would be all that others have of it; or that one still names packs that were given up."""
        heads, own = self._core.heads, self._core.heads.own()
        if own is None or not heads.settled:
            return False
        return own.hash in heads.settled or not self.given_up().isdisjoint(
            needs_of([own], self._core.store.read_list).packs)

    # ---- what the owner sees -------------------------------------------------------------------------------------

    def overview(self) -> list[HeadState]:
        """The newest head of each device, and others that count or are contested."""
        heads, newest = self._core.heads, self._core.heads.newest()
        forked = {head.hash for group in heads.forks() for head in group}
        found = []
        for head in heads.current():
            missing = len(self._missing([head]))
            state = ("settled" if head.hash in heads.settled else "fork" if head.hash in forked else
                     "lost" if missing else "unreadable" if head.hash in self._core.view.unreadable else "whole")
            found.append(HeadState(head, state, missing, newest.get(head.device) == head))
        return found

    # ---- accepting -----------------------------------------------------------------------------------------------

    def find(self, beginning: str) -> HeadState:
        """The head whose hash begins so. Errors: `UsageError` E_NO_SUCH_HEAD, E_HEAD_AMBIGUOUS."""
        found = [state for state in self.overview() if beginning and state.head.hash.hex().startswith(
            beginning.lower())]
        if len(found) > 1:
            raise UsageError(f"{beginning!r} fits {len(found)} heads. Nothing was accepted.", code="E_HEAD_AMBIGUOUS",
                             next_step="Give more digits: hinet-node vault history --heads")
        if not found:
            raise UsageError(f"no head that this device keeps begins with {beginning!r}.", code="E_NO_SUCH_HEAD",
                             next_step="See the heads: hinet-node vault history --heads")
        return found[0]

    def accept(self, beginning: str, *, dry: bool = False) -> Accepted:
        """Accept a fork, or give up what only lost packs hold; with `dry` only say what that means.

        Errors: as `find`; `UsageError` E_NOTHING_TO_ACCEPT for a head that is whole; `NotAuthorised` on a keeper.
        """
        state = self.find(beginning)
        core, heads = self._core, self._core.heads
        core.publisher.epoch()
        if state.state == "fork":
            newest = heads.newest()[state.head.device]
            group = next(group for group in heads.forks() if state.head in group)
            wanted = tuple(head for head in group if head.hash != newest.hash)
            accepted = Accepted(state.head, "fork", wanted, 0, (), 0)
        elif state.state in ("lost", "unreadable"):
            gone = self._missing([state.head])
            wanted = tuple(head for head in heads.needed() if head == state.head
                           or not gone.isdisjoint(self._missing([head])))
            files = [name for name, (version, _) in sorted(core.view.shown().items())
                     if not core.edits.held(version)]
            accepted = Accepted(state.head, state.state, wanted, len(gone), tuple(files[:_NAMES_SHOWN]), len(files))
        else:
            raise UsageError(f"head {state.head.hash.hex()[:16]} is {state.state}: there is nothing to accept.",
                             code="E_NOTHING_TO_ACCEPT", next_step="See the heads: hinet-node vault history --heads")
        if not dry:
            core.publish_settling([head.hash for head in accepted.settles])
            core.accept(())  # what stands in for a head that was given up is taken up, and its trouble is over
        return accepted


def rolled_back(device: bytes, name: str, before: int, offered: Collection[Head]) -> Trouble | None:
    """What the owner should know when a device answers with an older state than it was known to have (its newest
    number was `before`): an older copy of its disk was put back. None when all is well."""
    if len(offered) >= limits.devices_max or sum(len(head.raw) for head in offered) > limits.frame_bytes_max // 2:
        return None  # a list that was cut says nothing about what is not in it
    newest = max((head.seq for head in offered if head.device == device), default=0)
    if newest >= before:
        return None
    return Trouble("E_ROLLBACK", f"{name} came back with an older state of the vault (its number {newest}; it had "
                   f"reached {before}): an older copy of its disk was put back. Nothing is lost: it takes up what "
                   "is newer, and this ends by itself.", f"Leave {name} connected until it is in step: "
                   "hinet-node vault status")


def lost_there(name: str, head: Head, packs: int) -> Trouble:
    """What the owner should know when a sibling tells of heads whose packs it has lost itself."""
    return Trouble("E_PACK_MISSING", f"{name} tells of states of the vault that can't be taken up here: it has lost "
                   f"{packs} {'pack' if packs == 1 else 'packs'} of them.",
                   "Bring a device in reach that holds them. If none does, on a device that has the rest: "
                   f"hinet-node vault accept-older --head {head.hash.hex()[:12]}")
