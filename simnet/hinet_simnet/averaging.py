"""Federated averaging as a workload: one averaging node, many others, a vector that goes out and comes back changed.

For people who study averaging itself: how rounds go with participation, links and many nodes. The nodes are actors over
the in-memory Network, not agents. The server takes `window` nodes at a time and adds up their vectors in the nodes'
order, so that the result is the same to the last bit on every run with the same seed. Vectors travel by reference and
each one's digest is in the trace. Leaves households and their learning to `house` and `learning`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import trio
from blake3 import blake3

from hinet_node.ports import Connection, Stream
from hinet_simnet.clock import virtual_run
from hinet_simnet.errors import SimnetError
from hinet_simnet.network import Internet, MemoryNetwork
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import LinkSpec
from hinet_simnet.trace import Trace

Vector = npt.NDArray[np.float32]
Train = Callable[[Vector, Vector, int, int], None]
"""`train(model, out, node, round)`: write what the node makes of the model into `out`; it never changes `model`."""

PROTOCOL = "/hinet-simnet/averaging/1"
SERVER = "server"
NODES_MAX, ROUNDS_MAX, VECTOR_BYTES_MAX = 60_000, 1_000_000, 1 << 32
DIAL_S = 60.0
WHOLE = 1 << 40


def add_a_hundredth(model: Vector, out: Vector, node: int, number: int) -> None:
    """The plainest training there is: every entry grows by 0.01."""
    np.add(model, np.float32(0.01), out=out)


@dataclass(frozen=True)
class Averaging:
    """What to run. `share` of the nodes takes part in each round, drawn from the seed; `train_s` is how long a node
    computes, in virtual seconds; `window` bounds the vectors in memory."""

    nodes: int = 100
    rounds: int = 10
    floats: int = 1_000_000
    share: float = 1.0
    window: int = 4
    train_s: float = 1.0
    train: Train = add_a_hundredth
    links: Sequence[LinkSpec] = ()

    def check(self) -> None:
        """Errors: `SimnetError` for what can't be run."""
        if not (1 <= self.nodes <= NODES_MAX and 1 <= self.rounds <= ROUNDS_MAX and self.window >= 1):
            raise SimnetError(f"{self.nodes} nodes, {self.rounds} rounds, a window of {self.window} can't be run",
                              next_step=f"take 1 to {NODES_MAX} nodes, 1 to {ROUNDS_MAX} rounds, a window of 1 or more")
        if not 1 <= 4 * self.floats <= VECTOR_BYTES_MAX or not 0.0 < self.share <= 1.0 or not self.train_s >= 0.0:
            raise SimnetError(f"{self.floats} floats with a share of {self.share} and {self.train_s} s of training "
                              "can't be run", next_step="take 1 float or more, a share up to 1, 0 s or more")


@dataclass
class Averaged:
    """What came of it. `rounds` has, for each round, when it ended (virtual seconds) and the mean of the vector."""

    model: Vector
    model_digest: str
    trace_digest: str
    rounds: list[tuple[float, float]] = field(default_factory=list)
    messages: int = 0
    message_bytes: int = 0


class _Trace(Trace):
    """Remembers the digest of the buffer that was sent last: one model that goes to all nodes is hashed once."""

    _last: tuple[object, str] = (None, "")

    def sent(self, source: str, target: str, channel: str, data: bytes | memoryview) -> None:
        size = len(data)
        self.messages += 1
        self.message_bytes += size
        if isinstance(data, memoryview) and data is self._last[0]:
            digest = self._last[1]
        else:
            digest = blake3(data).hexdigest(8)
            if isinstance(data, memoryview) and source == SERVER:
                self._last = (data, digest)
        self.event("send", source, to=target, on=channel, size=size, digest=digest)


class _Buffers:
    """Vectors that are used again: as many as were ever needed at once."""

    def __init__(self, floats: int) -> None:
        self._floats = floats
        self._free: list[Vector] = []

    def take(self) -> Vector:
        return self._free.pop() if self._free else np.empty(self._floats, np.float32)

    def give_back(self, vector: Vector) -> None:
        self._free.append(vector)


def run_averaging(job: Averaging, *, seed: int = 0) -> Averaged:
    """Run all rounds in virtual time. Errors: `SimnetError` for a job that can't be run."""
    job.check()
    return virtual_run(_Run(job, seed).main, seed=seed)


