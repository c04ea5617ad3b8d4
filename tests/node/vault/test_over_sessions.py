"""The vault over real sessions with the real chain: full-size packs within the session's bounds on what is queued."""

from __future__ import annotations

import trio

from hinet_node.vault import VaultSettings
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.world import World, run_world

FULL_SIZE = VaultSettings(index_path=":memory:")


def test_full_size_packs_pass_and_a_cut_line_is_taken_up_again() -> None:
    content = SeededRandomness("large").draw(40 << 20)

    async def story(world: World) -> None:
        await world.add("cloud", "cloud")
        await world.add("laptop", "laptop")
        await world.until(lambda: world.meshed("cloud", "laptop"))
        laptop, cloud = world.agent("laptop").vault, world.agent("cloud").vault
        await laptop.put(b"large", content)
        with trio.fail_after(60):
            while not cloud.core.store.incoming():
                await trio.sleep(0.0005)
        world.partition(["cloud"], ["laptop"])
        await trio.sleep(120)
        assert await cloud.list() == []
        begun = cloud.core.store.incoming()
        assert sum(begun.values()) > 0
        world.heal()
        await world.until(lambda: world.meshed("cloud", "laptop"), seconds=300)
        await world.until(lambda: len(cloud.core.view.tree) == 1, seconds=300)
        assert await cloud.get(b"large") == content
        await world.until(lambda: cloud.core.digest() == laptop.core.digest(), seconds=300)
        status = await laptop.status()
        assert status.copies[laptop.core.household.device_public] == 2
        assert all(device.in_step for device in status.devices)
        assert cloud.core.disk.list("vault/parts") == []

    run_world(story, seed=7, vault=FULL_SIZE)
