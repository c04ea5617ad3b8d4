"""Belonging under Hypothesis: a few real agents, and any order of joining, removing, power cuts, partitions, copied
homes, old messages played again and wrong clocks. The simulator's checkers watch all the way and judge the end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hinet_node.belonging.join import Wanted, join_household, preflight
from hinet_node.errors import NodeError
from hinet_protocol.errors import ProtocolError
from hinet_protocol.invitations import parse_code
from hinet_simnet.errors import SimnetError
from hinet_simnet.house import household
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World

DEVICES_MAX = 5
PLACE = st.integers(0, DEVICES_MAX - 1)


class Belonging(RuleBasedStateMachine):
    """The test's own view is small: who was let in, who was removed, and by whom it was seen to be removed."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.removed: dict[bytes, str] = {}
        self.joined = 0
        self.cloned = False

    @initialize(seed=st.integers(0, 999), offset_s=st.sampled_from([0.0, -3e8, 9e4]))
    def begin(self, seed: int, offset_s: float) -> None:
        devices = [DeviceSpec("anna", "home", "cloud", "admin", by="direct"),
                   DeviceSpec("bert", "home", "laptop", "admin", by="direct"),
                   DeviceSpec("cleo", "home", "pocket", "member", by="direct", clock_offset_s=offset_s)]
        self.house = self.stack.enter_context(household(*devices, seed=seed))

    # ---- what the owner does --------------------------------------------------------------------------------------

    @precondition(lambda self: self.joined < DEVICES_MAX - 3)
    @rule(by=PLACE, role=st.sampled_from(["member", "keeper", "admin"]))
    def two_join_with_one_code(self, by: int, role: str) -> None:
        """A race: one code, two machines. At most one becomes a member; a try that fails grants nothing."""
        inviter = self.running(by)
        self.joined += 1
        names = [f"new{self.joined}{letter}" for letter in "ab"]

        async def race(world: World) -> list[str]:
            import trio

            came: list[str] = []
            try:
                shown = await world.call(inviter, "invite", role=role, accept=True, wait=False)
            except (NodeError, ProtocolError):
                return came

            async def one(name: str) -> None:
                ports = world.ports(world.machine(name, "laptop").name)
                keys = preflight(ports.disk, ports.randomness)
                wanted = Wanted(parse_code(shown["code"]), name, "laptop", timeout_s=20.0)
                try:
                    await join_household(ports, keys, wanted)
                except (NodeError, ProtocolError):
                    return
                came.append(name)

            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(one, name)
            for name in came:
                await world.start(name)
            return came

        assert len(self.house.run(race)) <= 1

    @rule(by=PLACE, whom=PLACE)
    def remove(self, by: int, whom: int) -> None:
        remover, target = self.running(by), self.known(whom)
        if remover == target:
            return
        public = self.house.look(lambda world: self.public_of(world, remover, target))
        try:
            self.house.revoke(target, by=remover)
        except (NodeError, ProtocolError):
            return  # no admin, the last admin, removed already
        if public is not None:
            self.removed[public] = target

    @rule(on=PLACE, text=st.binary(max_size=40))
    def write(self, on: int, text: bytes) -> None:
        try:
            self.house.put(self.running(on), "notes/a.md", text)
        except NodeError:
            pass  # a keeper, or a device that was removed

    # ---- what the world does --------------------------------------------------------------------------------------

    @rule(on=PLACE, tear=st.booleans())
    def power_cut(self, on: int, tear: bool) -> None:
        name = self.running(on)
        if tear:
            self.house.tear(name)
        self.house.restart(name)

    @rule(on=PLACE)
    def partition(self, on: int) -> None:
        """A fork: both sides go on alone."""
        name = self.running(on)
        self.house.partition([name], [other for other in self.names() if other != name])

    @rule()
    def heal(self) -> None:
        self.house.heal()

    @rule(on=PLACE, offset_s=st.sampled_from([0.0, -1e9, 86_400.0 * 400]))
    def wrong_clock(self, on: int, offset_s: float) -> None:
        self.house.set_clock(self.running(on), offset_s=offset_s)

    @precondition(lambda self: not self.cloned)
    @rule()
    def copied_home(self) -> None:
        self.cloned = True
        self.house.clone("cleo", "cleo2")

    @rule(on=PLACE, lie=st.sampled_from(["replay", "fork", "garbage"]))
    def lie(self, on: int, lie: str) -> None:
        try:
            self.house.lie(self.running(on), lie, for_s=5.0)
        except (NodeError, SimnetError):
            pass  # there is nobody to lie to, or nothing was heard yet

    @rule(seconds=st.sampled_from([1.0, 30.0, 120.0]))
    def wait(self, seconds: float) -> None:
        self.house.sleep(seconds)

    # ---- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def the_removed_stay_removed(self) -> None:
        """Where a device is known to be removed, it never comes back, whatever is merged afterwards."""
        def look(world: World) -> list[str]:
            wrong = []
            for name in world.names():
                agent = world.agent(name) if world.running(name) else None
                if agent is None:
                    continue
                chain = agent.membership.chain()
                seen = self.seen.setdefault(name, set())
                wrong += [f"{name} takes {key.hex()[:8]} for a member again" for key in seen if chain.is_member(key)]
                seen |= {device.public for device in chain.devices() if device.revoked}
            return wrong
        if hasattr(self, "house"):
            self.seen: dict[str, set[bytes]] = getattr(self, "seen", {})
            assert self.house.look(look) == []

    def teardown(self) -> None:
        """All faults end, and everything that the simulator's checkers know must come true: one chain, no device that
        was removed is connected, invitations used once, nobody crashed."""
        self.stack.close()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self.house.look(lambda world: world.names()))

    def running(self, place: int) -> str:
        found = self.house.look(lambda world: [name for name in world.names() if world.running(name)])
        return found[place % len(found)]

    def known(self, place: int) -> str:
        names = [name for name in self.names() if name != "cleo2"]
        return names[place % len(names)]

    @staticmethod
    def public_of(world: World, by: str, name: str) -> Any:
        device = world.running_agent(by).membership.chain().device_named(name)
        return None if device is None else device.public


TestBelonging = Belonging.TestCase
TestBelonging.settings = settings(
    max_examples=60, stateful_step_count=20, deadline=None, print_blob=True, derandomize=True, database=None,
    phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))
