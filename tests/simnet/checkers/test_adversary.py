"""After any lie the honest devices still converge, lose nothing and go on; what is wrong is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from hinet_protocol.messages import tag_table, to_wire
from hinet_simnet.adversary import LIES, check
from hinet_simnet.adversary.anything import any_message
from hinet_simnet.errors import BadScenario
from hinet_simnet.findings import Finding
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.world import World, run_world

Watched = Callable[..., list[Finding]]


async def lied_to(world: World, lie: str, liar: str, **args: Any) -> None:
    for name, tier in (("cloud", "cloud"), ("laptop", "laptop"), ("pocket", "pocket"), ("tablet", "pocket")):
        await world.add(name, tier)
    await world.until(lambda: world.meshed("cloud", "laptop", "pocket", "tablet"))
    await world.call("laptop", "vault.put", name="before.md", content=b"written before the lie" * 99)
    await trio.sleep(3)
    messages, ended = world.trace.messages, list[Any]()
    world.trace.observers.append(lambda kind, node, fields: ended.append(fields) if kind == "lied" else None)
    await world.lie(liar, lie, args)
    await trio.sleep(2)
    assert world.trace.messages > messages
    for name in world.names():
        if name != liar:
            await world.call(name, "vault.put", name=f"{name}.md", content=f"written by {name} meanwhile".encode())
    await world.call("laptop", "vault.put", name="before.md", content=b"written again during the lie")
    await trio.sleep(40)
    if world.running("laptop") and liar != "laptop":
        await world.restart("laptop")
    await trio.sleep(60)
    assert ended == [{"lie": lie}], "it was told to its end"


@pytest.mark.parametrize("liar", ["tablet", "cloud"], ids=["a-member", "the-admin"])
@pytest.mark.parametrize("lie", LIES)
def test_honest_devices_converge_and_lose_nothing(watched: Watched, lie: str, liar: str) -> None:
    assert watched(lambda world: lied_to(world, lie, liar), settle_s=180) == []


def test_a_lie_repeats_with_its_seed() -> None:
    async def story(world: World) -> None:
        await lied_to(world, "any", "tablet")

    digests = [run_world(story, seed=seed).digest() for seed in (5, 5, 6)]
    assert digests[0] == digests[1] != digests[2]


def test_any_message_reaches_every_class() -> None:
    randomness = SeededRandomness(1, "any")
    made = [any_message(randomness) for _ in range(3_000)]
    assert all(to_wire(message) for message in made)
    assert {type(message) for message in made} == set(tag_table().values())


@pytest.mark.parametrize(("lie", "args", "what"), [
    ("charm", {}, "no lie 'charm'"),
    ("flood", {"speed": 3}, "no argument 'speed'"),
    ("flood", {"count": 0}, "`count`"),
    ("flood", {"count": True}, "`count`"),
    ("slow", {"for_s": -1}, "`for_s`"),
    ("slow", {"for_s": float("nan")}, "`for_s`"),
    ("fork", {"to": 7}, "`to`"),
])
def test_unknown_lies_and_arguments_are_refused_by_name(lie: str, args: dict[str, Any], what: str) -> None:
    with pytest.raises(BadScenario, match=what):
        check(lie, args)


def test_every_lie_says_what_it_does() -> None:
    assert all(len(lie.about) > 20 for lie in LIES.values())
