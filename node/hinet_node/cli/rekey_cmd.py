"""`hinet-node init --rekey [CODE]`: new device keys for a copied home, which keeps its vault and its chain.

Of two copies that run under one key, this one becomes a device of its own; the other keeps the old key. Where the old
key is an admin it certifies the new one itself, elsewhere an inviting device does, by a code.
"""

from __future__ import annotations

from typing import Any

from hinet_node.cli import context, output
from hinet_node.errors import UsageError


def rekey(code: str, *, name: str, addresses: tuple[str, ...], timeout_s: float) -> None:
    """Give this home keys of its own."""
    from hinet_node import home
    from hinet_node.belonging import exchange
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness

    folder = context.home_path()
    home.require_identity(folder)
    with home.locked(folder):
        disk = RealDisk(folder)
        if code:
            membership = _by_code(folder, code, name, addresses, timeout_s)
        elif addresses:
            raise UsageError("--address says where the inviting device is, and no code was given",
                             next_step=context.typed("init --rekey CODE --address ADDRESS"))
        else:
            membership = exchange.rekey_as_admin(disk, SystemRandomness(), SystemClock(), name)
        _name_settings(disk, membership)
    data = {"device": {"name": membership.name, "role": membership.role, "tier": membership.tier,
                       "fingerprint": membership.device.fingerprint, "public": membership.device_public.hex()},
            "home": folder}
    output.emit("hinet.rekey/1", data, [
        f"This copy is {output.style(output.clean(membership.name), 'bold')} now ({membership.role}, "
        f"{membership.tier}, {membership.device.fingerprint}). Its vault and its chain are as they were.",
        "  The other copy keeps the old name and key. If it is not yours, put it out with  "
        + context.typed("revoke OLD-NAME"),
        "", f"next: {context.typed('run')}    start the agent"])


def _name_settings(disk: Any, membership: Any) -> None:
    from dataclasses import replace

    from hinet_node import config

    config.write(disk, replace(config.read(disk), name=membership.name, tier=membership.tier))


def _by_code(folder: str, code: str, name: str, addresses: tuple[str, ...], timeout_s: float) -> Any:
    """The join of `join_cmd`, into a home that holds a chain and a vault."""
    import trio

    from hinet_node import config
    from hinet_node.belonging import exchange
    from hinet_node.belonging import join as joining
    from hinet_node.belonging.device_keys import prepare_next
    from hinet_node.belonging.membership import Membership
    from hinet_node.cli import real_ports
    from hinet_node.cli.join_cmd import parse_invitation, report
    from hinet_node.cli.run_cmd import multiaddr
    from hinet_node.real.disk import RealDisk

    ports = real_ports.build(folder, config.read(RealDisk(folder)))
    before = Membership.load(ports.disk, ports.randomness, ports.clock)
    invitation = parse_invitation(code)
    keys = prepare_next(ports.disk, ports.randomness, before.chain())
    wanted = joining.Wanted(invitation, name or exchange.free_name(before.chain(), before.name), before.tier,
                            tuple(map(multiaddr, addresses)), timeout_s)
    place = exchange.RekeyedHome(ports.disk, ports.randomness, ports.clock, before.chain())
    return trio.run(joining.join_household, ports, keys, wanted, report, lambda device: None, place)
