"""The simulator: agent-seconds in a real second at 3, 10 and 30 agents in one household, and a thousand idle nodes in
households of four, beside bare trio in virtual time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import getpid

import msgpack
import trio
import trio.testing

from bench.measure import Bench, memory_mib
from hinet_protocol import limits
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World, run_world

AGENTS = (3, 10, 30)
QUIET_S = 60.0
"""Virtual seconds of a settled household, in which only heartbeats pass."""
HOUSEHOLDS, MEMBERS = 250, 4
HOUR_S = 3600.0
HEARTBEAT_S = 30.0
SMALL_HOUSEHOLDS, SMALL_MEMBERS = 2, 5
Figures = dict[str, list[float]]


@dataclass
class Idle:
    """How idle households went."""

    nodes: int
    cpu_s: float
    events: int
    mib: float

    @property
    def rate(self) -> float:
        return self.events / self.cpu_s


def run(bench: Bench) -> None:
    """The largest household and the thousand nodes run once: their figures hardly vary and they take most of the
    time."""
    _scale(bench)
    for agents in AGENTS:
        found: Figures = {"join": [], "rate": [], "events": [], "bare": []}
        for seed in range(bench.repeats if agents < AGENTS[-1] else 1):
            joined_s, settled_s, events = _household(agents, seed)
            found["join"].append(joined_s)
            found["rate"].append(agents * QUIET_S / settled_s)
            found["events"].append(events / settled_s)
            found["bare"].append(_bare(agents, max(1, events)))
        bench.row(f"{agents} agents, settled", "agent-seconds / CPU s", found["rate"], "none", less=False)
        bench.row(f"{agents} agents, settled", "events / CPU s", found["events"], "bare trio in virtual time",
                  found["bare"], less=False)
        bench.row(f"{agents} agents: found, join by code, mesh, 60 s of rest", "CPU s", found["join"], "none")
    rows = [row for row in bench.rows if row.what.endswith("agents, settled") and row.unit == "agent-seconds / CPU s"]
    costs = [agents * QUIET_S / max(row.ours) for agents, row in zip(AGENTS, rows, strict=True)]
    steps = zip(AGENTS, AGENTS[1:], costs, costs[1:], strict=False)
    growth = ", ".join(f"{a} to {b} agents: {math.log(d / c) / math.log(b / a):.2f}" for a, b, c, d in steps)
    bench.notes.append(f"Cost of a settled virtual second grows with the agents to the power of ({growth}); a mesh of "
                       "all pairs is power 2.")


def _scale(bench: Bench) -> None:
    """A thousand nodes at rest for a virtual hour, and ten of them."""
    with _heartbeat(HEARTBEAT_S):
        many = _idle(HOUSEHOLDS, MEMBERS, HOUR_S)
        few = [_idle(SMALL_HOUSEHOLDS, SMALL_MEMBERS, HOUR_S) for _ in range(bench.repeats)]
    beats = HOUSEHOLDS * MEMBERS * (MEMBERS - 1) * HOUR_S / HEARTBEAT_S
    bare_s = beats / _bare_beats(HOUSEHOLDS * MEMBERS)
    bench.row(f"{many.nodes} nodes, {HEARTBEAT_S:.0f} s heartbeat: a virtual hour", "CPU s", [many.cpu_s],
              "bare trio and msgpack heartbeat", [bare_s])
    bench.row(f"{many.nodes} nodes", "events / CPU s", [many.rate], "10 nodes", [one.rate for one in few], less=False)
    bench.row(f"{many.nodes} nodes", "MiB a node", [many.mib / many.nodes], "none")
    shipped = _idle(HOUSEHOLDS, MEMBERS, HOUR_S / 6)
    bench.row(f"{many.nodes} nodes, the protocol's own {limits.heartbeat_idle_ms // 1000} s heartbeat: "
              "ten virtual minutes", "CPU s", [shipped.cpu_s], "none")


@contextmanager
def _heartbeat(seconds: float) -> Iterator[None]:
    """The protocol's heartbeat and the silence that ends a session, three times as long, for this run."""
    before = limits.heartbeat_idle_ms, limits.silence_ms_max
    limits.heartbeat_idle_ms, limits.silence_ms_max = int(seconds * 1000), int(3000 * seconds)
    try:
        yield
    finally:
        limits.heartbeat_idle_ms, limits.silence_ms_max = before


def _idle(households: int, members: int, seconds: float) -> Idle:
    """Households that were made direct, let settle for a minute, and then measured at rest."""
    found: list[Idle] = []

    async def story(world: World) -> None:
        before_mib = memory_mib(getpid())
        for number in range(households):
            await world.household([DeviceSpec(f"n{number}-{at}", f"h{number}", by="direct") for at in range(members)])
        await trio.sleep(60)
        begun_s, events = time.process_time(), world.trace.events
        await trio.sleep(seconds)
        found.append(Idle(households * members, time.process_time() - begun_s, world.trace.events - events,
                          memory_mib(getpid()) - before_mib))
        assert all(world.meshed(*(f"n{number}-{at}" for at in range(members))) for number in range(households))

    run_world(story, seed=1)
    return found[0]


def _bare_beats(nodes: int, rounds: int = 20) -> float:
    """Heartbeats per CPU second of tasks that sleep, pack, send, receive and unpack, and nothing else."""
    async def main() -> None:
        async def beat(send: trio.MemorySendChannel[bytes], at: int) -> None:
            async with send:
                for number in range(rounds):
                    await trio.sleep(HEARTBEAT_S * (1 + at / nodes / 2))
                    await send.send(msgpack.packb({"ping": number, "from": at}))

        async def hear(receive: trio.MemoryReceiveChannel[bytes]) -> None:
            async for data in receive:
                msgpack.unpackb(data)

        async with trio.open_nursery() as nursery:
            for at in range(nodes):
                send, receive = trio.open_memory_channel[bytes](1)
                nursery.start_soon(beat, send, at)
                nursery.start_soon(hear, receive)

    begun_s = time.process_time()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return nodes * rounds / (time.process_time() - begun_s)


def _household(agents: int, seed: int) -> tuple[float, float, int]:
    """CPU seconds to settle, CPU seconds of the quiet time, events in it."""
    found: list[float] = []
    names = [f"node{at}" for at in range(agents)]

    async def story(world: World) -> None:
        begun = time.process_time()
        for name in names:
            await world.add(name)
        await world.until(lambda: world.meshed(*names), seconds=600, every_s=1)
        await trio.sleep(QUIET_S)
        settled, events = time.process_time(), world.trace.events
        await trio.sleep(QUIET_S)
        found.extend([settled - begun, time.process_time() - settled, world.trace.events - events])

    run_world(story, seed=seed)
    return found[0], found[1], int(found[2])


def _bare(agents: int, events: int) -> float:
    """Events per CPU second when each event is one wake-up and one message between two of `agents` tasks."""
    rounds = max(1, events // agents)

    async def main() -> None:
        async def sender(send: trio.MemorySendChannel[bytes], step_s: float) -> None:
            async with send:
                for _ in range(rounds):
                    await trio.sleep(step_s)
                    await send.send(b"beat")

        async def receiver(receive: trio.MemoryReceiveChannel[bytes]) -> None:
            async for _ in receive:
                pass

        async with trio.open_nursery() as nursery:
            for at in range(agents):
                send, receive = trio.open_memory_channel[bytes](1)
                nursery.start_soon(sender, send, 1 + at / agents)
                nursery.start_soon(receiver, receive)

    begun = time.process_time()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return rounds * agents / (time.process_time() - begun)
