"""Real agents that reach nobody but one sibling: through it they meet, as long as it is there and they have no better
way.

Each device has a network namespace of its own; the switch between them passes nothing from one end to the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from hinet_simnet.processes.realtime import RunClock
from hinet_simnet.processes.stage import ProcessStage, open_stage
from hinet_simnet.scenario.model import DeviceSpec
from hinet_simnet.trace import Trace

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
"""For a busy machine; nothing here takes so long on a quiet one."""


async def until(condition: Callable[[], Awaitable[bool]]) -> float:
    """How long it took, in seconds."""
    begun_s = trio.current_time()
    with trio.fail_after(PATIENCE_S):
        while not await condition():
            await trio.sleep(0.1)
    return trio.current_time() - begun_s


async def row(stage: ProcessStage, name: str, of: str) -> dict[str, Any]:
    """What one device says of another."""
    found: dict[str, Any] = {one["name"]: one for one in (await stage.call(name, "devices"))["devices"]}[of]
    return found


def met(stage: ProcessStage, via: str | None) -> Callable[[], Awaitable[bool]]:
    """Whether both ends are connected this way, or (None) not at all."""
    async def look() -> bool:
        return {(await row(stage, here, there))["via"] for here, there in (("anna", "bert"), ("bert", "anna"))} == {via}

    return look


def relaying(stage: ProcessStage, **wanted: int) -> Callable[[], Awaitable[bool]]:
    """Whether the hub carries just this."""
    async def look() -> bool:
        return bool((await stage.call("hub", "status"))["agent"]["relaying"] == wanted)

    return look


async def configure_relay(stage: ProcessStage) -> str:
    """The hub's address, written into the settings of the other two, which run with it from now on."""
    addresses = (await stage.call("hub", "status"))["agent"]["addresses"]
    address: str = next(one for one in addresses if one.startswith("/ip4/"))
    for name in ("anna", "bert"):
        await stage.stop(name)
        settings = stage.devices[name].home / "config.toml"
        text = settings.read_text()
        assert "relay = []" in text
        settings.write_text(text.replace("relay = []", f'relay = "{address}"'))
        (stage.devices[name].home / "peers" / "addresses").unlink()
    stage.cut("anna", "bert")
    stage.cut("bert", "anna")
    for name in ("anna", "bert"):
        await stage.start(name)
    return address


def test_two_networks_without_a_route_meet_through_a_sibling_and_leave_it_for_a_direct_way() -> None:
    async def play(stage: ProcessStage) -> None:
        await stage.found(DeviceSpec("hub", "home", "cloud"))
        for name in ("anna", "bert"):
            await stage.join(DeviceSpec(name, "home", "laptop"), by="hub")
        address = await configure_relay(stage)
        print(f"met through the relay {await until(met(stage, 'relayed')):.1f} s after the start")
        assert (await row(stage, "anna", "bert"))["relay"] == "hub"
        assert (await row(stage, "anna", "hub"))["via"] == "direct"
        shown = (await stage.call("anna", "status"))["agent"]["relays"]
        assert [(one["address"], one["name"], one["state"]) for one in shown] == [(address, "hub", "reserved")]
        await until(relaying(stage, reservations=2, circuits=1))  # both may have called at once

        await stage.kill("hub")
        print(f"noticed {await until(met(stage, None)):.1f} s after the relay was killed")
        warned = (await stage.call("anna", "status"))["warnings"]
        assert [one["code"] for one in warned if "call this device through hub" in one["what"]] == ["E_RELAY"]
        await stage.call("anna", "vault.put", name="note", content=b"by way of the hub")
        await stage.start("hub")
        print(f"met again {await until(met(stage, 'relayed')):.1f} s after the relay was back")

        async def came() -> bool:
            return [item["name"] for item in (await stage.call("bert", "vault.ls"))["items"]] == ["note"]

        await until(came)
        stage.heal()
        print(f"met directly {await until(met(stage, 'direct')):.1f} s after there was a way")
        stage.cut("anna", "bert")
        stage.cut("bert", "anna")
        await stage.kill("bert")
        await stage.start("bert")
        await until(met(stage, "relayed"))
        await stage.call("hub", "device.revoke", device="bert")

        async def alone() -> bool:
            return (await row(stage, "anna", "bert"))["state"] == "revoked" and (
                await relaying(stage, reservations=1, circuits=0)())

        print(f"cut off {await until(alone):.1f} s after it was revoked")

    async def main() -> None:
        async with open_stage(1, Trace(), form="namespaces") as stage:
            await play(stage)
            assert stage.crashes == []

    trio.run(main, clock=RunClock())
