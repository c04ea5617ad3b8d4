"""The stage of level "stack": the world, with libp2p between the agents and the links.

Clock, disk, compute, discovery, links and faults are the world's own. A connection's bytes are what libp2p writes, so a
message of the trace is one write of Noise, and its digest is of ciphertext. Leaves everything else to `World`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from hinet_node.ports import Ports
from hinet_node.real.transport import Libp2pNetwork
from hinet_simnet.clock import virtual_run
from hinet_simnet.network import MemoryNetwork
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.stack.keys import seeded_noise
from hinet_simnet.stack.sockets import MemorySockets
from hinet_simnet.trace import Trace
from hinet_simnet.world import World


class StackStage(World):
    """Machines in virtual time that speak libp2p. `hinet_simnet.stage.Stage`; to be used inside `run_stack`."""

    level = "stack"

    def ports(self, name: str) -> Ports:
        ports = super().ports(name)
        host = ports.network
        assert isinstance(host, MemoryNetwork)
        return replace(ports, network=Libp2pNetwork(sockets=MemorySockets(host)))


def run_stack(scenario: Callable[[StackStage], Awaitable[None]], *, seed: int = 0, hours: float = 24.0,
              trace: Trace | None = None) -> StackStage:
    """As `run_world`, through libp2p."""
    stages: list[StackStage] = []

    async def main() -> None:
        with trio.fail_after(hours * 3600):
            async with trio.open_nursery() as nursery:
                stages.append(StackStage(seed, nursery, trace=trace))
                await scenario(stages[0])
                nursery.cancel_scope.cancel()

    with seeded_noise(SeededRandomness(seed, "noise")):
        virtual_run(main, seed=seed)
    return stages[0]
