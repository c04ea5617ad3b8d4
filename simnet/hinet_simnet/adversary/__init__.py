"""The adversary: a device with its real keys that does what no honest one would, by name.

`tell` starts a lie, which goes on by itself; `LIES` is the table of them; `check` refuses unknown lies and arguments
before anything starts. Lies on the wire are in `wire_lies`, about the chain in `chain_lies`, about the vault in
`vault_lies`. The device's agent runs on beside its lies, and connections are the world's own, so keys are really
proved.

Arguments, all optional: `to` (a device's name or a list of them; by default every running sibling), `for_s` (how long,
20), `count` (how many, 30). All randomness comes from the world's seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hinet_node.errors import NetworkError, NodeError
from hinet_protocol.errors import ProtocolError
from hinet_simnet.adversary import chain_lies, vault_lies, wire_lies
from hinet_simnet.adversary.mask import Liar, Victim
from hinet_simnet.errors import BadScenario
from hinet_simnet.randomness import SeededRandomness

if TYPE_CHECKING:
    from hinet_simnet.world import World

FOR_S_MAX = 3_600.0
COUNT_MAX = 10_000
DEFAULTS: Mapping[str, Any] = {"to": (), "for_s": 20.0, "count": 30}


@dataclass(frozen=True)
class Lie:
    """One way of lying."""

    run: Callable[[Liar], Awaitable[None]]

    @property
    def about(self) -> str:
        """What it does, in a sentence or two."""
        return " ".join((self.run.__doc__ or "").split())


LIES: Mapping[str, Lie] = {
    "any": Lie(wire_lies.anything),
    "double": Lie(wire_lies.double),
    "false_packs": Lie(vault_lies.false_packs),
    "flood": Lie(wire_lies.flood),
    "forged_entry": Lie(chain_lies.forged_entry),
    "fork": Lie(chain_lies.fork),
    "garbage": Lie(wire_lies.garbage),
    "huge_frame": Lie(wire_lies.huge_frame),
    "lying_head": Lie(vault_lies.lying_head),
    "old_chain": Lie(chain_lies.old_chain),
    "replay": Lie(wire_lies.replay),
    "silent": Lie(wire_lies.silent),
    "slow": Lie(wire_lies.slow),
}


def check(lie: str, args: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
    """The arguments with their defaults. Errors: `BadScenario` naming what is wrong."""
    if lie not in LIES:
        raise BadScenario(f"there is no lie {lie!r}", where=where, next_step="one of: " + ", ".join(LIES))
    for name in args:
        if name not in DEFAULTS:
            raise BadScenario(f"the lie {lie!r} has no argument {name!r}", where=where,
                              next_step="one of: " + ", ".join(DEFAULTS))
    wanted = {**DEFAULTS, **args}
    to = wanted["to"]
    wanted["to"] = [to] if isinstance(to, str) else list(to) if isinstance(to, list | tuple) else [None]
    if not all(isinstance(name, str) for name in wanted["to"]):
        raise BadScenario("`to` is a device's name or a list of names", where=where)
    for name, most in (("for_s", FOR_S_MAX), ("count", COUNT_MAX)):
        value = wanted[name]
        whole = name == "count"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not 0 < value <= most:
            raise BadScenario(f"`{name}` is a {'whole ' if whole else ''}number above 0 and at most {most:g}",
                              where=where)
    return wanted


async def tell(world: World, name: str, lie: str, args: Mapping[str, Any]) -> None:
    """Start a lie of the device called `name`; it goes on by itself. Errors: `BadScenario`, `AgentNotRunning`."""
    wanted = check(lie, args)
    agent = world.running_agent(name)
    identity = agent.membership.identity_id
    victims = []
    for other in world.names():
        sibling = world.agent(other)
        if other == name or sibling is None or (wanted["to"] and other not in wanted["to"]):
            continue
        if sibling.membership.identity_id == identity and sibling.addresses:
            victims.append(Victim(other, sibling.membership.device_public, tuple(sibling.addresses)))
    randomness = SeededRandomness(world.seed, f"lie {name} {lie} {world.trace.events}")
    liar = Liar(agent, tuple(victims), randomness, wanted)

    async def run() -> None:
        try:
            await LIES[lie].run(liar)
        except (NetworkError, NodeError, ProtocolError) as error:  # such as: the device died, so its lie ends
            world.trace.event("lied", name, lie=lie, error=error.code)
        else:
            world.trace.event("lied", name, lie=lie)

    world._nursery.start_soon(run)
