"""A world that all checkers watch, for the tests of checkers and of the adversary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
import trio

from hinet_simnet.checkers.base import Checker
from hinet_simnet.checkers.registry import ALL
from hinet_simnet.findings import Finding
from hinet_simnet.world import World, run_world

EVERY_S = 2.0
Story = Callable[[World], Awaitable[None]]
Watched = Callable[..., list[Finding]]


def watch(story: Story, *, seed: int = 1, settle_s: float = 120.0,
          checkers: Sequence[Callable[[], Checker]] = ALL) -> list[Finding]:
    """Play a story with checkers looking every two seconds, then let it settle; what they found, and crashes."""
    found: list[Finding] = []

    async def play(world: World) -> None:
        made = [make() for make in checkers]

        def observe(kind: str, node: str, fields: Mapping[str, Any]) -> None:
            for checker in made:
                found.extend(checker.observe(kind, node, fields))

        async def look() -> None:
            for checker in made:
                found.extend(await checker.look(world))

        async def look_on() -> None:
            while True:
                await trio.sleep(EVERY_S)
                await look()

        world.trace.observers.append(observe)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_on)
            await story(world)
            missing = {checker.name: ["nobody asked"] for checker in made}
            deadline_s = trio.current_time() + settle_s
            while missing and trio.current_time() < deadline_s:
                await trio.sleep(EVERY_S)
                missing = {checker.name: list(words) for checker in made if (words := await checker.settled(world))}
            nursery.cancel_scope.cancel()
        await look()
        found.extend(Finding(name, "; ".join(words), world.now_s()) for name, words in missing.items())
        found.extend(world.crashes)

    run_world(play, seed=seed)
    return found


@pytest.fixture
def watched() -> Watched:
    """`watched(story)` gives the findings of all checkers."""
    return watch
