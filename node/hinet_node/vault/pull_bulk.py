"""Fetching packs over a bulk connection: asked for ahead, received in order, made durable while the next one comes.

A pack's bytes go from the connection's thread to its hash and its part file and never through the event loop. At most
one pack is in the middle of coming, so a kill costs what was on the wire of that one. Leaves which packs to fetch to
`transfer`, the connection to `bulk`. SPEC.md, 5.12 and 6.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from hinet_node.errors import NetworkError, NodeError
from hinet_node.ports import BulkStream, Pace
from hinet_node.vault.core import VaultCore
from hinet_node.vault.packstore import incoming_path
from hinet_node.vault.pull import keep_pack, resume, wrong_bytes
from hinet_protocol import bulk as wire
from hinet_protocol import limits
from hinet_protocol.errors import ProtocolError

_AHEAD_MIN = 2
_AHEAD_S = 0.5
_AHEAD_BYTES = (1 << 18, 8 << 20)
"""Asked for and not begun: what comes in half a second, so that the other end never waits, and that what a slow sibling
would give late is left to a faster one. At least and at most so many bytes, and two packs."""
_COMMITS_AT_ONCE = 3
"""Packs that are received and not durable yet."""

Take = Callable[[], tuple[bytes, int] | None]
"""The next pack to fetch and its size; None when there is none now."""


@dataclass(eq=False)
class _Wanted:
    name: bytes
    size_bytes: int
    offset: int = 0
    state: Any = None
    again: bool = False
    """Asked for a second time, from nothing: what was there of an earlier transfer did not match."""


@dataclass(eq=False)
class BulkPull:
    """One sibling's packs, until `take` gives no more. `done` is told of each durable pack, `failed` of each that did
    not come and why (None: the stream is over, and what ended it is raised): one of the two for all that was taken."""

    stream: BulkStream
    core: VaultCore
    sibling: str
    take: Take
    done: Callable[[bytes, int], None]
    failed: Callable[[bytes, NodeError | ProtocolError | OSError | None], None]
    pace: Pace | None = None
    _asked: deque[_Wanted] = field(default_factory=deque)
    _ahead_bytes: float = _AHEAD_BYTES[0]
    _commits: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(_COMMITS_AT_ONCE))

    async def run(self) -> None:
        """Errors: `NetworkError`, `NoSpace`, `OSError` of the disk: the stream is over then."""
        current: _Wanted | None = None
        failure: NodeError | ProtocolError | OSError | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    while True:
                        await self._ask_ahead()
                        if not self._asked:
                            break
                        current = self._asked.popleft()
                        if await self._receive(current, nursery):
                            current = None
                except (NodeError, ProtocolError, OSError) as error:
                    failure = error  # what was received whole is still made durable
        finally:
            for wanted in ([current] if current is not None else []) + list(self._asked):
                self.failed(wanted.name, None)
            self._asked.clear()
        if failure is not None:
            raise failure

    async def _ask_ahead(self) -> None:
        requests = b""
        while len(self._asked) < _AHEAD_MIN or (len(self._asked) < limits.bulk_requests_max and sum(
                wanted.size_bytes - wanted.offset for wanted in self._asked) < self._ahead_bytes):
            row = self.take()
            if row is None:
                break
            wanted = _Wanted(*row)
            self._asked.append(wanted)
            wanted.state, wanted.offset = await self.core.disk.run_blocking(
                partial(resume, self.core, incoming_path(wanted.name), wanted.size_bytes))
            requests += wire.encode_request(wire.PackRequest(wanted.name, wanted.offset))
        if requests:
            await self.stream.send_all(requests)

    async def _receive(self, wanted: _Wanted, nursery: trio.Nursery) -> bool:
        """The next answer; whether that pack is settled. Its bytes are in the part file then, or it is not there."""
        size = wire.decode_answer(await self.stream.receive_exactly(wire.answer_bytes))
        if size is None:
            self.failed(wanted.name, NodeError(f"{self.sibling} lists a pack that it can't give.",
                                               code="E_NO_SUCH_PACK", next_step="Ask another sibling."))
            return True
        if size != wanted.size_bytes:
            raise NetworkError(f"{self.sibling} says another size of a pack than before.")
        part, state = incoming_path(wanted.name), wanted.state

        def sink(piece: memoryview) -> None:
            self.core.disk.append(part, piece)
            state.update(piece)

        begun_s = trio.current_time()
        await self.stream.receive_into(size - wanted.offset, sink, self.pace)
        rate = (size - wanted.offset) / max(trio.current_time() - begun_s, 1e-4)
        self._ahead_bytes = min(max(_AHEAD_BYTES[0], (self._ahead_bytes + rate * _AHEAD_S) / 2), _AHEAD_BYTES[1])
        if state.digest() == wanted.name:
            await self._commits.acquire()
            nursery.start_soon(self._keep, wanted)
            return True
        self.core.disk.remove(part)
        if wanted.offset == 0 or wanted.again:
            self.failed(wanted.name, wrong_bytes(self.sibling, wanted.name))
            return True
        # After a power cut the beginning may be torn: then a second try from nothing is right.
        wanted.state, wanted.offset, wanted.again = type(state)(), 0, True
        self._asked.append(wanted)
        await self.stream.send_all(wire.encode_request(wire.PackRequest(wanted.name, 0)))
        return True

    async def _keep(self, wanted: _Wanted) -> None:
        try:
            await self.core.disk.run_blocking(lambda: keep_pack(self.core, wanted.name, wanted.size_bytes,
                                                              self.sibling))
            self.done(wanted.name, wanted.size_bytes - wanted.offset)
        except (NodeError, OSError) as error:
            self.failed(wanted.name, error)
        except BaseException:
            self.failed(wanted.name, None)
            raise
        finally:
            self._commits.release()
