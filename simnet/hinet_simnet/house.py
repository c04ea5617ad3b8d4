"""Households for tests, in plain calls: `with household("cloud", "laptop") as h: h.partition(["cloud"], ["laptop"])`.

Every call runs the world until it is done, in virtual time, and then the world stands still. When the block ends,
faults end too, the world settles and the checkers must be content. Leaves running the world to `steering`, the rules
that must hold to `checkers`. Works with and without pytest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import trio

from hinet_node.agent import Agent
from hinet_node.errors import NodeError
from hinet_node.ports import Compute
from hinet_node.vault import VaultSettings
from hinet_simnet.checkers.base import Checker
from hinet_simnet.checkers.registry import all_checkers
from hinet_simnet.errors import SimnetError
from hinet_simnet.findings import Finding
from hinet_simnet.machines import SimMachine
from hinet_simnet.scenario.model import Delay, DeviceSpec, LinkSpec
from hinet_simnet.steering import Steering
from hinet_simnet.trace import Trace
from hinet_simnet.watching import Watch
from hinet_simnet.world import SMALL_VAULT, World

T = TypeVar("T")
TIERS = ("cloud", "laptop", "pocket")
PATIENCE_S = 120.0


class HouseholdFailed(SimnetError):
    """A checker's finding or an agent's crash. `findings` has all of them."""

    code = "E_SIMNET_FINDING"

    def __init__(self, findings: Sequence[Finding], *, seed: int, again: str) -> None:
        lines = [f"{finding.checker}{f' on {finding.node}' if finding.node else ''} at {finding.at_s:.3f} s: "
                 f"{finding.message}{_indented(finding.traceback)}" for finding in findings[:20]]
        super().__init__(f"seed {seed}: {len(findings)} findings\n" + "\n".join(lines), next_step=again)
        self.findings = tuple(findings)
        self.seed = seed


class House:
    """One world, seen from a test. Made by `household`. Names are device names; times are virtual seconds."""

    def __init__(self, steering: Steering, trace: Trace, *, seed: int, checkers: Sequence[Checker], again: str) -> None:
        self.seed = seed
        self.trace = trace
        self._steering = steering
        self._watch = Watch(checkers, trace)
        self.again = again
        self._clones: set[str] = set()
        self._told = 0

    # ---- calls -----------------------------------------------------------------------------------------------------

    def run(self, order: Callable[[World], Awaitable[T]]) -> T:
        """Run an async function of the world to its end: whatever has no call of its own here."""
        result: T = self._steering.do(order)
        self._raise_news()
        return result

    def look(self, view: Callable[[World], T]) -> T:
        """A value from inside the world, where what reads the device's clock or index can be called too."""

        async def order(world: World) -> T:
            return view(world)

        return self.run(order)

    def call(self, name: str, verb: str, /, **args: Any) -> dict[str, Any]:
        """A verb of the agent's local API, as the command line calls it. Errors: `NodeError`."""
        return self.run(lambda world: world.call(name, verb, **args))

    def put(self, name: str, file: str, content: bytes | str) -> dict[str, Any]:
        """Write a file into the vault on this device."""
        data = content.encode() if isinstance(content, str) else content
        return self.call(name, "vault.put", name=file, content=data)

    def get(self, name: str, file: str) -> bytes:
        """A file of the vault, as this device has it. Errors: `NodeError`."""
        return bytes(self.call(name, "vault.get", name=file)["content"])

    def files(self, name: str) -> list[str]:
        """Names of the files that this device sees in the vault."""
        found, after = [], None
        while True:
            page = self.call(name, "vault.ls", **({} if after is None else {"after": after}))
            found += [str(item["name"]) for item in page["items"]]
            if not page.get("more"):
                return found
            after = found[-1]

    def holds(self, name: str, file: str, content: bytes | str | None = None) -> bool:
        """Whether this device can give out a file (with this content): made for `until`."""
        try:
            data = self.get(name, file)
        except NodeError:
            return False
        return content is None or data == (content.encode() if isinstance(content, str) else content)

    # ---- time ------------------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run(lambda world: trio.sleep(seconds))

    def now_s(self) -> float:
        """Virtual seconds since the world began."""

        return self.look(lambda world: world.now_s())

    def until(self, condition: Callable[[], object], *, seconds: float = 300.0, every_s: float = 0.25) -> float:
        """Let time pass until a condition holds; returns the seconds that it took. The condition may use every call of
        this household. Errors: `TimeoutError`."""
        begun_s = self.now_s()
        while not condition():
            waited_s = self.now_s() - begun_s
            if waited_s >= seconds:
                raise TimeoutError(f"it did not happen within {seconds:g} virtual seconds (seed {self.seed})")
            self.sleep(every_s)
        return self.now_s() - begun_s

    def until_meshed(self, *names: str, seconds: float = 300.0) -> float:
        """Until each of these devices has a session with each other one (default: per household, all that run and
        belong)."""
        return self.until(lambda: self.meshed(*names), seconds=seconds)

    def meshed(self, *names: str) -> bool:
        def meshed(world: World) -> bool:
            groups = [list(names)] if names else self._members(world)
            return all(world.meshed(*group) for group in groups)

        return self.look(meshed)

    # ---- devices ---------------------------------------------------------------------------------------------------

    def add(self, name: str, *, tier: str | None = None, role: str = "member", by: str | None = None,
            household: str = "home", how: str = "code", disk_bytes: int | None = None, clock_offset_s: float = 0.0,
            ) -> None:
        """A new device joins by a code that the device `by` shows (default: the household's first), or founds the
        household when it is new. `how` "direct" writes the certificate without network and code."""
        device = DeviceSpec(name, household, tier or tier_of(name), role, by=how, disk_bytes=disk_bytes,
                            clock_offset_s=clock_offset_s)

        async def add(world: World) -> None:
            siblings = [other for other in world.names() if world.machines[other].household == household]
            if siblings or by:
                await world.join(device, by=by or siblings[0])
            else:
                await world.found(device)

        self.run(add)

    def kill(self, name: str) -> None:
        """Cut the power: what was not made durable is gone."""
        self.run(lambda world: world.kill(name))

    def stop(self, name: str) -> None:
        """End the agent in order."""
        self.run(lambda world: world.stop(name))

    def start(self, name: str) -> None:
        """Start the agent of a device that was killed or stopped."""
        self.run(lambda world: world.start(name))

    def restart(self, name: str) -> None:
        """Power off and on."""
        self.run(lambda world: world.restart(name))

    def freeze(self, name: str) -> None:
        """Nothing of the device runs any more; its connections stay."""
        self.run(lambda world: world.freeze(name))

    def thaw(self, name: str) -> None:
        self.run(lambda world: world.thaw(name))

    def clone(self, name: str, copy: str) -> None:
        """A second device with the bytes of the first one's disk."""
        self._clones |= {name, copy}
        self.run(lambda world: world.clone(name, copy))

    def revoke(self, name: str, *, by: str | None = None, reason: str = "lost") -> dict[str, Any]:
        """Remove a device from the household, on the device `by` (default: the household's first other one)."""
        return self.call(by or self._sibling(name), "device.revoke", device=name, reason=reason)

    def agent(self, name: str) -> Agent:
        """The running agent, to look at: the world stands still meanwhile. What reads its clock or its index needs
        `look`. Errors: `AgentNotRunning`."""
        return self.look(lambda world: world.running_agent(name))

    def log(self, name: str) -> list[str]:
        """What the device's agent told its log, all its starts together."""
        return self.look(lambda world: list(world.machines[name].log))

    # ---- the world around them -------------------------------------------------------------------------------------

    def partition(self, *groups: Sequence[str]) -> None:
        """Only devices of one group reach each other from now on."""
        self.look(lambda world: world.partition(*groups))

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from source to target any more (one way)."""
        self.look(lambda world: world.cut(source, target))

    def heal(self) -> None:
        """Ends partitions and cuts."""
        self.look(lambda world: world.heal())

    def link(self, source: str = "*", target: str = "*", *, delay: Delay | None = None, delay_s: float | None = None,
             loss: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0,
             rate_bytes_s: float | None = None) -> None:
        """How packets from source to target travel from now on ("*": any device)."""
        if delay is None:
            delay = Delay() if delay_s is None else Delay("constant", delay_s, 0.0)
        spec = LinkSpec(source, target, delay, loss, duplicate, reorder, rate_bytes_s)
        self.look(lambda world: world.set_link(spec))

    def fill_disk(self, name: str, *, free_bytes: int = 0) -> None:
        """Leave so much room on the device's disk."""
        self.look(lambda world: world.fill_disk(name, free_bytes=free_bytes))

    def free_disk(self, name: str) -> None:
        self.look(lambda world: world.free_disk(name))

    def tear(self, name: str, *, share: float = 1.0) -> None:
        """At the device's next power cut, this share of unsynced writes is torn, not lost."""
        self.look(lambda world: world.tear(name, share=share))

    def set_clock(self, name: str, *, offset_s: float) -> None:
        """Jump the device's wall clock to so many seconds off."""
        self.look(lambda world: world.set_clock(name, offset_s=offset_s))

    def lie(self, name: str, lie: str, **args: Any) -> None:
        """The device does what no honest one would, with its real keys."""
        self.run(lambda world: world.lie(name, lie, args))

    # ---- looking ---------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """Of everything so far: the same calls with the same seed give the same digest."""
        return self.trace.digest()

    def history(self, name: str = "") -> list[str]:
        """The last lines of the trace, of all or of one device."""
        lines = list(self.trace.lines)
        return [line for line in lines if line.split(" ", 3)[2] == name] if name else lines

    def settle(self, *, seconds: float = 300.0) -> None:
        """End all faults and let the checkers of convergence become content. Errors: `HouseholdFailed`."""
        self._steering.do(lambda world: self._watch.settle(world, seconds))
        self._raise()  # also what was raised before: a block that expected some other error may have taken it

    # ---- inside ----------------------------------------------------------------------------------------------------

    def begin(self, devices: Sequence[DeviceSpec]) -> None:
        """Found the households of these devices and start to watch. `household` calls it."""

        async def begin(world: World) -> None:
            self._watch.begin(world)
            by_house: dict[str, list[DeviceSpec]] = {}
            for device in devices:
                by_house.setdefault(device.household, []).append(device)
            for group in by_house.values():
                if all(device.by == "direct" for device in group):
                    await world.household(group)
                    continue
                await world.found(group[0])
                for device in group[1:]:
                    await world.join(device, by=group[0].name)

        self.run(begin)

    def _members(self, world: World) -> list[list[str]]:
        groups: dict[str, list[str]] = {}
        for name in world.names():
            if name not in self._clones and world.running(name):
                groups.setdefault(world.machines[name].household, []).append(name)
        return [[name for name in group if all(
            world.running_agent(other).membership.chain().is_member(world.running_agent(name).membership.device_public)
            for other in group[:1])] for group in groups.values()]

    def _sibling(self, name: str) -> str:
        def find(world: World) -> str:
            house = world.machines[name].household if name in world.machines else ""
            found = [other for other in world.names()
                     if other != name and world.running(other) and world.machines[other].household == house]
            if not found:
                raise SimnetError(f"no other device runs in the household of {name}", next_step="say which one: by=…")
            return found[0]

        return self.look(find)

    def _raise_news(self) -> None:
        if len(self._watch.findings) > self._told:
            self._raise()

    def _raise(self) -> None:
        self._told = len(self._watch.findings)
        if self._told:
            raise HouseholdFailed(self._watch.findings, seed=self.seed, again=self.again)


