"""This device's secret keys on disk, and how they are exchanged for new ones without a moment in between.

    device.key        the keys in use
    device.key.next   keys that the chain is about to certify

New keys are on disk before the chain names them, and become `device.key` after it does. Whoever reads in between takes
the next keys exactly when the chain certifies them, so the home is at each instant the old device or the new one.
"""

from __future__ import annotations

from hinet_node.errors import IntegrityError
from hinet_node.home import DEVICE_KEY, DEVICE_KEY_NEXT
from hinet_node.ports import Disk, Randomness
from hinet_protocol.chain import Chain
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys, device_entropy_bytes


def draw_keys(randomness: Randomness) -> DeviceKeys:
    """New device keys."""
    return DeviceKeys.from_entropy(randomness.draw(device_entropy_bytes))


def read_keys(disk: Disk, chain: Chain) -> DeviceKeys:
    """The keys in use. Errors: `IntegrityError` when they are missing or damaged."""
    following = _next_keys(disk)
    if following is not None and chain.device(following.public) is not None:
        return following
    try:
        return DeviceKeys.from_bytes(disk.read(DEVICE_KEY))
    except (ProtocolError, FileNotFoundError) as error:
        raise IntegrityError(f"the home's keys are damaged: {error}", code="E_HOME_DAMAGED",
                             next_step="restore device.key from a backup, or begin as a new device: "
                                       "hinet-node init --rekey CODE") from error


def prepare_next(disk: Disk, randomness: Randomness, chain: Chain) -> DeviceKeys:
    """Keys that may replace those in use, durable; those of an earlier try that came to nothing are taken again, so
    that a fingerprint that was compared stays the same. Errors: `NoSpace`."""
    settle_keys(disk, chain)
    waiting = _next_keys(disk)
    if waiting is not None:
        return waiting
    keys = draw_keys(randomness)
    disk.write_atomic(DEVICE_KEY_NEXT, keys.to_bytes(), private=True)
    return keys


def settle_keys(disk: Disk, chain: Chain) -> None:
    """End an exchange that the chain knows of. The home's lock must be held. Errors: `NoSpace`."""
    following = _next_keys(disk)
    if following is not None and chain.device(following.public) is not None:
        disk.write_atomic(DEVICE_KEY, following.to_bytes(), private=True)
        disk.remove(DEVICE_KEY_NEXT)


def _next_keys(disk: Disk) -> DeviceKeys | None:
    """Keys that wait; damaged ones were never used, for a write is whole or not there."""
    try:
        return DeviceKeys.from_bytes(disk.read(DEVICE_KEY_NEXT))
    except (ProtocolError, FileNotFoundError):
        return None
