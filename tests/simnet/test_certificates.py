"""Months pass in a household: certificates are renewed while an admin is in reach, and run out where none is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from hinet_node.belonging import tending
from hinet_node.belonging.certificates import CERTIFICATE_LIFETIME_S, RENEWAL_WINDOW_S
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.world import World, run_world

DAY_S = 86_400


@pytest.fixture(autouse=True)
def _an_hour_is_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions beat every ten seconds, so an idle hour is long to simulate."""
    monkeypatch.setattr(tending, "LOOK_S", 60.0)


async def days(world: World, count: float, names: Sequence[str]) -> None:
    """All clocks go ahead by so many days, and each running agent looks at least once."""
    for name in names:
        world.set_clock(name, offset_s=world.machines[name].clock.offset_s + count * DAY_S)
    await trio.sleep(90)


def role_of(world: World, seen_by: str, name: str) -> str:
    """The role of a device as another one has it by its own clock."""
    membership = world.running_agent(seen_by).membership
    device = membership.chain().device_named(name)
    assert device is not None
    return device.role_at(int(world.machines[seen_by].clock.now_unix_s()))


async def household(world: World) -> tuple[str, ...]:
    await world.add("cloud", "cloud")
    await world.add("laptop", "laptop")
    await world.join(DeviceSpec("store", "home", "cloud", "keeper"), by="cloud")
    await world.until(lambda: world.meshed("cloud", "laptop", "store"))
    return ("cloud", "laptop", "store")


def test_two_hundred_days_later_everybody_still_belongs() -> None:
    async def story(world: World) -> None:
        names = await household(world)
        before = world.running_agent("cloud").membership.chain().height
        for _ in range(10):
            await days(world, 20, names)
            for name in names:
                assert role_of(world, name, "cloud") == "admin"
                assert role_of(world, name, "laptop") == "member"
        assert world.chains_agree(*names)
        # Each of the two certificates once: a keeper's never ends, and nobody renews too early or twice.
        assert world.running_agent("cloud").membership.chain().height - before == 2
        await world.call("laptop", "vault.put", name="a", content=b"x")

        async def arrived() -> bool:
            return [item["name"] for item in (await world.call("cloud", "vault.ls"))["items"]] == ["a"]

        await world.until(arrived)

    run_world(story, seed=1, hours=48)


def test_a_device_that_was_away_too_long_is_a_keeper_until_it_meets_an_admin() -> None:
    async def story(world: World) -> None:
        names = await household(world)
        world.partition(["cloud", "store"], ["laptop"])
        for _ in range(4):
            await days(world, CERTIFICATE_LIFETIME_S / DAY_S / 4 + 1, names)
        assert role_of(world, "cloud", "laptop") == role_of(world, "laptop", "laptop") == "keeper"
        assert world.running_agent("laptop").membership.role == "keeper"
        assert role_of(world, "store", "cloud") == "admin"
        world.heal()
        await world.until(lambda: world.running_agent("laptop").membership.role == "member", seconds=300)
        assert role_of(world, "cloud", "laptop") == "member"

    run_world(story, seed=2, hours=48)


def test_two_admins_renew_each_other_and_nobody_itself() -> None:
    async def story(world: World) -> None:
        await world.add("cloud", "cloud")
        await world.add("desk", "laptop", role="admin")
        await world.add("pocket", "pocket")
        names = ("cloud", "desk", "pocket")
        await world.until(lambda: world.meshed(*names))
        before = world.running_agent("cloud").membership.chain().height
        await days(world, (CERTIFICATE_LIFETIME_S - RENEWAL_WINDOW_S) / DAY_S + 1, names)
        chain = world.running_agent("cloud").membership.chain()
        assert world.chains_agree(*names)
        assert chain.height - before == 3
        signers = {}
        for entry in chain.entries():
            if entry.kind == "device.rotate":
                signers[entry.body["name"]] = chain.device(entry.signer)
        assert {name: signer.name for name, signer in signers.items() if signer is not None} == {
            "cloud": "desk", "desk": "cloud", "pocket": "cloud"}

    run_world(story, seed=3)


@pytest.mark.parametrize("admins", [1, 2])
def test_machines_that_were_all_off_for_a_year_come_back_by_themselves(admins: int) -> None:
    async def story(world: World) -> None:
        await world.add("cloud", "cloud")
        await world.add("desk", "laptop", role="admin" if admins == 2 else "member")
        await world.until(lambda: world.meshed("cloud", "desk"))
        for name in ("cloud", "desk"):
            await world.stop(name)
            world.set_clock(name, offset_s=365 * DAY_S)
        for name in ("cloud", "desk"):
            await world.start(name)
        await world.until(lambda: world.running_agent("cloud").membership.role == "admin", seconds=300)
        await world.until(lambda: role_of(world, "cloud", "desk") != "keeper", seconds=300)

    run_world(story, seed=4)


def test_an_expired_admin_renews_nobody_while_another_is_in_force() -> None:
    async def story(world: World) -> None:
        await world.add("cloud", "cloud")
        await world.add("desk", "laptop", role="admin")
        await world.add("pocket", "pocket")
        names = ("cloud", "desk", "pocket")
        await world.until(lambda: world.meshed(*names))
        world.partition(["cloud"], ["desk", "pocket"])
        # desk renews pocket in time, and cloud, which nobody can, runs out alone.
        for _ in range(3):
            await days(world, 61, names)
        assert world.running_agent("cloud").membership.role == "keeper"
        assert role_of(world, "desk", "pocket") == "member"
        height = world.running_agent("cloud").membership.chain().height
        await days(world, 1, names)
        assert world.running_agent("cloud").membership.chain().height == height

    run_world(story, seed=5)