@contextmanager
def household(*names: str | DeviceSpec, seed: int = 0, tiers: Mapping[str, str] | None = None,
              roles: Mapping[str, str] | None = None, join: str = "direct", vault: VaultSettings = SMALL_VAULT,
              learning: str = "names", facts: dict[str, Any] | None = None,
              checkers: Sequence[Checker] | None = None, settle_s: float = 300.0, patience_s: float = PATIENCE_S,
              again: str = "", on_made: Callable[[House], None] = lambda house: None) -> Iterator[House]:
    """Devices in one household, meshed or about to mesh; the first one founds it and is its admin.

    A device named after a tier is of that tier, another is a laptop; `tiers` and `roles` say otherwise by name, and a
    `DeviceSpec` says everything. `join` "code" lets them join over the network, "direct" writes their certificates.
    `learning` "numpy" is a small model that really learns; what it measures goes into `facts` (see `learning`).
    `checkers` are all there are by default, `()` none. `patience_s` are real seconds for one call. Errors: those of the
    calls; `HouseholdFailed` for a crash or a finding, also when the block ends.
    """
    devices = [name if isinstance(name, DeviceSpec) else DeviceSpec(
        name, "home", (tiers or {}).get(name, tier_of(name)), (roles or {}).get(name, "admin" if not at else "member"),
        by=join) for at, name in enumerate(names)]
    trace = Trace()
    computes = _computes(learning, facts)
    steering = Steering(lambda nursery: World(seed, nursery, trace=trace, vault=vault, **computes), seed=seed,
                        patience_s=patience_s)
    house = House(steering, trace, seed=seed, checkers=all_checkers() if checkers is None else checkers,
                  again=again or f"run it again with seed={seed}")
    try:
        steering.start()
        on_made(house)
        house.begin(devices)
        yield house
        if not steering.closed:
            house.settle(seconds=settle_s)
    finally:
        steering.close()


def tier_of(name: str) -> str:
    """A device named after a tier is of that tier; another one is a laptop."""
    return name if name in TIERS else "laptop"


def _computes(learning: str, facts: dict[str, Any] | None) -> dict[str, Callable[[SimMachine], Compute]]:
    if learning == "names":
        return {}
    from hinet_simnet.learning import computes

    return {"compute": computes(learning, facts)}


def _indented(traceback: str) -> str:
    return "".join(f"\n    {line}" for line in traceback.splitlines())
