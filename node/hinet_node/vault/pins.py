"""Packs that must not be deleted now although no head retains them: a sibling is fetching them, an edit is about to
name them, or they came for a head that is not whole yet. SPEC.md, 6.10.

In memory only: after a restart transfers begin anew, and the age that deleting needs is longer than that takes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping
from typing import Protocol

from hinet_node.ports import Clock

READ_S = 900.0
"""So long after its last piece a transfer may still go on."""
_READS_MAX = 4_096


class Holder(Protocol):
    """Somebody who is about to name packs in a head."""

    packs: set[bytes]


class Pins:
    """May be used from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reads: dict[bytes, float] = {}
        self._awaited: dict[bytes, frozenset[bytes]] = {}
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def read(self, pack: bytes) -> None:
        """A sibling has just read a piece of it."""
        with self._lock:
            self._reads.pop(pack, None)
            self._reads[pack] = self._clock.monotonic_s()
            while len(self._reads) > _READS_MAX:
                del self._reads[next(iter(self._reads))]

    def await_for(self, device: bytes, packs: Collection[bytes]) -> None:
        """These are being fetched for heads which this sibling offers; replaces what was awaited for it before."""
        with self._lock:
            self._awaited.pop(device, None)
            if packs:
                self._awaited[device] = frozenset(packs)

    def hold(self, holder: Holder) -> None:
        """Its `packs` are pinned for as long as it exists."""
        with self._lock:
            self._holders.add(holder)

    def pinned(self) -> frozenset[bytes]:
        """All of them, now."""
        since = self._clock.monotonic_s() - READ_S
        with self._lock:
            awaited: Mapping[bytes, frozenset[bytes]] = dict(self._awaited)
            read = [pack for pack, at in self._reads.items() if at > since]
            held = [tuple(holder.packs) for holder in self._holders]  # each may grow meanwhile, in another thread
        return frozenset().union(read, *awaited.values(), *held)
