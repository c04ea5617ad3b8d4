"""`hinet-node init --rekey [CODE]`: new device keys for a copied home, which keeps its vault and its chain.

Of two copies that run under one key, this one becomes a device of its own; the other keeps the old key. Where the old
key is an admin it certifies the new one itself, elsewhere an inviting device does, by a code.
"""

from __future__ import annotations

import sys
from typing import Any

from hinet_node.cli import context, output
from hinet_node.errors import UsageError


def rekey(code: str, *, name: str, addresses: tuple[str, ...], timeout_s: float, ask: bool) -> None:
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
            membership = _by_code(disk, code, name, addresses, timeout_s)
        elif addresses:
            raise UsageError("--address says where the inviting device is, and no code was given",
                             next_step=context.typed("init --rekey CODE --address ADDRESS"))
        else:
            if ask and output.at_terminal() and sys.stdin.isatty():
                _confirm(disk)
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
        "", f"next: {context.typed('up')}    start the agent"])


def _name_settings(disk: Any, membership: Any) -> None:
    from dataclasses import replace

    from hinet_node import config

    config.write(disk, replace(config.read(disk), name=membership.name, tier=membership.tier))


def _confirm(disk: Any) -> None:
    """A home that was not copied would leave a device behind that nobody has. Errors: `UsageError`."""
    from hinet_node.belonging.membership import Membership
    from hinet_node.real.system import SystemClock, SystemRandomness

    name = output.clean(Membership.load(disk, SystemRandomness(), SystemClock()).name)
    answer = output.ask(f"Does another copy of this home go on as {name}? Then this one gets a new key. [y/N] ")
    if answer.lower() not in ("y", "yes"):
        raise UsageError("nothing was changed", next_step="to put this machine out of the household, on another one: "
                                                          f"hinet-node revoke {name}")


def _by_code(disk: Any, code: str, name: str, addresses: tuple[str, ...], timeout_s: float) -> Any:
    """The join of `join_cmd`, into a home that holds a chain and a vault; its old key may be lost or damaged."""
    import trio

    from hinet_node import config
    from hinet_node.belonging import chain_store, exchange
    from hinet_node.belonging import join as joining
    from hinet_node.belonging.device_keys import prepare_next
    from hinet_node.cli import real_ports
    from hinet_node.cli.init_cmd import default_name
    from hinet_node.cli.join_cmd import parse_invitation, report
    from hinet_node.cli.run_cmd import multiaddr

    settings = config.read(disk)
    ports = real_ports.build(context.home_path(), settings)
    chain, invitation = chain_store.read(disk), parse_invitation(code)
    keys = prepare_next(disk, ports.randomness, chain)
    wanted = joining.Wanted(invitation, name or exchange.free_name(chain, settings.name or default_name()),
                            settings.tier, tuple(map(multiaddr, addresses)), timeout_s)
    place = exchange.RekeyedHome(disk, ports.randomness, ports.clock, chain)
    return trio.run(joining.join_household, ports, keys, wanted, report, lambda device: None, place)
