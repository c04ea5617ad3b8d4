"""Moving the packs of a plan: over which carrier, which sibling gives which, each pack once. SPEC.md, 6.6.

Many bytes go over a bulk connection, few, and all where none can be had, over the session. Several siblings are pulled
from at once, each taking the next pack that nobody has begun. Leaves what to pull to `replicate`, one carrier's work to
`pull` and `pull_bulk`, how bulk connections come about to `bulk`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from hinet_node.errors import NetworkError, NodeError, NoSpace
from hinet_node.ports import BulkStream
from hinet_node.vault.bulk import Bulk
from hinet_node.vault.core import VaultCore
from hinet_node.vault.pacing import Limit
from hinet_node.vault.pull import pull_pack
from hinet_node.vault.pull_bulk import BulkPull
from hinet_protocol import limits
from hinet_protocol.errors import ProtocolError
from hinet_protocol.reconcile import PullPlan

if TYPE_CHECKING:
    from hinet_node.sessions.peers import Session

_PACKS_AT_ONCE = 2
_REST_S = limits.bulk_idle_ms_max / 1000 * 0.75
"""So long a bulk connection is kept after its last pack; the other end closes it a little later."""

Failure = NodeError | ProtocolError


@dataclass(eq=False)
class _Kept:
    """A bulk connection between two uses."""

    stream: BulkStream
    used_s: float
    bytes: int = 0


@dataclass(eq=False)
class _Work:
    """What one plan has come to so far."""

    waiting: deque[tuple[bytes, int]]
    failures: list[Failure] = field(default_factory=list)
    done: int = 0


class Transfer:
    """All pulling of packs. `in_flight` are those that come from some sibling now."""

    def __init__(self, core: VaultCore, bulk: Bulk | None, limit: Limit) -> None:
        self._core = core
        self._bulk = bulk
        self._limit = limit
        self._kept: dict[Session, _Kept] = {}
        self.in_flight: set[bytes] = set()
        self.pulled_packs = 0
        """Packs fetched since the start."""
        self.pulled_bytes = 0

    async def pull(self, session: Session, plan: PullPlan) -> int:
        """How many packs of the plan came. What another sibling gives meanwhile is left to it.

        Errors: `NetworkError` and the sibling's errors, `NoSpace`, `IntegrityError`.
        """
        work = _Work(deque(plan.packs))
        stream = await self._stream_for(session, plan.size_bytes)
        if stream is None or not await self._over_bulk(session, stream, work):
            await self._over_session(session, work)
        if work.failures and (work.done == 0 or _fatal(work.failures)):
            raise work.failures[0]
        return work.done

    async def leave(self, session: Session) -> None:
        """The session is over."""
        if self._bulk is not None:
            self._bulk.leave(session)
        await self._close(session)

    async def _close(self, session: Session) -> None:
        kept = self._kept.pop(session, None)
        if kept is not None:
            await kept.stream.close()

    async def tidy(self) -> None:
        """Close bulk connections that nothing came over for a while."""
        for session, kept in list(self._kept.items()):
            if trio.current_time() - kept.used_s > _REST_S:
                await self._close(session)

    # ---- carriers --------------------------------------------------------------------------------------------------

    async def _stream_for(self, session: Session, size_bytes: int) -> BulkStream | None:
        kept = self._kept.pop(session, None)
        if kept is not None:
            if trio.current_time() - kept.used_s <= _REST_S and kept.bytes + size_bytes < limits.bulk_bytes_max:
                self._kept[session] = kept
                return kept.stream
            await kept.stream.close()
        if self._bulk is None or size_bytes < self._core.settings.bulk_bytes_min:
            return None
        stream = await self._bulk.connect(session)
        if stream is not None:
            self._kept[session] = _Kept(stream, trio.current_time())
        return stream

    async def _over_bulk(self, session: Session, stream: BulkStream, work: _Work) -> bool:
        """Whether nothing is left to the session: False when the connection broke, as a middlebox may have it."""
        kept = self._kept[session]

        def done(name: bytes, came_bytes: int) -> None:
            kept.bytes += came_bytes
            self._came(work, name, came_bytes)

        def failed(name: bytes, error: Failure | OSError | None) -> None:
            self._failed(work, name, error)
            if error is None:
                work.waiting.append((name, sizes[name]))

        sizes, whole = dict(work.waiting), False
        try:
            await BulkPull(stream, self._core, session.device.name, lambda: self._take(work), done, failed,
                           self._limit.inbound()).run()
            whole = True
            kept.used_s = trio.current_time()
        except (NetworkError, ProtocolError):
            assert self._bulk is not None, "who has a stream has made it"
            self._bulk.broke(session)
            return False
        except NodeError as error:
            work.failures.append(error)
        except OSError as error:
            work.failures.append(disk_failed(error))
        finally:
            if not whole:
                self._kept.pop(session, None)
                with trio.CancelScope(shield=True):
                    await stream.close()
        return True

    async def _over_session(self, session: Session, work: _Work) -> None:
        async def one_after_the_other() -> None:
            while (row := self._take(work)) is not None:
                name, size = row
                try:
                    self._came(work, name, await pull_pack(
                        session, self._core, name, size, limit=self._limit,
                        outstanding=max(1, self._core.settings.requests_outstanding // _PACKS_AT_ONCE)))
                except (NodeError, ProtocolError, OSError) as error:
                    self._failed(work, name, error)
                finally:
                    self.in_flight.discard(name)

        async with trio.open_nursery() as nursery:
            for _ in range(_PACKS_AT_ONCE):
                nursery.start_soon(one_after_the_other)

    # ---- one pack --------------------------------------------------------------------------------------------------

    def _take(self, work: _Work) -> tuple[bytes, int] | None:
        while work.waiting and not _fatal(work.failures):
            name, size = work.waiting.popleft()
            if name not in self.in_flight and not self._core.store.holds(name):
                self.in_flight.add(name)
                return name, size
        return None

    def _came(self, work: _Work, name: bytes, came_bytes: int) -> None:
        self.in_flight.discard(name)
        work.done += 1
        self.pulled_packs += 1
        self.pulled_bytes += came_bytes

    def _failed(self, work: _Work, name: bytes, error: Failure | OSError | None) -> None:
        self.in_flight.discard(name)
        if error is not None:
            work.failures.append(disk_failed(error) if isinstance(error, OSError) else error)


def disk_failed(error: OSError) -> NodeError:
    """A worn card fails at one file first: that is trouble to tell of, and the next comparison tries again."""
    return NodeError(f"The home's disk failed while packs came in: {error.strerror or error}.", code="E_DISK",
                     next_step="See what the system says of it: dmesg   Then: hinet-node vault verify")


def _fatal(failures: list[Failure]) -> bool:
    """Whether going on with other packs of this sibling makes no sense now."""
    return any(isinstance(error, NetworkError | NoSpace) for error in failures)