class _Run:
    """One run: the server's side, and the handler of the nodes."""

    def __init__(self, job: Averaging, seed: int) -> None:
        self._job = job
        self._seed = seed
        self._trace = _Trace()
        self._internet = Internet(seed, self._trace)
        self._buffers = _Buffers(job.floats)
        self._model: Vector = np.zeros(job.floats, np.float32)
        self._sum: Vector = np.empty(job.floats, np.float32)
        self._number = 0

    async def main(self) -> Averaged:
        for link in self._job.links:
            self._internet.set_link(link)
        server = self._internet.host(SERVER)
        randomness = SeededRandomness(self._seed, "participants")
        rounds: list[tuple[float, float]] = []
        async with trio.open_nursery() as nursery:
            addresses = [await nursery.start(self._node, at) for at in range(self._job.nodes)]
            async with server.serve(b"s" * 32, ["/ip4/0.0.0.0/tcp/0"], {}):
                connections = [await server.dial(address, None, DIAL_S) for address in addresses]
                for number in range(self._job.rounds):
                    self._number = number
                    await self._round(connections, self._participants(randomness))
                    rounds.append((trio.current_time(), float(self._model.mean(dtype=np.float64))))
            nursery.cancel_scope.cancel()
        return Averaged(self._model, blake3(_bytes_of(self._model)).hexdigest(), self._trace.digest(), rounds,
                        self._trace.messages, self._trace.message_bytes)

    def _participants(self, randomness: SeededRandomness) -> list[int]:
        """Who takes part, in the nodes' order."""
        left, chosen = list(range(self._job.nodes)), []
        for _ in range(max(1, round(self._job.share * self._job.nodes))):
            chosen.append(left.pop(randomness.below(len(left))))
        return sorted(chosen)

    async def _round(self, connections: Sequence[Connection], chosen: Sequence[int]) -> None:
        out: Any = _bytes_of(self._model)
        self._sum.fill(0.0)
        turns = [trio.Event() for _ in range(len(chosen) + 1)]
        turns[0].set()
        window = trio.Semaphore(self._job.window)
        async with trio.open_nursery() as nursery:
            for turn, node in enumerate(chosen):
                await window.acquire()
                nursery.start_soon(self._collect, connections[node], out, window, turns[turn], turns[turn + 1])
        np.divide(self._sum, np.float32(len(chosen)), out=self._sum)
        self._model, self._sum = self._sum, self._model

    async def _collect(self, connection: Connection, out: Any, window: trio.Semaphore, mine: trio.Event,
                       after: trio.Event) -> None:
        """One node's part of a round. Its vector is added when all before it are."""
        stream = await connection.open_stream(PROTOCOL)
        await stream.send_all(out)
        pieces = await _read(stream, len(out))
        await mine.wait()
        at = 0
        for piece in pieces:
            values = np.frombuffer(piece, np.float32)
            np.add(self._sum[at:at + len(values)], values, out=self._sum[at:at + len(values)])
            at += len(values)
        await stream.close()
        after.set()
        window.release()

    # ---- the nodes -------------------------------------------------------------------------------------------------

    async def _node(self, at: int, *, task_status: Any) -> None:
        network: MemoryNetwork = self._internet.host(f"node{at}")

        async def handle(connection: Connection, stream: Stream) -> None:
            pieces = await _read(stream, 4 * self._job.floats)
            model = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.float32)
            await trio.sleep(self._job.train_s)
            mine = self._buffers.take()
            self._job.train(model, mine, at, self._number)
            await stream.send_all(_bytes_of(mine))
            await stream.receive_some(1)  # the server closes once it has added the vector
            self._buffers.give_back(mine)

        listen = ["/ip4/0.0.0.0/tcp/0"]
        async with network.serve(at.to_bytes(32, "big"), listen, {PROTOCOL: handle}) as addresses:
            task_status.started(addresses[0])
            await trio.sleep_forever()


def _bytes_of(vector: Vector) -> Any:
    """The vector's own memory. The in-memory streams take it by reference, where the port asks for bytes."""
    return memoryview(vector).cast("B").toreadonly()  # type: ignore[arg-type]


async def _read(stream: Stream, size_bytes: int) -> list[bytes]:
    """So many bytes, in the pieces in which they came."""
    pieces, left = [], size_bytes
    while left:
        piece = await stream.receive_some(min(left, WHOLE))
        if not piece:
            raise SimnetError("a stream ended in the middle of a vector", next_step="this is a bug of the simulator")
        pieces.append(piece)
        left -= len(piece)
    return pieces
