"""A household (or several) of real agents in virtual time: the same agent code, over the in-memory ports.

`run_world(scenario, seed=…)` gives an async scenario a `World`, in which it founds households, lets devices join by
code, calls their local API, cuts power and links. Everything random comes from the seed: the same seed and scenario
give the same trace digest. Leaves what agents do to `hinet_node.agent`, and the physics to the other files here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from hinet_node.agent import Agent
from hinet_node.belonging.join import Wanted, join_household, preflight
from hinet_node.belonging.membership import Membership, draw_root
from hinet_node.config import Config
from hinet_node.machine import Machine
from hinet_node.ports import Ports
from hinet_node.vault import VaultSettings
from hinet_protocol.invitations import parse_code
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.compute import FakeCompute
from hinet_simnet.discovery import Lan
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.network import Internet
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.trace import Trace

SMALL_VAULT = VaultSettings(chunk_bytes=1 << 16, pack_bytes=1 << 18, reserve_bytes=0, index_path=":memory:")
"""Packs small enough that a few files make several."""

Condition = Callable[[], "bool | Awaitable[bool]"]


@dataclass
class SimMachine:
    """One simulated machine: its disk and clock outlive the agent that runs on it."""

    name: str
    tier: str
    disk: MemoryDisk
    clock: VirtualClock
    starts: int = 0
    agent: Agent | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    log: list[str] = field(default_factory=list)


class World:
    """Machines on one LAN. To be used inside `run_world`."""

    def __init__(self, seed: int, nursery: trio.Nursery, *, vault: VaultSettings = SMALL_VAULT) -> None:
        self.seed = seed
        self.trace = Trace()
        self.internet = Internet(seed, self.trace)
        self.lan = Lan(self.internet)
        self.machines: dict[str, SimMachine] = {}
        self._nursery = nursery
        self._vault = vault

    # ---- machines and agents -------------------------------------------------------------------------------------

    def machine(self, name: str, tier: str = "laptop", *, clock_offset_s: float = 0.0) -> SimMachine:
        """The machine of this name, made when it is new."""
        if name not in self.machines:
            self.machines[name] = SimMachine(name, tier, MemoryDisk(name), VirtualClock(offset_s=clock_offset_s))
        return self.machines[name]

    def ports(self, name: str) -> Ports:
        """Fresh ports for a machine, as after a start: disk and clock stay, the network is new."""
        machine = self.machine(name)
        machine.starts += 1
        return Ports(clock=machine.clock, disk=machine.disk, compute=FakeCompute(machine.disk),
                     randomness=SeededRandomness(self.seed, f"{name} {machine.starts}"),
                     network=self.internet.host(name), discovery=self.lan.host(name))

    def agent(self, name: str) -> Agent:
        """The running agent of this machine."""
        agent = self.machines[name].agent
        assert agent is not None, f"no agent runs on {name}"
        return agent

    async def add(self, name: str, tier: str = "laptop", *, role: str = "member") -> Agent:
        """Found the household with the first machine; let each further one join by a code of the first."""
        if not self.machines:
            return await self.found(name, tier)
        return await self.join(name, by=next(iter(self.machines)), tier=tier, role=role)

    async def found(self, name: str, tier: str = "cloud") -> Agent:
        """A new household: what `hinet-node init` does, then `run`."""
        self.machine(name, tier)
        ports = self.ports(name)
        Membership.found(ports.disk, ports.randomness, ports.clock, name=name, tier=tier,
                         root=draw_root(ports.randomness))
        return await self.start(name)

    async def join(self, name: str, *, by: str, tier: str = "laptop", role: str = "member") -> Agent:
        """What `hinet-node invite` on one machine and `join CODE` on the other do, then `run`."""
        shown = await self.call(by, "invite", role=role, accept=True, wait=False)
        self.machine(name, tier)
        ports = self.ports(name)
        keys = preflight(ports.disk, ports.randomness)
        await join_household(ports, keys, Wanted(parse_code(shown["code"]), name, tier))
        return await self.start(name)

    async def start(self, name: str) -> Agent:
        """Run the agent on a machine whose disk belongs to a household."""
        machine, ports = self.machine(name), self.ports(name)

        def log(line: str) -> None:
            machine.log.append(line)
            self.trace.note(f"{name}: {line}")

        membership = Membership.load(ports.disk, ports.randomness, ports.clock)
        agent = Agent(ports, membership, Config(name=name, tier=machine.tier), listen=["/ip4/0.0.0.0/tcp/0"], log=log,
                      machine=Machine(("fake",), 1 << 30), version="simnet", vault_settings=self._vault)
        machine.agent, machine.scope = agent, trio.CancelScope()
        self.trace.note(f"start {name}")
        await self._nursery.start(self._run, machine, agent)
        return agent

    async def _run(self, machine: SimMachine, agent: Agent, *, task_status: Any) -> None:
        with machine.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(agent.run)
                task_status.started()

    async def call(self, name: str, verb: str, /, **args: Any) -> dict[str, Any]:
        """Call the local API of a machine's agent, as the command line does."""
        return await self.agent(name).api.dispatch(verb, args)

    # ---- what happens to them ------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Cut the power: no goodbye; what was not made durable is gone."""
        self.trace.note(f"kill {name}")
        self.internet.kill(name)
        self.lan.kill(name)
        machine = self.machines[name]
        machine.scope.cancel()
        machine.agent = None
        machine.disk.crash()

    async def restart(self, name: str) -> Agent:
        """Power comes back (after a kill) and the agent starts."""
        if self.machines[name].agent is not None:
            self.kill(name)
        return await self.start(name)

    def partition(self, *groups: Sequence[str]) -> None:
        """Only machines of one group reach each other from now on."""
        self.internet.partition(*groups)

    def heal(self) -> None:
        """All machines reach each other again."""
        self.internet.heal()

    # ---- looking -------------------------------------------------------------------------------------------------

    async def until(self, condition: Condition, *, seconds: float = 120, every_s: float = 0.25) -> float:
        """Wait in virtual time until a condition holds; returns the seconds that it took. Errors: `TooSlowError`."""
        begun_s = trio.current_time()
        with trio.fail_after(seconds):
            while True:
                found = condition()
                if found if isinstance(found, bool) else await found:
                    return trio.current_time() - begun_s
                await trio.sleep(every_s)

    def meshed(self, *names: str) -> bool:
        """Each of these machines has an open session with each other one."""
        wanted = {name: sorted(other for other in names if other != name) for name in names}
        return all(set(others) <= {session.device.name for session in self.agent(name).peers.sessions}
                   for name, others in wanted.items())

    def chains_agree(self, *names: str) -> bool:
        """These machines hold the same chain."""
        return len({self.agent(name).membership.chain().heads for name in names}) == 1

    def digest(self) -> str:
        """The digest of everything that happened so far."""
        return self.trace.digest()


def run_world(scenario: Callable[[World], Awaitable[None]], *, seed: int = 0, hours: float = 24.0,
              vault: VaultSettings = SMALL_VAULT) -> World:
    """Run a scenario in virtual time, at most that many virtual hours, and return the world that it leaves."""
    worlds: list[World] = []

    async def main() -> None:
        with trio.fail_after(hours * 3600):
            async with trio.open_nursery() as nursery:
                worlds.append(World(seed, nursery, vault=vault))
                await scenario(worlds[0])
                nursery.cancel_scope.cancel()

    virtual_run(main, seed=seed)
    return worlds[0]
