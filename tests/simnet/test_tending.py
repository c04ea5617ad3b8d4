"""A bad admin makes an epoch whose key it gives to nobody: agents go on, and once it is removed the vault does too."""

from __future__ import annotations

import trio

from hinet_node.belonging.membership import Membership
from hinet_node.belonging.tending import OTHERS_S
from hinet_protocol.chain import EPOCH_NEW, make_epoch, parse_entry
from hinet_protocol.chain.entries import sign_entry
from hinet_simnet.world import World, run_world


def selfish_epoch(maker: Membership) -> bytes:
    """An epoch of this admin that opens for itself alone, not for the root either."""
    raw = make_epoch(maker.chain(), maker.keys, key=b"k" * 32, ephemeral_seed=b"e" * 32, time_s=1,
                     keyring=maker.keyring, recipients=[maker.device_public])
    entry = parse_entry(raw)
    body = {**entry.body, "previous": [], "wraps": [row for row in entry.body["wraps"] if row[0] ==
                                                    maker.device_public]}
    return sign_entry(maker.keys, entry.identity_id, entry.parents, EPOCH_NEW, body, 1)


def test_an_epoch_that_is_given_to_nobody_stops_no_agent_and_not_the_vault_for_long() -> None:
    async def story(world: World) -> None:
        await world.add("cloud", "cloud")
        await world.add("thief", "laptop", role="admin")
        await world.add("pocket", "pocket")
        await world.until(lambda: world.meshed("cloud", "thief", "pocket"))
        before = set(world.running_agent("cloud").membership.epoch_keys())
        thief = world.running_agent("thief").membership
        thief.take_in([selfish_epoch(thief)])
        await trio.sleep(2)
        await world.kill("thief")
        await trio.sleep(60)
        cloud = world.running_agent("cloud").membership
        assert cloud.current_epoch() is None
        assert any("another admin has to make it" in line for line in world.machines["cloud"].log)
        await world.call("cloud", "device.revoke", device="thief")
        await trio.sleep(3 * OTHERS_S)
        cloud, pocket = (world.running_agent(name).membership for name in ("cloud", "pocket"))
        assert cloud.current_epoch() == pocket.current_epoch() is not None
        assert before < set(pocket.epoch_keys())
        await world.call("pocket", "vault.put", name="a", content=b"x")
        await world.until(lambda: world.meshed("cloud", "pocket"))
        late = (await world.add("late", "laptop")).membership
        assert before < set(late.epoch_keys())
        assert not world.crashes

    run_world(story, seed=1)
