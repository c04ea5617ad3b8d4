"""The simulator: agent-seconds in a real second at 3, 10 and 30 agents, beside bare trio in virtual time."""

from __future__ import annotations

import math
import time

import trio
import trio.testing

from bench.measure import Bench
from hinet_simnet.world import World, run_world

AGENTS = (3, 10, 30)
QUIET_S = 60.0
"""Virtual seconds of a settled household, in which only heartbeats pass."""
Figures = dict[str, list[float]]


def run(bench: Bench) -> None:
    """The largest household runs once: its figures hardly vary and it takes most of the time."""
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
    rows = [row for row in bench.rows if row.unit == "agent-seconds / CPU s"]
    costs = [agents * QUIET_S / max(row.ours) for agents, row in zip(AGENTS, rows, strict=True)]
    steps = zip(AGENTS, AGENTS[1:], costs, costs[1:], strict=False)
    growth = ", ".join(f"{a} to {b} agents: {math.log(d / c) / math.log(b / a):.2f}" for a, b, c, d in steps)
    bench.notes.append(f"Cost of a settled virtual second grows with the agents to the power of ({growth}); a mesh of "
                       "all pairs is power 2.")


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
