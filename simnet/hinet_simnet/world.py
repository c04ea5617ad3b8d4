"""Many real agents in virtual time: the same agent code, over the in-memory ports. The stage of level "world".

`run_world(scenario, seed=…)` gives an async scenario a `World`, in which it founds households, lets devices join,
calls their local API, cuts power and links. Everything random comes from the seed: the same seed and scenario
give the same trace digest. Leaves what agents do to `hinet_node.agent`, and the physics to the other files here.

A household's devices are on one LAN; all LANs share one internet. A frozen device: nothing is read from its
connections, its calls and long disk work wait, nothing leaves it, its connections stay. Its own timers run on, and what
they did shows when it thaws, as the timers of a stopped process do that all expire at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

import trio

from hinet_node.agent import Agent
from hinet_node.belonging.join import Wanted, join_household, preflight
from hinet_node.belonging.membership import Membership
from hinet_node.config import Config
from hinet_node.errors import AgentNotRunning, NodeError, TryAgain
from hinet_node.foreign_errors import as_node_error
from hinet_node.machine import Machine
from hinet_node.ports import Compute, Ports
from hinet_node.vault import VaultSettings
from hinet_protocol.errors import ProtocolError
from hinet_protocol.invitations import parse_code
from hinet_simnet import founding
from hinet_simnet.calls import LOOKING, UNEXPECTED, acknowledged, dispatch
from hinet_simnet.clock import VirtualClock, virtual_run
from hinet_simnet.compute import FakeCompute
from hinet_simnet.discovery import Lan
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.errors import SimnetError
from hinet_simnet.findings import Finding
from hinet_simnet.machines import (
    Life,
    SimMachine,
    Started,
    could_not_start,
    plain_text,
    plain_traceback,
    split_error,
)
from hinet_simnet.network import Internet
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import DeviceSpec, LinkSpec
from hinet_simnet.trace import Trace

SMALL_VAULT = VaultSettings(chunk_bytes=1 << 16, pack_bytes=1 << 18, reserve_bytes=0, index_path=":memory:",
                            bulk_bytes_min=1 << 17)
"""Packs small enough that a few files make several."""
STOP_S = 30.0
STEPS = frozenset((
    "found", "join", "call", "kill", "stop", "start", "freeze", "thaw", "clone", "partition", "cut", "heal", "set_link",
    "fill_disk", "free_disk", "tear", "set_clock", "lie"))

Condition = Callable[[], "bool | Awaitable[bool]"]
MakeCompute = Callable[[SimMachine], Compute]


class World:
    """Machines in virtual time. `hinet_simnet.stage.Stage`; to be used inside `run_world` or `virtual_run`.

    `crashes` are the agents' exceptions so far; `on_crash` is told each one.
    """

    level = "world"

    def __init__(self, seed: int, nursery: trio.Nursery, *, trace: Trace | None = None,
                 vault: VaultSettings = SMALL_VAULT,
                 compute: MakeCompute = lambda machine: FakeCompute(machine.disk)) -> None:
        self.seed = seed
        self.trace = trace if trace is not None else Trace()
        self.internet = Internet(seed, self.trace)
        self.lans: dict[str, Lan] = {}
        self.machines: dict[str, SimMachine] = {}
        self.crashes: list[Finding] = []
        self.on_crash: list[Callable[[Finding], None]] = []
        self._started_names: dict[str, None] = {}
        self._nursery = nursery
        self._vault = vault
        self._compute = compute
        self._faults = SeededRandomness(seed, "faults")

    # ---- looking -------------------------------------------------------------------------------------------------

    @classmethod
    def supports(cls) -> Collection[str]:
        return STEPS

    def now_s(self) -> float:
        return trio.current_time()

    def names(self) -> Sequence[str]:
        return tuple(self._started_names)

    def running(self, name: str) -> bool:
        return name in self.machines and self.machines[name].agent is not None

    def agent(self, name: str) -> Agent | None:
        return self.machines[name].agent if name in self.machines else None

    def running_agent(self, name: str) -> Agent:
        """The agent of this machine. Errors: `AgentNotRunning`."""
        agent = self.agent(name)
        if agent is None:
            raise AgentNotRunning(f"no agent runs on {name}", next_step="start it first")
        return agent

    async def call(self, name: str, verb: str, /, **args: Any) -> dict[str, Any]:
        """Call the local API of a machine's agent, as the command line does. What changes something is in the trace,
        and each write that the agent acknowledged (kind `ack`). Errors: `NodeError`; an unexpected one is a crash."""
        agent = self.running_agent(name)
        if self.machines[name].frozen:
            raise TryAgain(f"the agent on {name} is frozen and does not answer", next_step="thaw it first")
        if verb in LOOKING:
            return await agent.api.dispatch(verb, args)
        life = self.machines[name].life
        assert life is not None
        try:
            result = await dispatch(agent, life, verb, args)
        except NodeError as error:
            self.trace.event("call", name, verb=verb, error=error.code)
            if error.code == UNEXPECTED and isinstance(error.__cause__, Exception):
                self._note_crash(name, error.__cause__)
            raise
        self.trace.event("call", name, verb=verb)
        for row in await acknowledged(agent, verb, args, result):
            self.trace.event("ack", name, **row)
        return result

    # ---- devices ---------------------------------------------------------------------------------------------------

    def machine(self, name: str, tier: str = "laptop", *, household: str = "home", disk_bytes: int | None = None,
                clock_offset_s: float = 0.0, clock_drift: float = 0.0) -> SimMachine:
        """The machine of this name, made when it is new."""
        if name not in self.machines:
            disk = MemoryDisk(name) if disk_bytes is None else MemoryDisk(name, capacity_bytes=disk_bytes)
            clock = VirtualClock(offset_s=clock_offset_s, drift=clock_drift)
            self.machines[name] = SimMachine(name, tier, household, disk, clock, disk_bytes=disk_bytes)
        return self.machines[name]

    def ports(self, name: str) -> Ports:
        """Fresh ports for a machine, as after a start: disk and clock stay, the network is new."""
        machine = self.machine(name)
        machine.starts += 1
        lan = self.lans.setdefault(machine.household, Lan(self.internet))
        return Ports(clock=machine.clock, disk=machine.disk, compute=self._compute(machine),
                     randomness=SeededRandomness(self.seed, f"{name} {machine.starts}"),
                     network=self.internet.host(name), discovery=lan.host(name), folders=machine.folders)

    async def found(self, device: DeviceSpec) -> None:
        """A new household: what `hinet-node init` does, then `run`."""
        founding.found(self._new_ports(device), device)
        self.trace.event("found", device.name, household=device.household, tier=device.tier)
        await self.start(device.name)

    async def join(self, device: DeviceSpec, *, by: str) -> None:
        """What `hinet-node invite` on one machine and `join CODE` on the other do, then `run`. `device.by` "direct"
        makes the certificate at once, without network and code words."""
        if device.by == "direct":
            admin = self.running_agent(by)
            founding.join(admin.membership, admin.addresses, self._new_ports(device), device)
        else:
            shown = await self.call(by, "invite", role=device.role, accept=True, wait=False)
            ports = self._new_ports(device)
            keys = preflight(ports.disk, ports.randomness)
            try:
                await join_household(ports, keys, Wanted(parse_code(shown["code"]), device.name, device.tier))
            except ProtocolError as error:
                raise as_node_error(error) from error
        self.trace.event("joined", device.name, by=by, role=device.role, tier=device.tier, how=device.by)
        await self.start(device.name)

    async def household(self, devices: Sequence[DeviceSpec]) -> None:
        """A whole household "direct": every home holds the same chain before the first agent starts."""
        founding.household([self._new_ports(device) for device in devices], devices)
        self.trace.event("found", devices[0].name, household=devices[0].household, tier=devices[0].tier)
        for device in devices[1:]:
            self.trace.event("joined", device.name, by=devices[0].name, role=device.role, tier=device.tier,
                             how="direct")
        for device in devices:
            await self.start(device.name)

    def _new_ports(self, device: DeviceSpec) -> Ports:
        self.machine(device.name, device.tier, household=device.household, disk_bytes=device.disk_bytes,
                     clock_offset_s=device.clock_offset_s, clock_drift=device.clock_drift)
        return self.ports(device.name)

    async def start(self, name: str) -> None:
        """Run the agent on a machine whose disk belongs to a household. Errors: `NodeError` why it could not start."""
        if self.running(name):
            raise SimnetError(f"the agent on {name} runs already", next_step="stop or kill it first")
        machine, ports, life = self.machine(name), self.ports(name), Life()

        def log(line: str) -> None:
            if not life.cut:
                machine.note(line)
                self.trace.event("log", name, line=line)

        membership = Membership.load(ports.disk, ports.randomness, ports.clock)
        agent = Agent(ports, membership, Config(name=name, tier=machine.tier), listen=["/ip4/0.0.0.0/tcp/0"], log=log,
                      machine=Machine(("fake",), 1 << 30), version="simnet", vault_settings=self._vault)
        machine.life = life
        self._started_names[name] = None
        self.trace.event("start", name)
        await self._nursery.start(self._run, machine, life, agent)

    async def _run(self, machine: SimMachine, life: Life, agent: Agent, *, task_status: Any) -> None:
        crash: Exception | None = None
        has_started = trio.Event()

        def begin() -> None:
            has_started.set()
            machine.agent = agent
            nursery.start_soon(self._follow_sessions, machine.name, agent)
            task_status.started()

        try:
            with life.scope:
                async with trio.open_nursery() as nursery:
                    await agent.run(task_status=Started(begin))
                    nursery.cancel_scope.cancel()
        except BaseException as error:
            crash, rest = split_error(error)
            if rest is not None:
                raise rest from None
        finally:
            life.ended.set()
            if machine.life is life:
                machine.agent, machine.life = None, None
                if machine.frozen:  # it ended by itself: the next start is not held back
                    self._warm(machine)
        if life.cut or crash is None:
            return
        self.internet.kill(machine.name)
        self.lans[machine.household].kill(machine.name)
        reason = could_not_start(machine.name, crash)
        if has_started.is_set() or isinstance(reason, SimnetError):
            self._note_crash(machine.name, crash)
        if not has_started.is_set():
            raise reason

    async def _follow_sessions(self, name: str, agent: Agent) -> None:
        """Sessions that open and close, for the checkers."""
        async with agent.peers.events() as events:
            for session in agent.peers.sessions:
                self.trace.event("session", name, what="opened", peer=session.device.name)
            async for event in events:
                peer = agent.membership.names().get(event.public, "?")
                if event.kind == "opened":
                    self.trace.event("session", name, what="opened", peer=peer)
                else:
                    self.trace.event("session", name, what=event.kind, peer=peer, reason=event.reason)

    def _note_crash(self, name: str, error: Exception) -> None:
        finding = Finding("crash", plain_text(error), self.now_s(), name, plain_traceback(error))
        self.crashes.append(finding)
        self.trace.event("crash", name, what=finding.message, traceback=finding.traceback)
        for told in self.on_crash:
            told(finding)

    async def kill(self, name: str) -> None:
        """Cut the power: no goodbye; what was not made durable is gone, or torn."""
        machine = self.machines[name]
        self.trace.event("kill", name)
        self._disconnect(machine)
        machine.cut_power(self._faults.below, self._faults.unit)
        await trio.lowlevel.checkpoint()

    def _disconnect(self, machine: SimMachine) -> None:
        self.internet.kill(machine.name)
        self.lans[machine.household].kill(machine.name)
        if machine.life is not None:
            machine.life.cut = True
            machine.life.scope.cancel()
        machine.agent, machine.life = None, None

    async def stop(self, name: str) -> None:
        """End the agent in order; a frozen one is thawed first, as a signal that waits is."""
        life, agent = self.machines[name].life, self.running_agent(name)
        assert life is not None
        if self.machines[name].frozen:
            await self.thaw(name)
        self.trace.event("stop", name)
        agent.stop()
        with trio.fail_after(STOP_S):
            await life.ended.wait()

    async def freeze(self, name: str) -> None:
        machine = self.machines[name]
        self.running_agent(name)
        self.trace.event("freeze", name)
        machine.frozen, machine.thawed = True, trio.Event()
        machine.disk.hold = machine.thawed.wait
        self.internet.freeze(name)
        await trio.lowlevel.checkpoint()

    async def thaw(self, name: str) -> None:
        machine = self.machines[name]
        self.trace.event("thaw", name)
        self._warm(machine)
        await trio.lowlevel.checkpoint()

    def _warm(self, machine: SimMachine) -> None:
        machine.frozen, machine.disk.hold = False, None
        machine.thawed.set()
        self.internet.thaw(machine.name)

    async def clone(self, name: str, copy: str) -> None:
        """A second machine with the bytes of the first one's disk, as after copying a card."""
        if copy in self.machines:
            raise SimnetError(f"there is a device named {copy} already", next_step="give the clone another name")
        original = self.machines[name]
        twin = self.machine(copy, original.tier, household=original.household, disk_bytes=original.disk_bytes)
        twin.disk = original.disk.copy(copy)
        self.trace.event("clone", name, copy=copy)
        await self.start(copy)

    # ---- the world around them ---------------------------------------------------------------------------------------

    def partition(self, *groups: Sequence[str]) -> None:
        self.internet.partition(*groups)

    def cut(self, source: str, target: str) -> None:
        self.internet.cut(source, target)

    def heal(self) -> None:
        self.internet.heal()

    def set_link(self, link: LinkSpec) -> None:
        self.internet.set_link(link)

    def fill_disk(self, name: str, *, free_bytes: int = 0) -> None:
        disk = self.machines[name].disk
        disk.capacity_bytes = disk.used_bytes() + free_bytes
        self.trace.event("disk", name, free=free_bytes)

    def free_disk(self, name: str) -> None:
        machine = self.machines[name]
        machine.disk.capacity_bytes = MemoryDisk().capacity_bytes if machine.disk_bytes is None else machine.disk_bytes
        self.trace.event("disk", name, free=machine.disk.free_bytes())

    def tear(self, name: str, *, share: float) -> None:
        self.machines[name].tear_share = share
        self.trace.event("disk", name, tear=share)

    def set_clock(self, name: str, *, offset_s: float) -> None:
        self.machines[name].clock.offset_s = offset_s
        self.trace.event("clock", name, offset=offset_s)

    async def lie(self, name: str, lie: str, args: Mapping[str, Any]) -> None:
        """The device does what no honest one would: `hinet_simnet.adversary` knows how."""
        self.trace.event("lie", name, lie=lie)
        await import_module("hinet_simnet.adversary").tell(self, name, lie, args)

    # ---- for tests and tools -------------------------------------------------------------------------------------

    async def add(self, name: str, tier: str = "laptop", *, role: str = "member", by: str = "code") -> Agent:
        """Found the household with the first machine; let each further one join by a code of the first."""
        offset_s = self.machines[name].clock.offset_s if name in self.machines else 0.0
        device = DeviceSpec(name, "home", tier, role, by=by, clock_offset_s=offset_s)
        first = next(iter(self._started_names), None)
        if first is None:
            await self.found(device)
        else:
            await self.join(device, by=first)
        return self.running_agent(name)

    async def restart(self, name: str) -> Agent:
        """The power fails (if the agent runs) and comes back, and the agent starts."""
        if self.running(name):
            await self.kill(name)
        await self.start(name)
        return self.running_agent(name)

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
        return all(set(others) <= {session.device.name for session in self.running_agent(name).peers.sessions}
                   for name, others in wanted.items())

    def chains_agree(self, *names: str) -> bool:
        """These machines hold the same chain."""
        return len({self.running_agent(name).membership.chain().heads for name in names}) == 1

    def digest(self) -> str:
        """The digest of everything that happened so far."""
        return self.trace.digest()


def run_world(scenario: Callable[[World], Awaitable[None]], *, seed: int = 0, hours: float = 24.0,
              vault: VaultSettings = SMALL_VAULT, trace: Trace | None = None) -> World:
    """Run a scenario in virtual time, at most that many virtual hours, and return the world that it leaves."""
    worlds: list[World] = []

    async def main() -> None:
        with trio.fail_after(hours * 3600):
            async with trio.open_nursery() as nursery:
                worlds.append(World(seed, nursery, vault=vault, trace=trace))
                await scenario(worlds[0])
                nursery.cancel_scope.cancel()

    virtual_run(main, seed=seed)
    return worlds[0]
