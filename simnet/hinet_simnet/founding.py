"""Households made "direct": certificates and chain by the real protocol code, without network, code words or waiting.

What `hinet-node init`, `invite` and `join` leave on the disks, and nothing of how they get there. Leaves running the
agents to `world`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hinet_node.belonging.certificates import expiry_of
from hinet_node.belonging.membership import Membership, draw_keys, draw_root
from hinet_node.ports import Ports
from hinet_node.sessions.address_book import AddressBook
from hinet_protocol.chain import make_device_add
from hinet_protocol.identity import DeviceKeys
from hinet_simnet.scenario.model import DeviceSpec


def found(ports: Ports, device: DeviceSpec) -> Membership:
    """A new household on this device's disk."""
    return Membership.found(ports.disk, ports.randomness, ports.clock, name=device.name, tier=device.tier,
                            root=draw_root(ports.randomness))


def certify(admin: Membership, ports: Ports, device: DeviceSpec, keys: DeviceKeys) -> None:
    """Put a device into the chain of an admin's device, as the inviting side of a join does at its end."""
    keeper = device.role == "keeper"
    admin.require_admin("invite")
    now_s = int(ports.clock.now_unix_s())
    admin.take_in([make_device_add(
        admin.chain(), admin.keys, name=device.name, public=keys.public, box_public=keys.box_public, role=device.role,
        tier=device.tier, time_s=now_s, expires_s=expiry_of(device.role, now_s),
        keyring=None if keeper else admin.keyring, ephemeral_seed=None if keeper else ports.randomness.draw(32))])


def join(admin: Membership, admin_addresses: Sequence[str], ports: Ports, device: DeviceSpec) -> None:
    """Certify one device and write its home."""
    keys = draw_keys(ports.randomness)
    certify(admin, ports, device, keys)
    Membership.adopt(ports.disk, ports.randomness, ports.clock, keys, admin.chain())
    AddressBook(ports.disk).keep(admin.device_public, next(iter(admin_addresses), None), ())


def household(all_ports: Sequence[Ports], devices: Sequence[DeviceSpec]) -> None:
    """A whole household at once: the first device founds it, every home then holds the same chain."""
    founder = found(all_ports[0], devices[0])
    drawn = [draw_keys(ports.randomness) for ports in all_ports[1:]]
    for ports, device, keys in zip(all_ports[1:], devices[1:], drawn, strict=True):
        certify(founder, ports, device, keys)
    for ports, keys in zip(all_ports[1:], drawn, strict=True):
        Membership.adopt(ports.disk, ports.randomness, ports.clock, keys, founder.chain())
